"""What the benchmarks share beyond ``crucible.race``: deciles, ceilings by one clock, where they were run, tables."""

from __future__ import annotations

import csv
import functools
import subprocess
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from crucible.race import ceilings as limits
from crucible.race import stats
from crucible.race.clock import Clock, GpuMarks
from crucible.race.worker import FLUSH_BYTES

__all__ = ["FLUSH_BYTES", "append", "ceilings", "ceilings_text", "clock", "commit", "environment", "quantiles"]
ROOT = Path(__file__).resolve().parent.parent


@functools.cache
def clock() -> Clock:
    """The clock of this process: from an idle device to an idle device."""
    return Clock(GpuMarks())


def quantiles(times: Sequence[float]) -> tuple[float, float, float]:
    """The median, the first decile and the last."""
    found = stats.quantiles(times, 10)
    return found.median, found.low, found.high


def ceilings() -> dict[str, float]:
    """What this chip reaches: copy in GB/s (read plus written), matrix products in TFLOP/s."""
    return limits.measure(clock())


def ceilings_text(found: dict[str, float]) -> str:
    return limits.text(found)


def environment() -> dict[str, str | None]:
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "commit": commit(),
    }


def commit() -> str | None:
    """The commit of this checkout, with a + where it was changed since."""

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        except OSError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    found = git("rev-parse", "--short", "HEAD")
    return f"{found}+" if found and git("status", "--porcelain", "--untracked-files=no") else found


def append(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """To a table that is kept, which begins with the names of its columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = not path.exists() or path.stat().st_size == 0
    names = list(lines[0]) if fresh else next(csv.reader([path.read_text().splitlines()[0]]))
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        if fresh:
            writer.writeheader()
        for line in lines:
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in line.items()})
