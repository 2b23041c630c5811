"""Boxes of pixels for the gradient of a convolution's weight, and what they cost (kernels/window_gradient.cuh)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from crucible.plan.forms import FETCH, Form, boxes_within, dealt
from crucible.plan.hopper_gradients import GradientGroups
from crucible.plan.tiles import SHARED_LIMIT, Tile

MMA, BOX = 1.6, 400.0  # cycles for one mma, and for what each box costs whatever its size
UNITS = 9  # pairs of a tap and eight channels that a warp keeps sums of


@dataclass(frozen=True)
class GradientTile:
    """`Gradient<...>` of kernels/window_gradient.cuh on boxes of pixels; other engines take tiles of their own."""

    blocks: int  # of 16 rows in a warp
    warps_m: int
    tap_groups: int
    taps_each: int
    channel_groups: int
    each: int  # eights of channels in a warp
    warps_k: int  # warps that take turns along the pixels, each with a partial sum of its own
    box: tuple[int, ...]
    other: Tile
    groups: GradientGroups | None = None  # on Hopper

    @property
    def rows(self) -> int:
        return self.warps_m * self.blocks * 16

    @property
    def channels(self) -> int:
        return self.channel_groups * self.each * 8

    @property
    def threads(self) -> int:
        return self.warps_m * self.tap_groups * self.channel_groups * self.warps_k * 32

    @property
    def cols(self) -> int:
        return self.other.cols

    @property
    def depth(self) -> int:
        return self.other.depth

    def text(self) -> str:
        sizes = (
            self.blocks, self.warps_m, self.tap_groups, self.taps_each, self.channel_groups, self.each, self.warps_k,
        )  # fmt: skip
        return f"Gradient<{', '.join(map(str, sizes))}>"

    def shared_bytes(self, form: Form) -> int:
        """What a block asks for, as the kernel counts it."""
        box, halo = prod(self.box), prod(form.halo(self.box))
        panel = self.rows * (-(-box // 32) * 32 + 4) + self.channels * (-(-halo // 32) * 32 + 4)
        return 2 * panel * 4

    def cycles(self, form: Form, extents: Sequence[int]) -> float:
        """What a tile should take."""
        halo = form.halo(self.box)
        count = prod(-(-e // b) for e, b in zip(extents, self.box))
        units = self.threads / 32 / self.warps_k * self.blocks * self.taps_each * self.each
        # Threads that have no pixel wait for those that have.
        plain, under = (dealt(n, self.threads) for n in (prod(self.box), prod(halo)))
        words = self.rows * plain * (1 + 8 / self.box[-1]) + self.channels * under * (1 + 8 / halo[-1])
        return count * (prod(self.box) / 8 * units * MMA + FETCH / 8 * words + BOX)


def choose_gradient(form: Form, extents: Sequence[int], rows: int, channels: int, other: Tile) -> GradientTile | None:
    """How the gradient of a weight is computed on boxes; none where the window has too many taps or no halo fits."""
    ranked = ranked_gradients(form, extents, rows, channels, other)
    return ranked[0] if ranked else None


def ranked_gradients(form: Form, extents: Sequence[int], rows: int, channels: int, other: Tile) -> list[GradientTile]:
    """All ways to compute the gradient of a weight on boxes, the fastest first."""
    taps = form.taps
    groups = -(-taps // UNITS)
    if groups > 6:
        return []
    taps_each = -(-taps // groups)
    each = max(1, min(UNITS // taps_each, -(-channels // 8)))
    blocks = 2 if rows > 16 else 1
    warps_m = 2 if rows > 32 and groups == 1 else 1
    channel_groups = 2 if groups <= 3 and channels > each * 8 else 1
    warps_k = max(1, 4 // (warps_m * groups * channel_groups))
    found: list[tuple[float, GradientTile]] = []
    for box in boxes_within(extents[:-1], 16):
        for last in range(8, 129, 8):
            if prod(box) * last > 128 or last >= extents[-1] + 8:
                continue
            tile = GradientTile(blocks, warps_m, groups, taps_each, channel_groups, each, warps_k, (*box, last), other)
            if tile.shared_bytes(form) > SHARED_LIMIT:
                continue
            found.append((tile.cycles(form, extents), tile))
    return [tile for _, tile in sorted(found, key=lambda f: f[0])]
