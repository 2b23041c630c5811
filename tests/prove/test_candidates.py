"""Every candidate of tests/candidates against its reference, in the simulator: the right verdict, the right reason."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from candidate_texts import WRONG

import crucible
from crucible.prove.codes import BY_CHECK

SEED = 3


def manifest() -> ModuleType:
    path = Path(__file__).parents[1] / "candidates" / "manifest.py"
    spec = importlib.util.spec_from_file_location("candidate_manifest", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


MANIFEST = manifest()
ENTRIES = [e for e in MANIFEST.EXPECTATIONS if e.simulator]


QUICK = 2  # of each kind in the run of a few minutes
# Right files that do nothing which a smaller one does not.
LARGER = {
    "broken/grouped_convolution",  # not broken; conv_transpose2d, whose kernel takes groups
    "correct/column_mean_half",  # swiglu_half2
    "correct/conv_transpose2d_batch_norm_tanh_max_pool_group_norm",
    "correct/conv_transpose2d_gelu_group_norm",  # conv_transpose2d, layer_norm_welford
    "correct/conv_transpose3d_relu_group_norm",
    "correct/gemm_group_norm_min_bias",
    "correct/matmul_half_cp_async",  # matmul_half_wmma; asynchronous copies are in every fused product
    "correct/matmul_mma_tf32x3",  # every fused product in float32's own precision
    "correct/max_pool2d",  # conv_transpose2d_general_accessors
    "correct/mlp_tiled",
    "correct/row_filter_warp",  # softmax_warp
    "correct/unit_norm_grid_sync",  # batch_norm_cooperative
}
FOUND_ELSEWHERE = {code for _, code, _, _ in WRONG}  # by test_prove.py, which needs no kernels for it
# In the ordinary run all the same: what kernels compute must be right by much and by little, forward and backward.
NUMBERS = {"broken/no_divisibility_test", "broken/tf32_for_fp32", "broken/gradient_of_one_weight_tap_missing"}


def _quick() -> set[str]:
    """The first few of each kind that take seconds."""
    count, names = Counter(), set()
    for entry in ENTRIES:
        count[entry.kind] += entry.quick
        if entry.quick and count[entry.kind] <= QUICK:
            names.add(entry.name)
    return names


def _ordinary(quick: set[str]) -> set[str]:
    """The entries of the ordinary run: right files, and one for every reason to be found out.

    Those with the fewest reasons come first: what a file with several of them is found out for may be any. Hostile
    files are tried on every reference problem; in the ordinary run on the first of them only.
    """
    names, had = quick | NUMBERS, set(FOUND_ELSEWHERE)
    for entry in sorted(ENTRIES, key=lambda e: (len(e.codes), e.name not in quick)):
        reasons = set(entry.codes) or {entry.name}
        elsewhere = entry.kind == "hostile" and "@" in entry.name and not entry.name.endswith(f"@{MANIFEST.FIVE[0]}")
        if entry.name not in LARGER and not elsewhere and reasons - had:
            names.add(entry.name)
            had |= reasons
    return names


def _cases() -> list[Any]:
    """Every entry; those that only repeat what others show are left to ``make exhaustive``.

    Right files are proven with all trials where they are quick; a short proof of the others says that nothing is held
    against them that is not wrong.
    """
    cases, quick = [], _quick()
    ordinary = _ordinary(quick)
    for entry in ENTRIES:
        marks = [pytest.mark.quick] if entry.name in quick else []
        marks += [] if entry.name in ordinary else [pytest.mark.exhaustive]
        short = entry.kind == "correct" and not entry.quick
        cases.append(pytest.param(entry, short, id=entry.name, marks=marks))
        if short:
            cases.append(pytest.param(entry, False, id=f"{entry.name}-whole", marks=pytest.mark.exhaustive))
    return cases


CASES = _cases()


@pytest.mark.parametrize(("entry", "short"), CASES)
def test_candidate(entry, short, tmp_path):
    """The proof says what the manifest expects of it, and says it in words."""
    options = {"device": "sim", "seed": SEED, "quick": short, **entry.options}
    proof = crucible.prove(entry.reference, entry.materialise(tmp_path), **options)
    said = f"{proof.verdict}: {proof.reason.code}: {proof.reason.message}" if proof.reason else proof.verdict
    assert proof.verdict == entry.verdict, said
    if entry.codes:
        assert proof.reason is not None and proof.reason.code in entry.codes, said
        assert len(proof.reason.message) > 20 and "Traceback" not in proof.reason.message
    assert entry.warnings <= {w.code for w in proof.warnings}, [w.code for w in proof.warnings]


@pytest.mark.quick
def test_the_ordinary_run_has_every_reason():
    ordinary = [c.values[0] for c in CASES if pytest.mark.exhaustive.mark not in [m.mark for m in c.marks]]
    every, had = ({code for e in some for code in e.codes | e.warnings} for some in (ENTRIES, ordinary))
    assert every == had | FOUND_ELSEWHERE & every


def test_the_manifest_covers_what_was_promised():
    """Twelve right candidates, forty broken ones and every cheat with a check of its own."""
    kinds = [e.kind for e in ENTRIES]
    assert kinds.count("correct") >= 12 and kinds.count("broken") >= 40
    cheats = {code for e in ENTRIES if e.kind == "cheats" for code in (*e.codes, *e.warnings)}
    assert cheats >= set(BY_CHECK["honesty"])
