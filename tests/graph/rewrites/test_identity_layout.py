"""Copies and views that change nothing go; those that change strides, gradients or ownership stay."""

from __future__ import annotations

import pytest
import torch
from rewrite_cases import assert_same, capture, random

from crucible.graph.rewrites import dead_nodes, identity_layout

pytestmark = pytest.mark.quick


GO = [
    lambda x: x.clone(),
    lambda x: x.view(x.shape),
    lambda x: x.reshape(x.shape[0], x.shape[1]),
    lambda x: x.expand(-1, -1),
    lambda x: x.permute(0, 1),
    lambda x: x.transpose(1, -1),
    lambda x: x[:, :],
    lambda x: x.squeeze(1),
    lambda x: x.to(torch.float64, copy=True),
]


def test_applied() -> None:
    case = capture(lambda m, x: tuple(torch.exp(body(x)) for body in GO), random(3, 4))
    assert len(identity_layout.apply(case.graph)) >= len(GO)
    dead_nodes.apply(case.graph)
    assert case.targets() == ["aten.exp.default"] * len(GO)
    assert_same(case, [random(2, 7)], [random(5, 3)])


STAY = [
    lambda x: x.t().contiguous(),
    lambda x: x.detach(),
    lambda x: x.permute(1, 0),
    lambda x: x.reshape(-1),
    lambda x: x[1:],
    lambda x: x.flip(0),
    lambda x: x.to(torch.float32),
    lambda x: x.unsqueeze(0),
]


def test_not_applied() -> None:
    case = capture(lambda m, x: tuple(torch.exp(body(x)) for body in STAY), random(3, 4))
    assert identity_layout.apply(case.graph) == []


def test_copies_the_caller_owns_stay() -> None:
    def both(m, x):
        y = x.exp()
        return y, y.clone().view(-1)

    for body in (lambda m, x: x.clone(), lambda m, x: x.t().clone().t(), both):
        assert identity_layout.apply(capture(body, random(3, 4)).graph) == []


def test_a_copy_of_a_fresh_value_goes_though_returned() -> None:
    case = capture(lambda m, x: x.exp().clone(), random(3, 4))
    assert len(identity_layout.apply(case.graph)) == 1
    assert_same(case, [random(2, 7)])
