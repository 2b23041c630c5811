"""The straight line that times are held against."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import scaling

from crucible.problem import load_problem

pytestmark = pytest.mark.quick


def points(times):
    return [scaling.Point("p", "batch", str(n), n, t) for n, t in times]


def test_a_line_is_found_whatever_it_begins_with():
    found = scaling.straight(points([(n, 0.05 + 0.002 * n) for n in (64, 128, 256, 512)]))
    assert max(abs(p.off) for p in found) < 1e-9
    assert found[0].line == pytest.approx(0.05 + 0.128)


def test_a_bend_is_seen():
    bent = scaling.straight(points([(1, 1.0), (2, 2.0), (4, 4.0), (8, 16.0)]))
    assert max(abs(p.off) for p in bent) > 0.15


def test_small_sizes_count_as_much_as_large_ones():
    """A fixed cost that a least-squares fit of the times themselves would not notice."""
    slow_start = scaling.straight(points([(1, 3.0), (2, 2.0), (4, 4.0), (8, 8.0)]))
    assert max(abs(p.off) for p in slow_start) > 0.15


def test_the_series_of_a_problem():
    """Batches up to the declared one, and the extents that were asked for; a matrix has none."""
    problems = Path(scaling.__file__).parents[1] / "problems"
    image, matrix = (
        scaling.series_of(load_problem(problems / f"{name}.py"), 8, (0.5, 1.0, 2.0))
        for name in ("conv_transpose2d", "gemm_group_norm_min_bias")
    )
    batches = [("batch", n, 1.0) for n in (1, 2, 4, 8)]
    assert image == [*batches, ("extents", None, 0.5), ("extents", None, 1.0), ("extents", None, 2.0)]
    assert matrix == batches


@pytest.mark.parametrize("extents", [["0.5", "1"], ["-1", "1", "2"]])
def test_extents_that_say_nothing(monkeypatch, capsys, extents):
    monkeypatch.setattr(sys, "argv", ["scaling.py", "REF", "NEW", "--extents", *extents])
    with pytest.raises(SystemExit) as stopped:
        scaling.main()
    assert stopped.value.code == 2 and "three factors or more" in capsys.readouterr().err
