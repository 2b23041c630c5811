"""A convolution and the norm after it in one launch: a sample stays in shared memory (kernels/window_held.cuh)."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from crucible.fuse import FuseOptions, fuse_problem
from crucible.sim.device import PROCESSORS_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
# Strips are for large images, and what is made for those runs with small ones.
PROBLEM = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = CONV
        self.norm = nn.GroupNorm(GROUPS, self.conv.out_channels, eps=1e-4)
        nn.init.normal_(self.norm.weight), nn.init.normal_(self.norm.bias)

    def forward(self, x):
        y = ACT(self.conv(x))
        return RETURNED


def get_inputs():
    return [torch.randn(64, CHANNELS, 256, 256)]


def get_init_inputs():
    return []
"""
CHILD = """
from crucible.sim import device
device.install()
import copy, json, sys
from pathlib import Path
import torch
from crucible.problem import import_file
torch.backends.cudnn.allow_tf32 = True
new, old = (import_file(Path(p), n) for p, n in zip(sys.argv[1:3], ("new", "old")))

def tf32(t):
    with torch.no_grad():
        t.copy_(torch.where(t.isfinite(), ((t.view(torch.int32) + 0x1000) & ~0x1fff).view(torch.float32), t))

found = []
for shape, change in json.loads(sys.argv[3]):
    torch.manual_seed(7)
    model, x = old.Model(), torch.randn(shape)
    with torch.no_grad():
        exec(change)
        fused = new.ModelNew().cuda()
        fused.load_state_dict(model.state_dict())
        before = len(device.launches())
        ours = fused(x.cuda()).cpu()
        launched = [launch["kernel"].split("<")[0] for launch in device.launches()[before:]]
        again = fused(x.cuda()).cpu()
        exact = copy.deepcopy(model).double()(x.double())
        # What TF32 gives: the same of rounded operands.
        rounded = x.clone()
        for t in (rounded, model.conv.weight):
            tf32(t)
        eager = model(rounded)
    fair = exact.isfinite() & eager.isfinite()
    def error(t):
        off, size = (torch.where(fair, v, 0).norm() for v in (t.double() - exact, exact))
        return (off / size.clamp_min(1e-300)).item()
    same = bool((ours.isnan() == eager.isnan()).all() and (ours.isinf() == eager.isinf()).all())
    equal = bool((ours.view(torch.int32) == again.view(torch.int32)).all())
    found.append({"kernels": launched, "same": same, "equal": equal, "error": error(ours), "eager": error(eager)})
print(json.dumps({"found": found, "reports": [str(r)[:500] for r in device.reports()]}))
"""


def made(tmp_path, conv, groups, act="nn.functional.gelu", returned="self.norm(y)", channels=64):
    reference, new = tmp_path / "reference.py", tmp_path / "new.py"
    text = PROBLEM.replace("CONV", conv).replace("GROUPS", str(groups)).replace("ACT", act)
    reference.write_text(text.replace("RETURNED", returned).replace("CHANNELS", str(channels)))
    new.write_text(fuse_problem(reference, FuseOptions(strict=True, forward_only=True)).text)
    return reference, new


