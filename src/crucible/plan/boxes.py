"""Boxes: which pixels of a convolution's output one block computes, and what that costs (kernels/window.cuh)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from crucible.plan.forms import FETCH, NO_POOL, Form, boxes_within, dealt
from crucible.plan.hopper import PAIR_ROWS, TAP_BYTES, PairTile, SplitTile, best_split, merged_strips, ranked_pairs
from crucible.plan.narrower import with_narrower
from crucible.plan.tiles import BOX_TILES, SHARED_LIMIT, MmaTile, SimtTile

BN = 256  # columns of a tile
THREADS = 128
STEP_ROWS = 8  # words of channels in one step
MULTIPLY, STORE = 0.8, 0.25  # cycles for one column and tap of 64 rows, and for one element of the result


@dataclass(frozen=True)
class WindowTile:
    """`Window<rows, words, grade>` on a box of at most 256 pixels; other engines take tiles as wide."""

    rows: int
    words: int  # of channels in a chunk
    box: tuple[int, ...]
    pair: PairTile | None = None  # how Hopper's own instructions take it
    precise: SplitTile | None = None  # and in float32's own precision
    cols: int = BN
    depth: int = 16

    def text(self, grade: str) -> str:
        return f"Window<{self.rows}, {self.words}, Grade::{grade}>"

    def divided(self, window: Sequence[int]) -> bool:
        """Whether the boxes of every engine are made of whole windows."""
        boxes = [self.box, *(t.box for t in (self.pair, self.precise) if t is not None)]
        boxes += [] if self.pair is None else [t.box for t in self.pair.narrower]
        if self.pair is not None and self.pair.landings:
            return False  # strips store line by line
        return all(b % w == 0 for box in boxes for b, w in zip(box, window))

    @property
    def split(self) -> MmaTile:
        """For float32's own precision."""
        return BOX_TILES[1]

    @property
    def simt(self) -> SimtTile:
        """For types and chips without tensor cores."""
        return BOX_TILES[0]

    def packed_words(self, rows: int, channels: int, taps: int, groups: int) -> int:
        """Memory for the weights in the order of fragments."""
        words = groups * -(-rows // self.rows) * self.rows * -(-channels // self.words) * self.words * taps
        merged = 1 if self.pair is None else self.pair.merged
        rows, channels, groups = rows * merged, channels * merged, groups // merged
        half, tf32 = -(-channels // 16), -(-channels // 8)
        chunks = max([half + tf32] * (self.pair is not None) + [2 * tf32] * (self.precise is not None), default=0)
        if chunks == 0:
            return words
        tiles = groups * -(-rows // PAIR_ROWS)
        packed = 64 + -(-min(channels, 4096) // 64) * 64 + tiles * (2 * PAIR_ROWS + taps * chunks * TAP_BYTES // 4)
        return packed + words if merged > 1 else max(words, packed)  # groups have their own for the second launch


def rows_for(rows: int) -> int:
    """The height of a tile: smaller ones read the halo again for fewer products."""
    speed = {64: 1.0, 32: 0.8, 16: 0.5}
    return min(speed, key=lambda r: -(-rows // r) * r / speed[r])


def words_for(taps: int) -> int:
    """Words of channels in a chunk: enough steps between chunks to hide what comes from memory."""
    return 8 if taps >= 5 else 16


def shared_bytes(form: Form, box: Sequence[int], rows: int, words: int) -> int:
    """What a block asks for, as kernels/window.cuh counts it."""
    pitch = -(-prod(form.halo(box)) // THREADS) * THREADS + 8
    steps = words // STEP_ROWS * form.taps
    panels = (2 * (steps if steps <= 10 else 9) * rows * 8 + 3 * words * pitch) * 4
    return max(panels, 16 * (BN + 8) * 4)


def choose_box(
    form: Form, extents: Sequence[int], rows: int, channels: int, samples: int = 1, *, direct: bool = False,
    pool: Sequence[int] = NO_POOL, phases: int = 1, beside: int = 1, groups: int = 1,
) -> WindowTile | None:  # fmt: skip
    """The box that should take the least time for an output of these extents; none where no halo fits.

    Hopper's kernels have a box of their own. ``direct``: the input is memory as it is. ``pool``: windows that are
    stored as one element each, and divide the boxes. ``phases``: groups that read the same input, of which ``beside``
    neighbours have elements that lie beside each other. ``groups``: as many as may be taken for one.
    """
    boxes = ranked_boxes(form, extents, rows, channels, pool)
    pairs = ranked_pairs(form, extents, rows, channels, samples, direct=direct, pool=pool, phases=phases, beside=beside)
    if prod(pool) > 1:
        plain = choose_box(form, extents, rows, channels, samples, direct=direct, phases=phases, beside=beside)
        if not boxes or (not pairs and plain is not None and plain.pair is not None):
            return plain
    if not boxes:
        return None
    precise = best_split(form, extents, rows, channels, samples, pool)
    pair = with_narrower(form, pairs[0], extents, rows, channels, samples) if pairs else None
    tile = WindowTile(rows_for(rows), words_for(form.taps), boxes[0], pair, precise)
    if not pairs and prod(pool) == 1:
        merged = ranked_merged(form, extents, rows, channels, groups, samples)
        alone = groups * -(-rows // tile.rows) * _cost(form, tile.box, extents, tile.rows, channels)
        if merged and merged[0][0] < alone:
            return replace(tile, pair=merged[0][1])
    return tile


def ranked_merged(
    form: Form, extents: Sequence[int], rows: int, channels: int, groups: int, samples: int = 1
) -> list[tuple[float, PairTile]]:
    """Ways to take several groups for one on Hopper, and their cycles, whose box kernels/window.cuh can take again."""
    height, words = rows_for(rows), words_for(form.taps)
    found = merged_strips(form, extents, rows, channels, groups, samples)
    return [(cost, p) for cost, p in found if shared_bytes(form, p.box, height, words) <= SHARED_LIMIT]


def ranked_boxes(
    form: Form, extents: Sequence[int], rows: int, channels: int, pool: Sequence[int] = NO_POOL
) -> list[tuple[int, ...]]:
    """All boxes of kernels/window.cuh whose halo fits, the fastest first."""
    height, words = rows_for(rows), words_for(form.taps)
    fitting = [b for b in boxes_within(extents, BN, pool) if shared_bytes(form, b, height, words) <= SHARED_LIMIT]
    return sorted(fitting, key=lambda b: _cost(form, b, extents, height, channels))


def _cost(form: Form, box: Sequence[int], extents: Sequence[int], height: int, channels: int) -> float:
    """Cycles of kernels/window.cuh."""
    words = words_for(form.taps)
    count = prod(-(-e // b) for e, b in zip(extents, box))
    halo = form.halo(box)
    # A row of pixels touches a sector more than it fills.
    fetch = FETCH * dealt(prod(halo), THREADS) * (1 + 8 / halo[-1])
    store = STORE * height * prod(box) * (1 + 8 / box[-1])
    chunks = -(-channels // words)
    return count * (chunks * words / 8 * (MULTIPLY * BN * form.taps * height / 64 + fetch) + store)
