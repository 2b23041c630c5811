"""Boxes of pixels for the gradient of a weight with Hopper's own instructions (kernels/gradient_wgmma.cuh)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from crucible.plan.forms import CACHE_RATE, MEMORY_RATE, Form, boxes_within
from crucible.plan.hopper import HOPPER_SHARED, PAIR_LEAST, PAIR_ROWS
from crucible.plan.tiles import PROCESSORS

SUMMED = 128  # steps of 16 pixels whose products the tensor cores add up by themselves
PIXELS = 256  # of a box at most: its steps are written out
REGISTERS = {3: 96, 2: 128}  # for sums of a thread, by the warpgroups that multiply
SLOTS = (4, 3, 2)  # boxes that are held, the most that fit
# Bytes of shared memory in a cycle; cycles for asking for one copy, for a box whatever its size, and for the launches
# beside this one, the last of which returns at once.
SHARED_RATE, COPY, BOX, LAUNCHES = 128, 12.0, 200.0, 16000.0


@dataclass(frozen=True)
class GradientGroups:
    """`GradientGroups<...>` of kernels/gradient_wgmma.cuh."""

    groups: int  # warpgroups that multiply
    each: int  # taps of one
    inner: int  # the dimension from which on taps are of one block
    columns: int  # channels
    slots: int
    box: tuple[int, ...]

    template = "gradient_wgmma.cuh"

    def text(self, operands: str) -> str:
        numbers = (self.groups, self.each, self.inner, self.columns, self.slots)
        box = ", ".join(map(str, self.box))
        return f"GradientGroups<{', '.join(map(str, numbers))}, Dims<{box}>, Operands::{operands}>"

    def halo(self, form: Form) -> tuple[int, ...]:
        """Of a block's taps."""
        reach = ((k - 1) * d if n >= self.inner else 0 for n, (k, d) in enumerate(zip(form.kernel, form.dilation)))
        return tuple(b + r for b, r in zip(self.box, reach))

    def slot_bytes(self, form: Form) -> int:
        return 2 * (prod(self.box) * PAIR_ROWS + prod(self.halo(form)) * self.columns)

    def shared_bytes(self, form: Form) -> int:
        """What a block asks for, as the kernel counts it."""
        return self.slots * (self.slot_bytes(form) + 16)

    def kinds(self, form: Form, rows: int, channels: int, batches: int) -> int:
        """Blocks for the same boxes."""
        return batches * -(-rows // PAIR_ROWS) * -(-channels // self.columns) * prod(form.kernel[: self.inner])

    def cycles(self, form: Form, extents: Sequence[int], rows: int, channels: int, batches: int) -> float:
        """What all of it should take, with the launches beside it."""
        taps, halo, steps = prod(form.kernel[self.inner :]), self.halo(form), prod(self.box) / 16
        copied, lines = self.slot_bytes(form), prod(halo[:-1]) * self.columns // 8
        read = steps * taps * (PAIR_ROWS + self.columns) * 32
        multiply = max(steps * taps * self.columns / 2, (read + copied) / SHARED_RATE)
        kept = taps * PAIR_ROWS * self.columns * 8 / CACHE_RATE * steps / SUMMED
        parts = sorted((multiply, copied / CACHE_RATE + kept, lines * COPY))
        each = parts[2] + (parts[1] + parts[0]) / (2 * self.slots) + BOX
        kinds = self.kinds(form, rows, channels, batches)
        count = prod(-(-e // b) for e, b in zip(extents, self.box))
        used = min(count, max(1, PROCESSORS // kinds))
        moved = 6 * batches * prod(extents) * (rows + channels)
        return -(-count // used) * -(-kinds // PROCESSORS) * each + moved / MEMORY_RATE / PROCESSORS + LAUNCHES


def ranked_groups(form: Form, extents: Sequence[int], rows: int, channels: int, batches: int) -> list[GradientGroups]:
    """All ways to take the gradient of a weight with Hopper's instructions, the fastest first; none with strides."""
    if rows < PAIR_LEAST or channels < PAIR_LEAST or prod(form.stride) != 1 or form.taps < 2:
        return []
    found: dict[GradientGroups, float] = {}
    for inner in range(4):
        taps = prod(form.kernel[inner:])
        if inner and prod(form.kernel[inner - 1 :]) == taps:
            continue
        for groups, registers in REGISTERS.items():
            each = -(-taps // groups)
            if each * (groups - 1) >= taps:
                continue  # a warpgroup would have none
            most = min(256, registers // each * 2 // 8 * 8)
            # As many channels as there is room for, or equal parts of all.
            parts = {-(-channels // (8 * n)) * 8 for n in range(1, 9)}
            for columns in sorted({c for c in (*parts, most) if 16 <= c <= most}):
                for box in _boxes(extents):
                    for slots in SLOTS:
                        way = GradientGroups(groups, each, inner, columns, slots, box)
                        if way.shared_bytes(form) <= HOPPER_SHARED:
                            found[way] = way.cycles(form, extents, rows, channels, batches)
                            break
    return sorted(found, key=lambda w: found[w])


def _boxes(extents: Sequence[int]) -> list[tuple[int, ...]]:
    found = []
    for box in boxes_within(extents[:-1], 32):
        for last in range(8, 129, 8):
            pixels = prod(box) * last
            if pixels <= PIXELS and pixels % 16 == 0 and last < extents[-1] + 8:
                found.append((*box, last))
    return found
