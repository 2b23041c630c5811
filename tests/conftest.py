"""Small problems as files."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from small_problems import LINEAR


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
