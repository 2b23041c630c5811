"""Products of few rows in generated files: one file, batches on both sides of the limit, forward and backward."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from crucible.fuse import FuseOptions, fuse_problem
from crucible.plan.stages import Contraction, Row
from crucible.plan.tiles import FEW_LINES

ROOT = Path(__file__).parents[2]
# A weight that lies along the depth, with statistics; one that lies along the columns, of odd sizes; one for each of
# two halves of the input, which are no neighbours; and a head of few columns.
PROBLEM = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(520, 272), nn.GroupNorm(17, 272)
        self.second = nn.Parameter(torch.randn(272, 261) / 16)
        self.halves = nn.Parameter(torch.randn(2, 260, 130) / 16)
        self.head = nn.Linear(272, 5)

    def forward(self, x):
        h = torch.relu(self.norm(self.first(x)))
        halves = torch.bmm(x.view(-1, 2, 260).transpose(0, 1), self.halves)
        return torch.tanh(h @ self.second), torch.sigmoid(halves), self.head(h)


def get_inputs():
    return [torch.randn(BATCH, 520)]


def get_init_inputs():
    return []
"""

SCRIPT = """
import sys

from crucible.sim import device

device.install()
import importlib.util

import torch

torch.backends.cuda.matmul.allow_tf32 = False
spec = importlib.util.spec_from_file_location("new", sys.argv[1])
new = importlib.util.module_from_spec(spec)
spec.loader.exec_module(new)
spec = importlib.util.spec_from_file_location("reference", sys.argv[2])
reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference)


def run(model, x, weights):
    x = x.clone().requires_grad_() if weights is not None else x
    outputs = model(x)
    if weights is None:
        return [o.detach().cpu() for o in outputs]
    loss = sum((o.float() * w.to(o.device)).sum() for o, w in zip(outputs, weights))
    leaves = [x, *model.parameters()]
    return [o.detach().cpu() for o in outputs] + [g.cpu() for g in torch.autograd.grad(loss, leaves)]


def moved(t):
    # The same numbers one element further on: nothing lies on 16 bytes.
    wide = torch.zeros(t.numel() + 1, dtype=t.dtype, device=t.device)
    wide[1:] = t.flatten()
    return wide[1:].view(t.shape)


def check(batch, dtype, backward, apart):
    torch.manual_seed(batch)
    plain = reference.Model().to(dtype)
    x = torch.randn(batch, 520).to(dtype)
    exact = reference.Model().double()
    exact.load_state_dict(plain.state_dict())
    mine = new.ModelNew().to(dtype)
    mine.load_state_dict(plain.state_dict())
    mine = mine.cuda()
    given = x.cuda()
    if apart:
        for p in mine.parameters():
            p.data = moved(p.data)
        given = moved(given)
    shapes = [o.shape for o in plain(x)]
    weights = [torch.randn(s) for s in shapes] if backward else None
    device.reset()
    got = run(mine, given, weights)
    assert not device.reports(), device.reports()[0]
    few = [one for one in device.launches() if "contract_few_kernel" in one["kernel"]]
    again = run(mine, given, weights)
    assert all(torch.equal(a, b) for a, b in zip(got, again)), "not the same twice"
    truth = run(exact, x.double(), [w.double() for w in weights] if backward else None)
    eager = run(plain, x, weights)
    for k, (a, e, t) in enumerate(zip(got, eager, truth)):
        assert a.shape == t.shape and a.dtype == e.dtype
        off, theirs = ((v.double() - t).norm() / t.norm() for v in (a, e))
        floor = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
        assert off <= max(2 * theirs, floor), (batch, dtype, k, off, theirs)
    print(batch, dtype, len(few), flush=True)
    return len(few)


for line in sys.stdin:
    batch, dtype, backward, apart, launches = line.split()
    made = check(int(batch), getattr(torch, dtype), backward == "True", apart == "True")
    assert made == int(launches), f"batch {batch}: {made} launches of few rows, expected {launches}"
print("right")
"""


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    path = tmp_path_factory.mktemp("few") / "few_rows.py"
    path.write_text(PROBLEM.replace("BATCH", "40"))
    return path


def checked(problem, tmp_path, engine, cases):
    """Run a file in a process of its own; cases: batch, type, backward, unaligned, launches of this way."""
    new, script = tmp_path / "few_new.py", tmp_path / "script.py"
    new.write_text(fuse_problem(problem, FuseOptions(engine=engine)).text)
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    asked = "".join(" ".join(map(str, case)) + "\n" for case in cases)
    done = subprocess.run([sys.executable, str(script), str(new), str(problem)], input=asked, capture_output=True,
                          text=True, cwd=tmp_path, env=environment, timeout=400)  # fmt: skip
    assert done.returncode == 0 and "right" in done.stdout, done.stdout + done.stderr[-3000:]


@pytest.mark.parametrize("engine", ["auto", pytest.param("simt", marks=pytest.mark.exhaustive)])
def test_both_sides_of_the_limit(problem, tmp_path, engine):
    """Three products forward; backward the derivatives of the input's of two of them (the halves' has 130 k)."""
    cases = [(b, "float32", True, False, 5 if b <= FEW_LINES else 0) for b in (1, 2, 3, 8, 16, 17)]
    checked(problem, tmp_path, engine, [*cases, (3, "float32", False, True, 3)])


def test_half_types(problem, tmp_path):
    cases = [(b, d, False, apart, 3) for d in ("float16", "bfloat16") for b, apart in ((1, False), (16, True))]
    checked(problem, tmp_path, "mma", cases)


@pytest.mark.quick
def test_a_plan_of_few_rows_splits_nothing_itself(problem, tmp_path):
    """At 40 rows the first product is split in the plan where it is deep; at 4 the kernel does that."""
    path = tmp_path / "deep.py"

    def stages(batch: int) -> list:
        text = PROBLEM.replace("BATCH", str(batch)).replace("520, 272", "2080, 272").replace("520", "2080")
        path.write_text(text.replace("260, 130", "1040, 130").replace("2, 260", "2, 1040"))
        return fuse_problem(path, FuseOptions(forward_only=True)).modes[0].plan.forward_stages

    many, few = ([s for s in stages(batch) if isinstance(s, (Contraction, Row))] for batch in (40, 4))
    assert any(isinstance(s, Contraction) and s.splits != 1 for s in many)
    products = [s for s in few if isinstance(s, Contraction)]
    assert all(s.splits == 1 for s in products) and len(few) < len(many)
    assert sum(s.statistics is not None for s in products) == 1
