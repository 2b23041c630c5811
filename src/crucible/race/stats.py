"""What can be said of samples: quantiles, how far a run against itself is off, and when one is faster than another."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

# An error up to this many times eager's is right, and so is one of a few ulps.
SLACK = 2.0
# How exact a result has to be is the proof's business (TF32 where eager has none, a relu that flips). A timed call must
# have computed it from these very inputs: so it may be off by a small part of what other inputs' results are off by.
OTHER_INPUTS = 1 / 8
AT_MOST = 1 / 32
ULPS = {"float64": 2.0**-45, "float32": 2.0**-21, "float16": 2.0**-9, "bfloat16": 2.0**-6}
WHOLE = 1e-3  # of whole numbers, the part that may differ: a maximum may stand in two places


@dataclass(frozen=True)
class Quantiles:
    """Milliseconds: the median, and the times that a fifth of the samples are below and above."""

    median: float
    low: float
    high: float


def quantiles(times: Sequence[float], part: int = 5) -> Quantiles:
    t = sorted(times)
    return Quantiles(statistics.median(t), t[len(t) // part], t[-1 - len(t) // part])


@dataclass(frozen=True)
class Noise:
    """How far eager is from itself in another process, taking turns in the same rounds."""

    part: float  # a ratio that differs from one by no more than this says nothing
    between_medians: float
    by_round: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def noise(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> Noise:
    """From the samples of both by round: the larger of what the medians and four fifths of the rounds differ by."""
    each = [abs(_ratio(statistics.median(a), statistics.median(b)) - 1) for a, b in zip(first, second) if a and b]
    whole = abs(_ratio(_median(first), _median(second)) - 1)
    typical = sorted(each)[math.ceil(0.8 * len(each)) - 1] if each else math.inf
    return Noise(max(whole, typical), whole, tuple(each))


def _median(rounds: Sequence[Sequence[float]]) -> float:
    return statistics.median(t for samples in rounds for t in samples)


def _ratio(a: float, b: float) -> float:
    return a / b if b else math.inf


def claim(mine: Quantiles, other: Quantiles, part: float) -> str:
    """"faster" or "slower" only where medians differ by more than the noise and the quantiles do not overlap."""
    if other.median > mine.median * (1 + part) and mine.high < other.low:
        return "faster"
    if mine.median > other.median * (1 + part) and other.high < mine.low:
        return "slower"
    return "same"


@dataclass(frozen=True)
class Checked:
    """How far off the outputs of a timed call are, beside eager's own error on the same inputs."""

    error: float
    eager: float
    limit: float
    where: str  # the tensor that is furthest beyond its limit
    source: str  # "float64", or "eager" where that has no room

    @property
    def right(self) -> bool:
        return self.error <= self.limit

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "right": self.right}


def check(
    got: dict[str, Any], truth: dict[str, Any], eager: dict[str, Any], other: dict[str, Any], source: str, dtype: str
) -> Checked:
    """Hold the elements that were picked against the truth; ``other`` is what eager gives for other inputs there.

    Each argument is as ``Worker`` hands it over.
    """
    if set(got) != set(truth):
        odd = sorted(set(got) ^ set(truth))[0]
        return Checked(math.inf, 0.0, 0.0, f"{odd}: {'missing' if odd in truth else 'nobody asked for it'}", source)
    worst = Checked(0.0, 0.0, 0.0, "", source)
    for name, right in truth.items():
        found = _check_one(name, got[name], right, eager[name], other[name], source, dtype)
        if not worst.where or not found.right or (worst.right and found.error > worst.error):
            worst = found
        if not worst.right:
            break
    return worst


def _check_one(
    name: str, got: dict[str, Any], truth: dict[str, Any], eager: dict[str, Any], other: dict[str, Any], source: str,
    dtype: str,
) -> Checked:  # fmt: skip
    if got["shape"] != truth["shape"] or got["real"] != truth["real"]:
        return Checked(math.inf, 0.0, 0.0, f"{name}: shape {got['shape']} in place of {truth['shape']}", source)
    error, own, strange = (_distance(x["at"], truth["at"], truth["real"]) for x in (got, eager, other))
    floor = ULPS.get(dtype, ULPS["float32"]) if truth["real"] else WHOLE
    limit = max(SLACK * own, floor, min(AT_MOST, OTHER_INPUTS * strange))
    return Checked(error, own, limit, name, source)


def _distance(got: Sequence[float], truth: Sequence[float], real: bool) -> float:
    """Relative in the L2 norm; of whole numbers the part that differs."""
    pairs = [(g, t) for g, t in zip(got, truth, strict=True)]
    if not pairs:
        return 0.0
    if not real:
        return sum(g != t for g, t in pairs) / len(pairs)
    off = sum((g - t) ** 2 for g, t in pairs if g != t and not (g != g and t != t))
    size = sum(t * t for _, t in pairs if math.isfinite(t))
    found = math.sqrt(off) / max(math.sqrt(size), 1e-300)
    return found if found == found else math.inf  # a NaN where there should be none
