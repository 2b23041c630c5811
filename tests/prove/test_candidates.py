"""Every candidate of tests/candidates against its reference, in the simulator: the right verdict, the right reason."""

from __future__ import annotations

import importlib.util
import sys
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


def _marks(entry: Any) -> list[pytest.MarkDecorator]:
    """Hostile files are tried on every reference problem; in the ordinary run, on the first of them only."""
    marks = [pytest.mark.quick] if entry.quick else []
    if entry.kind == "hostile" and "@" in entry.name and not entry.name.endswith(f"@{MANIFEST.FIVE[0]}"):
        marks.append(pytest.mark.exhaustive)
    return marks


CASES = [pytest.param(e, id=e.name, marks=_marks(e)) for e in ENTRIES]


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
