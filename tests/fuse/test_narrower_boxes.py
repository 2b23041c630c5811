"""Several boxes of one convolution on Hopper: which the host takes at which sizes, and that all of them are right."""

from __future__ import annotations

import ast
import re
from math import prod
from pathlib import Path

import pytest
import torch
from fused_once import fused_once

from crucible.fuse import FuseOptions, fuse_problem
from crucible.plan import narrower, ways
from crucible.plan.index import ZERO
from crucible.plan.stages import Contraction

ROOT = Path(__file__).resolve().parents[2]
THREE = "conv_transpose3d_relu_group_norm"
POOLED = "conv_transpose2d_batch_norm_tanh_max_pool_group_norm"
FOUR = (1, 1, 1, 1)
EXHAUSTIVE = pytest.mark.exhaustive

PROBLEM = '''
import torch
import torch.nn as nn


class Model(nn.Module):
    """Boxes that are made ready, with statistics, and others with a stride, without any; backward too."""

    def __init__(self):
        super().__init__()
        self.ready = nn.ConvTranspose3d(20, 40, 3, bias=False)
        self.norm = nn.GroupNorm(4, 40)
        self.strided = nn.Conv2d(20, 40, 3, stride=2, padding=1)

    def forward(self, x, y):
        return self.norm(self.ready(x)), self.strided(y)


def get_inputs():
    return [torch.randn(16, 20, 32, 32, 32), torch.randn(16, 20, 66, 66)]


def get_init_inputs():
    return []
'''

# Inputs as they are, and with a channel that half cannot hold: then a second launch does all again, in the same boxes.
SCRIPT = """
import copy, narrow_new, reference


def run(model, inputs, cotangents=None):
    given = [t.clone().requires_grad_() for t in inputs]
    device.reset()
    outputs = model(*given)
    grads = torch.autograd.grad(outputs, [*given, *model.parameters()], cotangents)
    assert not device.reports(), device.reports()[0]
    return [t.detach().double().cpu() for t in (*outputs, *grads)], device.launches()


torch.backends.cudnn.allow_tf32 = True
torch.manual_seed(3)
old = reference.Model()
inputs = [torch.randn(3, 20, 2, 5, 7), torch.randn(3, 20, 13, 9)]
cotangents = [torch.randn_like(t).to(torch.TYPE) for t in old(*inputs)]
inputs, old = [t.to(torch.TYPE) for t in inputs], old.to(torch.TYPE)
new = narrow_new.ModelNew().to(torch.TYPE).cuda()
new.load_state_dict(old.state_dict())
shared = {}
for large in (False, True) if torch.TYPE is torch.float32 else (False,):
    if large:
        for t in inputs:
            t[:, 3] *= 1e6
    truth, _ = run(copy.deepcopy(old).double(), [t.double() for t in inputs], [c.double() for c in cotangents])
    found = {}
    for narrow_new.BOX in 0, 1, 2:
        narrow_new._PLANS.clear()
        narrow_new._LAST.clear()
        found[narrow_new.BOX], made = run(new, [t.cuda() for t in inputs], [c.cuda() for c in cotangents])
        windows = [m for m in made if m["kernel"].startswith(("ready_kernel", "pair_kernel"))]
        shared[narrow_new.BOX] = [m["shared_bytes"] for m in windows]
        for k, (a, b) in enumerate(zip(found[narrow_new.BOX], truth)):
            error = ((a - b).norm() / b.norm()).item()
            assert error < LIMIT, (large, narrow_new.BOX, k, error)
    # Whatever the box, an element is a sum in the same order: of what no statistics touch all bits are the same.
    assert all(torch.equal(found[0][1], found[k][1]) for k in (1, 2))
print("shared bytes", shared)
"""


@pytest.fixture(scope="module")
def fused():
    return {name: fused_once(ROOT / "problems" / f"{name}.py") for name in (THREE, POOLED)}


def host(text, hopper=1, grade=1, simulated=0):
    """The generated file's own functions that choose; ``simulated``: in the simulator, after so many other calls."""
    found = re.findall(r"^def _box(?:es)?\(.*?(?=\n\n\n)", text, re.M | re.S)
    assert len(found) == 2
    names = {"_hopper": lambda device: hopper, "_grade": lambda *given: grade, "torch": torch}
    names |= {"_conv_switch": lambda: "tf32", "_allowed": lambda said: said == "tf32"}
    names |= {"_SIMULATED": bool(simulated), "_PLANS": dict.fromkeys(range(simulated))}
    exec("\n".join(found), names)
    return names


