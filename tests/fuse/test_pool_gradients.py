"""Gradients of pools whose windows overlap, lie side by side, leave gaps, are dilated or hang over: against float64."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from crucible.fuse import fuse_problem

ROOT = Path(__file__).parents[2]
PROBLEM = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.pools = nn.ModuleList([POOLS])

    def forward(self, x):
        return tuple(pool(x) for pool in self.pools)


def get_inputs():
    return [torch.randn(2, 3, 13, 17)]


def get_init_inputs():
    return []
"""
KINDS = {
    "max_pool": [
        "2", "3, stride=2, padding=1", "2, stride=3", "3, stride=1", "(2, 3), stride=(2, 1)",
        "2, stride=2, dilation=2", "3, 2, ceil_mode=True",
    ],
    "avg_pool": [
        "2", "3, stride=2, padding=1", "2, stride=3", "3, stride=1", "(3, 2), stride=(2, 3)",
        "3, 2, ceil_mode=True, count_include_pad=False, padding=1",
    ],
}  # fmt: skip
SCRIPT = """
import sys

from crucible.sim import device

device.install()
import importlib.util

import torch


def load(name):
    spec = importlib.util.spec_from_file_location(name, f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gradient(model, x, weights):
    x = x.clone().requires_grad_()
    outputs = model(x)
    if weights is None:
        return outputs
    return torch.autograd.grad(outputs, x, [w.to(x) for w in weights])[0].cpu().double()


torch.manual_seed(3)
new, reference = load("new").ModelNew().cuda(), load("reference").Model().double()
for shape in ((2, 3, 13, 17), (1, 2, 7, 8), (3, 1, 12, 6)):
    x = torch.randn(shape)
    weights = [torch.randn(o.shape) for o in gradient(reference, x.double(), None)]
    for only in range(len(weights)):  # each pool alone: an error of one is not lost in the others
        own = [w * (k == only) for k, w in enumerate(weights)]
        got, true = gradient(new, x.cuda(), own), gradient(reference, x.double(), own)
        assert torch.allclose(got, true, rtol=1e-5, atol=1e-5), (shape, only, (got - true).abs().max())
assert not device.reports(), device.reports()
print("right")
"""


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind, tmp_path):
    layer = "MaxPool2d" if kind == "max_pool" else "AvgPool2d"
    pools = ", ".join(f"nn.{layer}({given})" for given in KINDS[kind])
    (tmp_path / "reference.py").write_text(PROBLEM.replace("POOLS", pools))
    text = fuse_problem(tmp_path / "reference.py").text
    assert f"// {kind}2d" in text.partition("_BACKWARD_SOURCE")[2]  # none is left to torch
    (tmp_path / "new.py").write_text(text)
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, cwd=tmp_path, env=environment,
                          timeout=400)  # fmt: skip
    assert done.returncode == 0 and "right" in done.stdout, done.stdout + done.stderr
