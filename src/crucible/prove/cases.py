"""A case: one call of the module, described in a few words from which the reference worker makes inputs and weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Values = Literal[
    "declared",  # as get_inputs() makes them
    "normal",  # standard normal: both signs
    "swapped",  # "normal" of the same seed with its interior reversed: same sum, same first and last element
    "grid",  # small multiples of a power of two: products and sums are exact, also with TF32 operands
    "tiny",
    "huge",  # scaled to the edge of the dtype's range
    "mixed",  # magnitudes over eight decades within each tensor
    "samples",  # each sample with a magnitude of its own
    "constant",
    "zeros",
    "offset",  # a large mean with a small spread
    "grid_offset",  # the same, exact in TF32
    "special",  # a few inf and nan
]
Weights = Literal[
    "initial",  # as the constructor makes them
    "fresh",  # every parameter and running statistic random: zero biases and unit gammas hide bugs
    "grid",  # weights on a small grid, the rest fresh
    "offset",  # fresh, with biases near 1e4
    "level",  # nearly constant positive weights: a contraction keeps the mean of its input
]
Layout = Literal["contiguous", "transposed", "sliced", "channels_last", "expanded"]


@dataclass(frozen=True)
class Spec:
    """What the parent asks for. ``sizes`` are those of the problem's free dimensions."""

    name: str
    seed: int
    sizes: tuple[int, ...]
    values: Values = "declared"
    weights: Weights = "fresh"
    layout: Layout = "contiguous"
    training: bool = True
    grads: bool = False
    classes: bool = False  # judge magnitudes apart
    steady: bool = True  # look for a seed at which no discrete choice (a maximum, a sign) hangs on a few ulps
    weights_seed: int | None = None  # None: the seed; cases that share it share their weights
    brief: bool = False  # fewest yardstick terms: for checks that compare a candidate with itself

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Spec:
        return cls(**{**data, "sizes": tuple(data["sizes"])})

    def but(self, **changes: Any) -> Spec:
        return replace(self, **changes)
