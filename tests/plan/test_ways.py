"""Ways to compute a contraction: the cost model's comes first, choices are followed, stale ones are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from crucible.fuse import FuseOptions, fuse_problem
from crucible.plan.boxes import WindowTile
from crucible.plan.forms import Form
from crucible.plan.stages import Contraction
from crucible.plan.ways import Choices, Site, best, ways

pytestmark = pytest.mark.quick

PROBLEMS = Path(__file__).parents[2] / "problems"
SQUARE = Form((1, 1, 3, 3), (1, 1, 1, 1), (1, 1, 1, 1), (0, 0, -1, -1), False)
WINDOW = Site("mma", "conv", 64, 4096, 576, 8, SQUARE, (1, 1, 64, 64), 64)
GRADIENT = Site("mma", "conv", 64, 576, 32768, 1, SQUARE, (8, 1, 64, 64), 64, gradient=True)
PRODUCT = Site("mma", "matmul", 1024, 8192, 8192, 1)
DEEP = Site("simt", "matmul", 64, 64, 4096, 1)


@pytest.mark.parametrize("site", [WINDOW, GRADIENT, PRODUCT, DEEP])
@pytest.mark.parametrize("hopper", [False, True])
def test_the_cost_models_own_comes_first_and_labels_are_unique(site, hopper):
    found = ways(site, hopper)
    assert found[0] == best(site) and len(found) > 3
    assert len({w.label for w in found}) == len(found) == len(set(found))
    assert all(Choices().taking(site.text, w.label).way(site) == w for w in found)


def test_what_makes_no_difference_on_a_chip_is_not_tried_there():
    on_hopper = [w.tile for w in ways(WINDOW, True) if isinstance(w.tile, WindowTile)]
    elsewhere = [w.tile for w in ways(WINDOW, False) if isinstance(w.tile, WindowTile)]
    assert len({t.box for t in on_hopper}) == 1 and len({t.pair for t in on_hopper}) == len(on_hopper)
    assert len({t.pair for t in elsewhere}) == 1 and len({t.box for t in elsewhere}) == len(elsewhere)
    assert {w.packed for w in ways(PRODUCT, True)} == {False, True}


def test_sites_of_other_shapes_have_other_texts():
    other = Form((1, 1, 3, 3), (1, 1, 1, 1), (1, 1, 1, 1), (0, 0, -1, -1), True)
    sites = [
        WINDOW, GRADIENT, PRODUCT, DEEP, Site("mma", "conv", 64, 4096, 576, 8, other, (1, 1, 64, 64), 64),
        Site("mma", "conv", 64, 4096, 576, 8, SQUARE, (1, 1, 32, 128), 64), Site("mma", "matmul", 1024, 8192, 8192, 2),
        replace(WINDOW, phases=4),
    ]  # fmt: skip
    assert len({s.text for s in sites}) == len(sites)


def test_a_choice_changes_the_file_and_a_stale_one_does_not():
    path = PROBLEMS / "conv_transpose3d_relu_group_norm.py"
    plain = fuse_problem(path, FuseOptions(forward_only=True))
    (stage,) = [s for s in plain.modes[0].plan.stages if isinstance(s, Contraction)]
    assert stage.site is not None
    other = ways(stage.site, True)[1]
    chosen = Choices().taking(stage.site.text, other.label)
    changed = fuse_problem(path, FuseOptions(forward_only=True, choices=chosen))
    (new,) = [s for s in changed.modes[0].plan.stages if isinstance(s, Contraction)]
    assert new.tile == other.tile != stage.tile and changed.text != plain.text
    stale = Choices().taking(stage.site.text, "box 1x1x1x1999").taking("mma conv elsewhere", other.label)
    assert fuse_problem(path, FuseOptions(forward_only=True, choices=stale)).text == plain.text
