"""On a real GPU: a race says how its time divides among kernels, and a page finds the plan's kernels among them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from crucible.fuse_to_file import fuse_file
from crucible.race.run import race
from crucible.report.page.files import report
from crucible.report.page.plan_section import kernel_times, raced_passes
from crucible.report.page.subject import read

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

REFERENCE = '''"""A matrix product, an activation and a normalisation, large enough to take a while."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1024, 1024)
        self.norm = nn.GroupNorm(8, 1024)

    def forward(self, x):
        return self.norm(torch.relu(self.linear(x)))


def get_inputs():
    return [torch.rand(32768, 1024)]


def get_init_inputs():
    return []
'''


def test_a_time_divides_among_the_kernels_of_the_plan(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(REFERENCE)
    made = fuse_file(tmp_path / "model.py", tmp_path / "new.py", prove=False, tune=False)
    result = race(tmp_path / "model.py", [tmp_path / "new.py"], unproven=True, against=("eager",), rounds=3, samples=3,
                  train=True)  # fmt: skip
    plan = made.explained.to_json()
    result.candidates[0].plan = plan
    assert not [w for w in result.warnings if "one by one" in w], result.warnings
    forward = result.passes[0].row("new")
    assert forward is not None and forward.kernels and forward.times is not None
    total = sum(k["milliseconds"] for k in forward.kernels)
    assert 0.4 * forward.times.median < total < 1.2 * forward.times.median, (total, forward.times)
    assert result.passes[1].row("new").kernels  # type: ignore[union-attr]

    record = tmp_path / "race.json"
    record.write_text(json.dumps(result.to_json()))
    subject = read(record)
    (one,) = raced_passes(subject.candidates[0].plan, "forward", False)  # type: ignore[union-attr]
    times = kernel_times(subject, subject.candidates[0], one)  # type: ignore[arg-type,union-attr]
    assert set(times) == {k["name"] for k in one["kernels"]}, [k["name"] for k in forward.kernels]
    assert "measured" in report(record, tmp_path / "race.html")[0].path.read_text()
