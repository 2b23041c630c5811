"""Fuse many graphs and run them in the simulator, a batch at a time: one build and one process for all of them.

``with Simulated() as s: s.check(jobs)`` gives a Verdict for each Job. A job is the text of a Problem file, the shapes of
its inputs and the engine; ``measure.py`` says what is compared, ``batch.py`` how kernels share a build.
"""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from crucible.fuse import Fused, FuseOptions, fuse_source

BATCH = 20


@dataclass(frozen=True)
class Job:
    source: str
    shapes: tuple[tuple[int, ...], ...]
    engine: str = "simt"
    batch: int = 1  # of the last set of sizes; 0 is a size too


@dataclass(frozen=True)
class Verdict:
    ok: bool
    problem: str
    unfused: list[tuple[str, str]] = field(default_factory=list)  # operators that stayed torch's, with the reason


class Simulated:
    """A worker process with the simulated device."""

    def __enter__(self) -> Simulated:
        worker = Path(__file__).with_name("worker.py")
        self.process = subprocess.Popen(
            [sys.executable, str(worker)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def check(self, jobs: Sequence[Job], batch: int = BATCH) -> list[Verdict]:
        verdicts: list[Verdict] = []
        for start in range(0, len(jobs), batch):
            verdicts += self._batch(jobs[start : start + batch])
        return verdicts

    def _batch(self, jobs: Sequence[Job]) -> list[Verdict]:
        verdicts: dict[int, Verdict] = {}
        asked: dict[int, dict[str, Any]] = {}
        for k, job in enumerate(jobs):
            try:
                fused = fuse_job(job)
            except Exception:
                verdicts[k] = Verdict(False, f"fuse failed:\n{traceback.format_exc(limit=-6)}")
                continue
            asked[k] = {**asdict(job), "shapes": [list(s) for s in job.shapes], "file": _file(fused)}
            verdicts[k] = Verdict(True, "", fused.unfused)
        for k, wrong in zip(asked, self._ask(list(asked.values()))):
            verdicts[k] = Verdict(not wrong, wrong, verdicts[k].unfused)
        return [verdicts[k] for k in range(len(jobs))]

    def _ask(self, asked: list[dict[str, Any]]) -> list[str]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if line:
            return list(json.loads(line))
        code = self.process.wait()  # a kernel took the process with it
        self.__enter__()
        return [f"the worker died with status {code}"] if len(asked) == 1 else [w for a in asked for w in self._ask([a])]


def fuse_job(job: Job) -> Fused:
    names: dict[str, Any] = {"__name__": "drawn"}
    exec(compile(job.source, "<drawn>", "exec"), names)
    model = names["Model"](*names["get_init_inputs"]()).to("meta")
    with torch.device("meta"):
        inputs = names["get_inputs"]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fuse_source(job.source, "drawn.py", model, inputs, FuseOptions(engine=job.engine))


def _file(fused: Fused) -> dict[str, Any]:
    functors = [f for mode in fused.modes for m in (mode, mode.inference) if m is not None for f in m.functors.values()]
    parts = {k: sorted(set().union(*(getattr(f, k) for f in functors))) for k in ("templates", "functions", "structs")}
    return {"text": fused.text, **parts}
