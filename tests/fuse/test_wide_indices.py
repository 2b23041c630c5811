"""Indices of 64 bits, which kernels have where a tensor is large: the same numbers as with 32 bits, on lines of several
strips and on boxes, wherever rows begin."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter

import pytest

from crucible.fuse import FuseOptions, fuse_problem

PROBLEM = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.strips, self.norm = nn.ConvTranspose2d(16, 32, 3), nn.GroupNorm(4, 32)
        self.boxes = nn.Conv3d(32, 64, 3, padding=1)

    def forward(self, x, y):
        return self.norm(nn.functional.gelu(self.strips(x))), torch.relu(self.boxes(y))


def get_inputs():
    return [torch.randn(8, 16, 512, 512), torch.randn(4, 32, 24, 32, 32)]


def get_init_inputs():
    return []
"""

SCRIPT = """
import narrow_new, wide_new


def run(model, inputs, backward):
    given = [t.clone().requires_grad_() for t in inputs]
    device.reset()
    outputs = model(*given)
    loss = sum((o.float() * torch.linspace(-1, 1, o.numel(), device=o.device).view(o.shape)).sum() for o in outputs)
    grads = torch.autograd.grad(loss, [*given, *model.parameters()]) if backward else ()
    assert not device.reports(), device.reports()[0]
    return [t.detach().cpu() for t in (*outputs, *grads)], [one["kernel"] for one in device.launches()]


met = set()
for dtype, backward in CASES:
    # Lines whose neighbours begin at all places of a sector: with pairs, then without.
    for width, depth in (398, 38), (399, 37):
        torch.manual_seed(width)
        models = [m.ModelNew().to(dtype).cuda() for m in (narrow_new, wide_new)]
        models[1].load_state_dict(models[0].state_dict())
        inputs = [torch.randn(1, 16, 2, width).to(dtype).cuda(), torch.randn(1, 32, 2, 5, depth).to(dtype).cuda()]
        (narrow, kernels), (wide, others) = (run(m, inputs, backward) for m in models)
        met.update(k.split("<")[0] for k in kernels)
        assert kernels == others
        for k, (a, b) in enumerate(zip(narrow, wide)):
            assert torch.isfinite(a).all() and a.abs().max() > 0
            assert torch.equal(a, b), (dtype, width, k, (a - b).abs().max())
assert {"strip_kernel", "ready_kernel", "row_kernel"} <= met, met
print("the same")
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    problem = tmp_path_factory.mktemp("wide") / "wide.py"
    problem.write_text(PROBLEM)
    return fuse_problem(problem, FuseOptions(strict=True)).text


@pytest.mark.parametrize(
    "cases",
    [
        "(torch.float32, True), (torch.float16, False)",
        pytest.param("(torch.float16, True),", marks=pytest.mark.exhaustive),
    ],
)
def test_the_same_as_with_32_bits(text, tmp_path, run_on_device, cases):
    """Types, and whether gradients are taken: those of half numbers are as of others, but for what forward has too."""
    assert "(launch_strips<" in text and "elements > 2**31 - 1" in text
    for name, one in (("narrow", text), ("wide", text.replace("elements > 2**31 - 1", "True"))):
        (tmp_path / f"{name}_new.py").write_text(one)
    assert "the same" in run_on_device(SCRIPT.replace("CASES", cases), timeout=400)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="the compiler decides it")
@pytest.mark.parametrize("part", ["FORWARD", pytest.param("BACKWARD", marks=pytest.mark.exhaustive)])
def test_stores_stay_whole(text, tmp_path, part):
    """Of a vector stored at a 64-bit index nvcc makes single elements, unless it is told."""
    (source,) = re.findall(rf'_{part}_SOURCE = r"""(.*?)"""', text, re.S)
    (tmp_path / "source.cu").write_text(source)
    found = []
    for wide in (0, 1):
        flags = [f"-DCRUCIBLE_{flag}" for flag in ("SCALAR=0", f"WIDE={wide}", "CONV=1", "MATMUL=2", "HOPPER=1")]
        subprocess.run(["nvcc", "-std=c++17", "-arch=compute_90a", "-ptx", "-o", "it.ptx", *flags, "source.cu"],
                       cwd=tmp_path, check=True, capture_output=True)  # fmt: skip
        found.append(Counter(re.findall(r"st\.global(?:\.wb)?\.(v\d)", (tmp_path / "it.ptx").read_text())))
    assert found[0] and found[0] == found[1], found
