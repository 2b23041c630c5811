"""What a user can ask of a prove run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

Device = Literal["sim", "cuda", "cpu"]  # cpu: no device at all, for tests of the checks
DTYPES = ("float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True)
class Options:
    """The options of ``crucible prove``; each is checked here, once."""

    device: Device = "sim"
    dtype: str | None = None  # None: as the reference declares it
    seed: int = 0
    trials: int = 3
    timeout: float = 120.0  # seconds for any one step of the candidate: loading with its build, or one call
    quick: bool = False
    strict: bool = False
    forward_only: bool = False
    arch: str | None = None
    sanitize: bool = False
    precision: Literal["torch", "fp32"] = "torch"
    memory_bytes: int | None = None  # None: chosen from the problem's size and the machine's memory

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ValueError(f"--dtype {self.dtype}: choose one of {', '.join(DTYPES)}")
        if self.device not in ("sim", "cuda", "cpu"):
            raise ValueError(f"--device {self.device}: choose sim or cuda")
        if self.precision not in ("torch", "fp32"):
            raise ValueError(f"--precision {self.precision}: choose torch or fp32")
        if self.trials < 1:
            raise ValueError("--trials must be at least 1")
        if not self.timeout > 0:
            raise ValueError("--timeout must be positive")
        if not 0 <= self.seed < 1 << 31:
            raise ValueError("--seed must be between 0 and 2147483647")


def memory_limit(declared_bytes: int) -> int:
    """Room for a torch process and a few dozen copies of the problem, within the machine's memory."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(total * 0.6, (6 << 30) + 16 * declared_bytes))
