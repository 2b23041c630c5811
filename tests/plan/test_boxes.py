"""Boxes of pixels: what is chosen, and that the planner counts shared memory as the kernels do."""

from __future__ import annotations

import ctypes
from math import prod
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import crucible
from crucible.plan import held
from crucible.plan.boxes import BN, choose_box, shared_bytes
from crucible.plan.forms import Form
from crucible.plan.gradients import choose_gradient
from crucible.plan.hopper import COLUMNS, HOPPER_SHARED, SPLIT_COLUMNS
from crucible.plan.hopper_gradients import REGISTERS, ranked_groups
from crucible.plan.tiles import MMA_TILES, SHARED_LIMIT
from crucible.sim import kernel as sim

KERNELS = Path(crucible.__file__).parent / "kernels"
OTHER = MMA_TILES[2][0]


def form(kernel, stride=1, dilation=1, shift=0):
    lead = 4 - len(kernel)
    return Form(
        (1,) * lead + tuple(kernel), (1,) * lead + (stride,) * len(kernel), (1,) * lead + (dilation,) * len(kernel),
        (0,) * lead + (shift,) * len(kernel), False,
    )  # fmt: skip


def test_halo_is_what_the_taps_reach():
    assert form((3, 3)).halo((1, 1, 8, 32)) == (1, 1, 10, 34)
    assert form((3,), stride=2, dilation=4).halo((1, 1, 1, 10)) == (1, 1, 1, 27)


@pytest.mark.parametrize(
    ("kernel", "extents", "rows", "channels"),
    [
        ((3, 3), (1, 1, 1026, 1026), 64, 64), ((3, 3, 3), (1, 34, 34, 34), 128, 64), ((5, 5), (1, 1, 34, 34), 128, 64),
        ((1, 1), (1, 1, 56, 56), 256, 64), ((7,), (16, 1, 1, 100), 8, 3), ((3, 3), (64, 1, 4, 4), 512, 512),
    ],
)  # fmt: skip
def test_boxes_waste_little(kernel, extents, rows, channels):
    tile = choose_box(form(kernel), extents, rows, channels)
    assert tile is not None and prod(tile.box) <= BN
    computed = prod(-(-e // b) for e, b in zip(extents, tile.box)) * BN
    assert prod(extents) / computed > 0.75
    assert shared_bytes(form(kernel), tile.box, tile.rows, tile.words) <= SHARED_LIMIT


def test_no_box_where_no_halo_fits():
    assert choose_box(form((31, 31), dilation=8), (1, 1, 512, 512), 64, 64) is None
    assert choose_gradient(form((9, 9)), (8, 1, 32, 32), 64, 64, OTHER) is None  # too many taps
    assert choose_gradient(form((3, 3), dilation=200), (8, 1, 32, 32), 64, 64, OTHER) is None


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=3), st.integers(1, 3), st.integers(1, 3),
    st.lists(st.integers(1, 70), min_size=4, max_size=4), st.integers(1, 200), st.integers(1, 200),
)  # fmt: skip
def test_every_choice_fits(kernel, stride, dilation, extents, rows, channels):
    f = form(kernel, stride, dilation)
    tile = choose_box(f, extents, rows, channels)
    if tile is not None:
        assert shared_bytes(f, tile.box, tile.rows, tile.words) <= SHARED_LIMIT
        assert tile.packed_words(rows, channels, f.taps, 1) >= rows * channels * f.taps
        if tile.pair is not None:
            assert all(tile.pair.shared_bytes(f, kind) <= HOPPER_SHARED for kind in ("Half", "Tf32"))
            assert tile.pair.columns % 8 == 0 and prod(tile.pair.box) <= tile.pair.columns <= COLUMNS
        if tile.precise is not None:
            assert tile.precise.shared_bytes(f) <= HOPPER_SHARED and tile.precise.columns <= SPLIT_COLUMNS
            assert prod(tile.precise.box) <= min(tile.precise.columns, tile.precise.other.cols)
            assert tile.packed_words(rows, channels, f.taps, 1) >= 2 * rows * channels * f.taps
    gradient = choose_gradient(f, extents, rows, channels, OTHER)
    if gradient is not None:
        assert gradient.shared_bytes(f) <= SHARED_LIMIT and gradient.box[-1] % 8 == 0
        assert gradient.tap_groups * gradient.taps_each >= f.taps and gradient.threads <= 256
    for groups in ranked_groups(f, extents, rows, channels, 1)[:4]:
        taps = prod(f.kernel[groups.inner :])
        assert groups.shared_bytes(f) <= HOPPER_SHARED and groups.box[-1] % 8 == 0 == prod(groups.box) % 16
        assert groups.each * (groups.groups - 1) < taps <= groups.each * groups.groups and prod(f.stride) == 1
        assert groups.each * groups.columns // 2 <= REGISTERS[groups.groups] and groups.columns % 8 == 0


