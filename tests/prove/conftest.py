"""Small problems and candidates as files, and one way to prove them without any device."""

from __future__ import annotations

import pytest
from candidate_texts import RIGHT

import crucible


@pytest.fixture
def prove_text(write, linear):
    """prove_text(candidate text) -> Proof against the small linear problem, on no device at all."""

    def run(text: str, **options):
        options = {"device": "cpu", "seed": 5, "quick": True, **options}
        return crucible.prove(linear, write("candidate.py", text), **options)

    return run


@pytest.fixture
def right() -> str:
    """A right candidate for the linear problem."""
    return RIGHT
