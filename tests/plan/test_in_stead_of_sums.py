"""What is normalised after a contraction is stored in the stead of its sums, where nothing else needs those."""

import pytest

from crucible.fuse import FuseOptions, fuse_problem
from crucible.plan.stages import Contraction, written

pytestmark = pytest.mark.quick

PROBLEM = '''
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 3)
        self.norm = nn.GroupNorm(4, 16)

    def forward(self, x):
        y = self.conv(x)
        return {result}


def get_inputs():
    return [torch.randn(2, 16, 40, 40)]


def get_init_inputs():
    return []
'''


def stored(tmp_path, result):
    """Buffers that the convolution stores beside its statistics, with gradients and without."""
    path = tmp_path / "problem.py"
    path.write_text(PROBLEM.format(result=result))
    (mode,) = fuse_problem(path, FuseOptions()).modes
    found = []
    for m in (mode, mode.inference):
        (stage,) = [s for s in m.plan.forward_stages if isinstance(s, Contraction)]
        found.append({b.name for b in written(stage) if "_tile_" not in b.name})
    return found


def test_a_costly_function_is_stored_where_no_gradient_needs_the_sums(tmp_path):
    training, inference = stored(tmp_path, "self.norm(F.gelu(y))")
    assert len(training) == len(inference) == 1
    assert "convolution_sum_0_kept" in training and "convolution_sum_0_kept" not in inference


def test_a_cheap_one_is_computed_again(tmp_path):
    training, inference = stored(tmp_path, "self.norm(F.relu(y))")
    assert training == inference


def test_sums_that_are_returned_stay(tmp_path):
    """The graph's outputs are no operator, but they need what they return."""
    _, inference = stored(tmp_path, "(y, self.norm(F.gelu(y)))")
    assert len(inference) == 1
