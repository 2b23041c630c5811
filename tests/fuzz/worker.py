"""A process with the simulated device that runs generated files and compares: requests and answers are JSON lines.

Installing the device must come before torch is imported, so this cannot be the test's own process; and torch.export
does not work beside the device, so files come here finished.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "src")]

from crucible.sim import device  # noqa: E402

device.install()

import torch  # noqa: E402
from batch import File, build, loaded  # noqa: E402
from measure import compared  # noqa: E402

torch.set_num_threads(1)
# TF32 would hide small mistakes: products are to be as good as float32.
torch.backends.cudnn.allow_tf32 = False
GRADES = {"simt": 0, "mma": 2}  # the grade of contractions for float32 without TF32


def answer(jobs: list[dict[str, Any]]) -> list[str]:
    """What is wrong with each job's file, or nothing."""
    wrong = [""] * len(jobs)
    for engine in dict.fromkeys(job["engine"] for job in jobs):
        _build_and_run(engine, [k for k, job in enumerate(jobs) if job["engine"] == engine], jobs, wrong)
    return wrong


def _build_and_run(engine: str, mine: list[int], jobs: list[dict[str, Any]], wrong: list[str]) -> None:
    grade = GRADES[engine]
    flags = ["-DCRUCIBLE_SCALAR=0", "-DCRUCIBLE_WIDE=0", f"-DCRUCIBLE_CONV={grade}", f"-DCRUCIBLE_MATMUL={grade}"]
    files = [File(**jobs[k]["file"]) for k in mine]
    start = time.perf_counter()
    try:
        kernel = build(files, flags)
    except Exception as error:
        if len(mine) == 1:
            wrong[mine[0]] = f"does not compile: {error}\n{getattr(error, 'log', '')[:2000]}\n{files[0].text}"
            return
        for k in mine:  # one of them is to blame
            _build_and_run(engine, [k], jobs, wrong)
        return
    built = time.perf_counter()
    for number, k in enumerate(mine):
        try:
            wrong[k] = compared(jobs[k], loaded(files[number], number, kernel))
        except Exception:
            wrong[k] = traceback.format_exc(limit=-6)
    ran = time.perf_counter() - built
    print(f"{len(mine)} files: built in {built - start:.1f} s, ran in {ran:.1f} s", file=sys.stderr)


def main() -> None:
    warnings.simplefilter("ignore")
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints must not get between the answers
    for line in sys.stdin:
        replies.write(json.dumps(answer(json.loads(line))) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
