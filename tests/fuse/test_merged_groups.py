"""kernels/window_merged.cuh: small groups of a convolution, several taken for one on Hopper (simulated here)."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import crucible
from crucible.fuse import FuseOptions, fuse_problem
from crucible.plan import boxes
from crucible.plan.boxes import WindowTile
from crucible.plan.forms import Form
from crucible.plan.hopper import HOPPER_SHARED
from crucible.plan.ways import Site, best, ways
from crucible.sim.device import PROCESSORS_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
PROBLEM = '''
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Groups of eight channels with statistics of what follows; of four, with rows that fill no tile but need two; of
    twelve, more than are taken for one, in lines of one dimension."""

    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(64, 64, 3, groups=8)
        self.norm = nn.GroupNorm(8, 64)
        self.four = nn.Conv2d(12, 72, (2, 3), padding=1, dilation=(2, 1), groups=3)
        self.long = nn.Conv1d(96, 128, 5, padding=2, groups=8, bias=False)

    def forward(self, x, y):
        return self.norm(F.gelu(self.up(x))), self.four(x[:, :12]), self.long(y)


def get_inputs():
    return [torch.randn(8, 64, 256, 257), torch.randn(64, 96, 4096)]


def get_init_inputs():
    return []
'''
PLAIN = '''
import torch
import torch.nn as nn


class Model(nn.Module):
    """Groups of eight channels, and of four, of which only some are taken for one."""

    def __init__(self):
        super().__init__()
        self.eight = nn.Conv2d(64, 96, 3, padding=1, groups=8)
        self.four = nn.ConvTranspose2d(64, 128, 3, groups=16, bias=False)

    def forward(self, x):
        return self.eight(x), self.four(x)


def get_inputs():
    return [torch.randn(8, 64, 256, 256)]


def get_init_inputs():
    return []
'''
NORMED = '''
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(64, 64, 3, groups=8)
        self.norm = nn.GroupNorm(8, 64)
        self.to(torch.TYPE)

    def forward(self, x):
        return self.norm(self.conv(x))


def get_inputs():
    return [torch.randn(8, 64, 256, 257, dtype=torch.TYPE)]


def get_init_inputs():
    return []
