"""Small problems and candidates as files, and one way to prove them without any device."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from candidate_texts import RIGHT

import crucible

LINEAR = """
    import torch
    import torch.nn as nn

    class Model(nn.Module):
        def __init__(self, features, groups):
            super().__init__()
            self.linear = nn.Linear(features, features)
            self.norm = nn.GroupNorm(groups, features)

        def forward(self, x):
            return torch.relu(self.norm(self.linear(x)))

    def get_inputs():
        return [torch.rand(32, 24)]

    def get_init_inputs():
        return [24, 4]
"""


@pytest.fixture
def write(tmp_path):
    """write(name, text) -> path of a dedented file."""

    def make(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return make


@pytest.fixture
def linear(write) -> Path:
    return write("reference.py", LINEAR)


@pytest.fixture
def prove_text(write, linear):
    """prove_text(candidate text) -> Proof against the small linear problem, on no device at all."""

    def run(text: str, **options):
        options = {"device": "cpu", "seed": 5, "quick": True, **options}
        return crucible.prove(linear, write("candidate.py", text), **options)

    return run


@pytest.fixture
def right() -> str:
    """A right candidate for the linear problem."""
    return RIGHT
