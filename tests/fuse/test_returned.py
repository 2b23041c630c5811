"""What forward() may return beside tensors: sizes, numbers, and containers of all kinds."""

from __future__ import annotations

import crucible
from crucible.fuse import FuseOptions, fuse_problem

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


def test_containers_and_sizes(tmp_path):
    reference, new = tmp_path / "reference.py", tmp_path / "new.py"
    reference.write_text(SOURCE)
    new.write_text(fuse_problem(reference, FuseOptions()).text)
    found = crucible.prove(reference, new, device="sim", seed=3, quick=True, timeout=300)
    assert found.verdict == "proven", found.to_text()[-3000:]
    assert "ModelNew.Own(made[1], ((tensors[0].shape[2]) / (tensors[0].shape[3])))" in new.read_text()
