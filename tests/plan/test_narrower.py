"""Narrower boxes on Hopper for smaller extents than the declared: where there are any, and what they may be."""

from __future__ import annotations

import pytest

from crucible.plan.boxes import choose_box
from crucible.plan.forms import NO_POOL, Form
from crucible.plan.hopper import HOPPER_SHARED, joint_of, pair_cost
from crucible.plan.narrower import HALVINGS, PAYS, halved
from crucible.plan.ways import Site, ways

ONES = (1, 1, 1, 1)
UP3 = Form((1, 3, 3, 3), ONES, ONES, (0, -2, -2, -2), True)
UP2 = Form((1, 1, 5, 5), ONES, ONES, (0, 0, -3, -3), True)
DOWN2 = Form((1, 1, 5, 5), ONES, ONES, (0, 0, -1, -1), False)
POOL = (1, 1, 2, 2)
# Form, extents, rows, channels, samples, pool: of the reference problems' forward passes, and of a gradient.
CASES = {
    "conv_transpose3d": (UP3, (1, 34, 34, 34), 128, 64, 16, NO_POOL),
    "batch_norm": (UP2, (1, 1, 34, 34), 128, 64, 512, NO_POOL),
    "batch_norm, pooled": (UP2, (1, 1, 34, 34), 128, 64, 512, POOL),
    "batch_norm, backward": (DOWN2, (1, 1, 32, 32), 64, 128, 512, NO_POOL),
}


def chosen(form, extents, rows, channels, samples, pool, direct=True):
    tile = choose_box(form, extents, rows, channels, samples, direct=direct, pool=pool)
    assert tile is not None and tile.pair is not None
    return tile


def test_half_the_input():
    assert halved(UP3, (1, 34, 34, 34)) == (1, 18, 18, 18)
    assert halved(UP3, (1, 18, 18, 18)) == (1, 10, 10, 10)
    assert halved(UP2, (1, 1, 34, 34)) == (1, 1, 18, 18)
    assert halved(DOWN2, (1, 1, 32, 32)) == (1, 1, 16, 16)
    strided = Form((1, 1, 3, 3), (1, 1, 2, 2), ONES, (0, 0, -1, -1), False)
    assert halved(strided, (512, 1, 28, 1)) == (512, 1, 14, 1)  # samples stay as many


@pytest.mark.parametrize("case", CASES)
def test_where_they_pay(case):
    form, extents, rows, channels, samples, pool = CASES[case]
    tile = chosen(*CASES[case])
    first, half = tile.pair, halved(form, extents)
    assert 1 <= len(first.narrower) <= HALVINGS
    assert tile.divided(pool)
    second = first.narrower[0]
    assert second.box[-1] <= half[-1] < first.box[-1]

    def cycles(pair, at):
        return pair_cost(form, pair, at, rows, channels, samples)

    assert cycles(first, half) >= PAYS * cycles(second, half)
    assert all(cycles(first, extents) < cycles(p, extents) for p in first.narrower)
    for pair in first.narrower:
        assert pair.launch == first.launch and not pair.narrower
        assert all(pair.shared_bytes(form, kind) <= HOPPER_SHARED for kind in ("Half", "Native", "Tf32"))
        assert joint_of(form, pair).each[3] <= joint_of(form, first).each[3]  # one size of memory serves all
        assert pair.columns in first.instructions


@pytest.mark.parametrize(
    ("form", "extents", "rows", "channels", "samples"),
    [
        # Strips; wide images, whose half is wide too; images that are small as they are; a single small image.
        (Form((1, 1, 3, 3), ONES, ONES, (0, 0, -2, -2), True), (1, 1, 1026, 1026), 64, 64, 8),
        (UP2, (1, 1, 1026, 1026), 128, 64, 8),
        (UP2, (1, 1, 6, 6), 128, 64, 64),
        (UP2, (1, 1, 34, 34), 128, 64, 1),
    ],
)
def test_where_they_do_not(form, extents, rows, channels, samples):
    assert chosen(form, extents, rows, channels, samples, NO_POOL).pair.narrower == ()


def test_what_is_tried_has_them_too():
    """Each way that tuning may choose has its own, and their labels do not depend on them."""
    form, extents, rows, channels, samples, _ = CASES["conv_transpose3d"]
    site = Site("mma", "conv", rows, 34**3, 27 * 64, 16, form, extents, channels, samples, direct=True)
    pairs = [w.tile.pair for w in ways(site, hopper=True) if getattr(w.tile, "pair", None) is not None]
    assert len(pairs) > 2 and sum(bool(p.narrower) for p in pairs) > 1
    assert all(p.launch == n.launch for p in pairs for n in p.narrower)
