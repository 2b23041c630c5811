"""What follows the statistics of a matrix product in its own kernel, and when it does not."""

from __future__ import annotations

import pytest

from crucible.fuse import FuseOptions, fuse_problem
from crucible.plan.stages import Contraction, Map, Row, written

pytestmark = pytest.mark.quick

PROBLEM = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(96, 256)
        self.norm = nn.GroupNorm({groups}, 256)

    def forward(self, x):
        y = self.linear(x)
        return {result}


def get_inputs():
    return [torch.randn(300, 96)]


def get_init_inputs():
    return []
"""


def planned(tmp_path, result, groups=16, training=False):
    """The stages of a forward pass, its product, and the names of what that writes."""
    path = tmp_path / "problem.py"
    path.write_text(PROBLEM.format(result=result, groups=groups))
    (mode,) = fuse_problem(path, FuseOptions(forward_only=not training)).modes
    stages = mode.plan.forward_stages
    (product,) = [s for s in stages if isinstance(s, Contraction)]
    return stages, product, {b.name for b in written(product)}


@pytest.mark.parametrize("what", ["F.hardtanh(self.norm(y))", "self.norm(y) * y", "self.norm(F.gelu(y))"])
def test_a_norm_is_finished_in_the_tile(tmp_path, what):
    """One kernel: neither the product nor moments, nor what was kept until they are known, go through memory."""
    stages, product, names = planned(tmp_path, what)
    assert stages == [product] and len(names) == 1
    assert product.statistics.group == 16 and not product.statistics.parts and len(product.tail.stores) == 1


def test_training_keeps_what_gradients_read(tmp_path):
    _, product, names = planned(tmp_path, "F.hardtanh(self.norm(y))", training=True)
    assert {"addmm_product_0_kept"} < names and set(product.statistics.parts) == {"mean", "m2"}
    assert len(product.tail.stores) == 1


@pytest.mark.parametrize(
    ("result", "count"),
    [("self.norm(y).amin(1)", 1), ("torch.max(y, dim=1)", 1), ("(y.sum(1), F.relu(y).amax(1))", 2),
     ("(n := self.norm(y)).amin(1), n + 1", 1)],
)  # fmt: skip
def test_rows_are_reduced_tile_by_tile(tmp_path, result, count):
    """A walk over the tiles' results is left, and the product is stored only if it is asked for."""
    stages, product, names = planned(tmp_path, result)
    assert len(product.tail.partials) == count
    assert not any("kept" in n for n in names) and not any(isinstance(s, Map) for s in stages)
    assert all(n.split("_tile_")[0] != n for n in names if n not in {s.buffer.name for s in product.tail.stores})
    (walk,) = [s for s in stages if isinstance(s, Row)]
    assert {str(p.inner.extent) for p in walk.passes} == {str(256 // product.tile.cols)}


@pytest.mark.parametrize(
    "result",
    ["torch.softmax(y, 1), y.argmax(1)", "torch.logsumexp(y, 1)", "y.sum(0)", "y - y.amax(1, keepdim=True)",
     "y.view(-1, 512).sum(1)"],
)  # fmt: skip
def test_what_walks_read_anyway_they_reduce(tmp_path, result):
    """Elements that a walk needs in memory, and reductions over something else than rows, stay where they were."""
    _, product, names = planned(tmp_path, result)
    assert product.tail is None and len(names) == 1


def test_groups_that_no_tile_holds(tmp_path):
    _, product, _ = planned(tmp_path, "self.norm(y)", groups=1)
    assert product.statistics is None and product.tail is None
