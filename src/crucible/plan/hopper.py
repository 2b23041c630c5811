"""Boxes and strips of pixels for Hopper's own instructions, and what they cost (kernels/window_wgmma.cuh and more)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from crucible.plan.forms import CACHE_RATE, MEMORY_RATE, NO_POOL, Form, boxes_within
from crucible.plan.tiles import PROCESSORS, MmaTile

# Rows of a tile, bytes of one tap's weights, and of shared memory.
PAIR_ROWS, TAP_BYTES, HOPPER_SHARED = 64, 2048, 232448
# Producers, cycles in which each puts away a chunk of one pixel, and from asking for one to having it.
PRODUCERS, PRODUCE, LATENCY = 256, 250.0, 1200.0
# Cycles that tensor cores wait for each chunk of a pixel that is put away, and in which a column of sums is finished.
# Sums of phases that are computed together take longer, as they are staged, and producers wait meanwhile.
PUT, END, END_STAGED = 1.8, 42.0, 63.0
READY_COLUMNS = 160  # up to which three warpgroups have registers for their sums, beside a fourth that copies
SAMPLES = 4  # the dimension along which the same box of two samples is joined
PAIR_LEAST, PAIR_TAPS = 32, 64  # fewer rows or more taps than these are not for these kernels
COLUMNS = 200  # of one instruction: a thread has 128 registers to begin with
# In float32's own precision: columns of an instruction (sums need as many registers as products), taps whose products
# are added before they go to the sums, producers, and cycles in which each puts away a chunk of a pixel.
SPLIT_COLUMNS, SPLIT_TAPS, SPLIT_PRODUCERS, SPLIT_PRODUCE = 128, 9, 128, 300.0
SPLIT_PLACES = 6 * SPLIT_PRODUCERS  # of a halo: each producer remembers where its pixels are
MORE = 8  # columns that a strip computes beside its own
BESIDE = 208  # columns of all phases that have sums at a time
THIRD = 104  # columns of a strip up to which three warpgroups have registers for their sums
LANDINGS = (4, 8)  # buffers in which lines land, at least and at most, an even number
MERGED_CHANNELS = 4  # of a group, or a multiple: so many of a strip's channels are watched at a time
MERGED_LAUNCHES = 8000.0  # cycles of the two launches that merged groups have and a kernel of single ones has not


@dataclass(frozen=True)
class PairTile:
    """`Warpgroups<...>` of kernels/window_wgmma.cuh: a box after another, or two side by side, on Hopper."""

    box: tuple[int, ...]
    join: int  # the dimension along which two lie side by side, SAMPLES, or -1
    slots: int  # of the ring
    chunks: int  # of weights that stay in shared memory; 0: they come with each chunk of the input
    turn: int  # chunks that a warpgroup multiplies at a time
    landing: int  # KB for what is on its way
    again: int  # slots of the second launch, in TF32
    columns: int  # of one instruction
    landings: int = 0  # buffers of kernels/window_strips.cuh, whose box is a line and whose slots are lines of the ring
    pool: tuple[int, ...] = NO_POOL
    phases: int = 1  # whose weights a strip has
    beside: int = 1  # phases that a warpgroup has sums of at a time
    ready: bool = False  # the input is rounded beforehand (kernels/window_ready.cuh)
    boxes: int = 2  # that lie side by side then
    merged: int = 1  # groups that are taken for one (kernels/window_merged.cuh), in float32 where TF32 is permitted
    narrower: tuple[PairTile, ...] = ()  # the same launch with other boxes, for smaller extents (plan/narrower.py)

    @property
    def instructions(self) -> set[int]:
        """Columns of all its instructions, those of the launch that does something again among them."""
        own = {self.columns, self.columns - MORE} if self.landings and self.merged == 1 else {self.columns}
        return own.union(*(n.instructions for n in self.narrower))

    @property
    def launch(self) -> str:
        if self.merged > 1:
            return "launch_merged"
        return "launch_ready" if self.ready else "launch_strips" if self.landings else "launch_warpgroups"

    @property
    def template(self) -> str:
        kind = "ready" if self.ready else "strips" if self.landings else "wgmma"
        return f"window_{kind if self.merged == 1 else 'merged'}.cuh"

    def text(self, operands: str, *, busy: bool = False) -> str:
        """``busy``: what follows the products takes longer than they do."""
        if self.landings and operands != "Tf32":
            warpgroups = 3 if busy and self.columns <= THIRD and self.beside == 1 else 2
            return f"Strips<{warpgroups}, {self.slots}, {self.landings}, {self.chunks}, Operands::{operands}>"
        if self.ready and operands != "Tf32":
            return f"Ready<{self.boxes}, {self.join}, {self.slots}, {self.turn}, Operands::{operands}>"
        own = (self.join, self.slots, self.chunks, self.turn, self.landing)
        numbers = own if operands != "Tf32" else (self.join, self.again, 0, self.turn, self.landing)
        return f"Warpgroups<{', '.join(map(str, numbers))}, Operands::{operands}>"

    def shared_bytes(self, form: Form, operands: str) -> int:
        """What a block asks for, as the kernel counts it."""
        joint = Joint(form, self.box, self.join, self.pool, self.boxes if operands != "Tf32" else 2, self.beside)
        weights = form.taps * TAP_BYTES
        if self.landings and operands != "Tf32":
            element = 4 if operands == "Half" else 2
            landed = landed_pixels(form, self.columns, element)
            lines = self.slots * 2 * self.chunks * landed * 16 + self.landings * landing_bytes(landed, element)
            stages = 8 * 4 * beside_pitch(self.beside * self.columns) * 4 if self.beside > 1 else 0
            barriers = (2 * self.slots + 2 * self.landings + 1) * 8 + 112
            return self.phases * self.chunks * weights + lines + stages + barriers
        slots, kept, weights = *((self.again, 0) if operands == "Tf32" else (self.slots, self.chunks)), joint.weights
        landing = 0 if self.ready and operands != "Tf32" else self.landing
        ring = slots * (joint.halo_bytes + (0 if kept else weights))
        return kept * weights + ring + joint.stage_bytes + landing * 1024 + (2 * slots + 1) * 8 + 112


@dataclass(frozen=True)
class SplitTile:
    """`Split<...>` of kernels/window_split.cuh: two boxes side by side on Hopper, in float32's own precision."""

    box: tuple[int, ...]
    join: int  # the dimension along which they lie side by side, or SAMPLES
    slots: int  # for halos
    piece: int  # taps whose weights come at a time
    held: int  # such pieces in shared memory
    landing: int  # KB for what is on its way
    columns: int  # of one instruction
    pool: tuple[int, ...] = NO_POOL

    launch = "launch_split"
    template = "window_split.cuh"
    other = MmaTile(64, 128, 16, 32, 32)  # which does again what cannot be split, as wide as any of these boxes

    @property
    def text(self) -> str:
        return f"Split<{self.join}, {self.slots}, {self.piece}, {self.held}, {self.landing}>"

    def shared_bytes(self, form: Form) -> int:
        """What a block asks for, as the kernel counts it."""
        joint = Joint(form, self.box, self.join, self.pool)
        rings = self.held * self.piece * 2 * TAP_BYTES + self.slots * joint.split_bytes
        return rings + joint.stage_bytes + self.landing * 1024 + 2 * (self.slots + self.held) * 8


