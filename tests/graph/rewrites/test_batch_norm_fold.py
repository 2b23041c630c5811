"""Batch norm in eval mode goes into the weights before it, only where nobody else sees them."""

from __future__ import annotations

import pytest
import torch
from rewrite_cases import F64, assert_same, capture, random
from test_batch_norm_eval import used
from torch import nn

from crucible.graph import rewrites
from crucible.graph.rewrites import batch_norm_fold

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    "layer,norm,sizes",
    [
        (nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6), (9,)),
        (nn.Conv2d(4, 6, 3, groups=2, bias=False), nn.BatchNorm2d(6), (6, 5)),
        (nn.Conv2d(4, 6, 3, padding="same"), nn.BatchNorm2d(6), (6, 5)),
        (nn.ConvTranspose2d(4, 6, 3, stride=2), nn.BatchNorm2d(6, affine=False), (4, 5)),
        (nn.ConvTranspose2d(4, 6, 2, groups=2), nn.BatchNorm2d(6), (4, 5)),
        (nn.Conv3d(4, 6, 2), nn.BatchNorm3d(6), (3, 4, 5)),
        (nn.Linear(4, 6), nn.BatchNorm1d(6), ()),
    ],
)
def test_applied(layer: nn.Module, norm: nn.Module, sizes) -> None:
    case = capture(nn.Sequential(layer, used(norm)).double().eval(), random(3, 4, *sizes))
    assert len(batch_norm_fold.apply(case.graph)) == 1
    assert not any("batch_norm" in t for t in case.targets())
    others = [[random(n, 4, *[s + n for s in sizes])] for n in (2, 5)]
    assert_same(case, *others)


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 6, 3), used(nn.BatchNorm2d(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return self.norm(y) + y


@pytest.mark.parametrize(
    "module,dtype",
    [
        (Shared(), F64),
        (nn.Sequential(nn.Conv2d(4, 6, 3), used(nn.BatchNorm2d(6))), torch.float16),
        (nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), used(nn.BatchNorm2d(6))), F64),
    ],
)
def test_not_applied(module: nn.Module, dtype: torch.dtype) -> None:
    case = capture(module.to(dtype).eval(), random(2, 4, 6, 5, dtype=dtype))
    assert batch_norm_fold.apply(case.graph) == []


def test_not_applied_in_training_or_across_features() -> None:
    case = capture(nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)).double().train(), random(2, 4, 6, 5))
    assert batch_norm_fold.apply(case.graph) == []
    # A linear layer on [N, C, L]: its features are the last axis, the norm's channels the second.
    case = capture(nn.Sequential(nn.Linear(5, 7), used(nn.BatchNorm1d(4))).double().eval(), random(2, 4, 5))
    assert batch_norm_fold.apply(case.graph) == []


def test_off_unless_asked_for() -> None:
    def fresh():
        return capture(nn.Sequential(nn.Conv2d(4, 6, 3), used(nn.BatchNorm2d(6))).double().eval(), random(2, 4, 6, 5))

    assert not any("batch_norm_fold" in s for s in rewrites.run_all(fresh().gm))
    case = fresh()
    assert any("batch_norm_fold" in s for s in rewrites.run_all(case.gm, also=["batch_norm_fold"]))
    assert_same(case)
