"""Fuse the problems on a real GPU and prove what comes out, at full size, in several element types; write a table.

    python tests/gpu/fuse_problems.py [--only NAME ...] [--dtypes float32 float16 bfloat16] [--jobs 3] [--out FOLDER]

Fusing is strict: an operator left to torch is a failure. Exit code 1 if any verdict is not "proven".
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent


def crucible(*arguments: str, limit: float) -> tuple[int, str, float]:
    """One command of ours: its exit code, what it said, and its seconds."""
    start = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "crucible", *arguments],
            capture_output=True, text=True, timeout=limit, check=False, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr, time.perf_counter() - start
    except subprocess.TimeoutExpired:
        return -1, f"still running after {limit:.0f} s", time.perf_counter() - start


def prove(problem: Path, new: Path, dtype: str, folder: Path, extra: list[str], limit: float) -> dict[str, Any]:
    target = folder / f"{problem.stem}.{dtype}.json"
    options = ["--device", "cuda", "--dtype", dtype, "--json", str(target), *extra]
    _, said, seconds = crucible("prove", str(problem), str(new), *options, limit=limit)
    row: dict[str, Any] = {"name": problem.stem, "dtype": dtype, "seconds": round(seconds, 1), "verdict": "no proof"}
    try:
        proof = json.loads(target.read_text())
    except (OSError, ValueError):
        return {**row, "message": said[-1500:]}
    reason = proof.get("reason") or {}
    row.update(verdict=proof["verdict"], code=reason.get("code"), message=(reason.get("message") or "")[:900])
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="problems by name")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float16", "bfloat16"])
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--limit", type=float, default=500, help="seconds for one proof")
    parser.add_argument("--fused", type=Path, default=Path("fused"), help="where the fused files are, or go")
    parser.add_argument("--out", type=Path, default=Path("proofs"))
    parser.add_argument("--fuse-only", action="store_true")
    parser.add_argument("extra", nargs="*", help="further options for prove")
    arguments = parser.parse_args()
    problems = [p for p in sorted((ROOT / "problems").glob("*.py")) if not arguments.only or p.stem in arguments.only]
    arguments.fused.mkdir(parents=True, exist_ok=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        missing = [p for p in problems if not (arguments.fused / p.name).exists()]

        def fuse(p: Path) -> tuple[Path, int, str, float]:
            target = str(arguments.fused / p.name)
            options = ["--strict", "--no-prove", "--no-tune", "--device", "cuda"]
            return p, *crucible("fuse", str(p), "-o", target, *options, limit=200)

        for p, code, said, seconds in pool.map(fuse, missing):
            print(f"fuse {p.stem}: exit {code}, {seconds:.1f} s", flush=True)
            if code:
                bad += 1
                print(said[-1500:], flush=True)
        if arguments.fuse_only:
            return 1 if bad else 0
        waiting = [
            pool.submit(prove, p, arguments.fused / p.name, d, arguments.out, arguments.extra, arguments.limit)
            for d in arguments.dtypes
            for p in problems
            if (arguments.fused / p.name).exists()
        ]
        rows = []
        for future in concurrent.futures.as_completed(waiting):
            row = future.result()
            rows.append(row)
            print(row["verdict"], row["name"], row["dtype"], f"{row['seconds']} s", row.get("code") or "", flush=True)
            if row["verdict"] != "proven":
                bad += 1
                print("     ", row["message"], flush=True)
    (arguments.out / "fused.json").write_text(json.dumps(sorted(rows, key=lambda r: (r["name"], r["dtype"])), indent=1))
    print(f"{len(rows) - bad} of {len(rows)} proven")
    return 1 if bad or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
