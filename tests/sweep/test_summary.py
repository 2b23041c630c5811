"""What rows add up to, what has changed, and the exit code."""

from __future__ import annotations

import pytest

from crucible.race.names import AGAIN, EAGER
from crucible.sweep.summary import Change, compare, exit_code, geomean, summarise

pytestmark = pytest.mark.quick


def row(title, status="proven", eager=None, compiled=None, floor=0.5, gpu="H200", noise=0.02, claim="faster"):
    """A row whose candidate is so many times as fast as the others; without a number it has no times."""
    race = None
    if eager is not None:
        against = {EAGER: {"speedup": eager, "claim": claim}, AGAIN: {"speedup": 0.01, "claim": "slower"}}
        if compiled is not None:
            against["compile"] = {"speedup": compiled, "claim": "faster" if compiled > 1.02 else "same"}
        line = {"kind": "candidate", "times": {"median": 1.0}, "against": against, "of_floor": floor}
        race = {"passes": [{"what": "forward", "noise": {"part": noise}, "rows": [{"kind": "baseline"}, line]}]}
    return {"title": title, "status": status, "reason": None, "race": race, "environment": {"gpu": gpu}}


def test_counts_and_means():
    rows = [row("a", eager=4.0, compiled=2.0), row("b", eager=1.0, compiled=1.0, claim="same"), row("c", eager=1.6),
            row("d", "refuted", eager=9.0), row("e", "not fused")]  # fmt: skip
    found = summarise(rows)
    one = found.passes["forward"]
    assert (found.total, found.proven, found.statuses["refuted"]) == (5, 3, 1)
    assert one.timed == 3 and one.faster == {"1": 2, "1.5": 2, "2": 1} and one.faster_than_compile == 1
    assert one.geomean_eager == pytest.approx(6.4 ** (1 / 3)) and one.geomean_compile == pytest.approx(2**0.5)
    assert one.geomean_best == pytest.approx((2.0 * 1.0 * 1.6) ** (1 / 3)) and one.of_floor == pytest.approx(0.5)
    assert geomean([]) is None and summarise([row("e", "failed")]).passes == {}


@pytest.mark.parametrize(
    ("old", "new", "kinds"),
    [
        (row("a", eager=2.0), row("a", eager=2.05), []),
        (row("a", eager=2.0), row("a", eager=1.9), ["regression"]),
        (row("a", eager=2.0), row("a", eager=2.2), ["improvement"]),
        (row("a", eager=2.0, noise=0.1), row("a", eager=1.9), []),
        (row("a", eager=2.0), row("a", "refuted"), ["regression"]),
        (row("a", "failed"), row("a", eager=2.0), ["improvement"]),
        (row("a", "failed"), row("a", "not fused"), ["not comparable"]),
        (row("a", eager=2.0, gpu="A100"), row("a", eager=1.0), ["not comparable"]),
        (row("a", eager=2.0, noise="inf"), row("a", eager=1.0), []),
        (row("a"), row("a"), []),
        (row("b"), row("a"), ["new", "gone"]),
    ],
)
def test_changes(old, new, kinds):
    assert [c.kind for c in compare([old], [new])] == kinds


def test_exit_codes():
    good, bad, unknown = row("a"), row("b", "refuted"), row("c", "time limit")
    worse, better = Change("a", "regression", ""), Change("a", "improvement", "")
    assert exit_code([good], []) == 0 and exit_code([good], [better]) == 0
    assert exit_code([good, bad, unknown], []) == 1 and exit_code([good], [worse]) == 1
    assert exit_code([good, unknown], []) == 2
