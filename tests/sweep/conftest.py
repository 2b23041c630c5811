"""A folder of small problems, some of them bad."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

GOOD = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2


def get_inputs():
    return [torch.rand(16, 24)]


def get_init_inputs():
    return []
"""
NEW = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return {}\n"


@pytest.fixture
def write(tmp_path):
    def make(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    return make


@pytest.fixture
def folder(write, tmp_path) -> Path:
    write("set/good.py", GOOD)
    write("set/deep/other.py", GOOD.replace("* 2", "* 3"))
    write("set/helper.py", "x = 1\n")
    return tmp_path / "set"
