"""What a search asks of whoever builds and times candidates, and what comes back. No GPU here: tests have their own."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

REFERENCE = "reference"


@dataclass(frozen=True)
class Candidate:
    """A file to try; without a text it is the reference itself."""

    name: str
    text: str | None
    elements: int = 0  # of its largest tensor: what the width of its indices depends on


@dataclass(frozen=True)
class Checked:
    """What a candidate's first call gave: its error (a relative L2 distance from the truth), or why there is none."""

    error: float | None
    failed: str = ""


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one forward without gradients, or why there are none."""

    median: float | None
    low: float | None = None  # first and last decile
    high: float | None = None
    failed: str = ""


def timing_of(samples: Sequence[float]) -> Timing:
    t = sorted(samples)
    return Timing(statistics.median(t), t[len(t) // 10], t[-1 - len(t) // 10])


class Bench(Protocol):
    """Builds and times. Whatever a candidate does, it costs that candidate only, and no more than ``seconds``."""

    def check(self, candidates: Sequence[Candidate], seconds: float) -> dict[str, Checked]:
        """Build candidates and call each once; those that fail are let go."""
        ...

    def time(self, names: Sequence[str], seconds: float) -> dict[str, Timing]:
        """Times of candidates that passed the check, taken in turns."""
        ...

    def keep(self, names: Sequence[str]) -> None:
        """Let go of all others."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...
