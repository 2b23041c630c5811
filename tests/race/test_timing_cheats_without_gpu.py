"""Cheats of tests/timing_cheats.py that need no GPU: in a whole race on the processor they gain nothing."""

from __future__ import annotations

import ast

import pytest

import timing_cheats
from crucible.race.names import EAGER
from crucible.race.run import race

# The others have forms of their own in test_whole_race.py.
HERE = {
    "thread_that_stays": "wrong in a timed call",
    "pool": "wrong in a timed call",
    "patched_clock": "replaced crucible.race.clock",
}
# Inputs of a turn lie in the same memory: these answer a timed call with what they computed in the one before.
KNOWN = {"cached_by_pointer": "wrong in a timed call", "cached_by_identity": "wrong in a timed call"}


@pytest.mark.quick
@pytest.mark.parametrize("name", ["honest", *timing_cheats.CHEATS])
def test_texts_are_python(name):
    tree = ast.parse(timing_cheats.candidate(name))
    assert ast.get_docstring(tree) and "ModelNew" in {n.name for n in tree.body if isinstance(n, ast.ClassDef)}


@pytest.mark.parametrize(("cheats", "warm"), [(HERE, 0), (KNOWN, 1)], ids=["late", "known"])
def test_they_gain_nothing(tmp_path, cheats, warm):
    (tmp_path / "reference.py").write_text(timing_cheats.reference(rows=64))
    files = [tmp_path / f"{name}.py" for name in ("honest", *cheats)]
    for file in files:
        file.write_text(timing_cheats.candidate(file.stem))
    result = race(tmp_path / "reference.py", files, device="cpu", unproven=True, seed=5, rounds=2, samples=1, warm=warm,
                  against=("eager",), timeout=30.0)  # fmt: skip
    (done,) = result.passes
    assert done.row(EAGER).status == "timed" and done.row("honest").status == "unproven" and result.exit_code == 1
    for name, words in cheats.items():
        row = done.row(name)
        assert row.status == "refuted" and words in row.note and row.times is None, (name, row.status, row.note)
