"""Arithmetic that changes nothing goes; arithmetic that changes a zero's sign or a dtype stays."""

from __future__ import annotations

import math

import pytest
import torch
from rewrite_cases import assert_same, capture, random

from crucible.graph.rewrites import dead_nodes, identity_arithmetic

pytestmark = pytest.mark.quick

SPECIAL = torch.tensor([[0.0, -0.0, math.inf], [-math.inf, math.nan, 1.5]], dtype=torch.float64)


GO = [
    lambda x: x * 1,
    lambda x: 1.0 * x,
    lambda x: x / 1,
    lambda x: x**1,
    lambda x: x - 0,
    lambda x: x - 0.0,
    lambda x: x + -0.0,
    lambda x: torch.neg(torch.neg(x)),
]


def test_applied() -> None:
    case = capture(lambda m, x: tuple(torch.exp(body(x)) for body in GO), random(3, 4))
    assert len(identity_arithmetic.apply(case.graph)) == len(GO)
    dead_nodes.apply(case.graph)
    assert case.targets() == ["aten.exp.default"] * len(GO)
    assert_same(case, [random(2, 7)], [random(5, 3)], [SPECIAL])


def test_the_sign_of_zero_survives() -> None:
    case = capture(lambda m, x: 1 / (x - 0), random(2, 3))
    assert identity_arithmetic.apply(case.graph)
    assert_same(case, [SPECIAL])


STAY = [
    lambda x: x + 0,
    lambda x: x + 0.0,
    lambda x: x - -0.0,
    lambda x: x * 2,
    lambda x: 0 - x,
    lambda x: torch.add(x, 0.0, alpha=2),
    lambda x: torch.div(x, 1, rounding_mode="floor"),
]


def test_not_applied() -> None:
    case = capture(lambda m, x: tuple(torch.exp(body(x)) for body in STAY), random(3, 4))
    assert identity_arithmetic.apply(case.graph) == []


def test_a_conversion_stays() -> None:
    case = capture(lambda m, x: torch.exp(x * 1.0), torch.arange(6).reshape(2, 3))
    assert identity_arithmetic.apply(case.graph) == []


def test_adding_zero_to_integers_goes() -> None:
    case = capture(lambda m, x: (x + 0) * 3, torch.arange(6).reshape(2, 3))
    assert len(identity_arithmetic.apply(case.graph)) == 1
    assert_same(case, [torch.arange(8).reshape(2, 4)])


def test_the_caller_gets_no_memory_twice() -> None:
    def both(m, x):
        y = x.exp()
        return x * 1, y, y * 1

    assert identity_arithmetic.apply(capture(both, random(3, 4)).graph) == []
