"""Moderate factors leave sums; extreme ones, shared products and narrow types stay."""

from __future__ import annotations

import pytest
import torch
from rewrite_cases import assert_same, capture, random

from crucible.graph import rewrites
from crucible.graph.rewrites import scalar_out_of_sum

pytestmark = pytest.mark.quick


GO = [
    lambda m, x: (x * 2.5).sum(1),
    lambda m, x: (x / 3).sum((0, 2), keepdim=True),
    lambda m, x: (x * -0.1).mean(-1),
    lambda m, x: (x / 7).sum(),
]


def test_applied() -> None:
    case = capture(lambda m, x: tuple(body(m, x) for body in GO), random(3, 4, 5))
    assert len(scalar_out_of_sum.apply(case.graph)) == len(GO)
    assert_same(case, [random(2, 3, 4)], [random(5, 2, 6)])


STAY = [
    lambda m, x: (x * 0).sum(1),
    lambda m, x: (x * 1e9).sum(1),
    lambda m, x: (x / 1e-9).sum(1),
    lambda m, x: (x + 2).sum(1),
    lambda m, x: (x * x).sum(1),
    lambda m, x: (x * 2).prod(1),
    lambda m, x: (lambda y: y + y.sum(1, keepdim=True))(x * 2),
    lambda m, x: (x.bfloat16() * 2).sum(1),
    lambda m, x: (x * 2).sum(1, dtype=torch.float32),
]


def test_not_applied() -> None:
    case = capture(lambda m, x: tuple(body(m, x) for body in STAY), random(3, 4, 5))
    assert scalar_out_of_sum.apply(case.graph) == []


def test_opens_the_way_into_the_weights() -> None:
    def body(m, x):
        return (torch.matmul(x, m.w.t()) / 2).sum(1, keepdim=True) * 1.5

    case = capture(body, random(3, 4), parameters={"w": random(6, 4)})
    done = rewrites.run_all(case.gm)
    assert any(s.startswith("sum_into_weights") for s in done)
    assert_same(case, [random(5, 4)])
