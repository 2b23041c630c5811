"""A folder of small problems, some of them bad."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweep_texts import GOOD


@pytest.fixture
def folder(write, tmp_path) -> Path:
    write("set/good.py", GOOD)
    write("set/deep/other.py", GOOD.replace("* 2", "* 3"))
    write("set/helper.py", "x = 1\n")
    return tmp_path / "set"
