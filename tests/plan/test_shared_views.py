"""Views that several operators take of one tensor: one copy of its elements, stored by what computed them."""

import pytest

from crucible.fuse import FuseOptions, fuse_problem
from crucible.plan.stages import Contraction, Row, read, written

pytestmark = pytest.mark.quick

PROBLEM = '''
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(96)
        self.q, self.k, self.v = (nn.Linear(96, 48) for _ in range(3))

    def forward(self, x):
        y = self.norm(x)
        return {result}


def get_inputs():
    return [torch.randn(4, 512, 96)]


def get_init_inputs():
    return []
'''


def plan(tmp_path, result):
    path = tmp_path / "problem.py"
    path.write_text(PROBLEM.format(result=result))
    (mode,) = fuse_problem(path, FuseOptions()).modes
    return mode.inference.plan


@pytest.mark.parametrize(
    "result",
    [
        "self.q(y), self.k(y), self.v(y)",
        "self.q(y.reshape(-1, 96)), self.k(y.view(-1, 96)), self.v(y.flatten(0, 1))",
    ],
    ids=["linear", "written"],
)
def test_three_projections_read_one_copy_that_the_norm_stores(tmp_path, result):
    found = plan(tmp_path, result)
    kinds = [type(s) for s in found.stages]
    assert kinds == [Row, Contraction, Contraction, Contraction]
    (copy,) = {b.name for b in written(found.stages[0])}  # the statistics stay in registers
    assert all(copy in read(s) for s in found.stages[1:])


def test_results_stay_apart(tmp_path):
    """A caller may write into one of them."""
    found = plan(tmp_path, "y.reshape(-1, 96), y.reshape(-1, 96)")
    one, other = found.program.outputs
    assert one.name != other.name


def test_a_view_that_is_returned_is_stored_by_the_walk_too(tmp_path):
    (stage,) = plan(tmp_path, "y.flatten(0, 1)").stages
    assert isinstance(stage, Row)
