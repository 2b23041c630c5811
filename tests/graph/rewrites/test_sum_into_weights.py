"""Sums over output features go into the weights; sums over anything else, and shared products, stay."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from rewrite_cases import F64, assert_same, capture, random

from crucible.graph import rewrites
from crucible.graph.rewrites import sum_into_weights

pytestmark = pytest.mark.quick


def case_of(body, x: torch.Tensor, *weight: int, dtype: torch.dtype = F64):
    parameters = {"w": random(*weight, dtype=dtype), "b": random(6, dtype=dtype)}
    return capture(body, x, parameters=parameters)


@pytest.mark.parametrize(
    "body,sizes,weight",
    [
        (lambda m, x: F.linear(x, m.w, m.b).sum(-1), (), (6, 4)),
        (lambda m, x: F.linear(x, m.w).sum(1, keepdim=True) + m.b.sum(), (), (6, 4)),
        (lambda m, x: F.linear(x, m.w, m.b).mean(dim=-1), (), (6, 4)),
        (lambda m, x: torch.mm(x, m.w).sum(1) * m.b.sum(), (), (4, 6)),
        (lambda m, x: torch.matmul(x.transpose(1, 2), m.w).sum(-1) + m.b.sum(), (5,), (4, 6)),
        (lambda m, x: F.linear(x.transpose(1, 2), m.w, m.b).sum(2), (5,), (6, 4)),
        (lambda m, x: F.conv2d(x, m.w, m.b).sum(1, keepdim=True), (5, 6), (6, 4, 1, 1)),
        (lambda m, x: F.conv2d(x, m.w, m.b, 2, 1).mean(1), (5, 6), (6, 4, 3, 3)),
        (lambda m, x: F.conv_transpose2d(x, m.w, m.b, 2).sum(1), (5, 6), (4, 6, 3, 3)),
    ],
)
def test_applied(body, sizes, weight) -> None:
    case = case_of(body, random(3, 4, *sizes), *weight)
    assert len(sum_into_weights.apply(case.graph)) == 1
    assert_same(case, *[[random(n, 4, *[s + n for s in sizes])] for n in (2, 7)])


STAY = [
    lambda m, x: F.linear(x, m.w, m.b).sum(0),
    lambda m, x: F.linear(x, m.w, m.b).sum((0, 1)),
    lambda m, x: F.linear(x, m.w, m.b).sum(),
    lambda m, x: F.linear(x, m.w, m.b).amax(-1),
    lambda m, x: F.linear(x, m.w, m.b).relu().sum(-1),
    lambda m, x: F.linear(x, m.w, m.b).sum(-1, dtype=torch.float32),
    lambda m, x: (lambda y: y.sum(-1, keepdim=True) + y)(F.linear(x, m.w, m.b)),
]


def test_not_applied_to_linear() -> None:
    case = case_of(lambda m, x: tuple(body(m, x) for body in STAY), random(3, 4), 6, 4)
    assert sum_into_weights.apply(case.graph) == []


@pytest.mark.parametrize(
    "body,sizes,weight",
    [
        (lambda m, x: F.conv2d(x, m.w, m.b).sum((2, 3)), (5, 6), (6, 4, 1, 1)),
        (lambda m, x: F.conv2d(x, m.w, m.b, groups=2).sum(1), (5, 6), (6, 2, 1, 1)),
        (lambda m, x: torch.matmul(x, x.transpose(1, 2)).sum(-1), (5,), (1,)),
    ],
)
def test_not_applied(body, sizes, weight) -> None:
    assert sum_into_weights.apply(case_of(body, random(3, 4, *sizes), *weight).graph) == []


def test_sixteen_bits_stay() -> None:
    x = random(3, 4, dtype=torch.bfloat16)
    case = case_of(lambda m, x: F.linear(x, m.w, m.b).sum(-1), x, 6, 4, dtype=torch.bfloat16)
    assert sum_into_weights.apply(case.graph) == []


def test_what_follows_a_single_feature_falls_away() -> None:
    def body(m, x):
        y = F.linear(x, m.w, m.b).sum(1, keepdim=True)
        y = y.max(dim=1, keepdim=True).values.mean(dim=1, keepdim=True)
        return y.logsumexp(1, keepdim=True).logsumexp(1, keepdim=True)

    case = case_of(body, random(3, 4), 6, 4)
    rewrites.run_all(case.gm)
    assert case.targets() == ["aten.sum.dim_IntList", "aten.sum.dim_IntList", "aten.linear.default"]
    assert_same(case, [random(2, 4)], [random(7, 4)])
