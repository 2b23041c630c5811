"""One step of one file in a process of its own, within a limit of time, on whatever machine this runs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crucible

GRACE = 10.0  # seconds for a process that was told to end


def run_step(
    request: dict[str, Any], work: Path, limit: float, env: dict[str, str], stopping: Callable[[], bool] = lambda: False
) -> dict[str, Any]:
    """The answer of ``crucible.sweep.job``, or why there is none; ``env`` is all of its environment."""
    place = Path(tempfile.mkdtemp(dir=work))
    question, answer, log = place / "request.json", place / "answer.json", place / "log.txt"
    question.write_text(json.dumps(request), encoding="utf-8")
    paths = os.pathsep.join(filter(None, [str(Path(crucible.__file__).parents[1]), env.get("PYTHONPATH")]))
    began = time.monotonic()
    if stopping():
        return {"status": "stopped", "reason": None, "seconds": 0.0}
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "crucible.sweep.job", str(question), str(answer)], stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env={**env, "PYTHONPATH": paths},
            )  # fmt: skip
            try:
                while process.poll() is None and not stopping() and time.monotonic() - began < limit:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(0.2)
                late = process.poll() is None
            finally:
                _end(process)
        seconds = time.monotonic() - began
        if stopping():  # what it says when told to end is no answer
            return {"status": "stopped", "reason": None, "seconds": seconds}
        if late:
            return {"status": "time limit", "reason": f"not done after {limit:g} s", "seconds": seconds}
        if answer.is_file():
            found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
            return found
        return {"status": "failed", "reason": _last_words(log, process.returncode), "seconds": seconds}
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The process and what it started in its group; sandboxes of its own end with it."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            process.terminate()  # so that it can clean up behind itself
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_words(log: Path, code: int) -> str:
    said = [x.strip() for x in log.read_text(errors="replace").splitlines() if x.strip()]
    how = f"ended by signal {-code}" if code < 0 else f"ended with status {code}"
    return f"its process {how}" + (f": {said[-1][:300]}" if said else "")
