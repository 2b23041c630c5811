"""Convolutions of all kinds with Hopper's own instructions: the simulated chip is one."""

import re

import pytest

import crucible
from crucible.fuse import FuseOptions, fuse_problem
from crucible.sim.device import PROCESSORS_VARIABLE

PROBLEM = '''
import torch
import torch.nn as nn


class Model(nn.Module):
    """Strides, groups with dilation, a length, few channels, single taps, small images whose samples share a tile,
    more chunks of channels than slots in the ring, wide images that are taken in strips."""

    def __init__(self):
        super().__init__()
        self.strided = nn.Conv2d(20, 40, 3, stride=2, padding=1)
        self.grouped = nn.Conv2d(40, 64, 3, padding=2, dilation=2, groups=2, bias=False)
        self.single = nn.Conv2d(64, 70, 1)
        self.long = nn.Conv1d(24, 33, 5, padding=1)
        self.small = nn.ConvTranspose2d(17, 40, 3, padding=1)
        self.deep = nn.Conv2d(160, 32, 1)
        self.wide = nn.Conv2d(20, 40, 3, padding=1)
        self.normed = nn.Conv2d(16, 32, (3, 2), dilation=(2, 1), bias=False)
        self.norm = nn.GroupNorm(4, 32)

    def forward(self, x, y, z, d, w):
        first = torch.tanh(self.single(torch.relu(self.grouped(self.strided(x)))))
        return first, self.long(y), self.small(z), self.deep(d), self.wide(w), self.norm(self.normed(w[:, :16]))


def get_inputs():
    return [
        torch.randn(2, 20, 37, 41), torch.randn(2, 24, 300), torch.randn(5, 17, 6, 7), torch.randn(1, 160, 31, 64),
        torch.randn(8, 20, 512, 511),
    ]


def get_init_inputs():
    return []
'''


@pytest.mark.parametrize("processors", [pytest.param(132, marks=pytest.mark.exhaustive), 3])
def test_windows(tmp_path, monkeypatch, processors):
    """With few processors each block takes many boxes, or lines of many strips."""
    monkeypatch.setenv(PROCESSORS_VARIABLE, str(processors))
    reference, new = tmp_path / "windows.py", tmp_path / "windows_new.py"
    reference.write_text(PROBLEM)
    fused = fuse_problem(reference, FuseOptions(strict=True))
    (mode,) = fused.modes
    taken = [f.name for f in mode.functors.values() if f.columns]
    # Eight forward, and backward those whose inputs have channels enough.
    assert len(taken) >= 10, taken
    assert fused.text.count("(launch_strips<") >= 2
    new.write_text(fused.text)
    proof = crucible.prove(reference, new, device="sim", seed=5, quick=True)
    assert proof.verdict == "proven", f"{proof.reason.code}: {proof.reason.message}" if proof.reason else proof.verdict
    kernels = next(c for c in proof.checks if c.name == "honesty")
    assert "pair_kernel" in str(kernels.evidence)


LINES = '''
import torch
import torch.nn as nn


class Model(nn.Module):
    """Lines of several strips that are stored and nothing else: they begin at every place of two in a sector."""

    def __init__(self):
        super().__init__()
        self.spread = nn.ConvTranspose2d(16, 40, 3)

    def forward(self, x):
        return torch.relu(self.spread(x))


def get_inputs():
    return [torch.randn(1, 16, 6, 500)]


def get_init_inputs():
    return []
'''


def test_lines_that_are_only_stored(tmp_path):
    """Two lanes exchange what they have of two sectors (fragments_stored.cuh): in whole strips and in the last one."""
    reference, new = tmp_path / "lines.py", tmp_path / "lines_new.py"
    reference.write_text(LINES.replace("(1, 16, 6, 500)", "(8, 16, 512, 1022)"))
    # Strips are for large images, and what is made for those is proven with small ones.
    new.write_text(fuse_problem(reference, FuseOptions(strict=True, forward_only=True)).text)
    (box,) = re.findall(r"#elif CRUCIBLE_HOPPER\n  using Box = Dims<1, 1, 1, (\d+)>", new.read_text())
    assert "(launch_strips<Strips<2," in new.read_text()
    assert 2 * int(box) + 8 <= 502 < 4 * int(box), "several whole strips and a part"
    assert 502 % 8 == 6, "lines begin at any place of two"
    reference.write_text(LINES)
    proof = crucible.prove(reference, new, device="sim", seed=5, quick=True, forward_only=True)
    assert proof.verdict == "proven", f"{proof.reason.code}: {proof.reason.message}" if proof.reason else proof.verdict
