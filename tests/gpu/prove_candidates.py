"""Prove the manifest's candidates on a real GPU, several at a time, and write what came of it as a table.

    python tests/gpu/prove_candidates.py [--jobs 6] [--out FOLDER] [--only PREFIX ...] [-- extra options for prove]

Every candidate is built with nvcc and judged by ``crucible prove --device cuda`` at its declared sizes. Exit code 1 if
any verdict is not the expected one.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))


def judge(entry: Any, folder: Path, extra: list[str], limit: float) -> dict[str, Any]:
    """One candidate: the row of the table."""
    place = folder / entry.name.replace("/", "_")
    place.mkdir(parents=True)
    candidate = entry.materialise(place) if hasattr(entry, "materialise") else entry.candidate
    options = [part for key, value in entry.options.items() for part in _option(key, value)]
    command = [
        sys.executable, "-m", "crucible", "prove", str(entry.reference), str(candidate), "--device", "cuda",
        "--seed", "7", "--json", str(place / "proof.json"), *options, *extra,
    ]  # fmt: skip
    start = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, env=environment, check=False, cwd=ROOT
        )
        said = done.stdout + done.stderr
    except subprocess.TimeoutExpired as expired:
        said = f"still running after {expired.timeout:.0f} s"
    seconds = round(time.perf_counter() - start, 1)
    row: dict[str, Any] = {"name": entry.name, "expected": entry.verdict, "seconds": seconds}
    try:
        proof = json.loads((place / "proof.json").read_text())
    except (OSError, ValueError):
        return {**row, "verdict": "no proof", "as_expected": False, "said": said[-1500:]}
    reason = proof.get("reason") or {}
    row.update(verdict=proof["verdict"], code=reason.get("code"), message=(reason.get("message") or "")[:600])
    codes = set(entry.codes)
    right_reason = not codes or entry.verdict == "proven" or row["code"] in codes
    row["as_expected"] = proof["verdict"] == entry.verdict and right_reason
    row["environment"] = {k: proof.get("environment", {}).get(k) for k in ("torch", "python", "device")}
    row["checks"] = {c["name"]: c["status"] for c in proof.get("checks", [])}
    row["limits"] = proof.get("limits", [])
    return row


def _option(key: str, value: Any) -> list[str]:
    flag = "--" + key.replace("_", "-")
    return ([flag] if value else []) if isinstance(value, bool) else [flag, str(value)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--limit", type=float, default=400, help="seconds for one candidate")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", default=["correct/"], help="names that begin so")
    parser.add_argument(
        "--alone", nargs="*", default=[], help="problems that fill the GPU: one at a time, with prove --quick"
    )
    parser.add_argument("extra", nargs="*", help="further options for prove")
    arguments = parser.parse_args()
    from candidates.manifest import EXPECTATIONS

    chosen = [e for e in EXPECTATIONS if e.gpu and any(e.name.startswith(p) for p in arguments.only)]
    heavy = [e for e in chosen if any(e.reference.stem == name for name in arguments.alone)]
    rows = []
    with (
        tempfile.TemporaryDirectory() as folder,
        concurrent.futures.ThreadPoolExecutor(1) as alone,
        concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool,
    ):
        waiting = [alone.submit(judge, e, Path(folder), arguments.extra + ["--quick"], arguments.limit) for e in heavy]
        waiting += [
            pool.submit(judge, e, Path(folder), arguments.extra, arguments.limit) for e in chosen if e not in heavy
        ]
        for future in concurrent.futures.as_completed(waiting):
            row = future.result()
            rows.append(row)
            mark = "ok  " if row["as_expected"] else "BAD "
            print(mark, row["name"], row["verdict"], row.get("code") or "", f"{row['seconds']} s", flush=True)
            if not row["as_expected"]:
                print("     ", (row.get("message") or row.get("said", ""))[-1500:], flush=True)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "candidates.json").write_text(json.dumps(sorted(rows, key=lambda r: r["name"]), indent=1))
    bad = [r["name"] for r in rows if not r["as_expected"]]
    print(f"{len(rows) - len(bad)} of {len(rows)} as expected")
    return 1 if bad or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