def sizes(mode, text, shape, **given):
    """What the host computes for an input of this shape."""
    (x,) = [b for b in mode.arguments if b.name == "x"]
    names = {**host(text, **given), "dtype": torch.float32, "device": None}
    names |= {str(s.atom): n for s, n in zip(x.shape, shape) if s.atom is not None}
    for name, expression in mode.plan.program.sizes.items():
        names[name] = eval(expression, names)
    return {name: names[name] for name in mode.plan.program.sizes}


def stage_of(mode, name):
    (stage,) = [s for s in mode.plan.stages if getattr(s, "contract", None) is not None and s.contract.name == name]
    return stage


@pytest.mark.parametrize("name", [THREE, POOLED])
def test_the_hosts_choice(fused, name):
    """The first boxes at the declared size and above, the second at half of it, the third at a quarter."""
    text, dimensions = fused[name].text, 3 if name == THREE else 2
    batch, pad = (16, 2) if name == THREE else (512, 2)
    for mode in [m for one in fused[name].modes for m in (one, one.inference)]:
        pair = stage_of(mode, "convolution_sum").tile.pair
        assert len(pair.narrower) == 2
        for extent, expected in ((64, 0), (32, 0), (16, 1), (8, 2)):
            found = sizes(mode, text, (batch, 64, *[extent] * dimensions))
            assert found["convolution_sum_box"] == expected, (mode.name, extent)
            if "convolution_sum_boxes" in found:  # which statistics are kept by
                box = (pair, *pair.narrower)[expected].box
                there = [*FOUR[dimensions:], *[extent + pad] * dimensions]
                assert found["convolution_sum_boxes"] == prod(-(-e // b) for e, b in zip(there, box))
        backward = sizes(mode, text, (batch, 64, *[16] * dimensions)).get("convolution_backward_x_sum_box")
        assert backward == (None if mode.inference is None else 1)


def test_other_engines_have_the_first_alone(fused):
    mode, text = fused[THREE].modes[0], fused[THREE].text
    shape = (16, 64, 16, 16, 16)
    for given in ({"grade": 0}, {"grade": 2}, {"hopper": 0}):
        assert sizes(mode, text, shape, **given)["convolution_sum_box"] == 0
    assert sizes(mode, text, shape, grade=3)["convolution_sum_box"] == 1
    boxes = [sizes(mode, text, (2, 64, 3, 4, n), simulated=n)["convolution_sum_box"] for n in range(1, 10)]
    assert set(boxes) == {0, 1, 2}, "in the simulator all are met"


def test_they_are_compiled_when_needed(fused):
    for name in (THREE, POOLED):
        text = fused[name].text
        assert re.search(r'_kernels\("forward", .*, convolution_sum_box\)', text)
        assert re.search(r'_kernels\("backward", .*, convolution_backward_x_sum_box\)', text)
        launches = re.findall(r"#if CRUCIBLE_NARROWER\n(.*?)\n *#endif", text, re.S)
        assert launches and sum(t.count("in_boxes<") for t in launches) == text.count("in_boxes<Dims")


@pytest.fixture
def small(monkeypatch):
    """What pays for large ones."""
    monkeypatch.setattr(narrower, "WORTH", 0.0)
    ways.best.cache_clear()
    yield
    ways.best.cache_clear()


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-3), pytest.param("float16", 2e-3, marks=EXHAUSTIVE)])
def test_all_boxes_are_right(tmp_path, run_on_device, small, dtype, limit):
    reference = tmp_path / "reference.py"
    reference.write_text(PROBLEM)
    made = fuse_problem(reference, FuseOptions(strict=True))
    stages = [s for s in made.modes[0].plan.stages if isinstance(s, Contraction) and s.box != ZERO]
    assert {s.tile.pair.launch for s in stages} == {"launch_ready", "launch_warpgroups"}
    assert {s.statistics is None for s in stages} == {False, True}
    turns = "return hash((len(_PLANS), *ways)) % len(ways)"
    assert made.text.count(turns) == 1
    (tmp_path / "narrow_new.py").write_text(made.text.replace(turns, "return min(BOX, len(ways) - 1)"))
    said = run_on_device(SCRIPT.replace("TYPE", dtype).replace("LIMIT", str(limit)), timeout=500)
    kinds = ("Half", "Tf32") if dtype == "float32" else ("Native", "Native")
    shared = ast.literal_eval(said.partition("shared bytes ")[2].splitlines()[0])
    for box in (0, 1, 2):
        for stage in stages:
            form, pairs = stage.contract.sliding.form, (stage.tile.pair, *stage.tile.pair.narrower)
            taken = pairs[min(box, len(pairs) - 1)]
            again = taken if stage.statistics is not None or dtype != "float32" else pairs[0]
            assert {p.shared_bytes(form, k) for p, k in zip((taken, again), kinds)} <= set(shared[box])
    assert len({tuple(s) for s in shared.values()}) > 1
