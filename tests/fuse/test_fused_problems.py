"""The reference problems: fused by the general machinery, proven in the simulator with every engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from fused_once import fused_once

import crucible
from crucible.fuse import FuseOptions, fuse_problem
from crucible.plan import gpus
from crucible.plan.stages import Call
from crucible.prove.arch import compile_everywhere, cuda_sources
from crucible.report.explain import explain

PROBLEMS = Path(__file__).parents[2] / "problems"
# The most kernels that the forward of each may launch, small first and last ones not counted.
KERNELS = {
    "conv_transpose2d": 1,
    "conv_transpose2d_gelu_group_norm": 2,
    "conv_transpose2d_grouped_gelu_group_norm": 2,
    "conv_transpose3d_relu_group_norm": 2,
    "conv_transpose2d_batch_norm_tanh_max_pool_group_norm": 2,
    "gemm_group_norm_min_bias": 3,  # its output lies across the rows of which it takes minima: a map stores it
}
# With Hopper's own instructions, one after another and side by side: the simulated chip is one.
HOPPER = ("conv_transpose2d", "conv_transpose2d_gelu_group_norm", "conv_transpose3d_relu_group_norm")
# A proof takes most of a minute: the ordinary run has problems with one engine each and each engine on a problem, one
# of them with all trials. The convolution alone is what others begin with, a volume with its ReLU and norm is in
# test_phases.py and test_narrower_boxes.py, the weights of the product are too large. Every operator with every engine
# is what tests/fuzz is for.
ORDINARY = {
    ("conv_transpose2d_gelu_group_norm", "auto"),
    ("conv_transpose2d_grouped_gelu_group_norm", "simt"),
    ("conv_transpose2d_batch_norm_tanh_max_pool_group_norm", "mma"),
}
WHOLE = ("conv_transpose2d_gelu_group_norm", "auto")


def _cases():
    for name in KERNELS:
        for engine in ("mma", "simt", *(["auto"] if name in HOPPER else [])):
            quick = (name, engine) != WHOLE
            marks = [] if (name, engine) in ORDINARY else [pytest.mark.exhaustive]
            yield pytest.param(name, engine, quick, id=f"{name}-{engine}", marks=marks)
            if quick:
                yield pytest.param(name, engine, False, id=f"{name}-{engine}-whole", marks=pytest.mark.exhaustive)


@pytest.mark.parametrize("name", KERNELS)
def test_forward_is_in_few_kernels(name):
    """No operator stays torch's, and the forward takes no more kernels than promised."""
    fused = fused_once(PROBLEMS / f"{name}.py")
    assert not fused.unfused
    for mode in fused.modes:
        assert not any(isinstance(s, Call) for s in mode.plan.stages)
    for p in explain(fused, gpus.find("h200")).passes:
        if p.direction != "backward":
            counted = [k.name for k in p.kernels if not k.small]
            assert len(counted) <= KERNELS[name], (p.mode, p.direction, counted)


@pytest.mark.parametrize(("name", "engine", "quick"), list(_cases()))
def test_proven(name, engine, quick, tmp_path):
    """Forward, gradients, side effects, other sizes, ranges."""
    problem, path = PROBLEMS / f"{name}.py", tmp_path / f"{name}_new.py"
    fused = fused_once(problem) if engine == "auto" else fuse_problem(problem, FuseOptions(engine=engine))
    path.write_text(fused.text)
    proof = crucible.prove(problem, path, device="sim", seed=3, quick=quick, strict=True)
    assert proof.verdict == "proven", f"{proof.reason.code}: {proof.reason.message}" if proof.reason else proof.verdict


GELU = "conv_transpose2d_gelu_group_norm"
HALF = [pytest.param(GELU, t, marks=pytest.mark.exhaustive) for t in ("float16", "bfloat16")]


@pytest.mark.parametrize(("name", "dtype"), [*HALF, ("gallery/conv2d_batch_norm_relu", "float64")])
def test_other_types(name, dtype, tmp_path):
    """The same file serves other types; test_phases.py and test_few_rows.py have half precision in the ordinary run."""
    path = tmp_path / "new.py"
    path.write_text(fused_once(PROBLEMS / f"{name}.py").text)
    proof = crucible.prove(PROBLEMS / f"{name}.py", path, device="sim", seed=3, quick=True, dtype=dtype)
    assert proof.verdict == "proven", f"{proof.reason.code}: {proof.reason.message}" if proof.reason else proof.verdict


VOLUME = "conv_transpose3d_relu_group_norm"


def test_engines_of_other_chips(tmp_path):
    """What was generated compiles for the chips on which other engines run."""
    path = tmp_path / f"{VOLUME}_new.py"
    path.write_text(fused_once(PROBLEMS / f"{VOLUME}.py").text)
    sources = cuda_sources(path)
    assert len(sources) == 2  # forward and backward
    results = compile_everywhere(sources, scratch=tmp_path / "scratch", archs=["sm_70", "sm_80", "sm_90a"])
    assert [r.state for r in results] == ["ok"] * 3, results
    # Each with the kernels of its own engines, all of which were compiled.
    simt, mma, hopper = (r.kernels for r in results)
    assert 8 <= simt < mma < hopper and not any(r.notes for r in results), results


@pytest.mark.exhaustive
def test_every_architecture(tmp_path):
    """Proven with the engine of this chip, and what was generated compiles for all others."""
    path = tmp_path / f"{VOLUME}_new.py"
    path.write_text(fused_once(PROBLEMS / f"{VOLUME}.py").text)
    proof = crucible.prove(PROBLEMS / f"{VOLUME}.py", path, device="sim", seed=3, quick=True, arch="all")
    assert proof.verdict == "proven", f"{proof.reason.code}: {proof.reason.message}" if proof.reason else proof.verdict
