"""Drawn operator graphs are valid, as large as tracked, well-conditioned in float32, and print as Problem files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from graph_kinds import FAMILIES
from graphs import ELEMENTS, KINDS, Program, programs
from hypothesis import HealthCheck, given, settings

from crucible.problem import load_problem

pytestmark = pytest.mark.quick

DRAWN = 200
ERROR = 1e-4  # of float32 against float64, as a relative L2 norm
# A gradient that is zero but for rounding (a bias before a norm) is measured against this part of the others' scale.
FLOOR = 1e-2

drawn = settings(
    max_examples=DRAWN,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)


def run(module: torch.nn.Module, inputs: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Outputs, and the gradients of their random combination by inputs and parameters."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    outputs = module(*inputs)
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    torch.manual_seed(1)
    weights = [torch.randn(x.shape).to(x.dtype) for x in outputs]
    loss = sum((x * w).sum() for x, w in zip(outputs, weights) if x.requires_grad)
    leaves = [*inputs, *module.parameters()]
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [x.detach() for x in outputs], [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, gradients)]


def errors(got: list[torch.Tensor], expected: list[torch.Tensor], floor: float = 0.0) -> list[float]:
    """The relative error of each tensor."""
    scale = max(float(x.double().square().mean().sqrt()) for x in expected)
    return [
        float((g.double() - e.double()).norm() / max(float(e.double().norm()), floor * scale * e.numel() ** 0.5, 1e-30))
        for g, e in zip(got, expected)
    ]


def test_the_table_is_wide() -> None:
    names = [kind.name for family in FAMILIES.values() for kind in family]
    assert len(names) == len(set(names)) == len(KINDS) >= 60


@given(program=programs())
@drawn
def test_program_is_valid_and_tame(program: Program) -> None:
    inputs = program.inputs(2)
    single, single_gradients = run(program.module(3), inputs)
    double, double_gradients = run(program.module(3).double(), [x.double() for x in inputs])
    assert [tuple(x.shape) for x in single] == program.output_shapes
    assert all(s.shape == () or 0 < torch.Size(s.shape).numel() <= ELEMENTS for s in program.steps)
    assert all(torch.isfinite(x).all() for x in [*double, *double_gradients])
    assert max(errors(single, double)) <= ERROR
    assert max(errors(single_gradients, double_gradients, FLOOR)) <= ERROR


@given(program=programs())
@settings(drawn, max_examples=40)
def test_source_is_a_problem_file(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "drawn.py"
    path.write_text(program.source())
    problem = load_problem(path)
    assert problem.shapes == list(program.input_shapes.values())
    inputs = program.inputs(4)
    outputs, gradients = run(problem.build(5), inputs)
    expected, expected_gradients = run(program.module(5), inputs)
    for got, wanted in zip([*outputs, *gradients], [*expected, *expected_gradients], strict=True):
        assert torch.equal(got, wanted)
