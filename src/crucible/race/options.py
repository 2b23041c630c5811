"""What a user can ask of a race."""

from __future__ import annotations

from dataclasses import dataclass

from crucible.race.names import BASELINES, USUAL


class RaceError(Exception):
    """The race cannot be run as asked; the message says why."""


@dataclass(frozen=True)
class RaceOptions:
    """What can be asked of a race; each is checked here, once."""

    train: bool = False
    against: tuple[str, ...] = USUAL
    rounds: int = 7
    samples: int = 3  # timed calls in a turn
    warm: int = 5  # calls before them that do not count: the first of a turn find others' things in the caches
    dtype: str | None = None  # None: as the reference declares it
    seed: int = 0
    timeout: float = 120.0  # seconds for any one step of a contender
    unproven: bool = False
    quick: bool = False  # of the proof
    forward_only: bool = False
    precision: str = "torch"
    gpu: str | None = None  # whose data sheet, where nothing can be measured
    device: str | None = None  # "cuda" or "cpu" (for tests: not a time to be quoted); None: a GPU or nothing

    def __post_init__(self) -> None:
        from crucible.prove.options import Options

        strange = [a for a in self.against if a not in BASELINES]
        if strange:
            raise RaceError(f"no contender {strange[0]!r}; choose among {', '.join(BASELINES)}")
        if self.train and self.forward_only:
            raise RaceError("--train times gradients, and --forward-only says that there are none to prove")
        for name, value, least in (("rounds", self.rounds, 2), ("samples", self.samples, 1), ("warm", self.warm, 0)):
            if value < least:
                raise RaceError(f"--{name} must be at least {least}")
        try:
            Options(dtype=self.dtype, seed=self.seed, timeout=self.timeout, precision=self.precision)  # type: ignore[arg-type]
        except ValueError as error:
            raise RaceError(str(error)) from None

    @property
    def passes(self) -> tuple[str, ...]:
        return ("forward", "training") if self.train else ("forward",)
