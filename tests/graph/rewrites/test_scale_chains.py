"""Factors and offsets in a row merge, unless what lies between them can overflow, underflow or lose digits."""

from __future__ import annotations

import math

import pytest
import torch
from rewrite_cases import assert_same, capture, random

from crucible.graph import rewrites
from crucible.graph.rewrites import scale_chains

pytestmark = pytest.mark.quick


GO = [
    lambda x: x * 2 * 3.5,
    lambda x: x * 0.5 * -0.25,
    lambda x: x / 2 / 3,
    lambda x: x / 0.5 / 0.3,
    lambda x: x * 3 / 0.7,
    lambda x: x / 3 * 0.7,
    lambda x: x * 1e200 * 1e100,
    lambda x: x + 1 + 2.5,
    lambda x: x - 1 - 2,
    lambda x: x - 1 + -3,
]


def test_applied() -> None:
    case = capture(lambda m, x: tuple(body(x) for body in GO), random(3, 4))
    assert len(scale_chains.apply(case.graph)) == len(case.targets()) == len(GO)
    special = torch.tensor([[math.nan, math.inf], [-math.inf, -0.0]], dtype=torch.float64)
    assert_same(case, [random(2, 7)], [random(5, 3)], [special])


STAY = [
    lambda x: x * 1e30 * 1e-30,
    lambda x: x * 1e-30 * 1e30,
    lambda x: x * 2 * 0.4,
    lambda x: x * 2 / 3,
    lambda x: x / 2 / 0.5,
    lambda x: x * 0 * 0.5,
    lambda x: x * math.inf * 2,
    lambda x: x * 1e30 * 1e30,
    lambda x: x * 1e-30 * 1e-30,
    lambda x: x + 1e8 - 1e8,
    lambda x: x * 2 + 1,
    lambda x: torch.add(x, 1, alpha=2) + 1,
    lambda x: (lambda y: y * 3 + y.sin())(x * 2),
    lambda x: 2 - x - 3,
    lambda x: x * x * 2,
]


def test_not_applied() -> None:
    case = capture(lambda m, x: tuple(body(x) for body in STAY), random(3, 4, dtype=torch.float32))
    assert scale_chains.apply(case.graph) == []


def test_not_applied_to_integers() -> None:
    assert scale_chains.apply(capture(lambda m, x: x * 2 * 3, torch.ones(3, 4, dtype=torch.int64)).graph) == []
    assert scale_chains.apply(capture(lambda m, x: x * 2 * 3.0, torch.ones(3, 4, dtype=torch.int64)).graph) == []


def test_long_chains_become_one() -> None:
    case = capture(lambda m, x: x * 2 * 3 * 4 * 5, random(3, 4))
    rewrites.run_all(case.gm)
    assert case.targets() == ["aten.mul.Tensor"]
    assert_same(case)
