"""The same candidates on a real GPU, as far as their faults show there."""

from __future__ import annotations

import pytest
import torch
from test_candidates import SEED, manifest

import crucible

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
ENTRIES = [pytest.param(e, id=e.name) for e in manifest().EXPECTATIONS if e.gpu]


@pytest.mark.parametrize("entry", ENTRIES)
def test_candidate(entry, tmp_path):
    proof = crucible.prove(
        entry.reference, entry.materialise(tmp_path), **{"device": "cuda", "seed": SEED, **entry.options}
    )
    said = f"{proof.verdict}: {proof.reason.code}: {proof.reason.message}" if proof.reason else proof.verdict
    assert proof.verdict == entry.verdict, said
    if entry.codes:
        assert proof.reason is not None and proof.reason.code in entry.codes, said
    assert entry.warnings <= {w.code for w in proof.warnings}, [w.code for w in proof.warnings]
