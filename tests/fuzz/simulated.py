"""Fuse many graphs and run them in the simulator, a batch at a time: one build and one process for all of them.

``with Simulated() as s: s.check(jobs)`` gives a Verdict for each Job. A job is the text of a Problem file, the shapes
of its inputs and the engine; ``measure.py`` says what is compared, ``batch.py`` how kernels share a build.
"""

from __future__ import annotations

import json
import linecache
import subprocess
import sys
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from crucible.emit.functions import passes_of
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
        """Verdicts in order. While the worker builds and runs one batch, the next is fused here."""
        verdicts: list[Verdict] = []
        waiting: list[Verdict] = []
        for start in range(0, len(jobs), batch):
            fused, asked = _fused(jobs[start : start + batch])
            if waiting:
                verdicts += self._answered(waiting)
            self._ask(asked)
            self._asked, waiting = asked, fused
        return verdicts + (self._answered(waiting) if waiting else [])

    def _answered(self, waiting: list[Verdict]) -> list[Verdict]:
        wrong = iter(self._answer(self._asked))
        return [replace(v, ok=not w, problem=w) if v.ok and (w := next(wrong)) is not None else v for v in waiting]

    def _ask(self, asked: list[dict[str, Any]]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()

    def _answer(self, asked: list[dict[str, Any]]) -> list[str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            return list(json.loads(line))
        code = self.process.wait()  # a kernel took the process with it: which one?
        self.__enter__()
        if len(asked) == 1:
            return [f"the worker died with status {code}"]
        wrong = []
        for one in asked:
            self._ask([one])
            wrong += self._answer([one])
        return wrong


def _fused(jobs: Sequence[Job]) -> tuple[list[Verdict], list[dict[str, Any]]]:
    """What is known after fusing, and the requests for the files that there are."""
    verdicts, asked = [], []
    for job in jobs:
        try:
            made = fuse_job(job)
        except Exception:
            verdicts.append(Verdict(False, f"fuse failed:\n{traceback.format_exc(limit=-6)}"))
            continue
        verdicts.append(Verdict(True, "", made.unfused))
        asked.append({**asdict(job), "shapes": [list(s) for s in job.shapes], "file": _file(made)})
    return verdicts, asked


def fuse_job(job: Job) -> Fused:
    names = _imported(job.source)
    model = names["Model"](*names["get_init_inputs"]()).to("meta")
    with torch.device("meta"):
        inputs = names["get_inputs"]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fuse_source(job.source, "drawn.py", model, inputs, FuseOptions(engine=job.engine))


def _imported(source: str) -> dict[str, Any]:
    """The names of a Problem file, as if it had been imported: the source of its classes can be looked at."""
    module = ModuleType("drawn")
    module.__file__ = "<drawn>"
    sys.modules["drawn"] = module
    linecache.cache["<drawn>"] = (len(source), None, source.splitlines(keepends=True), "<drawn>")
    exec(compile(source, "<drawn>", "exec"), module.__dict__)
    return module.__dict__


def _file(fused: Fused) -> dict[str, Any]:
    functors = [f for mode in fused.modes for m in (mode, mode.inference) if m is not None for f in m.functors.values()]
    parts = {k: set().union(*(getattr(f, k) for f in functors)) for k in ("templates", "functions", "structs")}
    parts["templates"] |= {t for mode in fused.modes for run in passes_of(mode) for t in run.templates}
    return {"text": fused.text, **{k: sorted(names) for k, names in parts.items()}}