def run(tmp_path, reference, new, processors, cases):
    command = [sys.executable, "-c", CHILD, str(new), str(reference), json.dumps(cases)]
    few = {**os.environ, PROCESSORS_VARIABLE: str(processors)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT / "src", env=few, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert not told["reports"]
    return told["found"]


def right(case):
    assert case["same"] and case["equal"]
    assert case["error"] <= 1.1 * case["eager"] + 1e-7, case


SQUARE, WIDE = "nn.ConvTranspose2d(64, 64, 3)", "nn.Conv2d(48, 32, (3, 2), dilation=(1, 2), padding=(1, 1))"


@pytest.mark.parametrize(
    ("conv", "groups", "act", "channels", "processors", "shape"),
    [
        # Two strips; blocks of three and four lines; some weights in shared memory.
        pytest.param(SQUARE, 8, "nn.functional.gelu", 64, 12, [3, 64, 20, 100], id="eight"),
        # Three strips, the last with few columns; all weights in registers; half of a tile's rows.
        pytest.param(WIDE, 8, "torch.tanh", 48, 9, [2, 48, 11, 280], id="four"),
        # More channels than most, each eight of which have a buffer.
        pytest.param("nn.ConvTranspose2d(80, 32, (2, 3))", 4, "torch.tanh", 80, 4, [2, 80, 15, 30], id="channels"),
        # One block has all lines, and takes turns that differ from sample to sample.
        pytest.param(SQUARE, 4, "torch.sigmoid", 64, 1, [4, 64, 3, 40], id="sixteen"),
    ],
)
def test_held(tmp_path, conv, groups, act, channels, processors, shape):
    """Groups of so many channels, activations, extents and processors: one kernel, and the same as torch."""
    reference, new = made(tmp_path, conv, groups, act, channels=channels)
    assert new.read_text().count("(launch_held<") == 1
    (case,) = run(tmp_path, reference, new, processors, [[shape, ""]])
    assert "held_kernel" in case["kernels"] and "strip_kernel" not in case["kernels"]
    right(case)


def test_ranges_and_sizes(tmp_path):
    """What half cannot hold is done again, by two kernels; and what does not fit is done by them at once."""
    reference, new = made(tmp_path, SQUARE, 8)
    small = [2, 64, 10, 30]
    held = [
        [small, "x.mul_(1e30)"],
        [small, "x[1].mul_(1e-18)"],
        [small, "x[:, 5].mul_(1e6)"],
        [small, "x[0, 3, 4, 5] = float('inf')"],
        [small, "x[1, 9, 0, 29] = float('nan')"],
        [small, "model.conv.weight[:, 7].mul_(1e18)"],
        [small, "x.mul_(0)"],
        [small, "model.conv.bias.add_(1e4)"],  # far from zero
    ]
    apart = [[[2, 64, 10, 29], ""], [[1, 64, 10, 30], ""], [[2, 64, 40, 30], ""], [[2, 64, 3, 30], ""]]
    found = run(tmp_path, reference, new, 2, held + apart)
    for case in found[: len(held)]:
        assert case["kernels"][-1] == "row_again_kernel" and "held_kernel" in case["kernels"]
    for case in found[len(held) :]:
        assert "strip_kernel" in case["kernels"] and "held_kernel" not in case["kernels"]
    for case in found:
        right(case)


SCALED = "(lambda v: nn.functional.gelu(v) * self.norm.weight.view(-1, 1, 1)SHIFTED)".replace


@pytest.mark.quick
@pytest.mark.parametrize(
    ("returned", "groups", "act", "held"),
    [
        ("self.norm(y)", 16, "nn.functional.gelu", True),
        ("self.norm(y), y", 8, "nn.functional.gelu", False),  # somebody else wants what is normalised
        ("self.norm(y).sum(1)", 8, "nn.functional.gelu", False),  # it does not become a tensor of the same shape
        ("self.norm(y)", 2, "nn.functional.gelu", False),  # groups of more rows than a warp has
        ("self.norm(y)", 8, SCALED("SHIFTED", ""), True),  # a row's elements have two numbers in common
        ("self.norm(y)", 8, SCALED("SHIFTED", " + self.norm.bias.view(-1, 1, 1)"), False),  # three
    ],
)
def test_which_are_held(tmp_path, returned, groups, act, held):
    _, new = made(tmp_path, SQUARE, groups, act, returned=returned)
    assert ("(launch_held<" in new.read_text()) == held


@pytest.mark.quick
def test_what_is_known_beforehand(tmp_path):
    """A bias is read once for a row, and factors of a norm are multiplied once for a channel."""
    text = made(tmp_path, SQUARE, 8)[1].read_text()
    assert re.search(r"finish_known\(.*\n *return f_gelu\(\(value \+ of\.k0\)\);", text)
    assert re.search(r"held_value\(.*\n *return \(\(\(element - of\.h0\) \* of\.h1\) \+ of\.h2\);", text)
