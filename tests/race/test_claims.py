"""What may be said of a pass: beyond the noise only, and never of what is faster than light."""

from __future__ import annotations

import json

import pytest

from crucible.race.claims import conclude
from crucible.race.names import AGAIN, EAGER
from crucible.race.record import Entry, Pass, Race, Row

pytestmark = pytest.mark.quick


def made(times, verdict="proven", limit=0.1):
    """A race with one pass, one round a number: {contender: milliseconds}."""
    race = Race("ref.py", "d", "float32", [[8, 8]], 1)
    race.light = {"forward": {"bytes": 1, "certain": 1, "operations": 0, "floor": 0.5, "limit": limit,
                              "bound": "memory", "source": "graph"}}  # fmt: skip
    race.candidates = [Entry("new", "new.py", "e", verdict)]
    kinds = {"new": "candidate"}
    parts = (1.0, 1.01, 1.02, 1.03, 1.04)
    rows = [Row(n, kinds.get(n, "baseline"), samples=[[t * p] for p in parts]) for n, t in times.items()]
    race.passes.append(Pass("forward", rows))
    conclude(race, race.passes[0])
    return race, race.passes[0]


def test_faster_beyond_the_noise():
    race, done = made({EAGER: 2.0, AGAIN: 2.02, "compile": 1.01, "new": 1.0})
    new = done.row("new")
    assert new.against[EAGER]["claim"] == "faster" and new.against[EAGER]["speedup"] == pytest.approx(2.0)
    assert new.against["compile"]["claim"] == "same"
    assert new.of_floor == pytest.approx(0.5 / 1.02) and new.times.median == pytest.approx(1.02)
    assert race.exit_code == 0 and done.noise["part"] == pytest.approx(0.0099, rel=0.01)


def test_noise_swallows_a_claim():
    _, done = made({EAGER: 2.0, AGAIN: 5.0, "new": 1.5})
    assert done.row("new").against[EAGER]["claim"] == "same"


def test_without_a_second_eager_nothing_is_faster():
    race, done = made({EAGER: 2.0, "new": 1.0})
    assert done.row("new").against[EAGER]["claim"] == "same" and "against itself" in race.warnings[0]


def test_faster_than_light_is_refuted():
    race, done = made({EAGER: 2.0, AGAIN: 2.0, "new": 0.05})
    new = done.row("new")
    assert new.status == "refuted" and "faster than light" in new.note and "0.05" in new.note
    assert new.times is None and not new.samples and race.exit_code == 1
    assert "new" not in done.row(EAGER).against


def test_a_limit_that_eager_is_below_refutes_nobody():
    race, done = made({EAGER: 0.05, AGAIN: 0.05, "new": 0.04})
    assert done.row("new").status == "timed" and "must be wrong" in race.warnings[0]


def test_unproven_times_are_marked():
    race, done = made({EAGER: 2.0, AGAIN: 2.0, "new": 1.0}, verdict="unproven")
    assert done.row("new").status == "unproven" and done.row("new").has_times
    assert done.row(EAGER).status == "timed" and race.exit_code == 0


@pytest.mark.parametrize(
    ("verdict", "status", "untimed", "code"),
    [
        ("proven", "timed", None, 0),
        ("refuted", "timed", None, 1),
        ("unjudged", "timed", None, 2),
        ("proven", "refuted", None, 1),
        ("proven", "failed", None, 2),
        ("unproven", "unproven", "no GPU", 2),
    ],
)
def test_exit_codes(verdict, status, untimed, code):
    race = Race("ref.py", "d", "float32", [[8, 8]], 1, untimed=untimed)
    race.candidates = [Entry("new", "new.py", "e", verdict)]
    race.passes = [Pass("forward", [Row("new", "candidate", status=status), Row("x", "baseline", status="failed")])]
    assert race.exit_code == code


def test_the_document_is_plain_json():
    race, _ = made({EAGER: 2.0, AGAIN: 2.0, "new": 1.0})
    race.ceilings = {"copy": float("inf")}
    document = json.loads(race.to_text())
    assert document["schema"] == 1 and document["kind"] == "race" and document["ceilings"]["copy"] == "inf"
    assert document["passes"][0]["rows"][0]["samples"][0] == [2.0]
