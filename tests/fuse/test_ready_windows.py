"""Convolutions on Hopper whose input is made ready beforehand (kernels/window_ready.cuh): the simulated chip is one."""

import re

import pytest

import crucible
from crucible.fuse import FuseOptions, fuse_problem
from crucible.plan import contractions, ways
from crucible.sim.device import PROCESSORS_VARIABLE

PROBLEM = '''
import torch
import torch.nn as nn


class Model(nn.Module):
    """Boxes side by side in an image, in a volume and of several samples, of which the last tile has too few; groups
    with dilation, channels that fill no chunk, an input that is computed, statistics, and a pool."""

    def __init__(self):
        super().__init__()
        self.first = nn.ConvTranspose2d(40, 128, 5, padding=1)
        self.norm = nn.BatchNorm2d(128)
        self.pool = nn.MaxPool2d(2)
        self.grouped = nn.Conv2d(144, 160, 5, padding=4, dilation=2, groups=2, bias=False)
        self.volume = nn.Conv3d(56, 96, 3, padding=1)

    def forward(self, x, y, z):
        pooled = self.pool(torch.tanh(self.norm(self.first(x))))
        return pooled, self.grouped(torch.relu(y)), torch.relu(self.volume(z))


def get_inputs():
    return [torch.randn(5, 40, 4, 10), torch.randn(7, 144, 5, 7), torch.randn(5, 56, 3, 9, 8)]


def get_init_inputs():
    return []
'''


@pytest.fixture
def whole(monkeypatch):
    """Products as deep as these would be split for a GPU that they leave idle, and small samples taken for pixels."""
    ways.best.cache_clear()
    monkeypatch.setattr(ways, "_splits", lambda site, tile: 1)
    monkeypatch.setattr(contractions, "OWN_TILES", 1)
    yield
    ways.best.cache_clear()


def test_ready(tmp_path, monkeypatch, whole):
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
