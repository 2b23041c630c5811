"""Pools move before scales and shifts of either sign that are constant in each window."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from rewrite_cases import assert_same, capture, random
from test_batch_norm_eval import used
from test_pool_monotone import ties
from torch import nn

from crucible.graph import rewrites
from crucible.graph.rewrites import pool_affine

pytestmark = pytest.mark.quick


def case_of(body, dtype=torch.float64, shape=(4, 1, 1)):
    signs = torch.tensor([1.5, -0.5, 2.0, -3.0], dtype=dtype)
    parameters = {"a": signs.reshape(shape), "b": random(*shape, dtype=dtype)}
    return capture(body, random(2, 4, 8, 9, dtype=dtype), parameters=parameters)


@pytest.mark.parametrize(
    "body,steps",
    [
        (lambda m, x: F.max_pool2d(m.a * x + m.b, 2), 2),
        (lambda m, x: F.max_pool2d(m.b + x * m.a, 3, 2, 1), 2),
        (lambda m, x: F.max_pool2d((x - m.b) * m.a, 2), 1),
        (lambda m, x: F.adaptive_max_pool2d(x * m.a, 2), 1),
        (lambda m, x: (x * m.a).amin((2, 3), keepdim=True), 1),
    ],
)
def test_applied(body, steps: int) -> None:
    case = case_of(body)
    assert len(pool_affine.apply(case.graph)) == steps
    assert_same(case, [random(3, 4, 7, 11)], [ties(1, 4, 9, 6)])


def test_a_zero_scale_keeps_values_and_the_gradient_of_the_input() -> None:
    case = capture(lambda m, x, a: F.max_pool2d(x * a, 2), random(2, 4, 8, 8), random(1, 4, 1, 1))
    assert pool_affine.apply(case.graph)
    x = random(2, 4, 8, 8).requires_grad_()
    a = torch.zeros(1, 4, 1, 1, dtype=torch.float64)
    (got,) = case.run({}, [x, a])
    assert torch.equal(got, torch.zeros_like(got))
    assert torch.equal(torch.autograd.grad(got.sum(), x)[0], torch.zeros_like(x))


@pytest.mark.parametrize(
    "body,shape",
    [
        (lambda m, x: F.max_pool2d(m.b - x, 2), (4, 1, 1)),
        (lambda m, x: (x * m.a).amax((2, 3)), (4, 1, 1)),
        (lambda m, x: (lambda y: F.max_pool2d(y, 2).sum() + y.sum())(x * m.a), (4, 1, 1)),
        (lambda m, x: F.max_pool2d(torch.add(x, m.a, alpha=2), 2), (4, 1, 1)),
        (lambda m, x: F.max_pool2d(x * x, 2), (4, 1, 1)),
        (lambda m, x: (x.transpose(1, 3) * m.a).amax(3, keepdim=True), (4,)),
    ],
)
def test_not_applied(body, shape) -> None:
    assert pool_affine.apply(case_of(body, shape=shape).graph) == []


def test_not_applied_in_sixteen_bits() -> None:
    assert pool_affine.apply(case_of(lambda m, x: F.max_pool2d(x * m.a, 2), torch.bfloat16).graph) == []


def test_batch_norm_and_pool_in_eval_mode() -> None:
    module = nn.Sequential(used(nn.BatchNorm2d(4)), nn.Tanh(), nn.MaxPool2d(2)).double().eval()
    case = capture(module, random(2, 4, 8, 9))
    assert not any("pool_affine" in s for s in rewrites.run_all(case.gm))
    done = rewrites.run_all(case.gm, also=["pool_affine"])
    # The shift and the scale; the product with the signs and what is under it stay before the pool.
    assert sum("pool_affine" in s for s in done) == 2
    assert_same(case, [random(3, 4, 7, 11)])
