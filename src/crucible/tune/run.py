"""Tune a Problem on the GPU of this machine: its alternatives, in the order in which they are to be proven."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from crucible.fuse import Fused, FuseError, FuseOptions, fuse_problem
from crucible.plan.gpus import Gpu, tuned
from crucible.plan.ways import Choices
from crucible.tune import machine
from crucible.tune.bench import Bench
from crucible.tune.gpu_bench import GpuBench
from crucible.tune.result import Tuning
from crucible.tune.search import Search, sites
from crucible.tune.store import Store

Gauge = Callable[[str, float, float, str], None]  # step, seconds spent, seconds in all, what is being done


@dataclass
class Tuned:
    """Files in order: ``fused`` is to be proven next."""

    search: Search
    tuning: Tuning
    fused: Fused

    def refute(self, why: str) -> bool:
        """Go on to the next file; False where there is none."""
        before = self.tuning.winner
        self.search.refute(self.tuning, before, why)
        if self.tuning.winner == before:
            return False
        self.fused = chosen_file(self.search, self.tuning)
        return True


def wanted(options: FuseOptions, device: str | None) -> bool:
    """Whether to tune: as asked, else where a GPU is there and used. Raises FuseError where that cannot be."""
    if options.tune is False or (options.tune is None and device in ("sim", "cpu")):
        return False
    present = machine.have_gpu()
    if options.tune and not present:
        raise FuseError(
            "--tune measures on a CUDA GPU, and torch finds none here; --no-tune takes the cost model's choices"
        )
    return present


def with_shipped(source: Path, fused: Fused, gpu: Gpu) -> Fused:
    """The same with tiles that were measured for a known GPU, where there are such for its contractions."""
    options = fused.options
    shipped = tuned(gpu, fused.element, machine.grades(fused.element, options.precision))
    here = {site.text for site, _ in sites(fused)}
    picks = tuple(p for p in shipped.picks if p[0] in here)
    return fuse_problem(source, replace(options, choices=Choices(picks))) if picks else fused


def tune(source: Path, fused: Fused, gauge: Gauge) -> Tuned:
    """Measure the alternatives of a file, or remember what was measured."""
    options = fused.options
    budget = options.tune_budget

    def remake(engine: str, choices: Choices) -> Fused:
        return fuse_problem(source, replace(options, engine=engine, choices=choices))

    began = time.monotonic()

    def say(text: str) -> None:
        gauge("tuning", time.monotonic() - began, budget, text)

    say("looking for what was found before")
    bench = make_bench(source, "" if fused.mixed else fused.element, lambda name: say(f"ready: {name}"))
    try:
        search = Search(fused, remake, bench, Store(machine.here()), budget, say=lambda spent, text: say(text))
        tuning = search.run()
    finally:
        bench.close()
    return Tuned(search, tuning, chosen_file(search, tuning))


def chosen_file(search: Search, tuning: Tuning) -> Fused:
    row = tuning.chosen
    options = search.fused.options
    same = (row.engine, row.choices) == (options.engine, options.choices)
    fused = search.fused if same else search.remake(row.engine, row.choices)
    return replace(fused, tuning=tuning)


def make_bench(source: Path, element: str, said: Callable[[str], None]) -> Bench:
    return GpuBench(source, element, said)
