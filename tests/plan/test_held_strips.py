"""How samples are cut where a convolution and its norm are one kernel, and which narrower strips a file has."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from crucible.plan.boxes import choose_box
from crucible.plan.forms import NO_POOL, Form
from crucible.plan.held import LINE, cut_cost, lines, narrower_columns
from crucible.plan.narrower import PAYS, halved

ONES = (1, 1, 1, 1)
UP = Form((1, 1, 3, 3), ONES, ONES, (0, 0, -2, -2), True)


def strips(extents, samples):
    tile = choose_box(UP, extents, 64, 64, samples, direct=True, pool=NO_POOL)
    assert tile is not None and tile.pair is not None and tile.pair.landings
    return tile.pair


@pytest.mark.quick
def test_what_a_block_has():
    """On 132 processors, of 128 samples: strips, segments of so many lines, and teams that take a sample each."""
    pair = replace(strips((1, 1, 258, 258), 128), columns=96)
    assert lines(UP, pair) == 6
    assert cut_cost(UP, pair, (1, 1, 258, 258), 128) == 128 * (6 + 2) * (96 + LINE)  # 3 strips, 44 segments
    assert cut_cost(UP, pair, (1, 1, 130, 130), 128) == 43 * (6 + 2) * (96 + LINE)  # 2 strips, 22 segments, 3 teams
    assert cut_cost(UP, pair, (1, 1, 514, 514), 128) == inf  # 24 lines: no room for all of them
    assert cut_cost(UP, pair, (1, 1, 258, 258), 1) == inf  # nothing is multiplied while one sample is stored
    assert cut_cost(UP, pair, (1, 1, 2, 66), 128) == inf  # too few lines


@pytest.mark.quick
def test_narrower_strips():
    """Where they pay at half the extents or a quarter; none where no sample of those is held as a whole."""
    extents = (1, 1, 258, 258)
    first = strips(extents, 128)
    found = narrower_columns(UP, first, extents, 128)
    assert found
    at = halved(UP, extents)
    for n in found:
        assert n < first.columns and n % 8 == 0
    assert cut_cost(UP, first, at, 128) >= PAYS * cut_cost(UP, replace(first, columns=found[0]), at, 128)
    assert narrower_columns(UP, first, extents, 1) == narrower_columns(UP, first, (1, 1, 2050, 2050), 128) == ()
