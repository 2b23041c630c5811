"""A strided transposed convolution as ``stride`` plain ones, one dimension at a time: its sub-pixel phases.

A transposed convolution adds ``x[i] * w[t]`` to output ``stride * i - padding + dilation * t``. Seen from output
``y = stride * q + r`` that is: every tap ``t`` for which ``r + padding - dilation * t`` is a multiple of ``stride``
reads ``x[q + (r + padding - dilation * t) / stride]``, and no other tap reads anything. Outputs with the same ``r``
use the same taps at the same offsets. Reads outside the input count as zero; ``output_padding`` only adds outputs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tap:
    """One term of an output: ``x[q + offset] * w[tap]``."""

    tap: int
    offset: int


@dataclass(frozen=True)
class Phase:
    """The outputs ``stride * q + residue`` and the taps each of them adds up, in the order of the taps."""

    residue: int
    taps: tuple[Tap, ...]


def phases(kernel: int, stride: int, padding: int, dilation: int, output_padding: int) -> tuple[Phase, ...]:
    """One Phase for each residue 0..stride-1; one without taps where no input reaches (stride beyond the kernel)."""
    _check(kernel, stride, padding, dilation, output_padding)
    return tuple(Phase(r, _taps(kernel, stride, r + padding, dilation)) for r in range(stride))


def output_length(n: int, kernel: int, stride: int, padding: int, dilation: int, output_padding: int) -> int:
    """How many outputs an input of ``n`` has."""
    _check(kernel, stride, padding, dilation, output_padding)
    return stride * (n - 1) + dilation * (kernel - 1) + 1 - 2 * padding + output_padding


def _taps(kernel: int, stride: int, position: int, dilation: int) -> tuple[Tap, ...]:
    reads = ((t, position - dilation * t) for t in range(kernel))
    return tuple(Tap(t, distance // stride) for t, distance in reads if distance % stride == 0)


def _check(kernel: int, stride: int, padding: int, dilation: int, output_padding: int) -> None:
    if kernel < 1 or stride < 1 or dilation < 1 or padding < 0:
        raise ValueError("kernel, stride and dilation are at least 1, padding is at least 0")
    if not 0 <= output_padding < max(stride, dilation):
        raise ValueError("output_padding is smaller than stride or dilation")
