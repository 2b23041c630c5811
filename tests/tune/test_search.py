"""The search with a bench that needs no GPU: what is tried, what wins, what is remembered, and what it may cost."""

from __future__ import annotations

import fnmatch
import functools
import json
import warnings
from dataclasses import replace

import pytest

from crucible.fuse import FuseOptions, fuse_problem
from crucible.plan.stages import Contraction
from crucible.plan.ways import Choices, ways
from crucible.tune import machine as machines
from crucible.tune.bench import REFERENCE, Checked, Timing
from crucible.tune.machine import Machine
from crucible.tune.result import DEFAULT, TRIES, Row, Tuning
from crucible.tune.search import Search, problem_parts, sites
from crucible.tune.store import Store

quick = pytest.mark.quick  # some of each kind

HOPPER = Machine("NVIDIA H200", (9, 0), "580.1", "2.11", "13.0")
AMPERE = replace(HOPPER, gpu="NVIDIA A100", capability=(8, 0))
PROBLEM = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 96)
        self.second = nn.Linear(96, 40)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def get_inputs():
    return [torch.rand(32, 64)]


def get_init_inputs():
    return []
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """remake(engine, choices), with a memory: planning takes most of a second."""
    path = tmp_path_factory.mktemp("problem") / "model.py"
    path.write_text(PROBLEM)

    @functools.cache
    def remake(engine="auto", choices=Choices()):  # noqa: B008
        return fuse_problem(path, FuseOptions(engine=engine, choices=choices, forward_only=True))

    return remake


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class FakeBench:
    """Times by name, or by a pattern; a number, or the reason for a failure."""

    def __init__(self, times=None, errors=None, seconds=1.0, clock=None):
        self.times, self.errors, self.seconds, self.clock = times or {}, errors or {}, seconds, clock or Clock()
        self.calls: list[tuple[str, list[str]]] = []
        self.alive: set[str] = set()
        self.given: list[float] = []
        self.closed = 0

    def _of(self, table, name, default):
        return next((v for k, v in table.items() if fnmatch.fnmatch(name, k)), default)

    def check(self, candidates, seconds):
        self.calls.append(("check", [c.name for c in candidates]))
        self.given.append(seconds)
        found = {}
        for c in candidates:
            self.clock.now += self.seconds
            error = self._of(self.errors, c.name, 1e-6)
            found[c.name] = Checked(None, error) if isinstance(error, str) else Checked(error)
            if not isinstance(error, str):
                self.alive.add(c.name)
        return found

    def time(self, names, seconds):
        self.calls.append(("time", list(names)))
        self.given.append(seconds)
        assert set(names) <= self.alive, "only what was checked and kept can be timed"
        found = {}
        for n in names:
            self.clock.now += self.seconds
            t = self._of(self.times, n, 10.0)
            found[n] = Timing(None, failed=t) if isinstance(t, str) else Timing(t, 0.9 * t, 1.1 * t)
        return found

    def keep(self, names):
        self.alive &= set(names)

    def close(self):
        self.closed += 1

    @property
    def tried(self):
        return [n for what, names in self.calls if what == "check" for n in names]

    @property
    def timed(self):
        return [n for what, names in self.calls if what == "time" for n in names]


def run(files, store, bench, budget=1000.0):
    return Search(files(), files, bench, store, budget, clock=bench.clock).run()


def test_the_default_stays_where_nothing_is_faster(files, tmp_path):
    bench = FakeBench()
    found = run(files, Store(HOPPER, tmp_path), bench)
    assert found.winner == DEFAULT and not found.cut and not found.cached and bench.closed == 1
    names = [r.name for r in found.rows]
    assert names[0] == DEFAULT and REFERENCE in names and "engine simt" in names
    assert any(n.startswith("addmm: ") for n in names) and any(n.startswith("addmm_1: ") for n in names)
    assert len(bench.calls) == 6  # engines, and two contractions: checked, then timed


def test_tiles_are_chosen_one_contraction_after_another(files, tmp_path):
    (first, one), (second, two) = sites(files())
    a, b = ways(first, True)[1], ways(second, True)[2]
    bench = FakeBench({f"{one}: {a.label}": 5.0, f"{two}: {b.label}": 4.0, REFERENCE: 20.0})
    store = Store(HOPPER, tmp_path)
    found = run(files, store, bench)
    assert dict(found.chosen.choices.picks) == {first.text: a.label, second.text: b.label}
    assert found.chosen.median == 4.0 and not found.reference_wins
    made = files(found.chosen.engine, found.chosen.choices)
    tiles = {s.site: s.tile for s in made.modes[0].plan.stages if isinstance(s, Contraction)}
    assert tiles == {first: a.tile, second: b.tile}
    # The best so far is timed again beside what it is compared with.
    assert bench.calls[-1][1][0] == f"{one}: {a.label}"
    assert store.site(first, "float32", "fp32", True) == a.label


