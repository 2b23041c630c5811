"""No cheat with the clock gains anything on a real GPU, and the clock says what plain CUDA events say.

One cheat of each kind runs in a race, every contender in a process of its own, which takes most of the time: two
minutes or so. Variants of the same cheats are in a second race, marked exhaustive.
``python -m pytest tests/gpu/test_timing_cheats.py -s -m "not exhaustive"`` prints the figures.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import timing_cheats
from crucible.race.names import EAGER
from crucible.race.record import Race
from crucible.race.run import race
from crucible.report.race_table import show

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

ROWS = 32768  # 128 MiB a tensor: more than any cache holds
AGREE = 0.03  # the most by which medians may differ
FLUSH = 256 << 20
ROUNDS, SAMPLES, WARM = 5, 3, 2

CONVOLUTION = '''
"""Products on tensor cores."""
import torch
import torch.nn as nn


class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(64, 128, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.conv(x))


def get_inputs():
    return [torch.rand({batch}, 64, 128, 128)]


def get_init_inputs():
    return []
'''


def run(folder: Path, reference: str, candidates: dict[str, str], device: str = "cuda") -> Race:
    (folder / "reference.py").write_text(reference)
    for name, text in candidates.items():
        (folder / f"{name}.py").write_text(text)
    result = race(
        folder / "reference.py", [folder / f"{name}.py" for name in candidates], device=device, unproven=True, seed=5,
        rounds=ROUNDS, samples=SAMPLES, warm=WARM, against=("eager",), timeout=60.0,
    )  # fmt: skip
    show(result, Console(width=160))
    return result


class Loop:
    """The timing loop that anybody would write: fresh inputs, a flushed cache, an event before and one after."""

    def __init__(self, text: str, device: str = "cuda") -> None:
        self.space: dict[str, Any] = {}
        exec(compile(text, "reference.py", "exec"), self.space)
        self.device = device
        self.model = self.space["Model"](*self.space["get_init_inputs"]()).to(device)
        self.flush = torch.empty(FLUSH if device == "cuda" else 1, dtype=torch.uint8, device=device)

    def once(self, seed: int) -> float:
        torch.manual_seed(seed)
        with torch.device(self.device):
            inputs = self.space["get_inputs"]()
        self.flush.zero_()
        if self.device != "cuda":
            began = time.perf_counter()
            self.model(*inputs)
            return 1e3 * (time.perf_counter() - began)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        self.model(*inputs)
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end)

    def median(self) -> float:
        taken = []
        with torch.no_grad():
            for turn in range(ROUNDS):
                times = [self.once(100 * turn + k) for k in range(WARM + SAMPLES)]
                taken += times[WARM:]
        if self.device == "cuda":
            torch.cuda.empty_cache()
        return statistics.median(taken)


def agreed(text: str, result: Race, before: float) -> None:
    """Eager in the race beside the same Model in a plain loop, which is run before the race and after it."""
    ours, after = result.passes[0].row(EAGER).times.median, Loop(text).median()
    theirs = (before + after) / 2
    print(f"race {ours:.4f} ms, plain events {before:.4f} ms before it, {after:.4f} ms after: {ours / theirs - 1:+.2%}")
    assert abs(ours / theirs - 1) < AGREE, (ours, before, after)


# One of each kind: a side stream, a background thread, a lazy tensor, a patched event, a cached result.
KINDS = ("side_stream", "thread", "lazy", "patched_event", "cached_by_pointer")


def raced(folder: Path, names: Iterable[str]) -> tuple[Race, float]:
    """One race of all these and an honest one, and the median of a plain loop before it."""
    text = timing_cheats.reference(ROWS)
    before = Loop(text).median()
    return run(folder, text, {n: timing_cheats.candidate(n) for n in ("honest", *names)}), before


@pytest.fixture(scope="module")
def everybody(tmp_path_factory) -> tuple[Race, float]:
    return raced(tmp_path_factory.mktemp("race"), KINDS)


@pytest.fixture(scope="module")
def variants(tmp_path_factory) -> tuple[Race, float]:
    return raced(tmp_path_factory.mktemp("variants"), (n for n in timing_cheats.CHEATS if n not in KINDS))


@pytest.mark.parametrize("name", KINDS)
def test_a_cheat_gains_nothing(everybody, name):
    gains_nothing(everybody[0], name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [n for n in timing_cheats.CHEATS if n not in KINDS])
def test_a_variant_gains_nothing(variants, name):
    gains_nothing(variants[0], name)


def gains_nothing(result: Race, name: str) -> None:
    (done,) = result.passes
    row, honest = done.row(name), done.row("honest").times
    print(f"{name}: {row.status}, {row.note or f'{row.times.median:.4f} ms'}; honest {honest.median:.4f} ms")
    if timing_cheats.CHEATS[name].refuted:
        assert row.status == "refuted" and row.times is None, row.note
    elif row.status != "refuted":
        assert row.status == "unproven", row.note  # neither failed nor proven
        assert row.times.median > 0.95 * honest.median and row.against[EAGER]["claim"] != "faster"


def test_the_honest_one_is_timed_and_the_same_as_eager(everybody):
    (done,) = everybody[0].passes
    assert done.row("honest").status == "unproven" and done.row("honest").against[EAGER]["claim"] == "same"
    assert done.row("thread").left_threads and done.row("thread").times.median > 2.0  # its sleep is in its time


def test_medians_agree_with_plain_events(everybody):
    result, before = everybody
    agreed(timing_cheats.reference(ROWS), result, before)


def test_medians_of_products_agree_with_plain_events(tmp_path):
    text, new = (CONVOLUTION.format(name=n, batch=128) for n in ("Model", "ModelNew"))
    before = Loop(text).median()
    agreed(text, run(tmp_path, text, {"same": new}), before)
