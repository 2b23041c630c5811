"""Every candidate of tests/candidates against its reference, in the simulator: the right verdict, the right reason."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

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


QUICK = 3  # of each kind in the run of a few minutes
ALIKE = 1  # broken and hostile files that are found out for the same reason: so many of each, beside the quick ones


def _cases() -> list[Any]:
    """Every entry; those that only repeat what others show are left to ``make exhaustive``.

    Hostile files are tried on every reference problem; in the ordinary run on the first of them only.
    """
    cases, seen, quick = [], Counter(), Counter()
    for entry in ENTRIES:
        quick[entry.kind] += entry.quick
        marks = [pytest.mark.quick] if entry.quick and quick[entry.kind] <= QUICK else []
        alike = (entry.kind, tuple(sorted(entry.codes)))
        elsewhere = entry.kind == "hostile" and "@" in entry.name and not entry.name.endswith(f"@{MANIFEST.FIVE[0]}")
        if elsewhere or (entry.kind in ("broken", "hostile") and not entry.quick and seen[alike] >= ALIKE):
            marks.append(pytest.mark.exhaustive)
        else:
            seen[alike] += 1
        cases.append(pytest.param(entry, id=entry.name, marks=marks))
    return cases


CASES = _cases()


@pytest.mark.parametrize("entry", CASES)
def test_candidate(entry, tmp_path):
    """The proof says what the manifest expects of it, and says it in words."""
    proof = crucible.prove(
        entry.reference, entry.materialise(tmp_path), **{"device": "sim", "seed": SEED, **entry.options}
    )
    said = f"{proof.verdict}: {proof.reason.code}: {proof.reason.message}" if proof.reason else proof.verdict
    assert proof.verdict == entry.verdict, said
    if entry.codes:
        assert proof.reason is not None and proof.reason.code in entry.codes, said
        assert len(proof.reason.message) > 20 and "Traceback" not in proof.reason.message
    assert entry.warnings <= {w.code for w in proof.warnings}, [w.code for w in proof.warnings]


def test_the_manifest_covers_what_was_promised():
    """Twelve right candidates, forty broken ones and every cheat with a check of its own."""
    kinds = [e.kind for e in ENTRIES]
    assert kinds.count("correct") >= 12 and kinds.count("broken") >= 40
    cheats = {code for e in ENTRIES if e.kind == "cheats" for code in (*e.codes, *e.warnings)}
    assert cheats >= set(BY_CHECK["honesty"])