def ranked_pairs(
    form: Form, extents: Sequence[int], rows: int, channels: int, samples: int = 1, *, direct: bool = False,
    pool: Sequence[int] = NO_POOL, phases: int = 1, beside: int = 1,
) -> list[PairTile]:  # fmt: skip
    """All ways to take boxes on Hopper, the fastest first; none for few rows or many taps."""
    if rows < PAIR_LEAST or form.taps > PAIR_TAPS:
        return []
    stored = 1 / prod(pool)
    tiles = -(-rows // PAIR_ROWS)
    boxes = boxes_within(extents, _most_columns(beside), pool)
    pairs = [p for b in boxes for p in _pairs(form, b, extents, channels, samples, tiles, pool, beside)]
    if direct and stored == 1:
        strips = list(_strips(form, extents, rows, channels, samples, phases, beside))
        # Phases whose elements lie beside each other fill sectors of memory together only where one block has them all.
        pairs = strips if strips and phases > 1 else pairs + strips
    return [pair for _, pair in sorted(pairs, key=lambda p: p[0])]


def merged_strips(
    form: Form, extents: Sequence[int], rows: int, channels: int, groups: int, samples: int = 1
) -> list[tuple[float, PairTile]]:
    """Ways to march down strips with several small groups taken for one, and cycles for one sample, all groups.

    A group has few rows (more are taken as they are) and channels of which four at least are watched together.
    """
    if rows >= PAIR_LEAST or form.taps > PAIR_TAPS or channels % MERGED_CHANNELS:
        return []
    found = []
    for merged in (m for m in range(2, groups + 1) if groups % m == 0):
        kinds = groups // merged * -(-rows * merged // PAIR_ROWS)  # tiles of rows, which see different channels or not
        for cost, pair in _strips(form, extents, kinds * PAIR_ROWS, channels * merged, samples):
            found.append((kinds * cost + MERGED_LAUNCHES * PROCESSORS / samples, replace(pair, merged=merged)))
    return sorted(found, key=lambda f: f[0])


@dataclass(frozen=True)
class Joint:
    """A box, or several, and the input under it, as kernels/window_halo.cuh counts it."""

    form: Form
    box: tuple[int, ...]
    join: int
    pool: tuple[int, ...] = NO_POOL
    boxes: int = 2  # where they are joined
    beside: int = 1  # phases that are computed together

    @property
    def weights(self) -> int:
        """Bytes of them for a chunk."""
        return self.beside * self.form.taps * TAP_BYTES

    @cached_property
    def both(self) -> tuple[int, ...]:
        return tuple(b * (self.boxes if d == self.join else 1) for d, b in enumerate(self.box))

    @cached_property
    def each(self) -> tuple[int, ...]:
        """The halo's extents, of one residue modulo the strides."""
        own = [(h - 1) // s + 1 for h, s in zip(self.form.halo(self.both), self.form.stride)]
        if self.pool[3] == 2:  # of two neighbours in a window the first is at an even place
            own[3] += own[3] % 2
        return tuple(own)

    def _far(self, steps: Sequence[int]) -> int:
        """Places from one to another that lies so many steps away."""
        far = 0
        for extent, step in zip(self.each, steps):
            far = far * extent + step
        return far

    @cached_property
    def columns(self) -> int:
        return -(-(1 + self._far([b - 1 for b in self.box])) // 8) * 8

    @cached_property
    def places(self) -> int:
        return prod(self.form.stride) * prod(self.each) * (self.boxes if self.join == SAMPLES else 1)

    @cached_property
    def room(self) -> int:
        """Places of the halo with those that are read behind it."""
        f = self.form
        second = self._far([b if d == self.join else 0 for d, b in enumerate(self.box)])
        second += self.places // self.boxes if self.join == SAMPLES else 0
        second *= self.boxes - 1
        reach = self._far([(k - 1) * d // s for k, d, s in zip(f.kernel, f.dilation, f.stride)])
        read = (prod(f.stride) - 1) * prod(self.each) + second + reach + self.columns
        return max(read, self.places)

    @property
    def halo_bytes(self) -> int:
        return -(-2 * 16 * self.room // 128) * 128

    @property
    def split_bytes(self) -> int:
        """The same in two parts, for SplitTile."""
        return -(-4 * 16 * self.room // 128) * 128

    @property
    def stage_bytes(self) -> int:
        """For sums on their way out, where they are not finished in registers."""
        if self.beside > 1:
            return 4 * self.boxes * 4 * beside_pitch(self.beside * self.columns) * 4
        if self.each[3] >= 8 and (prod(self.pool) == 1 or self.pool[3] == 2):
            return 0
        return 4 * self.boxes * 4 * ((-(-self.columns // 32) * 32 + 23) // 32 * 32 + 8) * 4


def beside_pitch(columns: int) -> int:
    """Floats from a row to the next where so many columns of several phases are staged."""
    return -(-columns // 32) * 32 + 16


def _most_columns(beside: int) -> int:
    """Of one of Hopper's instructions, where so many phases have sums at a time."""
    return COLUMNS if beside == 1 else BESIDE // beside // 8 * 8


def _pairs(
    form: Form, box: tuple[int, ...], extents: Sequence[int], channels: int, samples: int, tiles: int,
    pool: Sequence[int], beside: int = 1,
) -> Iterator[tuple[float, PairTile]]:  # fmt: skip
    """Ways to take boxes on Hopper, with the cycles they should need. ``tiles``: of rows, which see the same input."""
    for join in range(-1, SAMPLES + 1):
        if samples < 2 if join == SAMPLES else join >= 0 and box[join] >= extents[join]:
            continue
        joint = Joint(form, box, join, tuple(pool), beside=beside)
        if joint.columns > _most_columns(beside):
            continue
        for landing in (64, 48, 32, 16):
            pair = _fitting(joint, -(-channels // 16), landing)
            if pair is not None:
                yield _pair_cost(joint, pair, extents, channels, samples, 1 / prod(pool)), pair
                for boxes in (2, 3):
                    several = replace(joint, boxes=boxes)
                    ready = _made_ready(several, pair, samples, extents)
                    if ready is not None:
                        yield _ready_cost(several, ready, extents, channels, samples, tiles, 1 / prod(pool)), ready
                break


def _fitting(joint: Joint, chunks: int, landing: int) -> PairTile | None:
    """As many slots as shared memory has room for beside so many KB for what is on its way; none if that is too few."""
    weights = joint.weights
    streamed = joint.halo_bytes + weights
    room = HOPPER_SHARED - joint.stage_bytes - 512 - landing * 1024
    kept = chunks if joint.join < 0 and chunks * weights + 3 * joint.halo_bytes <= room else 0
    slots = min(8, (room - kept * weights) // (joint.halo_bytes if kept else streamed))
    again = min(8, room // streamed)
    if min(slots, again) < 2:
        return None
    turn = 0 if joint.join < 0 else 1
    return PairTile(
        joint.box, joint.join, slots, kept, turn, landing, again, joint.columns, pool=joint.pool, beside=joint.beside
    )


def _made_ready(joint: Joint, pair: PairTile, samples: int, extents: Sequence[int]) -> PairTile | None:
    """The same with the input rounded beforehand; none where boxes do not lie side by side, or with a stride."""
    slots = min(6, (HOPPER_SHARED - joint.stage_bytes - 512) // (joint.halo_bytes + joint.weights))
    if pair.join < 0 or prod(joint.form.stride) > 1 or slots < 2:
        return None
    if joint.boxes == 3:
        there = samples if pair.join == SAMPLES else -(-extents[pair.join] // joint.box[pair.join])
        if joint.beside * joint.columns > READY_COLUMNS or there < 3:
            return None
    return replace(pair, slots=slots, ready=True, boxes=joint.boxes)


def _instruction(columns: int) -> float:
    """Cycles of one that multiplies 64 rows by so many columns: as it multiplies, or reads shared memory."""
    return max(columns / 2, (2048 + 32 * columns) / 128)


def _tiles(joint: Joint, extents: Sequence[int], samples: int) -> float:
    """Of one sample: boxes side by side, or parts of such that lie in several samples."""
    count = float(prod(-(-e // b) for e, b in zip(extents, joint.both)))
    return count * -(-samples // joint.boxes) / samples if joint.join == SAMPLES else count


def _pair_cost(
    joint: Joint, pair: PairTile, extents: Sequence[int], channels: int, samples: int, stored: float
) -> float:
    """Cycles of kernels/window_wgmma.cuh for one sample."""
    return _tiles(joint, extents, samples) * _pair_cycles(joint, pair, channels, stored)


def _pair_cycles(joint: Joint, pair: PairTile, channels: int, stored: float) -> float:
    """Of one tile."""
    form, box, chunks = joint.form, joint.box, -(-channels // 16)
    two = pair.join >= 0
    halo, pixels = form.halo(joint.both), joint.beside * prod(box) * (2 if two else 1)
    multiply = joint.beside * chunks * form.taps * _instruction(joint.columns) * (2 if two else 1)
    # What producers read and write in shared memory the tensor cores wait for.
    busy = multiply + PUT * chunks * joint.places
    # Producers without a pixel wait for those that have one.
    dealt = -(-joint.places // PRODUCERS)
    flying = max(1, pair.landing // 16)  # chunks of a pixel that each producer has asked for
    produce = chunks * dealt * max(PRODUCE, LATENCY / flying)
    weights = 0 if pair.chunks else chunks * joint.weights
    cache = (joint.places * channels * 4 * (1 + 8 / halo[-1]) + weights) / CACHE_RATE
    store = stored * pixels * 4 * PAIR_ROWS * (1 + 8 / box[-1]) / MEMORY_RATE
    moved = cache + store + pixels * 4 * channels / MEMORY_RATE
    parts = sorted((busy, moved, produce))
    ending = 0 if pair.chunks and joint.beside == 1 else _ending(joint, 0 if pair.chunks else 1)
    return parts[2] + (parts[1] + parts[0]) / 8 + ending


def _ending(joint: Joint, others: int) -> float:
    """Cycles in which a warpgroup finishes its sums and nobody multiplies: ``others`` have a chunk left."""
    each = (END_STAGED if joint.beside > 1 else END) * joint.columns
    return joint.beside * max(0.0, each - others * joint.form.taps * _instruction(joint.columns))


def _ready_cost(
    joint: Joint, pair: PairTile, extents: Sequence[int], channels: int, samples: int, tiles: int, stored: float
) -> float:
    """Cycles of kernels/window_ready.cuh for one sample and one of so many tiles of rows."""
    # Read as floats and written as half with its borders.
    made = channels * (4 * prod(extents) + 2 * prod(joint.form.halo(extents))) / MEMORY_RATE
    return _tiles(joint, extents, samples) * _ready_cycles(joint, pair, channels, stored) + made / tiles


def _ready_cycles(joint: Joint, pair: PairTile, channels: int, stored: float) -> float:
    """Of one tile."""
    form, box, chunks = joint.form, joint.box, -(-channels // 16)
    products = pair.boxes * joint.beside * form.taps
    shared = (products * (2048 + 32 * joint.columns) + joint.places * 32 + joint.weights) / 128
    multiply = chunks * max(products * joint.columns / 2, shared)
    cache = chunks * (joint.places * 32 + joint.weights) / CACHE_RATE
    store = stored * pair.boxes * joint.beside * prod(box) * 4 * PAIR_ROWS * (1 + 8 / box[-1]) / MEMORY_RATE
    moved = cache + store
    ending = _ending(joint, pair.boxes - 1)
    return max(multiply, moved) + min(multiply, moved) / 8 + ending


def joint_of(form: Form, pair: PairTile) -> Joint:
    return Joint(form, pair.box, pair.join, pair.pool, pair.boxes, pair.beside)


def tile_cycles(form: Form, pair: PairTile, channels: int) -> float:
    """Of one tile of boxes side by side, without what is done for all of them beforehand. Not for strips."""
    cycles = _ready_cycles if pair.ready else _pair_cycles
    return cycles(joint_of(form, pair), pair, channels, 1 / prod(pair.pool))


def pair_cost(form: Form, pair: PairTile, extents: Sequence[int], rows: int, channels: int, samples: int) -> float:
    """Cycles for one sample and one tile of rows at any extents. Not for strips."""
    joint, tiles, stored = joint_of(form, pair), -(-rows // PAIR_ROWS), 1 / prod(pair.pool)
    if pair.ready:
        return _ready_cost(joint, pair, extents, channels, samples, tiles, stored)
    return _pair_cost(joint, pair, extents, channels, samples, stored)


def best_split(
    form: Form, extents: Sequence[int], rows: int, channels: int, samples: int, pool: Sequence[int]
) -> SplitTile | None:
    """How kernels/window_split.cuh takes the least time; none for few rows or many taps, or where nothing fits."""
    if rows < PAIR_LEAST or form.taps > PAIR_TAPS:
        return None
    found: list[tuple[float, SplitTile]] = []
    for box in boxes_within(extents, SPLIT_COLUMNS, pool):
        for join in range(SAMPLES + 1):
            if samples < 2 if join == SAMPLES else box[join] >= extents[join]:
                continue
            joint = Joint(form, box, join, tuple(pool))
            if joint.columns <= SPLIT_COLUMNS and joint.places <= SPLIT_PLACES:
                tile = _fitting_split(joint)
                if tile is not None:
                    found.append((_split_cost(joint, tile, extents, channels, samples, 1 / prod(pool)), tile))
    return min(found, key=lambda f: f[0])[1] if found else None


def _fitting_split(joint: Joint) -> SplitTile | None:
    """Large pieces first, then many slots, then much on its way; none if two of each do not fit."""
    taps = joint.form.taps
    for parts in sorted({-(-taps // p) for p in range(1, SPLIT_TAPS + 1)}):
        piece = -(-taps // parts)
        for held, slots, landing in ((4, 4, 32), (3, 4, 32), (3, 3, 32), (3, 3, 16), (2, 3, 16), (2, 2, 16), (2, 2, 8)):
            tile = SplitTile(joint.box, joint.join, slots, piece, held, landing, joint.columns, joint.pool)
            if tile.shared_bytes(joint.form) <= HOPPER_SHARED:
                return tile
    return None


def _split_cost(
    joint: Joint, tile: SplitTile, extents: Sequence[int], channels: int, samples: int, stored: float
) -> float:
    """Cycles of kernels/window_split.cuh for one sample. ``stored``: this part of the pixels."""
    form, box, chunks = joint.form, joint.box, -(-channels // 8)
    count = _tiles(joint, extents, samples)
    multiply = 2 * chunks * form.taps * 3 * _instruction(joint.columns)
    dealt = -(-joint.places // SPLIT_PRODUCERS)
    flying = max(1, tile.landing * 32 // SPLIT_PRODUCERS)  # chunks of a pixel that each producer has asked for
    produce = chunks * dealt * max(SPLIT_PRODUCE, LATENCY / flying)
    weights = chunks * form.taps * 2 * TAP_BYTES
    cache = (joint.places * channels * 4 * (1 + 8 / form.halo(joint.both)[-1]) + weights) / CACHE_RATE
    store = stored * 2 * prod(box) * 4 * PAIR_ROWS * (1 + 8 / box[-1]) / MEMORY_RATE
    parts = sorted((multiply, produce, cache + store + 2 * prod(box) * 4 * channels / MEMORY_RATE))
    return count * (parts[2] + (parts[1] + parts[0]) / 4 + store / 2)


def landed_pixels(form: Form, columns: int, element: int) -> int:
    """Pixels of a line that kernels/window_strips.cuh reads for so many columns, in groups of one copy.

    They begin with a sector where strips of elements of so many bytes do.
    """
    group, sector = 16 // element, 32 // element
    lead = form.shift[3] % (sector if (columns - MORE) % sector == 0 else group)
    return -(-(lead + columns + (form.kernel[3] - 1) * form.dilation[3]) // group) * group


def landing_bytes(landed: int, element: int) -> int:
    """Of a buffer for so many pixels of eight channels, which lie so far apart that no two share a bank."""
    return 8 * ((landed + 7) // 16 * 16 + 8) * element


def _strips(
    form: Form, extents: Sequence[int], rows: int, channels: int, samples: int, phases: int = 1, beside: int = 1
) -> Iterator[tuple[float, PairTile]]:
    """Ways to march down strips on Hopper, with the cycles they should need for one sample."""
    if form.kernel[0] != 1 or form.kernel[1] != 1 or prod(form.stride) != 1:
        return
    chunks = -(-channels // 16)
    reach = (form.kernel[2] - 1) * form.dilation[2]
    for width in range(8, min(_most_columns(beside) - MORE, -(-extents[3] // 8) * 8) + 1, 8):
        box, columns = (1, 1, 1, width), width + MORE
        joint = Joint(form, box, -1, beside=beside)
        room = HOPPER_SHARED - joint.stage_bytes - 512 - 16 * 1024
        again = min(8, room // (joint.halo_bytes + joint.weights))
        least = PairTile(box, -1, reach + 2, chunks, 0, 16, again, columns, LANDINGS[0], phases=phases, beside=beside)
        # More buffers, then more lines.
        more = [replace(least, landings=n) for n in range(LANDINGS[1], LANDINGS[0] - 1, -2)]
        more = [*(replace(more[0], slots=reach + n) for n in (4, 3)), *more]
        fitting = (p for p in more if all(p.shared_bytes(form, k) <= HOPPER_SHARED for k in ("Half", "Native", "Tf32")))
        pair = next(fitting, None)
        if pair is None or again < 2:
            continue
        landed = landed_pixels(form, columns, 4)
        strips, lines = -(-extents[3] // width), samples * prod(extents[:3])
        blocks = max(1, PROCESSORS // -(-rows // PAIR_ROWS))
        # All lines are cut into stretches, so many for each strip: see strip_segments in the kernel.
        stretches = range(1, min(4 * blocks, lines) + 1)
        time = min((-(-s * strips // blocks)) * (-(-lines // s) + reach + 2) for s in stretches)
        multiply = phases * chunks * form.taps * _instruction(columns)
        cache = landed * channels * 4 / CACHE_RATE
        moved = cache + width * 4 * ((1 + 4 / width) * PAIR_ROWS * phases + channels) / MEMORY_RATE
        yield time * blocks / samples * (max(multiply, moved) + min(multiply, moved) / 4), pair