def test_shared_memory_is_counted_as_the_kernels_count_it():
    f = Form((1, 1, 3, 5), (1, 1, 2, 1), (1, 1, 1, 2), (0, 0, -1, -4), False)
    tile = choose_box(f, (1, 1, 60, 50), 48, 40)
    gradient = choose_gradient(f, (4, 1, 60, 50), 48, 40, OTHER)
    wide = Form((1, 3, 3, 3), (1, 1, 1, 1), (1, 1, 1, 1), (0, -2, -2, -2), True)
    beside = choose_box(wide, (1, 34, 34, 34), 128, 64)
    assert tile is not None and gradient is not None and beside is not None
    assert tile.pair is not None and beside.pair is not None and tile.precise is not None and beside.precise is not None
    groups = ranked_groups(wide, (16, 32, 32, 32), 64, 128, 1)[0]
    dilated = Form((1, 1, 3, 5), (1, 1, 1, 1), (1, 1, 1, 2), (0, 0, -1, -4), False)
    flat = ranked_groups(dilated, (4, 1, 60, 50), 48, 40, 1)[0]
    assert tile.pair.join < 0 <= beside.pair.join, "one that keeps its weights, one that shares them"
    assert beside.pair.ready and beside.pair.boxes == 3

    def dims(values):
        return f"Dims<{', '.join(map(str, values))}>"

    phased = Form((1, 2, 2, 2), (1, 1, 1, 1), (1, 1, 1, 1), (0, -1, -1, -1), True)
    lines = Form((1, 1, 2, 2), (1, 1, 1, 1), (1, 1, 1, 1), (0, 0, -1, -1), True)
    together = choose_box(phased, (1, 17, 17, 17), 128, 64, 16, direct=True, phases=8, beside=2)
    strips = choose_box(lines, (1, 1, 513, 513), 64, 64, 8, direct=True, phases=4, beside=2)
    assert together is not None and together.pair is not None and strips is not None and strips.pair is not None
    square = Form((1, 1, 3, 3), (1, 1, 1, 1), (1, 1, 1, 1), (0, 0, -2, -2), True)
    normed = choose_box(square, (1, 1, 258, 258), 64, 64, 128, direct=True)
    assert normed is not None and normed.pair is not None and normed.pair.landings
    assert held.lines(square, normed.pair) == 6
    assert together.pair.ready and together.pair.beside == strips.pair.beside == 2 and strips.pair.landings

    def functor(name, box, f=f, more=""):
        return f"""
struct {name} {{
  using Box = {dims(box)}; using Kernel = {dims(f.kernel)}; using Stride = {dims(f.stride)};
  using Dilation = {dims(f.dilation)}; using Shift = {dims(f.shift)};
  static constexpr bool b_direct = true, a_direct = true, boxed = true;
  static constexpr Index CHANNELS = 64;
  struct AAt {{ Index c; bool inside; }}; struct BAt {{ Index c; bool inside; }};
  {more}
}};"""

    source = f"""
#include "window.cuh"
#include "gradient_wgmma.cuh"
#include "window_split.cuh"
#include "window_ready.cuh"
#include "window_held.cuh"
using namespace crucible;
{functor("Forward", tile.box)}
{functor("Backward", gradient.box)}
{functor("Kept", tile.pair.box)}
{functor("Beside", beside.pair.box, wide)}
{functor("Together", together.pair.box, phased, "using Inside = void; static constexpr int PHASES = 8, BESIDE = 2;")}
{functor("Strips_", strips.pair.box, lines, "using Inside = void; static constexpr int PHASES = 4, BESIDE = 2;")}
{functor("Normed", normed.pair.box, square)}
{functor("Precise", tile.precise.box)}
{functor("PreciseBeside", beside.precise.box, wide)}
{functor("Groups", gradient.box, wide)}
{functor("Flat", gradient.box, dilated)}
extern "C" int groups_bytes() {{ return GradientRoom<{groups.text('Half')}, Groups>::shared_bytes; }}
extern "C" int flat_bytes() {{ return GradientRoom<{flat.text('Half')}, Flat>::shared_bytes; }}
extern "C" int precise_bytes() {{ return SplitRoom<{tile.precise.text}, Precise>::shared_bytes; }}
extern "C" int precise_beside_bytes() {{ return SplitRoom<{beside.precise.text}, PreciseBeside>::shared_bytes; }}
extern "C" int precise_beside_columns() {{ return Pair<{beside.precise.text}, PreciseBeside>::N; }}
extern "C" int kept_bytes() {{ return Pair<{tile.pair.text("Half")}, Kept>::shared_bytes; }}
extern "C" int kept_columns() {{ return Pair<{tile.pair.text("Half")}, Kept>::N; }}
extern "C" int again_bytes() {{ return Pair<{tile.pair.text("Tf32")}, Kept>::shared_bytes; }}
extern "C" int beside_bytes() {{ return Pair<{beside.pair.text("Half")}, Beside>::shared_bytes; }}
extern "C" int beside_again_bytes() {{ return Pair<{beside.pair.text("Tf32")}, Beside>::shared_bytes; }}
extern "C" int beside_columns() {{ return Pair<{beside.pair.text("Half")}, Beside>::N; }}
extern "C" int together_bytes() {{ return Pair<{together.pair.text("Half")}, Together>::shared_bytes; }}
extern "C" int together_again_bytes() {{ return Pair<{together.pair.text("Tf32")}, Together>::shared_bytes; }}
extern "C" int strips_bytes() {{ return Strip<{strips.pair.text("Half")}, Strips_>::shared_bytes; }}
extern "C" int strips_again_bytes() {{ return Pair<{strips.pair.text("Tf32")}, Strips_>::shared_bytes; }}
extern "C" int held_lines() {{ return Hold<Holding<{held.slots(square)}, {normed.pair.chunks}>, Normed>::LINES; }}
extern "C" int window_bytes() {{ return WindowSizes<{tile.text("Tf32")}, Forward>::shared_bytes; }}
extern "C" int gradient_bytes() {{ return GradientSizes<{gradient.text()}, Backward>::shared_bytes; }}
"""
    flags = ["-DCRUCIBLE_HOPPER=1"]
    library = ctypes.CDLL(str(sim.Kernel(source, {}, include=[KERNELS], flags=flags, architecture="sm_90a").path))
    counted = {
        "window_bytes": shared_bytes(f, tile.box, tile.rows, tile.words),
        "gradient_bytes": gradient.shared_bytes(f),
        "groups_bytes": groups.shared_bytes(wide), "flat_bytes": flat.shared_bytes(dilated),
        "held_lines": held.lines(square, normed.pair),
        "kept_bytes": tile.pair.shared_bytes(f, "Half"), "kept_columns": tile.pair.columns,
        "again_bytes": tile.pair.shared_bytes(f, "Tf32"),
        "beside_bytes": beside.pair.shared_bytes(wide, "Half"), "beside_columns": beside.pair.columns,
        "beside_again_bytes": beside.pair.shared_bytes(wide, "Tf32"),
        "together_bytes": together.pair.shared_bytes(phased, "Half"),
        "together_again_bytes": together.pair.shared_bytes(phased, "Tf32"),
        "strips_bytes": strips.pair.shared_bytes(lines, "Half"),
        "strips_again_bytes": strips.pair.shared_bytes(lines, "Tf32"),
        "precise_bytes": tile.precise.shared_bytes(f), "precise_beside_bytes": beside.precise.shared_bytes(wide),
        "precise_beside_columns": beside.precise.columns,
    }  # fmt: skip
    for name, expected in counted.items():
        function = getattr(library, name)
        function.restype = ctypes.c_int
        assert function() == expected


@pytest.mark.parametrize("pool", [(1, 1, 2, 2), (1, 2, 2, 2), (1, 1, 1, 3), (1, 1, 3, 5)])
def test_boxes_of_whole_windows(pool):
    tile = choose_box(form((3, 3)), (1, 9, 33, 35), 64, 64, pool=pool)
    assert tile is not None and tile.pair is not None and tile.divided(pool)
    assert prod(tile.box) <= BN and tile.pair.columns <= COLUMNS
    assert tile.precise is not None and all(b % w == 0 for b, w in zip(tile.precise.box, pool))
