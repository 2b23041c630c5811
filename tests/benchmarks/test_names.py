"""Benchmarks run on a GPU alone: what they take from elsewhere must be there all the same."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = {"measuring": "measuring", "values": "crucible.race.values", "stats": "crucible.race.stats"}


@pytest.mark.quick
@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.py")), ids=lambda p: p.stem)
def test_every_name_is_there(path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    used = {
        (node.value.id, node.attr)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in MODULES
    }
    bound = {n.asname or n.name.split(".")[0] for node in ast.walk(ast.parse(path.read_text()))
             if isinstance(node, (ast.Import, ast.ImportFrom)) for n in node.names}  # fmt: skip
    for module, name in sorted(used):
        if module in bound:
            assert hasattr(importlib.import_module(MODULES[module]), name), f"{path.name}: {module}.{name}"
    sys.modules.pop("measuring", None)
