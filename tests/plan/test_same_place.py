"""New values of buffers are written where the old ones lie, unless somebody still needs those."""

from __future__ import annotations

import pytest

from crucible.fuse import FuseOptions, fuse_problem
from crucible.plan.stages import Map, Row

pytestmark = pytest.mark.quick

PROBLEM = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(48)
        self.register_buffer("mean", torch.zeros(48))
        self.register_buffer("calls", torch.zeros(SMALL))

    def forward(self, x):
        FORWARD


def get_inputs():
    return [torch.randn(400, 48)]


def get_init_inputs():
    return []
"""
MOVING = "self.mean.mul_(0.9).add_(0.1 * x.mean(0))"


def made(tmp_path, *lines, small=1):
    path = tmp_path / "problem.py"
    path.write_text(PROBLEM.replace("FORWARD", "\n        ".join(lines)).replace("SMALL", str(small)))
    return fuse_problem(path, FuseOptions(forward_only=True))


def test_a_batch_norm_needs_no_copies(tmp_path):
    """Its walk writes the statistics in their place, and counts calls on the way."""
    fused = made(tmp_path, "return self.norm(x)")
    mode = fused.modes[0]
    assert sorted(mode.same.values()) == ["norm_num_batches_tracked", "norm_running_mean", "norm_running_var"]
    assert "Copies<" not in fused.text
    assert not any(isinstance(s, Map) and s.element.extent == 1 for s in mode.plan.forward_stages)


def test_who_reads_the_old_value_gets_it(tmp_path):
    """A kernel after the one that knows the new value still reads the old one."""
    fused = made(tmp_path, "old = self.mean.clone()", MOVING, "return x - x.mean(0) + old")
    assert not fused.modes[0].same and "Copies<" in fused.text
    fused = made(tmp_path, MOVING, "return x - x.mean(0)")
    assert list(fused.modes[0].same.values()) == ["mean"] and "Copies<" not in fused.text


def test_elements_that_trade_places_are_copied(tmp_path):
    """The new value of an element is made of the old value of another one."""
    fused = made(tmp_path, "self.mean.copy_(self.mean.flip(0) + x.mean(0))", "return x + 1")
    assert not fused.modes[0].same and "Copies<" in fused.text


@pytest.mark.parametrize(("small", "hung"), [(1, True), (48, True), (49, False)])
def test_small_maps_hang_on_walks_with_as_many_rows(tmp_path, small, hung):
    (mode,) = made(tmp_path, MOVING, "self.calls.add_(1)", "return x - 1", small=small).modes
    stages = mode.plan.forward_stages
    assert any(isinstance(s, Map) and s.element.extent == small for s in stages) != hung
    limits = [s.below for r in stages if isinstance(r, Row) for _, s in r.finals if s.below is not None]
    assert limits == ([small] if hung else [])