def test_noise_does_not_win(files, tmp_path):
    found = run(files, Store(HOPPER, tmp_path), FakeBench({"addmm: *": 9.95}))
    assert found.winner == DEFAULT


@quick
def test_another_engine_wins_and_its_tiles_are_tried(files, tmp_path):
    bench = FakeBench({"engine simt": 5.0, "addmm: simt*": 4.0})
    found = run(files, Store(AMPERE, tmp_path), bench)
    assert found.chosen.engine == "simt" and found.chosen.name.startswith("addmm: simt tile")
    assert "engine mma" not in bench.tried  # the same kernels as auto's on this chip


@quick
def test_the_reference_may_be_the_fastest(files, tmp_path):
    found = run(files, Store(HOPPER, tmp_path), FakeBench({REFERENCE: 3.0}))
    assert found.winner == DEFAULT and found.reference_wins and found.row(REFERENCE).median == 3.0
    assert REFERENCE not in [r.name for r in found.order()]


@quick
def test_a_hang_or_a_crash_costs_one_candidate(files, tmp_path):
    (first, one), _ = sites(files())
    hangs, crashes, good = (f"{one}: {w.label}" for w in ways(first, True)[1:4])
    bench = FakeBench({hangs: "not timed after 60 s", good: 5.0}, {crashes: "its process ended"})
    found = run(files, Store(HOPPER, tmp_path), bench)
    assert found.winner == good and found.row(hangs).note == "not timed after 60 s"
    assert found.row(crashes).note == "its process ended" and crashes not in bench.timed
    assert found.row(hangs).median is None


@quick
@pytest.mark.parametrize("error", [1e-3, float("inf"), float("nan")])
def test_what_is_wrong_is_not_timed(files, tmp_path, error):
    (first, one), _ = sites(files())
    wrong = f"{one}: {ways(first, True)[1].label}"
    bench = FakeBench({wrong: 1.0}, {wrong: error})
    found = run(files, Store(HOPPER, tmp_path), bench)
    assert found.winner == DEFAULT and wrong not in bench.timed and "allowed" in found.row(wrong).note
    json.dumps(found.to_json(), allow_nan=False)


def test_a_default_that_fails_leaves_the_others(files, tmp_path):
    bench = FakeBench({"engine simt": 7.0}, {DEFAULT: "it does not build"})
    found = run(files, Store(AMPERE, tmp_path), bench)
    assert found.chosen.engine == "simt" and found.row(DEFAULT).note == "it does not build"


def test_nothing_could_be_timed(files, tmp_path):
    store = Store(HOPPER, tmp_path)
    bench = FakeBench(errors={"*": "no compiler"})
    found = run(files, store, bench)
    assert found.winner == DEFAULT and found.chosen.median is None and not list(tmp_path.iterdir())


@quick
def test_the_budget_is_kept_and_a_larger_one_goes_on(files, tmp_path):
    store = Store(HOPPER, tmp_path)
    bench = FakeBench(seconds=1.0)
    found = run(files, store, bench, budget=9.0)
    assert found.cut and found.winner == DEFAULT and len(bench.tried) < 12
    assert all(g <= 9.0 for g in bench.given) and sum(1 for c in bench.calls if c[0] == "check") <= 2
    again = FakeBench()
    assert run(files, store, again, budget=9.0).cached and not again.calls
    assert not run(files, store, again, budget=1000.0).cut and again.calls


@quick
def test_what_was_found_is_remembered(files, tmp_path):
    store = Store(HOPPER, tmp_path)
    (first, one), _ = sites(files())
    bench = FakeBench({f"{one}: {ways(first, True)[1].label}": 5.0})
    before = run(files, store, bench)
    silent = FakeBench()
    after = run(files, store, silent)
    assert after.cached and silent.calls == [] and after.winner == before.winner
    assert after.rows == before.rows
    assert files(after.chosen.engine, after.chosen.choices).text == files(
        before.chosen.engine, before.chosen.choices
    ).text


