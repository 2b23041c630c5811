"""Small problems and candidates as files."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from small_problems import LINEAR

RIGHT = LINEAR.replace("class Model(", "class ModelNew(").split("    def get_inputs")[0]


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
