"""Every shipped problem loads, says what it is, and can be captured as a graph with its sizes left open."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim, export

from crucible.problem import load_problem

pytestmark = pytest.mark.quick

FOLDER = Path(__file__).resolve().parents[1] / "problems"
PROBLEMS = sorted([*FOLDER.glob("*.py"), *FOLDER.glob("gallery/*.py")])


def open_sizes(value: Any) -> Any:
    """The dynamic-shape specification that leaves every size of every tensor open."""
    if isinstance(value, torch.Tensor):
        return dict.fromkeys(range(value.dim()), Dim.AUTO)
    if isinstance(value, (tuple, list)):
        return type(value)(open_sizes(x) for x in value)
    return None


def test_the_gallery_is_there() -> None:
    assert len([p for p in PROBLEMS if p.parent.name == "gallery"]) >= 36


@pytest.mark.parametrize("path", PROBLEMS, ids=lambda p: p.stem)
def test_problem_is_captured(path: Path) -> None:
    assert len((ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()) == 1
    problem = load_problem(path)
    assert problem.on_meta
    inputs = tuple(problem.arguments(problem.declared))
    with torch.device("meta"):
        model = problem.module.Model(*problem.init_inputs)
    captured = export(model, inputs, dynamic_shapes=tuple(map(open_sizes, inputs)), strict=False)
    given = [node.meta["val"] for node in captured.graph.nodes if node.op == "placeholder"]
    sizes = [size for x in given if isinstance(x, torch.Tensor) for size in x.shape]
    assert any(isinstance(size, torch.SymInt) for size in sizes), "every size was fixed by the capture"
