"""The gallery: every problem fused as last accepted, and proven in the simulator."""

from __future__ import annotations

import difflib
import importlib.util
from pathlib import Path

import pytest

import crucible
import make_gallery
from crucible.fuse import fuse_problem

_spec = importlib.util.spec_from_file_location("accepted", Path(__file__).parent / "accepted.py")
assert _spec is not None and _spec.loader is not None
accepted = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(accepted)

ALL = accepted.problems()
GALLERY = [p for p in ALL if p.parent.name == "gallery"]
EVERY = 2  # every second one is proven in the ordinary run, the others with `make exhaustive`


@pytest.mark.parametrize("path", ALL, ids=lambda p: p.stem)
def test_generated_as_accepted(path):
    """A change in what is fused or written shows up here, and is accepted on purpose with `make accept`.

    The gallery has the whole text of the reference problems, which `make gallery` writes again.
    """
    file = accepted.accepted(path)
    assert file.exists(), f"{path.stem} was never accepted: make accept"
    fused = fuse_problem(path)
    old, new = file.read_text(), accepted.generated(path, fused)
    if old != new:
        changes = difflib.unified_diff(
            old.splitlines(), new.splitlines(), "accepted", "generated now", lineterm="", n=2
        )
        pytest.fail("not as accepted (make accept, if it should be so):\n" + "\n".join(list(changes)[:60]))
    if path in make_gallery.problems():
        assert make_gallery.stale(path, fused) == [], "the gallery is out of date: make gallery"


def _proofs():
    for k, path in enumerate(GALLERY):
        yield pytest.param(path, id=path.stem, marks=[pytest.mark.exhaustive] if k % EVERY else [])


@pytest.mark.parametrize("path", list(_proofs()))
def test_proven(path, tmp_path):
    new = tmp_path / f"{path.stem}_new.py"
    new.write_text(fuse_problem(path).text)
    proof = crucible.prove(path, new, device="sim", seed=3, quick=True)
    assert proof.verdict == "proven", f"{proof.reason.code}: {proof.reason.message}" if proof.reason else proof.verdict
