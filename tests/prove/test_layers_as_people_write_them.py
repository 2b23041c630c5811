"""Layers of the reference's that are right, and were taken for wrong: what they return, and which mode they stay in."""

from __future__ import annotations

import pytest

import crucible

HEAD = """
import torch
import torch.nn as nn
"""
TAIL = """

def get_inputs():
    return [torch.randn(3, 8, 6)]


def get_init_inputs():
    return []
"""
# A layer that returns a part of its parameter.
POSITIONS = """
class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(16, 6))

    def forward(self, length):
        return self.table[:length]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.positions = Positions()

    def forward(self, x):
        return torch.tanh(x + self.positions(x.size(1)))
"""
# What is returned has other values when the reference is run again with others.
WEIGHTS = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6))
        self.register_buffer("table", torch.randn(6))

    def forward(self, x):
        return x * self.weight + self.table, self.weight, self.table
"""
FROZEN = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.scale = nn.BatchNorm1d(8), nn.Parameter(torch.randn(6))

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x):
        return self.norm(x) * self.scale
"""
# A buffer of truth values, late enough that a number would be written into it that is none of them.
MASKED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6))
        self.register_buffer("mask", torch.ones(8, 6, dtype=torch.bool).tril())

    def forward(self, x):
        return (self.scale * x + self.shift).masked_fill(~self.mask, 0.0)
"""

# A parameter that nobody trains and forward() changes, and a buffer outside of the state dict.
FOLLOWED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.slow = nn.Parameter(torch.zeros(6), requires_grad=False)
        self.register_buffer("seen", torch.zeros(6), persistent=False)

    def forward(self, x):
        mean = x.detach().mean((0, 1))
        if self.training:
            self.slow.lerp_(mean, 0.5)
        self.seen += mean
        return torch.tanh(x - self.slow + self.seen)
"""


@pytest.mark.parametrize(
    "text",
    [POSITIONS, WEIGHTS, FROZEN, MASKED, FOLLOWED],
    ids=["part", "weights", "frozen", "masked", "followed"],
)
def test_proven(tmp_path, text):
    reference, new = tmp_path / "reference.py", tmp_path / "new.py"
    reference.write_text(HEAD + text + TAIL)
    new.write_text(HEAD + text.replace("class Model(", "class ModelNew("))
    proof = crucible.prove(reference, new, device="sim", seed=3, quick=True)
    assert proof.verdict == "proven", proof.to_text()[-3000:]


def test_a_layer_that_stays_in_training_is_refuted(tmp_path):
    reference, new = tmp_path / "reference.py", tmp_path / "new.py"
    reference.write_text(HEAD + WEIGHTS + TAIL)
    stuck = "    def train(self, mode=True):\n        return super().train(True)\n\n    def forward"
    new.write_text(HEAD + WEIGHTS.replace("class Model(", "class ModelNew(").replace("    def forward", stuck))
    proof = crucible.prove(reference, new, device="sim", seed=3, quick=True)
    assert proof.reason is not None and proof.reason.code == "eval_mode"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        pytest.param("self.slow.lerp_(mean, 0.25)", "buffers_wrong", id="wrong"),
        pytest.param("pass", "buffers_not_updated", id="left"),
    ],
)
def test_a_frozen_parameter_that_is_not_changed_alike_is_refuted(tmp_path, line, code):
    reference, new = tmp_path / "reference.py", tmp_path / "new.py"
    text = FOLLOWED.replace("- self.slow", "- mean")
    reference.write_text(HEAD + text + TAIL)
    new.write_text(HEAD + text.replace("class Model(", "class ModelNew(").replace("self.slow.lerp_(mean, 0.5)", line))
    proof = crucible.prove(reference, new, device="sim", seed=3, quick=True)
    assert proof.reason is not None and proof.reason.code == code
