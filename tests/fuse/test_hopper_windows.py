"""Convolutions of all kinds with Hopper's own instructions: the simulated chip is one."""

import crucible
from crucible.fuse import FuseOptions, fuse_problem

PROBLEM = '''
import torch
import torch.nn as nn


class Model(nn.Module):
    """Strides, groups with dilation, a length, few channels, single taps, small images whose samples share a tile, and
    more chunks of channels than slots in the ring."""

    def __init__(self):
        super().__init__()
        self.strided = nn.Conv2d(20, 40, 3, stride=2, padding=1)
        self.grouped = nn.Conv2d(40, 64, 3, padding=2, dilation=2, groups=2, bias=False)
        self.single = nn.Conv2d(64, 70, 1)
        self.long = nn.Conv1d(24, 33, 5, padding=1)
        self.small = nn.ConvTranspose2d(17, 40, 3, padding=1)
        self.deep = nn.Conv2d(160, 32, 1)

    def forward(self, x, y, z, d):
        first = torch.tanh(self.single(torch.relu(self.grouped(self.strided(x)))))
        return first, self.long(y), self.small(z), self.deep(d)


def get_inputs():
    return [torch.randn(2, 20, 37, 41), torch.randn(2, 24, 300), torch.randn(5, 17, 6, 7), torch.randn(1, 160, 31, 64)]


def get_init_inputs():
    return []
'''


def test_windows(tmp_path):
    reference, new = tmp_path / "windows.py", tmp_path / "windows_new.py"
    reference.write_text(PROBLEM)
    fused = fuse_problem(reference, FuseOptions(strict=True))
    (mode,) = fused.modes
    taken = [f.name for f in mode.functors.values() if f.columns]
    # Six forward, and backward those whose inputs have channels enough.
    assert len(taken) >= 8, taken
    new.write_text(fused.text)
    proof = crucible.prove(reference, new, device="sim", seed=5, quick=True)
    assert proof.verdict == "proven", f"{proof.reason.code}: {proof.reason.message}" if proof.reason else proof.verdict
    kernels = next(c for c in proof.checks if c.name == "honesty")
    assert "pair_kernel" in str(kernels.evidence)
