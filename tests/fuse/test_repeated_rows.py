"""Rows that are a short stretch many times (a channel of every sample): cut into some of the times each, and right."""

from __future__ import annotations

import os
import re
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
    def forward(self, x):
        return x.sum(dim=(0, 2, 3)), x.abs().amax(dim=(0, 2, 3)), torch.tanh(x).mean(dim=(0, 2, 3)) * 2


def get_inputs():
    return [torch.randn(512, 128, 34, 34)]


def get_init_inputs():
    return []
"""

SCRIPT = """
import sys

from crucible.sim import device

device.install()
import importlib.util

import torch

spec = importlib.util.spec_from_file_location("new", sys.argv[1])
new = importlib.util.module_from_spec(spec)
spec.loader.exec_module(new)
torch.manual_seed(3)
model = new.ModelNew().cuda()
# The stretch alone is cut, the times alone (with some left over, or a single one), both, and neither.
for shape in ((1, 3, 97, 101), (11, 128, 9, 11), (7, 3, 10, 10), (1, 5, 8, 8), (5, 3, 100, 101), (3, 2000, 3, 3)):
    x = torch.randn(shape)
    x[0, 0, 0, 0] = 50
    with torch.no_grad():
        got = [t.cpu().double() for t in model(x.cuda())]
    d = x.double()
    true = d.sum(dim=(0, 2, 3)), d.abs().amax(dim=(0, 2, 3)), torch.tanh(d).mean(dim=(0, 2, 3)) * 2
    scale = d.abs().sum(dim=(0, 2, 3)), 1, 1
    for g, t, s in zip(got, true, scale):
        off = ((g - t).abs() / s).max().item()
        assert off < 1e-6, (shape, off)
    counts = next(iter(new._PLANS.values()))[-1]
    print("cut", shape, counts[-1])
    new._PLANS.clear()
    new._LAST.clear()
assert not device.reports(), device.reports()
print("right")
"""


@pytest.fixture(scope="module")
def fused(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repeated")
    (folder / "reference.py").write_text(PROBLEM)
    made = fuse_problem(folder / "reference.py")
    (folder / "new.py").write_text(made.text)
    return folder, made.text


def test_cut_by_times(fused):
    _, text = fused
    assert "check(launch_split_rows<" in text and re.search(r"Index repeats\(\) const \{ return s\d+; \}", text)
    assert re.search(r"for \(Index part = first; part < last; \+\+part\)", text)


def test_right_however_cut(fused):
    folder, _ = fused
    (folder / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "script.py", "new.py"], capture_output=True, text=True, cwd=folder,
                          env=environment, timeout=400)  # fmt: skip
    assert done.returncode == 0 and "right" in done.stdout, done.stdout + done.stderr
    cuts = [int(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("cut")]
    assert cuts == [2, 8, 7, 1, 10, 1], cuts
