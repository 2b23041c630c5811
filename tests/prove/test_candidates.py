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

    Hostile files are tried on every reference problem; in the ordinary run on the first of them only. A broken or
    hostile file that may be found out for several reasons is left out of it where each of them is another's only one.
    All trials of right files are run for the quick ones; a short proof of the others says that nothing is held against
    them that is not wrong.
    """
    cases, seen, quick = [], Counter(), Counter()
    alone = {(e.kind, code) for e in ENTRIES if len(e.codes) == 1 for code in e.codes}
    for entry in ENTRIES:
        quick[entry.kind] += entry.quick
        marks = [pytest.mark.quick] if entry.quick and quick[entry.kind] <= QUICK else []
        alike = (entry.kind, tuple(sorted(entry.codes)))
        elsewhere = entry.kind == "hostile" and "@" in entry.name and not entry.name.endswith(f"@{MANIFEST.FIVE[0]}")
        others = len(entry.codes) > 1 and {(entry.kind, code) for code in entry.codes} <= alone
        repeats = entry.kind in ("broken", "hostile") and not entry.quick and (others or seen[alike] >= ALIKE)
        if elsewhere or repeats:
            marks.append(pytest.mark.exhaustive)
        else:
            seen[alike] += 1
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


def test_the_manifest_covers_what_was_promised():
    """Twelve right candidates, forty broken ones and every cheat with a check of its own."""
    kinds = [e.kind for e in ENTRIES]
    assert kinds.count("correct") >= 12 and kinds.count("broken") >= 40
    cheats = {code for e in ENTRIES if e.kind == "cheats" for code in (*e.codes, *e.warnings)}
    assert cheats >= set(BY_CHECK["honesty"])
