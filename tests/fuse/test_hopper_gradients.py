"""Gradients of convolutions' weights with Hopper's own instructions: the simulated chip is one."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
from fused_once import fused_once

from crucible.fuse import FuseOptions, fuse_problem
from crucible.plan import hopper_gradients, ways
from crucible.plan.gradients import GradientTile
from crucible.sim.device import PROCESSORS_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
FOUR = (
    "conv_transpose2d", "conv_transpose2d_gelu_group_norm", "conv_transpose3d_relu_group_norm",
    "conv_transpose2d_batch_norm_tanh_max_pool_group_norm",
)  # fmt: skip

PROBLEM = '''
import torch
import torch.nn as nn


class Model(nn.Module):
    """Two and three dimensions, rows and channels that fill no tile and several, dilation, something after it."""

    def __init__(self):
        super().__init__()
        self.plain = nn.Conv2d(40, 72, 3, padding=1, bias=False)
        self.turned = nn.ConvTranspose3d(33, 34, 3, bias=False)
        self.wide = nn.Conv2d(72, 33, (2, 5), dilation=(1, 2), bias=False)

    def forward(self, x, y, z):
        return self.plain(x), self.turned(y), 0.7 * self.wide(z)


def get_inputs():
    return [torch.randn(16, 40, 128, 128), torch.randn(8, 33, 24, 24, 24), torch.randn(16, 72, 128, 128)]


def get_init_inputs():
    return []
'''

# Ranges that scales reach, others for which all is done again, and numbers that are not finite.
SCRIPT = """
import copy, groups_new, reference
from crucible.prove.arithmetic import round_to_tf32


def run(model, inputs, cotangents):
    device.reset()
    grads = torch.autograd.grad(model(*inputs), list(model.parameters()), cotangents)
    assert not device.reports(), device.reports()[0]
    return [t.detach().double().cpu() for t in grads], [m["kernel"] for m in device.launches()]


def distance(x, truth):
    # The worst of all slices: of rows and of channels, which may differ in size.
    slices = [(x.select(d, i), truth.select(d, i)) for d in (0, 1) for i in range(x.shape[d])]
    return max(((a - b).norm() / b.norm().clamp(min=1e-300)).item() for a, b in slices)


def doubled(tensors, change=lambda t: t):
    return [change(t).double() for t in tensors]


torch.backends.cudnn.allow_tf32 = True
torch.manual_seed(3)
old = reference.Model().to(torch.TYPE).float()
new = groups_new.ModelNew().to(torch.TYPE).cuda()
new.load_state_dict(old.state_dict())
exact = copy.deepcopy(old).double()
shapes = [[(2, 40, 13, 37), (2, 33, 3, 5, 9), (2, 72, 9, 20)], [(3, 40, 8, 16), (1, 33, 2, 2, 2), (1, 72, 6, 70)]]
for label in LABELS:
    given = [torch.randn(s) for s in shapes[label == "small"]]
    if label == "positive":  # the longest sums
        given = [torch.rand(s) for s in shapes[0]]
    for t in given:
        if label == "channel":
            t[:, 3] *= 1e6
        elif label == "samples":
            t[0] *= 1e-14
            t[1] *= 1e14
        elif label == "tiny":
            t *= 1e-40
        elif label in ("inf", "nan"):
            t.view(2, -1)[1, 17] = float(label)
    cotangents = [torch.rand_like(t) if label == "positive" else torch.randn_like(t) for t in old(*given)]
    if label == "samples":
        for c in cotangents:
            c[0] *= 1e20
            c[1] *= 1e-8
    if label in ("inf", "nan"):
        cotangents = [c.relu() + 0.1 for c in cotangents]
    given, cotangents = [t.to(torch.TYPE) for t in given], [t.to(torch.TYPE) for t in cotangents]
    found, kernels = run(new, [t.cuda() for t in given], [c.cuda() for c in cotangents])
    assert sum(k.startswith("gradient_groups_kernel") for k in kernels) == 3, kernels
    truth, _ = run(exact, doubled(given), doubled(cotangents))
    yard, _ = run(exact, doubled(given, round_to_tf32), doubled(cotangents, round_to_tf32))
    for k, (a, b, rounded) in enumerate(zip(found, truth, yard)):
        if label in ("inf", "nan"):
            assert torch.equal(a.isfinite(), b.isfinite()) and not b.isfinite().all() and b.isfinite().any(), (label, k)
            a, b, rounded = (torch.where(b.isfinite(), t, 0.0) for t in (a, b, rounded))
        error, limit = (distance(t, b) for t in (a, rounded))
        # Others are exact until they are stored.
        stored = {torch.float32: 1e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}[torch.TYPE]
        assert error <= 1.1 * limit + stored, (label, k, error, limit)
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Sums go to memory every few boxes, as they do where there are many."""
    folder = tmp_path_factory.mktemp("groups")
    patch = pytest.MonkeyPatch()
    patch.setattr(hopper_gradients, "LAUNCHES", 0.0)
    ways.best.cache_clear()
    try:
        (folder / "reference.py").write_text(PROBLEM)
        fused = fuse_problem(folder / "reference.py", FuseOptions(strict=True))
    finally:
        patch.undo()
        ways.best.cache_clear()
    assert fused.text.count("launch_gradient_groups<GradientGroups<") == 6  # in half and as they are
    stages = fused.modes[0].plan.backward_stages
    tiles = [s.tile.groups for s in stages if isinstance(getattr(s, "tile", None), GradientTile)]
    assert len({t.inner for t in tiles}) > 1 and any(t.groups * t.each != 9 for t in tiles), tiles
    assert fused.text.count("SUMMED = 128;") == 1
    return fused.text.replace("SUMMED = 128;", "SUMMED = 32;")


@pytest.mark.parametrize(
    ("dtype", "processors", "labels"),
    [
        ("float32", 3, ["plain", "positive", "small"]), ("float32", 1, ["plain"]),
        ("float32", 4, ["channel", "samples", "tiny", "inf", "nan"]),
        ("float16", 3, ["plain", "inf"]), pytest.param("bfloat16", 3, ["plain", "nan"], marks=pytest.mark.exhaustive),
    ],
)  # fmt: skip
def test_gradients(tmp_path, run_on_device, monkeypatch, text, dtype, processors, labels):
    """With few processors each block takes many boxes."""
    monkeypatch.setenv(PROCESSORS_VARIABLE, str(processors))
    (tmp_path / "reference.py").write_text(PROBLEM)
    (tmp_path / "groups_new.py").write_text(text)
    run_on_device(SCRIPT.replace("LABELS", str(labels)).replace("TYPE", dtype), timeout=500)


@pytest.mark.parametrize("name", FOUR)
def test_problems_choose_it(name):
    fused = fused_once(ROOT / "problems" / f"{name}.py")
    for mode in fused.modes:
        stages = [s for s in mode.plan.backward_stages if isinstance(getattr(s, "tile", None), GradientTile)]
        assert stages
        for stage in stages:
            groups, form = stage.tile.groups, stage.contract.sliding.form
            assert groups is not None and groups.shared_bytes(form) <= hopper_gradients.HOPPER_SHARED
            assert groups.groups * groups.each >= prod(form.kernel[groups.inner :])
    launches = fused.text.count("launch_gradient_groups<GradientGroups<")
    assert launches == fused.text.count("return gradient_bytes<GradientGroups<") > 0
