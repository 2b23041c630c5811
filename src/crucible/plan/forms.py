"""How output pixels see input pixels, and the boxes of pixels that a block may take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

NO_POOL = (1, 1, 1, 1)
# Cycles for one word of the halo; bytes in a cycle that a processor gets from the second-level cache, and its share of
# memory's.
FETCH, CACHE_RATE, MEMORY_RATE = 0.62, 45.0, 19.0


@dataclass(frozen=True)
class Form:
    """How output pixels see input pixels, in four dimensions: y * stride + tap * dilation + shift."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    shift: tuple[int, ...]
    flipped: bool  # the weight's taps run the other way

    @property
    def taps(self) -> int:
        return prod(self.kernel)

    def halo(self, box: Sequence[int]) -> tuple[int, ...]:
        """Extents of the input under a box."""
        return tuple((b - 1) * s + (k - 1) * d + 1 for b, s, k, d in zip(box, self.stride, self.kernel, self.dilation))


def dealt(pixels: int, threads: int) -> int:
    """Pixels, rounded up to so many for each thread; several threads may share a pixel."""
    return -(-pixels // threads) * threads if pixels > threads / 2 else pixels


def boxes_within(extents: Sequence[int], room: int, pool: Sequence[int] = ()) -> Iterator[tuple[int, ...]]:
    """Boxes of at most ``room`` pixels: for each dimension, ways to cut it into equal parts, and round sizes.

    Each extent a multiple of the pool's.
    """
    if not extents:
        yield ()
        return
    by = pool[0] if pool else 1
    for size in sorted({-(-s // by) * by for s in _sizes(extents[0], room)}):
        for rest in boxes_within(extents[1:], room // size, pool[1:]) if size <= room else ():
            yield (size, *rest)


def _sizes(extent: int, room: int) -> list[int]:
    most = max(1, min(extent, room))
    parts = {-(-extent // n) for n in range(1, extent + 1) if -(-extent // n) <= most} if extent <= 4096 else set()
    return sorted({s for s in (*parts, *(2**k for k in range(9)), *range(8, 257, 8), most) if s <= most})
