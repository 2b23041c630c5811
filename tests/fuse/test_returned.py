"""What forward() may return beside tensors: sizes, numbers, and containers of all kinds."""

from __future__ import annotations

SOURCE = """
import collections
from typing import NamedTuple

import torch
import torch.nn as nn


class Out(NamedTuple):
    y: torch.Tensor
    n: int


class Model(nn.Module):
    class Own(NamedTuple):
        a: torch.Tensor
        b: float

    def forward(self, x):
        h, w = x.shape[-2:]
        y = torch.relu(x) * 2
        ordered = collections.OrderedDict(a=y.mean(), b=(h, [w]))
        return Out(y, x.numel()), self.Own(y.sum(0), h / w), ordered, x.shape, {"z": None, "k": max(h, 3)}, "text"


def get_inputs():
    return [torch.randn(2, 3, 9, 8)]


def get_init_inputs():
    return []
"""


def test_containers_and_sizes(proven):
    fused, _ = proven(SOURCE)
    assert "ModelNew.Own(made[1], ((tensors[0].shape[2]) / (tensors[0].shape[3])))" in fused.text
