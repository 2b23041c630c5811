"""The race and the timer of stages: their arithmetic and tables, and a whole run each on the simulated device."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import stage

import race
from crucible.fuse import FuseOptions, fuse_problem
from crucible.plan import gpus
from crucible.race.light import Light

ROOT = Path(__file__).parents[2]
quick = pytest.mark.quick
PROBLEM = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 24)

    def forward(self, x, y):
        return torch.relu(self.linear(x)) + y


def get_inputs():
    return [torch.rand(8, 16), torch.rand(8, 24)]


def get_init_inputs():
    return [16]
"""


@pytest.fixture
def problem(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(PROBLEM)
    return path


def row(contender, median=None, error=None, note=None):
    return race.Row("p", "forward", "float32", contender, "8x16", median, median, median, error, 0.5, note)


@quick
def test_ratios_and_errors_are_beside_the_others():
    rows = [row("eager", 4.0, 1e-4), row("compile", 2.0, 1e-4), row("ModelNew", 1.0, 3e-4), row("x", note="no")]
    made = {r.contender: r for r in (race._beside(r, rows) for r in rows)}
    assert made["ModelNew"].ratio == 0.5 and made["eager"].ratio == 4.0 and made["x"].ratio is None
    assert "WRONG" in made["ModelNew"].note and made["compile"].note is None and made["x"].note == "no"
    assert "FAILED: no" in race._line(made["x"])


@quick
def test_rates():
    lane = race.Lane("ModelNew", times=[3.0, 1.0, 2.0])
    made = race._row(row(""), lane, Light(2_000_000, 0, 4_000_000_000, 0.5, 0.0, "memory", "graph"))
    assert (made.median, made.low, made.high) == (2.0, 1.0, 3.0)
    assert (made.gbs, made.tflops, made.of_floor) == (1.0, 2.0, 0.25)
    assert all(word in race._line(made) for word in ("2.000 ms", "(1.000 .. 3.000)", "TFLOP/s", "GB/s", "25% reached"))


@quick
def test_rows_are_appended_to_a_table(tmp_path):
    path = tmp_path / "results" / "race.csv"
    race.append(path, [row("eager", 4.0, 1e-4)], {"gpu": "A", "commit": "abc"})
    race.append(path, [row("ModelNew", 2.0), row("x", note="out of memory, it says")], {"gpu": "B", "commit": None})
    with path.open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [(r["gpu"], r["contender"], r["median"]) for r in read] == [
        ("A", "eager", "4"), ("B", "ModelNew", "2"), ("B", "x", ""),
    ]  # fmt: skip
    assert read[2]["note"] == "out of memory, it says"


@quick
def test_stages_have_the_plans_own_counts(problem):
    fused = fuse_problem(problem, FuseOptions())
    counted = stage.costs(fused, training=False)
    ((key, (cost, absorbs)),) = counted.items()
    assert key[0] == "forward" and cost.contraction == 2 * 8 * 16 * 24 and "relu" in absorbs
    assert {part for part, _ in stage.costs(fused, training=True)} == {"forward", "backward"}
    taken = {key: [2.0, 2.0], ("forward", "rows_9"): [1.0]}
    known, strange = stage.rows_of(taken, counted, gpus.find("h200"), fused)
    assert known.gbs == cost.bytes / 2e6 and known.tflops == cost.contraction / 2e9 and known.floor > 0
    assert strange.floor is None and "not in the plan" in stage.table([known, strange])


def test_on_the_simulated_device(problem, tmp_path):
    """Both scripts from end to end; its events tell no time, so one is made up."""
    new, table, script = tmp_path / "new.py", tmp_path / "race.csv", tmp_path / "script.py"
    new.write_text(fuse_problem(problem, FuseOptions()).text)
    script.write_text(f"""
import sys
sys.path.insert(0, {str(ROOT / "benchmarks")!r})
from crucible.sim import device
device.install()
import torch
torch.cuda.Event.elapsed_time = lambda start, end: 1.5
import measuring, race, stage
from crucible.race import clock
clock.Clock._find_lag = lambda self: 0.0
measuring.FLUSH_BYTES = 1024
measuring.ceilings = lambda: {{"copy": 4000.0, "fp32": 50.0, "tf32": 400.0, "fp16": 750.0}}
sys.argv = ["race.py", {str(problem)!r}, {str(new)!r}, {str(problem)!r}, "missing.py", "--contenders", "eager",
            "ModelNew", "--samples", "2", "--batch", "5", "--table", {str(table)!r}]
print("race", race.main())
print("stage", stage.main([{str(problem)!r}, {str(new)!r}, "--samples", "2", "--what", "training"]))
print("stage", stage.main([{str(problem)!r}, {str(new)!r}, "--samples", "1", "--stage", "none_1"]))
""")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=300)
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    assert "race 1" in said and "ModelNew FAILED, forward: FileNotFoundError" in said  # the second pair
    assert "stage 0" in said and "stage 2" in said and "backward  contract_1" in said
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8 and {r["sizes"] for r in rows} == {"5x16 5x24"}
    assert all(float(r["error"]) < 1e-6 for r in rows[:4]) and [r["median"] for r in rows[:4]] == ["1.5"] * 4
