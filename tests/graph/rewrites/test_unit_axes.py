"""Reductions over axes of length one: identity, zeros, abs, x - x; and those that are not."""

from __future__ import annotations

import math

import pytest
import torch
from rewrite_cases import assert_same, assert_same_values, capture, random

from crucible.graph.rewrites import unit_axes

pytestmark = pytest.mark.quick

EDGES = [0.0, 2.5, -3.0, 1e200]


GO = [
    lambda x: x.sum(1),
    lambda x: x.sum((1, -1), keepdim=True),
    lambda x: x.mean(1, keepdim=True),
    lambda x: x.amax(1),
    lambda x: x.amin((1, 3)),
    lambda x: x.prod(1),
    lambda x: x.logsumexp(1),
    lambda x: x.max(dim=1).values,
    lambda x: x.min(dim=-1, keepdim=True).values,
    lambda x: torch.linalg.vector_norm(x, dim=1),
    lambda x: torch.linalg.vector_norm(x, 1, dim=(1, 3)),
    lambda x: torch.linalg.vector_norm(x, math.inf, dim=1, keepdim=True),
    lambda x: x.softmax(1),
    lambda x: x.log_softmax(3),
]


def test_applied() -> None:
    case = capture(lambda m, x: tuple(body(x).sin() for body in GO), random(3, 1, 4, 1))
    assert len(unit_axes.apply(case.graph)) == len(GO)
    edges = torch.tensor(EDGES, dtype=torch.float64).reshape(2, 1, 2, 1)
    assert_same(case, [random(2, 1, 7, 1)], [random(5, 1, 3, 1)], [edges])
    assert_same_values(case, [torch.tensor([math.nan, math.inf, -math.inf, 0]).double().reshape(2, 1, 2, 1)])


def test_indices_are_zero() -> None:
    def body(m, x):
        values, indices = x.max(dim=1)
        return values * indices, indices, x.argmin(3), x.argmax(1, keepdim=True)

    case = capture(body, random(3, 1, 4, 1))
    assert len(unit_axes.apply(case.graph)) == 3
    assert_same(case, [random(2, 1, 7, 1)])


STAY = [
    lambda x: x.sum(2),
    lambda x: x.sum((1, 2)),
    lambda x: x.sum(),
    lambda x: x.softmax(2),
    lambda x: x.var(1),
    lambda x: torch.linalg.vector_norm(x, 3, dim=1),
    lambda x: torch.linalg.vector_norm(x, 0, dim=1),
    lambda x: x.sum(1, dtype=torch.float32),
    lambda x: x.softmax(1, dtype=torch.float32),
]


def test_not_applied() -> None:
    case = capture(lambda m, x: tuple(body(x).sin() for body in STAY), random(3, 1, 4, 1))
    assert unit_axes.apply(case.graph) == []


def test_integers_that_widen_stay() -> None:
    x = torch.zeros(3, 1, dtype=torch.int32)
    assert unit_axes.apply(capture(lambda m, x: x.sum(1) * 2, x).graph) == []


def test_the_caller_gets_no_argument_back() -> None:
    assert unit_axes.apply(capture(lambda m, x: x.sum(1), random(3, 1)).graph) == []
    assert unit_axes.apply(capture(lambda m, x: x.max(1)[0], random(3, 1)).graph) == []
