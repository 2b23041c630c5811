"""A strided transposed convolution as ``stride`` plain ones, one dimension at a time: its sub-pixel phases.

A transposed convolution adds ``x[i] * w[t]`` to output ``stride * i - padding + dilation * t``. With ``g`` the common
divisor of stride and dilation, tap ``t = start + stride / g * step`` reaches the outputs of phase ``start`` alone:
output ``stride * q + dilation * start - padding`` reads ``x[q - dilation / g * step]`` for every step, as a plain
convolution does, and no inserted zero. Outputs that are no multiple of ``g`` away from these are reached by no tap.

Phases are numbered ``start * g + rest``. Reads outside the input count as zero; ``output_padding`` only adds outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TypeVar

from crucible.plan.index import Int

Whole = TypeVar("Whole", int, Int)


@dataclass(frozen=True)
class Along:
    """One dimension. Places ``q`` count from zero for every phase; some of a phase's may lie outside the output."""

    kernel: int
    stride: int
    padding: int
    dilation: int

    def __post_init__(self) -> None:
        if self.kernel < 1 or self.stride < 1 or self.dilation < 1 or self.padding < 0:
            raise ValueError("kernel, stride and dilation are at least 1, padding is at least 0")

    @property
    def common(self) -> int:
        return gcd(self.stride, self.dilation)

    @property
    def starts(self) -> int:
        """Taps that are the first of a phase, and how far its taps are from each other."""
        return self.stride // self.common

    @property
    def taps(self) -> int:
        """Of a phase, at most."""
        return -(-self.kernel // self.starts)

    @property
    def spacing(self) -> int:
        """How far apart the inputs of two neighbouring taps of a phase are."""
        return self.dilation // self.common

    @property
    def even(self) -> bool:
        """Whether every phase has all the taps."""
        return self.common == 1 and self.kernel % self.starts == 0

    @property
    def beside(self) -> int:
        """Phases whose outputs lie beside each other, in order, at every place."""
        return self.stride if all(self.output(0, f) == self.output(0, 0) + f for f in range(self.stride)) else 1

    @property
    def first(self) -> int:
        """What ``q`` is at place 0: the least with which some phase has an output."""
        last = self.dilation * (self.starts - 1) + self.common - 1
        return -((last - self.padding) // self.stride)

    def places(self, outputs: Whole) -> Whole:
        """How many places cover so many outputs."""
        return (outputs + (self.padding - 1)) // self.stride - (self.first - 1)

    def output(self, place: Whole, phase: Whole) -> Whole:
        start, rest = phase // self.common, phase % self.common
        return (place + self.first) * self.stride + start * self.dilation + rest - self.padding

    def input(self, place: Whole, tap: Whole) -> Whole:
        return place + self.first - tap * self.spacing

    def weight(self, phase: Whole, tap: Whole) -> Whole:
        """The weight's tap; below ``kernel``, and for a phase that is a multiple of ``common``, if there is one."""
        return phase // self.common + tap * self.starts