'''
# What is done to the input (2, 64, 7, 40) and to both weights, by name. Groups of four share units of eight channels.
RANGES = '''
{
    "plain": lambda x, *w: None,
    "a group of 1e6": lambda x, *w: x[:, 8:12].mul_(1e6),
    "a group of 1e-6": lambda x, *w: x[:, 36:40].mul_(1e-6),
    "a group of 1e-12": lambda x, *w: x[:, 24:32].mul_(1e-12),
    "a group of 1e-12 in one sample": lambda x, *w: x[1, 36:40].mul_(1e-12),
    "1e30": lambda x, *w: x.mul_(1e30),
    "inf": lambda x, *w: x[0, 3, 4].__setitem__(5, float("inf")),
    "nan": lambda x, *w: x[1, 41, 6].__setitem__(39, float("nan")),
    "an inf weight": lambda x, w, _: w[9, 2, 1].__setitem__(1, float("-inf")),
    "a nan weight": lambda x, w, _: w[9, 2, 1].__setitem__(1, float("nan")),
    "a group's weights of 1e20": lambda x, a, b: (a[12:24].mul_(1e20), b[4:8].mul_(1e20)),
}
'''
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

found = {}
for label, change in eval(sys.argv[3]).items():
    torch.manual_seed(7)
    model, x = old.Model(), torch.randn(2, 64, 7, 40)
    with torch.no_grad():
        change(x, model.eight.weight, model.four.weight)
        fused = new.ModelNew().cuda()
        fused.load_state_dict(model.state_dict())
        ours, exact = fused(x.cuda()), copy.deepcopy(model).double()(x.double())
        # What TF32 gives: the same of rounded operands.
        rounded = x.clone()
        for t in (rounded, model.eight.weight, model.four.weight):
            tf32(t)
        eager = model(rounded)
    # The worst of all samples and channels, each by itself.
    rows = []
    for y, e, d in zip((o.cpu() for o in ours), eager, exact):
        fair = d.isfinite() & e.isfinite()
        def error(t):
            off, size = ((torch.where(fair, v, 0) ** 2).sum((2, 3)).sqrt() for v in (t.double() - d, d))
            return (off / size.clamp_min(1e-300)).max().item()
        same = bool((y.isnan() == e.isnan()).all() and (y.isinf() == e.isinf()).all())
        rows.append([same, error(y), error(e)])
    found[label] = rows
print(json.dumps(found))
"""
SQUARE = Form((1, 1, 3, 3), (1, 1, 1, 1), (1, 1, 1, 1), (0, 0, -1, -1), False)
SITE = Site("mma", "conv", 8, 65536, 72, 512, SQUARE, (1, 1, 256, 256), 8, 64, direct=True, groups=8)


@pytest.mark.quick
def test_groups_are_merged_where_that_is_faster():
    tile = best(SITE).tile
    assert isinstance(tile, WindowTile) and tile.pair is not None and tile.pair.merged == 8
    assert tile.pair.shared_bytes(SQUARE, "Half") <= HOPPER_SHARED
    # Both are offered, each with a label of its own.
    offered = [w.tile.pair for w in ways(SITE, True) if isinstance(w.tile, WindowTile)]
    assert None in offered and {p.merged for p in offered if p is not None} >= {4, 8}
    assert len({w.label for w in ways(SITE, True)}) == len(ways(SITE, True))
    assert SITE.text != replace(SITE, groups=1).text
    strided, deep = replace(SQUARE, stride=(1, 1, 2, 2)), replace(SQUARE, kernel=(1, 3, 3, 3))
    others = [replace(SITE, form=strided), replace(SITE, form=deep), replace(SITE, pool=(1, 1, 2, 2))]
    others += [replace(SITE, groups=1), replace(SITE, rows=32), replace(SITE, channels=6)]
    for site in others:
        tile = best(site).tile
        assert isinstance(tile, WindowTile) and (tile.pair is None or tile.pair.merged == 1), site.text


@pytest.mark.quick
def test_other_files_have_no_word_of_it(tmp_path):
    for groups, taken in ((1, False), (8, True)):
        reference = tmp_path / f"groups{groups}.py"
        reference.write_text(PLAIN.replace("groups=8", f"groups={groups}").replace("groups=16", f"groups={groups}"))
        text = fuse_problem(reference, FuseOptions(strict=True, forward_only=True)).text
        assert bool(re.search("merged", text, re.I)) == taken


@pytest.fixture
def always(monkeypatch):
    """Groups are merged wherever they can be."""
    ranked = boxes.ranked_merged
    monkeypatch.setattr(boxes, "ranked_merged", lambda *given: [(0.0, pair) for _, pair in ranked(*given)])
    best.cache_clear()
    yield
    best.cache_clear()


def test_merged_groups(tmp_path, monkeypatch, always):
    """With few processors each block takes lines of many strips."""
    monkeypatch.setenv(PROCESSORS_VARIABLE, "3")
    reference, new = tmp_path / "merged.py", tmp_path / "merged_new.py"
    reference.write_text(PROBLEM)
    fused = fuse_problem(reference, FuseOptions(strict=True))
    assert set(re.findall(r"\(launch_merged<(\d+),", fused.text)) >= {"3", "4", "8"}
    new.write_text(fused.text)
    proof = crucible.prove(reference, new, device="sim", seed=5, quick=True)
    assert proof.verdict == "proven", f"{proof.reason.code}: {proof.reason.message}" if proof.reason else proof.verdict
    assert "merged_again_kernel" in str(next(c for c in proof.checks if c.name == "honesty").evidence)


@pytest.fixture(scope="module")
def ranges(tmp_path_factory):
    """For each range and output: whether inf and nan are where eager has them, errors of the file and of TF32."""
    folder = tmp_path_factory.mktemp("ranges")
    reference, new = folder / "plain.py", folder / "plain_new.py"
    reference.write_text(PLAIN)
    text = fuse_problem(reference, FuseOptions(strict=True, forward_only=True)).text
    assert text.count("(launch_merged<") == 2
    new.write_text(text)
    command = [sys.executable, "-c", CHILD, str(new), str(reference), RANGES]
    few = {**os.environ, PROCESSORS_VARIABLE: "6"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT / "src", env=few, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("label", list(eval(RANGES)))
def test_ranges(ranges, label):
    for same, error, eager in ranges[label]:
        assert same
        assert error <= 1.1 * eager + 1e-7, f"{error:.2e}, eager {eager:.2e}"


@pytest.mark.exhaustive
@pytest.mark.parametrize(("dtype", "precision"), [("half", "torch"), ("float", "fp32")])
def test_other_types_and_precisions_take_each_group_alone(tmp_path, dtype, precision):
    """Statistics are counted by the boxes of the kernel that ran."""
    reference, new = tmp_path / "alone.py", tmp_path / "alone_new.py"
    reference.write_text(NORMED.replace("TYPE", dtype))
    fused = fuse_problem(reference, FuseOptions(strict=True, precision=precision))
    assert "(launch_merged<" in fused.text
    new.write_text(fused.text)
    proof = crucible.prove(reference, new, device="sim", seed=5, quick=True, precision=precision)
    assert proof.verdict == "proven", f"{proof.reason.code}: {proof.reason.message}" if proof.reason else proof.verdict
    assert "merged_again_kernel" not in str(next(c for c in proof.checks if c.name == "honesty").evidence)
