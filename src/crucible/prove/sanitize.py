"""compute-sanitizer on a GPU machine: one forward and backward of the candidate under memcheck and racecheck."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import crucible
from crucible.prove.proof import Check, Finding, Refutation
from crucible.prove.session import Session

TOOLS = ("memcheck", "racecheck")
_ERROR = re.compile(r"========= (Invalid|Race reported|Error|Uninitialized|Misaligned|Program hit)(.*)")
_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")
CODES = {"memcheck": "out_of_bounds", "racecheck": "race_shared"}


def find_tool() -> str | None:
    for place in (
        shutil.which("compute-sanitizer"),
        "/usr/local/cuda/bin/compute-sanitizer",
        "/usr/local/cuda/compute-sanitizer/compute-sanitizer",
    ):
        if place and Path(place).exists():
            return place
    return None


def sanitize(session: Session, check: Check) -> None:
    """Rerun the first small trial in a plain process under each tool. (It runs outside the sandbox's walls but in the
    candidate's scratch folder; the candidate has already been run inside them.)"""
    tool = find_tool()
    if tool is None:
        check.note("--sanitize: compute-sanitizer is not installed")
        session.limits.append("compute-sanitizer was asked for and is not installed")
        return
    from crucible.prove.cases import Spec

    spec = Spec(
        "sanitizer",
        session.seed("sanitizer"),
        session.small,
        values="normal",
        training=session.training,
        brief=True,
        grads=not session.options.forward_only,
        steady=False,
    )
    case, _ = session.prepare(spec)
    request = session.scratch / "sanitize.json"
    request.write_text(
        json.dumps(
            {
                "case": case,
                "init": session.problem["init"],
                "cases": str(session.cases),
                "scratch": str(session.scratch),
                "file": session.file,
            }
        )
    )
    for name in TOOLS:
        _run_tool(session, check, tool, name, request)


def _run_tool(session: Session, check: Check, tool: str, name: str, request: Path) -> None:
    env = {
        **os.environ,
        "PYTHONPATH": str(Path(crucible.__file__).parents[1]),
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "TORCH_EXTENSIONS_DIR": str(session.extensions),  # built already
    }
    command = [
        tool,
        "--tool",
        name,
        "--print-limit",
        "5",
        sys.executable,
        "-m",
        "crucible.prove.sanitize",
        str(request),
    ]
    try:
        done = subprocess.run(
            command,
            env=env,
            capture_output=True,
            text=True,
            timeout=10 * session.options.timeout,
            cwd=session.scratch,
            check=False,
        )
    except subprocess.TimeoutExpired:
        check.note(f"{name}: no answer in time")
        session.limits.append(f"compute-sanitizer's {name} did not finish in time")
        return
    text = done.stdout + done.stderr
    summary = _SUMMARY.search(text)
    count = int(next((g for g in summary.groups() if g), "0")) if summary else -1
    if count > 0:
        lines = [m.group(0).removeprefix("========= ") for m in _ERROR.finditer(text)][:3]
        first = lines[0] if lines else f"{count} errors"
        code = "misaligned" if "isaligned" in first else CODES[name]
        raise Refutation(Finding(code, f"compute-sanitizer {name}: {first}", {"lines": lines, "count": count}))
    if count < 0:
        session.limits.append(f"compute-sanitizer's {name} gave no summary (exit {done.returncode})")
    check.note(f"compute-sanitizer {name}: " + ("no errors" if count == 0 else f"no summary (exit {done.returncode})"))


def main(path: str) -> None:
    """Inside the tool: load the candidate and run the one case."""
    from crucible.prove.runner import Runner

    request: dict[str, Any] = json.loads(Path(path).read_text())
    runner = Runner({"device": "cuda", **{k: request[k] for k in ("scratch", "cases", "file")}})
    runner.load({})
    runner.construct({"init": request["init"], "seed": 0})
    outcome = runner.run({"case": request["case"], "mode": {"save": False, "poison": False}})
    if outcome.get("error"):
        print(outcome["error"])
        sys.exit(3)


if __name__ == "__main__":
    main(sys.argv[1])
