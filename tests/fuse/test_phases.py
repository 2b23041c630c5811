"""Strided transposed convolutions, and gradients by the input of strided ones: phases, never inserted zeros."""

import functools

import pytest

import crucible
from crucible.fuse import FuseOptions, fuse_problem
from crucible.plan.boxes import WindowTile
from crucible.plan.stages import Contraction
from crucible.plan.value import Multiple, walk
from crucible.sim.device import PROCESSORS_VARIABLE

HEAD = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
"""
# What __init__ makes, what forward returns, the inputs' shapes.
MODELS = {
    # Statistics, and sums that are not stored; taps that two of three phases lack, and a border on every side.
    "normed": (
        ["self.up = nn.ConvTranspose2d(20, 36, 3, stride=2, padding=1)", "self.norm = nn.GroupNorm(4, 36)"],
        "self.norm(F.gelu(self.up(x)))", [(2, 20, 19, 22)],
    ),
    # Every phase has all the taps: phases are rows. What is added is read where the element goes.
    "rows": (
        ["self.up = nn.ConvTranspose2d(17, 16, 4, stride=2, padding=1)", "self.norm = nn.BatchNorm2d(16)"],
        "self.norm(self.up(x) + y)", [(2, 17, 18, 17), (2, 16, 36, 34)],
    ),
    # Strides that differ, one of them 1, groups, dilation that shares a divisor with its stride, output padding.
    "general": (
        ["self.up = nn.ConvTranspose2d(12, 70, (3, 4), (2, 4), (1, 2), (1, 1), 2, True, (3, 2))",
         "self.long = nn.ConvTranspose1d(18, 33, 5, stride=3, padding=2, output_padding=1)",
         "self.one = nn.ConvTranspose2d(16, 32, 3, stride=(2, 1))"],
        "self.up(x), self.long(y), torch.relu(self.one(z) + w)",
        [(2, 12, 17, 20), (2, 18, 301), (2, 16, 17, 18), (2, 32, 35, 20)],
    ),
    # Samples share tiles; phases without a tap; single channels.
    "small": (
        ["self.small = nn.ConvTranspose2d(17, 40, 3, stride=2)", "self.wide = nn.ConvTranspose2d(16, 32, 1, stride=3)",
         "self.single = nn.ConvTranspose2d(6, 12, 3, stride=2, padding=1, groups=6)"],
        "self.small(x), self.wide(x[:, :16]), self.single(x[:, :6])", [(5, 17, 6, 7)],
    ),
    # Three dimensions without statistics.
    "deep": (
        ["self.deep = nn.ConvTranspose3d(16, 32, 3, stride=2, padding=1, output_padding=1)"], "self.deep(x)",
        [(2, 16, 7, 8, 9)],
    ),
    # The gradient by the input; one tap of four phases.
    "strided": (
        ["self.down = nn.Conv2d(40, 24, 3, stride=2, padding=1)", "self.skip = nn.Conv2d(40, 24, 1, stride=2)"],
        "self.down(x) + self.skip(x)", [(2, 40, 37, 34)],
    ),
    # The same in three dimensions, every phase a single tap.
    "strided deep": (["self.deep = nn.Conv3d(32, 20, 2, stride=2)"], "self.deep(x)", [(2, 32, 12, 14, 16)]),
    # Too few places for boxes: a general contraction, with its depth in parts, and what follows.
    "few": (
        ["self.deep = nn.ConvTranspose2d(530, 16, 3, stride=2, padding=1)"], "torch.tanh(self.deep(x))",
        [(2, 530, 4, 5)],
    ),
    # Phases beside each other: with a launch of its own for the input, and statistics; three of them; with others as
    # rows, so that which elements exist depends on the row; what is added to them is read where the element goes.
    "beside": (
        ["self.deep = nn.ConvTranspose3d(32, 32, 3, stride=2)", "self.norm = nn.GroupNorm(4, 32)",
         "self.three = nn.ConvTranspose2d(16, 32, (3, 5), stride=(1, 3), padding=1)",
         "self.rows = nn.ConvTranspose2d(16, 40, (4, 3), stride=2, padding=1)", "self.apart = nn.InstanceNorm2d(40)"],
        "self.norm(torch.relu(self.deep(x))), self.three(y), self.apart(self.rows(y) + z)",
        [(2, 32, 5, 6, 8), (2, 16, 9, 17), (2, 40, 18, 33)],
    ),
    # Wide enough for strips, with statistics and, every phase with all the taps, without.
    "strips": (
        ["self.even = nn.ConvTranspose2d(16, 32, 4, stride=2)",
         "self.normed = nn.ConvTranspose2d(16, 32, 3, stride=2)", "self.norm = nn.InstanceNorm2d(32)"],
        "self.even(x), self.norm(self.normed(x))", [(8, 16, 256, 257)],
    ),
    # Strips of phases that lack taps, without statistics.
    "plain strips": (
        ["self.up = nn.ConvTranspose2d(16, 32, 3, stride=2, padding=1, output_padding=1)"], "self.up(x)",
        [(8, 16, 256, 257)],
    ),
}  # fmt: skip


def problem(name: str, dtype: str = "float") -> str:
    made, returned, shapes = MODELS[name]
    arguments = ", ".join("xyzw"[: len(shapes)])
    inputs = ", ".join(f"torch.randn({', '.join(map(str, s))}).{dtype}()" for s in shapes)
    lines = [HEAD, *(f"        {line}\n" for line in (*made, f"self.{dtype}()"))]
    lines.append(f"\n    def forward(self, {arguments}):\n        return {returned}\n\n\n")
    lines.append(f"def get_inputs():\n    return [{inputs}]\n\n\ndef get_init_inputs():\n    return []\n")
    return "".join(lines)


@functools.cache
def fused_once(folder, name, dtype, engine):
    """Problem file and what it fuses to; two tests look at most of them."""
    reference = folder / dtype / f"{name}.py"
    reference.parent.mkdir(exist_ok=True)
    reference.write_text(problem(name, dtype))
    return reference, fuse_problem(reference, FuseOptions(strict=True, engine=engine))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("phases")


def fused_contractions(folder, name, dtype="float", engine="auto"):
    reference, fused = fused_once(folder, name, dtype, engine)
    return reference, fused, [s for m in fused.modes for s in m.plan.stages if isinstance(s, Contraction)]


def proven(reference, text, tmp_path):
    new = tmp_path / "new.py"
    new.write_text(text)
    proof = crucible.prove(reference, new, device="sim", seed=7, quick=True)
    assert proof.verdict == "proven", f"{proof.reason.code}: {proof.reason.message}" if proof.reason else proof.verdict
    return proof


@pytest.mark.quick
@pytest.mark.parametrize("name", sorted(MODELS))
def test_no_contraction_looks_for_inserted_zeros(folder, name):
    _, _, stages = fused_contractions(folder, name)
    assert any(s.contract.phases is not None for s in stages)
    for s in stages:
        for value in (s.a, s.b):
            conditions = [c for v in walk(value) for c in getattr(v, "conditions", ())]
            assert not any(isinstance(c, Multiple) for c in conditions), s.name


REPEATED = ("small", "deep", "few", "general", "normed", "plain strips", "rows", "strided deep")  # in other tests
WINDOWS = {
    "forward 2d": ("nn.ConvTranspose2d(64, 64, 3, stride=2)", (2, 64, 64, 64), "forward"),
    "forward 3d": ("nn.ConvTranspose3d(64, 64, 3, stride=2)", (2, 64, 12, 16, 16), "forward"),
    "backward 2d": ("nn.Conv2d(64, 64, 3, stride=2, padding=1)", (2, 64, 64, 64), "backward"),
}


@pytest.mark.quick
@pytest.mark.parametrize("name", sorted(WINDOWS))
def test_phases_are_windows_for_hopper(tmp_path, monkeypatch, name):
    made, shape, when = WINDOWS[name]
    monkeypatch.setitem(MODELS, "one", ([f"self.one = {made}"], "self.one(x)", [shape]))
    _, fused, _ = fused_contractions(tmp_path, "one")
    (mode,) = fused.modes
    stages = mode.plan.forward_stages if when == "forward" else mode.plan.backward_stages
    (stage,) = [s for s in stages if isinstance(s, Contraction) and s.contract.phases is not None]
    assert isinstance(stage.tile, WindowTile) and stage.tile.pair is not None
    assert stage.contract.sliding.form.taps == 2 ** (len(shape) - 2)
    assert any(f"({launch}<" in fused.text for launch in ("launch_strips", "launch_ready", "launch_warpgroups"))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.exhaustive] if n in REPEATED else []) for n in sorted(MODELS)]
)
def test_phases_are_proven(folder, tmp_path, monkeypatch, name):
    """With few processors each block takes many boxes, or lines of many strips.

    The ordinary run has the general one in half precision; random graphs have contractions of few places; phases that
    are rows, statistics of phases, three dimensions and strips of phases that lack taps are in others too.
    """
    monkeypatch.setenv(PROCESSORS_VARIABLE, "3")
    reference, fused, _ = fused_contractions(folder, name)
    if "strips" in name:
        assert fused.text.count("(launch_strips<") >= 2
    if name == "beside":
        for said in ("BESIDE = 2", "BESIDE = 3", "ALIKE = false", "(launch_ready<"):
            assert said in fused.text
    proven(reference, fused.text, tmp_path)


@pytest.mark.parametrize(
    "name,dtype", [("general", "half"), pytest.param("normed", "bfloat16", marks=pytest.mark.exhaustive)]
)
def test_phases_are_proven_in_half_precision(folder, tmp_path, monkeypatch, name, dtype):
    monkeypatch.setenv(PROCESSORS_VARIABLE, "3")
    reference, fused, stages = fused_contractions(folder, name, dtype)
    assert any(isinstance(s.tile, WindowTile) and s.tile.pair is not None for s in stages)
    proven(reference, fused.text, tmp_path)


@pytest.mark.exhaustive
def test_phases_without_boxes_are_proven(folder, tmp_path):
    """Elements by columns, statistics of columns of which some are no pixels."""
    reference, fused, stages = fused_contractions(folder, "normed", engine="simt")
    (stage,) = [s for s in stages if s.contract.phases is not None]
    assert not isinstance(stage.tile, WindowTile) and stage.statistics is not None and stage.contract.phases.ragged
    proven(reference, fused.text, tmp_path)
