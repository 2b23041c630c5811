"""Convolutions on Hopper whose input is made ready beforehand (kernels/window_ready.cuh): the simulated chip is one."""

import re

import pytest

import crucible
from crucible.fuse import FuseOptions, fuse_problem
from crucible.plan import contractions, hopper, ways
from crucible.sim.device import PROCESSORS_VARIABLE

PROBLEM = '''
import torch
import torch.nn as nn


class Model(nn.Module):
    """Boxes side by side in an image, and of several samples, of which the last tile has too few; groups with dilation,
    channels that fill no chunk, an input that is computed, statistics, and a pool."""

    def __init__(self):
        super().__init__()
        self.first = nn.ConvTranspose2d(20, 70, 5, padding=1)
        self.norm = nn.BatchNorm2d(70)
        self.pool = nn.MaxPool2d(2)
        self.grouped = nn.Conv2d(40, 80, 3, padding=2, dilation=2, groups=2, bias=False)

    def forward(self, x, y):
        pooled = self.pool(torch.tanh(self.norm(self.first(x))))
        return pooled, self.grouped(torch.relu(y))


def get_inputs():
    return [torch.randn(5, 20, 4, 10), torch.randn(4, 40, 26, 7)]


def get_init_inputs():
    return []
'''


@pytest.fixture
def small(monkeypatch):
    """What pays for large ones: others are dear, products are not split, and samples not taken for pixels."""
    monkeypatch.setattr(hopper, "_pair_cost", lambda *given: 1e18)
    monkeypatch.setattr(ways, "_splits", lambda site, tile: 1)
    monkeypatch.setattr(contractions, "OWN_TILES", 1)
    ways.best.cache_clear()
    yield
    ways.best.cache_clear()


def test_ready(tmp_path, monkeypatch, small):
    """With few processors each block takes many tiles."""
    monkeypatch.setenv(PROCESSORS_VARIABLE, "5")
    reference, new = tmp_path / "ready.py", tmp_path / "ready_new.py"
    reference.write_text(PROBLEM)
    fused = fuse_problem(reference, FuseOptions(strict=True))
    taken = re.findall(r"launch_ready<Ready<(\d), (\d), (\d), 1, Operands::Half>", fused.text)
    assert len(taken) >= 4 and {boxes for boxes, _, _ in taken} >= {"3"}, taken
    assert {join for _, join, _ in taken} > {"4"}, taken  # boxes of several samples, and others
    new.write_text(fused.text)
    proof = crucible.prove(reference, new, device="sim", seed=5, quick=True)
    assert proof.verdict == "proven", f"{proof.reason.code}: {proof.reason.message}" if proof.reason else proof.verdict
    honesty = next(c for c in proof.checks if c.name == "honesty")
    assert "ready_kernel" in str(honesty.evidence) and "ready_input_kernel" in str(honesty.evidence)
