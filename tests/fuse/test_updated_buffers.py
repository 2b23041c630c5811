"""Buffers that a Model reads and writes in one call, and whose names are those of operators."""

from __future__ import annotations

import pytest

import crucible
from crucible.fuse import FuseOptions, fuse_problem

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


@pytest.mark.parametrize("name", ["center", "mean"])
def test_proven(tmp_path, name):
    reference, new = tmp_path / "reference.py", tmp_path / "new.py"
    reference.write_text(SOURCE.replace("NAME", name))
    new.write_text(fuse_problem(reference, FuseOptions()).text)
    found = crucible.prove(reference, new, device="sim", seed=3, quick=True, timeout=300)
    assert found.verdict == "proven", found.to_text()[-3000:]
