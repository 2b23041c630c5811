"""Convolutions that pool what they store: signs, edges, nan, every engine, and plans that must not."""

import pytest

import crucible
from crucible.fuse import FuseOptions, fuse_problem
from crucible.plan.stages import Contraction, written

PROBLEM = '''
import torch
import torch.nn as nn
import torch.nn.functional as F


def signed(norm):
    """Scales of both signs, and one that is zero."""
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(-1.5, 1, norm.num_features))
        norm.weight[3] = 0
        norm.bias.copy_(torch.linspace(1, -1, norm.num_features))
    return norm


class Model(nn.Module):
    """Edges that a window hangs over, statistics of what a function made of the sums, a length, a volume, small images
    whose samples share a tile, a function that is not monotone, and two that follow one pool."""

    def __init__(self):
        super().__init__()
        self.flat, self.flat_norm = nn.ConvTranspose2d(3, 40, 3, padding=1), signed(nn.BatchNorm2d(40))
        self.deep, self.deep_norm = nn.Conv3d(2, 33, 3, padding=1), signed(nn.BatchNorm3d(33))
        self.long, self.long_norm = nn.Conv1d(5, 8, 3), signed(nn.BatchNorm1d(8))
        self.small = nn.Conv2d(4, 36, 3, padding=1, groups=2)

    def forward(self, x, y, z, w):
        flat = F.max_pool2d(torch.tanh(self.flat_norm(self.flat(x))), 2)
        deep = F.max_pool3d(self.deep_norm(F.relu(self.deep(y))), (1, 3, 2))
        long = F.max_pool1d(self.long_norm(self.long(z)), 3)
        small = F.max_pool2d(F.gelu(self.small(w)), (2, 3))
        return flat, deep, long * 2, torch.sin(small), 1 - small


def get_inputs():
    return [torch.randn(2, 3, 17, 19), torch.randn(2, 2, 3, 10, 11), torch.randn(2, 5, 303), torch.randn(5, 4, 5, 7)]


def get_init_inputs():
    return []
'''


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    path = tmp_path_factory.mktemp("pools") / "pools.py"
    path.write_text(PROBLEM)
    return path


def _contractions(plan):
    return [s for s in plan.stages if isinstance(s, Contraction)]


def test_only_pooled_tensors_are_stored(problem):
    """In a forward without gradients; else the gradients need all elements."""
    fused = fuse_problem(problem, FuseOptions(strict=True))
    for mode in fused.modes:
        pooled = [s for s in _contractions(mode.inference.plan) if s.pool is not None]
        assert [s.pool.window for s in pooled] == [(1, 1, 2, 2), (1, 1, 3, 2), (1, 1, 1, 3), (1, 1, 2, 3)]
        assert all(not s.stores for s in pooled)
        assert [len(s.pool.stores) for s in pooled] == [1, 1, 1, 2]
        assert all(b.numel != s.contract.result.numel for s in pooled for b in written(s))
        assert all(s.pool is None for s in _contractions(mode.plan))
    # Three that a norm stands before, in training; in evaluation a norm is computed before anything is stored.
    assert sum("early_pools" in sentence for sentence in fused.rewrites) == 3


@pytest.mark.parametrize(
    ("engine", "precision", "dtype"),
    [
        ("auto", "torch", None),
        pytest.param("auto", "torch", "float64", marks=pytest.mark.exhaustive),
        pytest.param("mma", "tf32", None, marks=pytest.mark.exhaustive),
        pytest.param("mma", "fp32", None, marks=pytest.mark.exhaustive),
    ],
)
def test_proven(problem, engine, precision, dtype, tmp_path):
    path = tmp_path / "pools_new.py"
    options = FuseOptions(engine=engine, precision=precision, forward_only=True)
    path.write_text(fuse_problem(problem, options).text)
    proof = crucible.prove(problem, path, device="sim", seed=3, quick=True, forward_only=True, dtype=dtype)
    assert proof.verdict == "proven", f"{proof.reason.code}: {proof.reason.message}" if proof.reason else proof.verdict
