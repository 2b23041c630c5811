"""Dropout that is off goes; dropout that drops stays."""

from __future__ import annotations

import operator

import pytest
import torch
from rewrite_cases import assert_same, capture, random
from torch import nn

from crucible.graph import rewrites
from crucible.graph.edit import aten, insert, replace
from crucible.graph.rewrites import dropout_off

pytestmark = pytest.mark.quick


def with_call(target, *settings):
    """A graph exp(dropout(x)), the dropout put in by hand: export writes another form in eval mode."""
    case = capture(lambda m, x: torch.exp(x.neg()), random(3, 4))
    neg = next(n for n in case.graph.nodes if n.target is aten.neg.default)
    call = insert(neg, target, neg.args[0], *settings)
    result = insert(neg, operator.getitem, call, 0) if target is aten.native_dropout.default else call
    replace(neg, result)
    return case


@pytest.mark.parametrize(
    "target",
    [aten.dropout.default, aten.alpha_dropout.default, aten.feature_dropout.default, aten.native_dropout.default],
)
@pytest.mark.parametrize("p,train", [(0.5, False), (0.0, True)])
def test_applied(target, p: float, train: bool) -> None:
    case = with_call(target, p, train)
    assert len(dropout_off.apply(case.graph)) == 1
    assert case.targets() == ["aten.exp.default"]


@pytest.mark.parametrize("target", [aten.dropout.default, aten.native_dropout.default])
def test_not_applied(target) -> None:
    assert dropout_off.apply(with_call(target, 0.5, True).graph) == []


def test_a_used_mask_keeps_the_call() -> None:
    case = with_call(aten.native_dropout.default, 0.5, False)
    call = next(n for n in case.graph.nodes if n.target is aten.native_dropout.default)
    last = next(n for n in case.graph.nodes if n.op == "output")
    mask = insert(last, operator.getitem, call, 1)
    last.args = ((*last.args[0], mask),)
    assert dropout_off.apply(case.graph) == []


class Net(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(p)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(self.drop(x.sin()))


@pytest.mark.parametrize("p,train", [(0.5, False), (0.0, True)])
def test_modules_end_without_dropout(p: float, train: bool) -> None:
    case = capture(Net(p).train(train), random(3, 4))
    rewrites.run_all(case.gm)
    assert case.targets() == ["aten.sin.default", "aten.exp.default"]
    assert_same(case, [random(2, 7)], [random(5, 3)])
