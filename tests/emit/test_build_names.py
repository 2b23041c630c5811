"""The name under which torch builds a file's kernels: the folder of its build, in a cache that all files share."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from crucible.emit import file
from crucible.fuse import fuse_problem

PROBLEM = Path(__file__).parents[2] / "examples" / "double.py"
pytestmark = pytest.mark.quick


def name() -> str:
    (found,) = re.findall(r'name=f"(crucible_[0-9a-f]{12})_', fuse_problem(PROBLEM).text)
    return str(found)


def test_a_kernel_body_has_a_part_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two versions of the program make the same plan of a Model: their files must not be built in one folder, where
    each would undo what the other has built, or read what it is just writing."""
    before, library = name(), file.library
    assert name() == before
    monkeypatch.setattr(file, "library", lambda *given: library(*given) + "\n// another version")
    assert name() != before