def test_tiles_found_in_one_problem_serve_another(files, tmp_path):
    store = Store(HOPPER, tmp_path)
    (first, one), (second, two) = sites(files())
    label = ways(first, True)[1].label
    store.keep_site(first, "float32", "fp32", True, label, {})
    bench = FakeBench({"tiles as found before": 6.0})
    found = run(files, store, bench)
    assert found.winner == "tiles as found before" and dict(found.chosen.choices.picks) == {first.text: label}
    assert not any(n.startswith(f"{one}: ") for n in bench.tried)
    assert any(n.startswith(f"{two}: ") for n in bench.tried)


@pytest.mark.parametrize(
    "other",
    [
        replace(HOPPER, gpu="NVIDIA H100"), replace(HOPPER, driver="590.0"), replace(HOPPER, torch="2.12"),
        replace(HOPPER, cuda="13.1"),
    ],
)  # fmt: skip
def test_another_machine_measures_anew(files, tmp_path, other):
    run(files, Store(HOPPER, tmp_path), FakeBench())
    bench = FakeBench()
    assert not run(files, Store(other, tmp_path), bench).cached and bench.calls


def test_other_kernels_types_sizes_and_precisions_measure_anew(files, tmp_path, monkeypatch):
    run(files, Store(HOPPER, tmp_path), FakeBench())
    monkeypatch.setattr(machines, "planner_digest", lambda: "another")
    bench = FakeBench()
    assert not run(files, Store(HOPPER, tmp_path), bench).cached and bench.calls
    fused = files()
    grades = machines.grades("float32", "torch")
    parts = {
        problem_parts(fused, grades),
        problem_parts(fused, machines.grades("float32", "tf32")),
        problem_parts(replace(fused, element="float16"), machines.grades("float16", "torch")),
    }
    (first, _), _ = sites(fused)
    store = Store(HOPPER, tmp_path)
    store.keep_site(first, "float32", "fp32", True, "x", {})
    assert len(parts) == 3
    others = [("float16", "native", True), ("float32", "tf32", True), ("float32", "fp32", False)]
    assert all(store.site(first, *o) is None for o in others)
    assert store.site(replace(first, rows=first.rows + 1), "float32", "fp32", True) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": 1}', '{"schema": 7}', '{"schema": 1, "tuning": {"rows": 3}}']
)
def test_a_damaged_file_is_ignored_and_written_again(files, tmp_path, text):
    store = Store(HOPPER, tmp_path)
    run(files, store, FakeBench())
    for path in tmp_path.iterdir():
        path.write_text(text)
    bench = FakeBench()
    with pytest.warns(UserWarning, match="was ignored"):
        assert not run(files, store, bench).cached
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(files, store, FakeBench()).cached
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".tmp"] == []


def test_a_cache_that_cannot_be_written_costs_a_warning(files, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="could not be kept"):
        assert run(files, Store(HOPPER, tmp_path / "file" / "tune"), FakeBench()).winner == DEFAULT


@quick
def test_a_refuted_winner_falls_to_the_next_and_never_wins_again(files, tmp_path):
    store = Store(HOPPER, tmp_path)
    (first, one), _ = sites(files())
    a, b = ways(first, True)[1:3]
    bench = FakeBench({f"{one}: {a.label}": 5.0, f"{one}: {b.label}": 6.0})
    search = Search(files(), files, bench, store, 1000.0, clock=bench.clock)
    tuning = search.run()
    assert tuning.winner == f"{one}: {a.label}"
    search.refute(tuning, tuning.winner, "wrong")
    assert tuning.winner == f"{one}: {b.label}" and store.site(first, "float32", "fp32", True) is None
    again = run(files, store, FakeBench())
    assert again.cached and again.winner == tuning.winner and again.row(f"{one}: {a.label}").refuted == "wrong"


@quick
def test_few_are_refuted_before_the_default():
    rows = [Row(DEFAULT, "auto", median=9.0), *(Row(f"r{k}", "auto", median=float(k + 1)) for k in range(6))]
    tuning = Tuning("gpu", "float32", rows, "r0", 120.0)
    seen = []
    while not seen or tuning.winner != seen[-1]:
        seen.append(tuning.winner)
        tuning.refute(tuning.winner, "no")
    assert seen == [f"r{k}" for k in range(TRIES)] + [DEFAULT]


def test_the_same_times_give_the_same_file(files, tmp_path):
    times = {"addmm: mma tile 64*": 5.0, "addmm_1: mma tile 32*": 4.5}
    found = [run(files, Store(HOPPER, tmp_path / str(k)), FakeBench(times)) for k in range(2)]
    assert found[0].rows == found[1].rows and found[0].winner == found[1].winner
