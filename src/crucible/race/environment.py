"""Where a race was run: versions, the GPU, torch's switches, and the state of its clocks while it ran."""

from __future__ import annotations

import platform
import subprocess
from datetime import datetime, timezone
from typing import Any

from crucible import __version__
from crucible.race.lanes import first_gpu

FIELDS = {
    "sm_mhz": "clocks.sm", "memory_mhz": "clocks.mem", "sm_max_mhz": "clocks.max.sm", "celsius": "temperature.gpu",
    "watts": "power.draw", "throttle": "clocks_throttle_reasons.active",
}  # fmt: skip


def environment() -> dict[str, Any]:
    """What is known before any worker has started."""
    return {
        "crucible": __version__,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "platform": platform.platform(),
        "machine": platform.machine(),
    }


def switches() -> dict[str, Any]:
    """torch's own, as they stand in this process; every contender gets the same."""
    import torch

    return {"cudnn_tf32": torch.backends.cudnn.allow_tf32, "matmul": torch.get_float32_matmul_precision()}


def driver() -> str | None:
    found = _query({"driver": "driver_version"})
    return None if found is None else str(found["driver"])


def gpu_state() -> dict[str, Any] | None:
    """Clocks, temperature, power and why clocks are held back (a bit mask) at this moment; None where nobody says."""
    return _query(FIELDS)


def _query(fields: dict[str, str]) -> dict[str, Any] | None:
    command = ["nvidia-smi", f"--id={first_gpu()}", f"--query-gpu={','.join(fields.values())}",
               "--format=csv,noheader,nounits"]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = [w.strip() for w in done.stdout.strip().split(",")]
    if done.returncode or len(words) != len(fields):
        return None
    return dict(zip(fields, map(_value, words)))


def _value(word: str) -> Any:
    try:
        return float(word)
    except ValueError:
        return word
