"""Norms and reductions along rows in the tiles of matrix products: right with every engine, forward and backward."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from crucible.fuse import FuseOptions, fuse_problem
from crucible.plan.stages import Contraction

ROOT = Path(__file__).parents[2]
# Groups of less than a warp has lanes and of more; a row's smallest element, and where; two reductions of one product;
# several products at once; moments that are a result, of which nothing that follows makes use.
PROBLEM = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.small = nn.Linear(270, 160), nn.GroupNorm(10, 160)
        self.second, self.large = nn.Linear(270, 320), nn.GroupNorm(5, 320)
        self.third = nn.Linear(270, 37)
        self.fourth = nn.Linear(270, 128)
        self.pairs = nn.Parameter(torch.randn(2, 135, 150) / 12)

    def forward(self, x):
        least = torch.min(self.small(self.first(x)), dim=1)
        y = self.third(x)
        pairs = torch.bmm(x.view(-1, 2, 135).transpose(0, 1), self.pairs)
        normed = F.hardtanh(self.large(F.gelu(self.second(x))))
        z = self.fourth(x)
        spread = torch.var(z.view(-1, 8, 16), dim=2)
        return least[0], least[1], normed, y.sum(1), F.relu(y).amax(1), torch.tanh(pairs).mean(2), spread, z.amax(1)


def get_inputs():
    return [torch.randn(140, 270)]


def get_init_inputs():
    return []
"""

SCRIPT = """
import sys

from crucible.sim import device

device.install()
import importlib.util

import torch


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


new, reference = load(sys.argv[1], "new"), load(sys.argv[2], "reference")


def run(model, x, backward):
    x = x.clone().requires_grad_(backward)
    with torch.set_grad_enabled(backward):
        outputs = model(x)
    found = [o.detach() for o in outputs]
    if backward:
        torch.manual_seed(5)
        loss = sum((o * torch.randn(o.shape).to(o)).sum() for o in outputs if o.is_floating_point())
        found += torch.autograd.grad(loss, [x, *model.parameters()])
    return [t.cpu() for t in found]


for line in sys.stdin:
    batch, dtype, backward = line.split()
    dtype, backward = getattr(torch, dtype), backward == "True"
    torch.manual_seed(int(batch))
    plain = reference.Model().to(dtype)
    exact, mine = reference.Model().double(), new.ModelNew().to(dtype)
    for m in (exact, mine):
        m.load_state_dict(plain.state_dict())
    x = torch.randn(int(batch), 270).to(dtype)
    device.reset()
    got = run(mine.cuda(), x.cuda(), backward)
    assert not device.reports(), device.reports()[0]
    truth, eager = run(exact, x.double(), backward), run(plain, x, backward)
    assert len(got) == len(truth)
    floor = {torch.float64: 1e-12, torch.float32: 1e-6, torch.float16: 1e-3}[dtype]
    for k, (a, e, t) in enumerate(zip(got, eager, truth)):
        assert a.shape == t.shape and a.dtype == e.dtype, k
        if not a.is_floating_point():
            assert dtype == torch.float16 or torch.equal(a, t), (batch, dtype, k)
            continue
        off, theirs = ((v.double() - t).norm() / t.norm() for v in (a, e))
        assert off <= max(2 * theirs, floor), (batch, dtype, k, off, theirs)
    print("right", batch, dtype, flush=True)
"""
CASES = {
    "auto": [(140, "float32", True), (3, "float32", True), (1, "float32", False), (129, "float16", False)],
    "simt": [(70, "float32", False), (33, "float64", True)],
}


@pytest.mark.parametrize("engine", CASES)
def test_right(engine, tmp_path):
    problem, new, script = (tmp_path / n for n in ("tails.py", "tails_new.py", "script.py"))
    problem.write_text(PROBLEM)
    script.write_text(SCRIPT)
    fused = fuse_problem(problem, FuseOptions(engine=engine))
    new.write_text(fused.text)
    (mode,) = fused.modes
    tails = [s.tail for s in mode.inference.plan.forward_stages if isinstance(s, Contraction)]
    assert len(tails) == 5 and all(tails), "every product goes on in its tiles"
    assert "struct Group { accum none; };" in fused.text
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    asked = "".join(" ".join(map(str, case)) + "\n" for case in CASES[engine])
    done = subprocess.run([sys.executable, str(script), str(new), str(problem)], input=asked, capture_output=True,
                          text=True, cwd=tmp_path, env=environment, timeout=400)  # fmt: skip
    assert done.returncode == 0 and done.stdout.count("right") == len(CASES[engine]), done.stdout + done.stderr[-3000:]
