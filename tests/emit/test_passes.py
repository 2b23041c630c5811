"""The host's part of generated files: one native call a pass, plans that are remembered, memory that is shared."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from crucible.emit.functions import passes_of
from crucible.fuse import FuseOptions, fuse_problem

ROOT = Path(__file__).resolve().parents[2]
PROBLEMS = ROOT / "problems"
BATCH_NORM = PROBLEMS / "conv_transpose2d_batch_norm_tanh_max_pool_group_norm.py"
quick = pytest.mark.quick


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What a generated file defines; nothing is compiled."""
    found: dict[str, Any] = {"__name__": "generated"}
    exec(compile(fuse_problem(PROBLEMS / "conv_transpose2d.py").text, "<generated>", "exec"), found)
    return found


@quick
@pytest.mark.parametrize("path", sorted(PROBLEMS.glob("*.py")), ids=lambda p: p.stem)
def test_a_pass_is_one_call(path):
    """No problem has an operator of torch's: each pass makes one native call, and an inference two allocations."""
    fused = fuse_problem(path)
    for mode in fused.modes:
        for run in passes_of(mode):
            head = f"def _{run.name}(" if run.part == "forward" else f"def _{run.name}(needs"
            body = fused.text.split(head, 1)[1].split("\n\n\n", 1)[0]
            assert len(re.findall(r"\bkernels\.\w+\(", body)) == 1
            assert "torch.empty" not in body
            if run.name.endswith("inference"):
                assert body.count("_new(") <= 2, body


