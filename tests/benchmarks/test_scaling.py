"""The straight line that times are held against."""

from __future__ import annotations

import pytest
import scaling

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
