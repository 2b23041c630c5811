"""Convolutions whose norm can follow in the same launch (kernels/window_held.cuh).

On Hopper the blocks of a launch can keep a whole sample in shared memory until its moments are known, and what the walk
after them would do with each element is done there. It takes a walk that does nothing else: one tensor, which the
contraction makes and nobody else reads, becomes another of the same shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from crucible.plan.boxes import WindowTile
from crucible.plan.forms import Form
from crucible.plan.hopper import HOPPER_SHARED, MORE, PAIR_ROWS, TAP_BYTES, PairTile, landed_pixels, landing_bytes
from crucible.plan.index import Int, of_var
from crucible.plan.program import flat
from crucible.plan.stages import Contraction, Row, Stage, read
from crucible.plan.value import Const, Load, Local, Op, Value, replace, walk
from crucible.plan.vectors import by_parts

# Of kernels/window_hold.cuh: lines in the ring but those under an output line, channels of a group, lines of a block.
AHEAD, GROUPS, LEAST = 1, (4, 8, 16), 4
MOST = 8  # lines of a block
BLOCKS, REGISTERS = 160, 168  # at most; of a thread, for sums and weights
COMMON, TABLE = 6, 8  # numbers that the elements of a part of a row have in common, at most; room for them
WORDS = 2 * 16 * BLOCKS * 2 + 64  # for the moments of all blocks, and to begin where a line of memory does
SUM = Local("value", "f")
KNOWN = 2  # numbers that the elements of a row have in common before their norm, at most


def pair_up(stages: Sequence[Stage], kept: Iterable[str]) -> None:
    """Set ``held`` of contractions whose walk follows; ``kept`` are buffers that are wanted after all stages."""
    wanted = set(kept)
    for number, (stage, after) in enumerate(zip(stages, stages[1:])):
        if not isinstance(stage, Contraction) or not isinstance(after, Row):
            continue
        readers = [s for s in stages[number + 2 :] if any(x.buffer.name in read(s) for x in stage.stores)]
        if not readers and not wanted & {x.buffer.name for x in stage.stores} and _follows(stage, after):
            stage.held, after.held = after, True


def slots(form: Form) -> int:
    """Lines of the ring."""
    return (form.kernel[2] - 1) * form.dilation[2] + 1 + AHEAD


def element_of(row: Row) -> Load:
    """The element that a walk is given."""
    (store,) = row.passes[-1].stores
    (found,) = _elements(row, store.value)
    return found


def by_rows(value: Value) -> tuple[Value, dict[Value, str]]:
    """What becomes of a sum, ``value``, in terms of values that a row has in common, and their names."""
    common: dict[Value, str] = {}

    def change(v: Value) -> Value | None:
        if v.kind != "f" or isinstance(v, Const) or any(x == SUM for x in walk(v)):
            return None
        return Local(f"of.{common.setdefault(v, f'k{len(common)}')}", "f")

    return replace(value, change), common


def parted(row: Row) -> tuple[Value, dict[Value, str]]:
    """What becomes of ``element``, in terms of values that a part of a row has in common, and their names."""
    given = element_of(row).buffer
    _, place, p, _ = by_parts(row.passes[-1], ())
    common: dict[Value, str] = {}

    def name(v: Value) -> Value:
        return v if isinstance(v, Const) else Local(f"of.{common.setdefault(v, f'h{len(common)}')}", "f")

    def moves(v: Value) -> bool:
        return any(isinstance(x, Load) and x.buffer == given for x in walk(v))

    def factors(v: Value) -> tuple[Value, Value | None]:
        """What is multiplied by numbers that a part has in common, and their product."""
        if isinstance(v, Op) and v.name == "mul":
            for moving, other in (v.args, v.args[::-1]):
                if moves(moving) and not moves(other) and place not in other.free:
                    inner, by = factors(moving)
                    return inner, other if by is None else Op("mul", (by, other), "f")
        return v, None

    def change(v: Value) -> Value | None:
        if moves(v):
            inner, by = factors(v)
            if by is not None:
                return Op("mul", (replace(inner, change), name(by)), "f")
            return Local("element", "f") if isinstance(v, Load) else None
        return name(v) if v.kind == "f" and place not in v.free else None

    return replace(p.stores[0].value, change), common


def _elements(row: Row, value: Value) -> set[Load]:
    """What is loaded of each element: the rest is the same along a part of a row."""
    _, place, p, _ = by_parts(row.passes[-1], ())
    moving = {v for v in walk(p.stores[0].value) if isinstance(v, Load) and place in v.free}
    plain = {v for v in walk(value) if isinstance(v, Load) and v.index == _whole(row)}
    return plain if len(moving) == len(plain) and not any(v.dynamic for v in moving) else set()


def _whole(row: Row) -> Int:
    """The index of an element of a tensor that rows have among them, one after another."""
    last = row.passes[-1]
    return of_var(row.row) * last.inner.extent + of_var(last.inner)


def _follows(stage: Contraction, row: Row) -> bool:
    return _simple(stage) and _plain(row) and _fit(stage, row)


def _simple(stage: Contraction) -> bool:
    """A convolution in strips with statistics of all columns, and nothing but their elements stored."""
    c, stats, tile = stage.contract, stage.statistics, stage.tile
    if stats is None or stats.group != 0 or c.phases is not None or c.sliding is None or len(stage.stores) != 1:
        return False
    if not isinstance(tile, WindowTile) or tile.pair is None or not tile.pair.landings or stage.pool is not None:
        return False
    (store,) = stage.stores
    reads = (v for v in walk(store.value) if isinstance(v, Load))
    if any(v.dynamic or c.cols in v.index.variables() for v in reads) or tile.pair.beside > 1:
        return False
    place = (*(of_var(v) for v in c.batch), of_var(c.rows), of_var(c.cols))
    shape = (*(v.extent for v in c.batch), c.rows.extent, c.cols.extent)
    groups, rows = c.batch[-1].extent.constant, c.rows.extent.constant
    if rows is None or groups is None or store.buffer.dtype != "scalar" or tile.pair.merged != groups:
        return False
    together = rows * groups
    alike = store.value == stats.value and store.index == flat(place, shape)
    value, known = by_rows(store.value)
    alike = alike and not value.free and len(known) <= KNOWN
    return alike and together <= PAIR_ROWS and together % 16 == 0 and lines(c.sliding.form, tile.pair) >= LEAST


def lines(form: Form, pair: PairTile) -> int:
    """Output lines that a block has room for, as the kernel counts them."""
    columns, chunks = pair.columns, pair.chunks
    landed, steps = landed_pixels(form, columns, 4), chunks * form.taps
    taken = slots(form) * 2 * chunks * landed * 16 + 2 * chunks * landing_bytes(landed, 4)
    taken += max(0, steps - (REGISTERS - columns // 2) // 4) * TAP_BYTES
    taken += PAIR_ROWS * (4 * TABLE + 32) + BLOCKS * 4
    taken += -(-(2 * slots(form) + 2 * chunks + 2 * MOST + 2) * 8 // 128) * 128
    return min(MOST, (HOPPER_SHARED - taken) // (PAIR_ROWS * (columns - MORE) * 4))


def _plain(row: Row) -> bool:
    """Partial moments are joined, and every element becomes another in the same place."""
    if not row.sliced or row.finals or len(row.passes) != 2:
        return False
    first, last = row.passes
    if len(first.reduces) != 1 or first.reduces[0][0].reducer != "moments_of" or first.stores or last.reduces:
        return False
    if last.repeats is None or last.repeats.constant not in GROUPS or len(last.stores) != 1:
        return False
    (store,) = last.stores
    if store.index != _whole(row) or store.buffer.dtype != "scalar" or len(_elements(row, store.value)) != 1:
        return False
    return len(parted(row)[1]) <= COMMON


def _fit(stage: Contraction, row: Row) -> bool:
    """The walk's elements and moments are the contraction's."""
    c, stats = stage.contract, stage.statistics
    assert stats is not None
    first, last = row.passes
    reduce, values = first.reduces[0]
    along = of_var(row.row) * first.inner.extent + of_var(first.inner)
    parts = {b.name for b in stats.parts.values()}
    if reduce.name != stats.reduce.name or len(parts) != 3:
        return False
    if not all(isinstance(v, Load) and v.buffer in parts and v.index == along for v in values):
        return False
    return element_of(row).buffer == stage.stores[0].buffer.name and last.by == c.cols.extent