@quick
def test_memory_is_never_needed_twice(names):
    """Random buffers: those that live at the same time do not overlap, and a host is written after they are read."""
    draw = random.Random(0)
    shared = hosted = 0
    for _ in range(1000):
        count = draw.randint(1, 8)
        stages = draw.getrandbits(count) | 1
        buffers = [(draw.choice([0, 4, 700, 5000, 100_000]), draw.getrandbits(count) | 1 << draw.randrange(count))
                   for _ in range(draw.randint(1, 7))]  # fmt: skip
        hosts = [(names["_spec"]((draw.choice([0, 100, 30_000]),), torch.float32), 1 << draw.randrange(count))
                 for _ in range(draw.randint(0, 2))]  # fmt: skip
        room, numbers = names["_laid_out"](stages, buffers, [(s if u & stages else None, u) for s, u in hosts])
        places = list(zip(numbers[::2], numbers[1::2]))
        pieces = []
        for (size, users), (holder, offset) in zip(buffers, places):
            users &= stages
            if not users or not size:
                continue
            first, last = (users & -users).bit_length(), users.bit_length()
            limit = room[0][0] if holder == 0 else 4 * hosts[holder - 1][0][0][0]
            assert offset % 512 == 0 and offset + size <= limit
            if holder:
                assert last < hosts[holder - 1][1].bit_length()
                hosted += 1
            for other, begin, end, since, until in pieces:
                if other == holder and since <= last and first <= until:
                    assert offset + size <= begin or end <= offset
                elif other == holder and offset < end and begin < offset + size:
                    shared += 1
            pieces.append((holder, offset, offset + size, first, last))
        assert room[0][0] <= sum(-(-size // 512) * 512 for size, users in buffers if users & stages)
    assert shared > 50 and hosted > 20


@quick
@pytest.mark.parametrize("guards", [True, False], ids=["guards", "none"])
def test_plans_are_remembered(names, monkeypatch, guards):
    """A plan is made once for the same shapes, types and switches; a refusal is not remembered."""
    if not guards:  # another torch
        monkeypatch.setitem(names, "_Guards", None)
    made = []

    def make(*tensors):
        if tensors[0].dim() != 2:
            raise RuntimeError("refused")
        made.append([t.shape for t in tensors])
        return len(made)

    def planned(make, tensors):
        plan, dense = names["_planned"](make, tensors)
        assert all(t.is_contiguous() and torch.equal(t, u) for t, u in zip(dense, tensors, strict=True))
        return plan

    a, b = torch.zeros(3, 4), torch.zeros(3, 5)
    assert planned(make, (a,)) == planned(make, (a.clone(),)) == 1
    assert planned(make, (b,)) == 2 and planned(make, (a.double(),)) == 3 and planned(make, (a,)) == 1
    for _ in range(2):
        assert planned(make, (torch.zeros(4, 3).t(),)) == 1  # a copy
    kept = torch.zeros(3, 4)
    assert planned(make, (kept,)) == planned(make, (kept,)) == 1
    kept.data = torch.zeros(3, 5)
    assert planned(make, (kept,)) == 2
    assert planned(make, (torch.nn.Parameter(a),)) == planned(make, (a,)) == 1
    with torch.inference_mode():
        assert planned(make, (torch.zeros(3, 4),)) == 1
    assert planned(make, (a,)) == 1
    monkeypatch.setitem(names, "_conv_switch", lambda: "other")
    assert planned(make, (a,)) == 4
    for _ in range(2):
        with pytest.raises(RuntimeError, match="refused"):
            planned(make, (torch.empty(3),))
    for size in range(1000):
        planned(make, (torch.zeros(1, size),))
    assert len(names["_PLANS"]) <= 256


@quick
def test_only_switches_that_matter():
    text = fuse_problem(PROBLEMS / "gemm_group_norm_min_bias.py").text
    assert "given = (_matmul_switch(), others)\n" in text and "_conv_switch(), " not in text
    fixed = fuse_problem(PROBLEMS / "gemm_group_norm_min_bias.py", FuseOptions(precision="fp32")).text
    assert "given = (others)\n" in fixed


def _simulated(tmp_path: Path, text: str) -> None:
    script = tmp_path / "script.py"
    head = "from crucible.sim import device\ndevice.install()\nimport torch, crucible\nfrom torch import nn\n"
    tail = '\nassert not device.reports(), device.reports()\nprint("right")\n'
    script.write_text(head + textwrap.dedent(text) + tail)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, env=environment,
                          timeout=400)  # fmt: skip
    assert done.returncode == 0 and "right" in done.stdout, done.stdout + done.stderr


def test_buffers_are_updated_in_place(tmp_path):
    """Running statistics, also where they are not contiguous; autograd is told that they changed."""
    _simulated(tmp_path, """
        torch.manual_seed(0)
        def net():
            torch.manual_seed(1)
            return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU()).cuda()
        one, two = net(), net()
        one[1].running_var = torch.ones(10, device="cuda")[::2]
        fused = crucible.fuse(one, torch.empty(7, 6))
        assert "launch_copies" not in fused.fused.text
        x = torch.randn(9, 6, device="cuda")
        mean, version = one[1].running_mean, one[1].running_mean._version
        for k in range(4):
            with torch.set_grad_enabled(k % 2 == 0):
                torch.testing.assert_close(fused(x + k), two(x + k), rtol=1e-4, atol=1e-5)
        assert one[1].running_mean is mean and mean._version >= version + 4
        for a, b in zip(one.buffers(), two.buffers()):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
        assert one[1].num_batches_tracked.item() == 4
        kept = one.eval() and fused.eval()(x.requires_grad_())  # its backward needs the statistics as they are
        fused.train()(x)
        try:
            kept.sum().backward()
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
        else:
            raise AssertionError("autograd did not notice")
        """)


def test_buffers_that_are_read_again_are_copied(tmp_path):
    """A kernel behind the one that knows the new value needs the old one."""
    _simulated(tmp_path, """
        class Moving(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("mean", torch.arange(5.0))
            def forward(self, x):
                old = self.mean.clone()
                self.mean.mul_(0.9).add_(0.1 * x.mean(0))
                return x - x.mean(0) + old
        one, two = Moving().cuda(), Moving().cuda()
        fused = crucible.fuse(one, torch.empty(7, 5))
        assert "launch_copies" in fused.fused.text
        for k in range(3):
            x = torch.randn(9, 5, device="cuda") + k
            with torch.set_grad_enabled(k % 2 == 0):
                torch.testing.assert_close(fused(x), two(x), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(one.mean, two.mean, rtol=1e-4, atol=1e-6)
        """)


def test_what_users_change_is_seen(tmp_path):
    """Layers with computed weights, exchanged layers, other shapes and types: as before, or with a clear message."""
    _simulated(tmp_path, """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(6, 5)
            def forward(self, x):
                return torch.tanh(self.linear(x))
        net = Net().cuda()
        fused = crucible.fuse(net, torch.empty(7, 6))
        x = torch.randn(3, 6, device="cuda")
        same = lambda: torch.testing.assert_close(fused(x), torch.tanh(net.linear(x)), rtol=1e-4, atol=1e-5)
        same()
        net.linear.weight.data = torch.randn(6, 5, device="cuda").t()  # not contiguous
        same()
        fused.linear = net.linear = nn.Linear(6, 5).cuda()
        same()
        class Double(nn.Module):
            def forward(self, w):
                return 2 * w
        nn.utils.parametrize.register_parametrization(net.linear, "weight", Double())
        same()
        nn.utils.parametrize.remove_parametrizations(net.linear, "weight")
        same()
        def refused(words, call):
            try:
                call()
            except RuntimeError as error:
                assert words in str(error), error
            else:
                raise AssertionError(words)
        for _ in range(2):  # a refusal is not remembered
            refused("expected x of shape (s77, 6), got (3, 7)", lambda: fused(torch.empty(3, 7, device="cuda")))
            refused("is on cpu", lambda: fused(x.cpu()))
            refused("x is torch.float64, other tensors are torch.float32", lambda: fused(x.double()))
        net.linear.weight.data = net.linear.weight.data[:, :4]
        refused("expected linear_weight of shape (5, 6), got (5, 4)", lambda: fused(x))
        """)
