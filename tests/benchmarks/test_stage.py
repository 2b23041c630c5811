"""Stages timed alone: every one of a call is met, where the file launches it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from crucible.fuse import fuse_problem

ROOT = Path(__file__).parents[2]
PROBLEM = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(48, 40)

    def forward(self, x):
        return torch.softmax(self.linear(x), 1)


def get_inputs():
    return [torch.randn(50, 48)]


def get_init_inputs():
    return []
"""
SCRIPT = """
import sys

from crucible.sim import device

device.install()
import importlib.util

import measuring
import stage
import torch

measuring.FLUSH_BYTES = 1024
spec = importlib.util.spec_from_file_location("new", "new.py")
new = importlib.util.module_from_spec(spec)
spec.loader.exec_module(new)
model, x = new.ModelNew().cuda(), torch.randn(50, 48).cuda()
with torch.no_grad():
    for _ in range(3):  # a call that is known by the one before it
        model(x)
    found = stage.times(new, lambda: model(x), 2)
print(sorted((part, name, len(ms)) for (part, name), ms in found.items()))
"""


def test_every_stage_of_a_call_is_timed(tmp_path):
    """Also where the file knows the call from the last one and would take its kernels from there."""
    (tmp_path / "problem.py").write_text(PROBLEM)
    (tmp_path / "new.py").write_text(fuse_problem(tmp_path / "problem.py").text)
    (tmp_path / "script.py").write_text(SCRIPT)
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "benchmarks")])
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, cwd=tmp_path, timeout=300,
                          env={**os.environ, "PYTHONPATH": path})  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    stages = [("forward", name, 2) for name in ("contract_1", "map_2", "rows_1")]
    assert done.stdout.strip() == str(stages)
