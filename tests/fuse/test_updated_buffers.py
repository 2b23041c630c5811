"""Buffers that a Model reads and writes in one call, returns, or writes twice; and some named as operators are."""

from __future__ import annotations

import pytest

# The gradient needs what the buffer held before. Two means, and a buffer called as one of them.
SOURCE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("NAME", torch.zeros(16))

    def forward(self, x):
        loss = (x - self.NAME).pow(2).mean()
        if self.training:
            with torch.no_grad():
                self.NAME.copy_(x.mean(0))
        return loss


def get_inputs():
    return [torch.randn(8, 16)]


def get_init_inputs():
    return []
"""
# A new value that is returned, one that two buffers get, and one that backward needs.
SEVERAL = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        for name in ("fast", "slow", "scale"):
            self.register_buffer(name, torch.ones(16))

    def forward(self, x):
        self.calls += 1
        self.fast += 1
        self.slow.copy_(self.fast)
        self.scale.mul_(0.5).add_(x.detach().abs().mean(0))
        return torch.tanh(x) * self.scale, self.calls.clone()


def get_inputs():
    return [torch.randn(8, 16)]


def get_init_inputs():
    return []
"""
SOURCES = {"center": SOURCE.replace("NAME", "center"), "mean": SOURCE.replace("NAME", "mean"), "several": SEVERAL}


@pytest.mark.parametrize("name", SOURCES)
def test_proven(proven, name):
    proven(SOURCES[name])
