"""What can be asked of a sweep."""

from __future__ import annotations

from dataclasses import dataclass

from crucible.race.names import USUAL
from crucible.race.options import RaceOptions
from crucible.sweep.find import SweepError

# Options that a result depends on: those of another sweep are other rows.
COUNTS = ("train", "against", "rounds", "samples", "dtype", "timeout", "quick", "forward_only", "precision", "tune",
          "tune_budget", "device")  # fmt: skip


@dataclass(frozen=True)
class SweepOptions:
    """What can be asked of a sweep; each is checked here, once."""

    train: bool = False
    against: tuple[str, ...] = USUAL
    rounds: int = 7
    samples: int = 3
    dtype: str | None = None
    seed: int = 0
    timeout: float = 120.0  # seconds for any one step of a candidate
    quick: bool = False
    forward_only: bool = False
    precision: str = "torch"
    tune: bool = False
    tune_budget: float = 120.0
    jobs: int | None = None  # files that are fused (without a GPU also proven) at a time
    limit: float = 1800.0  # seconds for fusing a file, and again for judging it
    retry: bool = False
    device: str = "auto"  # "cuda", "sim", or "cpu" for tests; auto: the GPUs that are there, else the simulator
    ray: str | None = None  # the address of a Ray cluster that does the work
    ray_retries: int = 3  # of a step whose worker or node is lost

    def __post_init__(self) -> None:
        RaceOptions(train=self.train, against=self.against, rounds=self.rounds, samples=self.samples, dtype=self.dtype,
                    seed=self.seed, timeout=self.timeout, forward_only=self.forward_only,
                    precision=self.precision)  # fmt: skip
        if not self.limit > 0:
            raise SweepError("--limit must be positive")
        if self.jobs is not None and self.jobs < 1:
            raise SweepError("--jobs must be at least 1")
        if self.ray_retries < 0:
            raise SweepError("--ray-retries must not be negative")
