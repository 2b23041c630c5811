"""Stride-1 transposed convolutions become convolutions with turned weights, in one to three dimensions."""

from __future__ import annotations

import pytest
import torch
from rewrite_cases import F64, assert_same, capture, random
from torch import nn

from crucible.graph import rewrites
from crucible.graph.edit import aten, insert, replace
from crucible.graph.rewrites import transposed_conv

pytestmark = pytest.mark.quick

KINDS = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def layer(rank: int, kernel, **settings):
    return KINDS[rank](4, 6, kernel, dtype=F64, **settings)


@pytest.mark.parametrize(
    "rank,kernel,settings",
    [
        (1, 3, {}),
        (1, 1, {}),
        (2, (3, 2), {"padding": (1, 0), "bias": False}),
        (2, 3, {"groups": 2, "dilation": 2, "padding": 3}),
        (2, (1, 3), {"padding": (0, 2)}),
        (3, (2, 3, 1), {"groups": 2, "padding": (0, 1, 0)}),
    ],
)
def test_applied(rank: int, kernel, settings) -> None:
    module = layer(rank, kernel, **settings)
    case = capture(module, random(2, 4, *[6, 5, 4][:rank]))
    (sentence,) = transposed_conv.apply(case.graph)
    assert "turned" in sentence
    assert f"aten.conv{rank}d.default" in case.targets()
    assert not any("conv_transpose" in t for t in case.targets())
    assert_same(case, [random(3, 4, *[7, 8, 5][:rank])], [random(5, 4, *[5, 9, 3][:rank])])


def test_the_general_call_stays_general() -> None:
    case = capture(layer(2, 3), random(2, 4, 6, 5))
    node = next(n for n in case.graph.nodes if n.target is aten.conv_transpose2d.input)
    x, w, b = node.args[:3]
    replace(node, insert(node, aten.convolution.default, x, w, b, [1, 1], [0, 0], [1, 1], True, [0, 0], 1))
    assert len(transposed_conv.apply(case.graph)) == 1
    assert transposed_conv.apply(case.graph) == []
    assert_same(case, [random(3, 4, 7, 8)])


@pytest.mark.parametrize(
    "settings",
    [
        {"stride": 2},
        {"stride": (1, 2)},
        {"padding": 3},
        {"dilation": 2, "output_padding": 1},
    ],
)
def test_not_applied(settings) -> None:
    case = capture(layer(2, 3, **settings), random(2, 4, 9, 8))
    assert transposed_conv.apply(case.graph) == []


def test_off_unless_asked_for() -> None:
    case = capture(layer(2, 3), random(2, 4, 6, 5))
    assert rewrites.run_all(case.gm) == []
    assert rewrites.run_all(case.gm, also=["transposed_conv"])
    assert_same(case)


def test_weights_of_unknown_size_stay() -> None:
    case = capture(lambda m, x, w: torch.conv_transpose2d(x, w), random(2, 4, 6, 5), random(4, 3, 2, 2))
    assert transposed_conv.apply(case.graph) == []
