"""Parameters, inputs and operators that are called what a generated file calls something of its own."""

from __future__ import annotations

import pytest

# Names of Python's and C++'s own, of torch's sizes, of the helpers and of the variables in the text, and of functions.
NAMES = (
    "template operator new union typename long unsigned size index dense alone places others ctx gradients kernels "
    "sizes saved needs memory device dtype stages specs room counts map tuple torch nn self_ threadIdx expf accum_t "
    "Index load p s1 s77 v value scalar fused crucible CRUCIBLE_DEVICE _kernels _pointer __w x_ dtype_"
)
PARAMETERS = f"""
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        for name in "{NAMES}".split():
            setattr(self, name, nn.Parameter(torch.rand(5) + 0.5))

    def forward(self, tensors, sizes):
        y = tensors + sizes
        for parameter in self.parameters():
            y = torch.tanh(y * parameter)
        return y.softmax(-1)


def get_inputs():
    return [torch.randn(3, 5), torch.randn(5)]


def get_init_inputs():
    return []
"""
# The operator is called index, what it gives is stored for torch's own operator and saved for backward.
OPERATOR = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.out = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x, edges):
        h = self.linear(x)
        gathered = torch.tanh(h)[edges[0]]
        sums = torch.zeros_like(h).index_add(0, edges[1], gathered * gathered)
        return self.out(sums) + self.out(gathered)[:7]


def get_inputs():
    return [torch.randn(7, 6), torch.randint(0, 7, (2, 20))]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("source", [PARAMETERS, OPERATOR], ids=["parameters", "operator"])
def test_proven(proven, source):
    proven(source)
