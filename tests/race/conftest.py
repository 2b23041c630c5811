"""Small problems and candidates as files."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

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
RIGHT = LINEAR.replace("class Model(", "class ModelNew(").split("    def get_inputs")[0]


@pytest.fixture
def write(tmp_path):
    """write(name, text) -> path of a dedented file."""

    def make(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    return make


@pytest.fixture
def linear(write) -> Path:
    return write("reference.py", LINEAR)


@pytest.fixture
def right(write) -> Path:
    return write("new.py", RIGHT)


@pytest.fixture
def changed(write):
    """changed(name, old, new, first="") -> a candidate that is right but for one change."""

    def make(name: str, old: str = "", new: str = "", first: str = "") -> Path:
        assert not old or old in RIGHT
        return write(name, textwrap.dedent(first) + textwrap.dedent(RIGHT.replace(old, new)))

    return make
