"""Where a race was run: versions, the GPU, torch's switches, and the state of its clocks while it ran."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Sequence
from typing import Any

from crucible import __version__
from crucible.race.lanes import first_gpu
from crucible.stamp import now_text, program_digest

FIELDS = {
    "sm_mhz": "clocks.sm", "memory_mhz": "clocks.mem", "sm_max_mhz": "clocks.max.sm", "celsius": "temperature.gpu",
    "watts": "power.draw", "throttle": "clocks_throttle_reasons.active",
}  # fmt: skip


def environment() -> dict[str, Any]:
    """What is known before any worker has started."""
    return {
        "crucible": __version__,
        "program": program_digest(),
        "date": now_text(),
        "platform": platform.platform(),
        "machine": platform.machine(),
    }


def switches() -> dict[str, Any]:
    """torch's own, as they stand in this process; every contender gets the same."""
    from crucible.switches import standing

    return standing()


def driver() -> str | None:
    found = _query({"driver": "driver_version"})
    return None if found is None else str(found["driver"])


def gpu_state() -> dict[str, Any] | None:
    """Clocks, temperature, power and why clocks are held back (a bit mask) at this moment; None where nobody says."""
    return _query(FIELDS)


# Bits of nvidia-smi's mask that mean slower clocks than there could be; being idle and asking for it do not.
THROTTLES = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}


def throttled(state: Sequence[dict[str, Any]]) -> str | None:
    """Why clocks were held back while a race ran, in words, with in how many rounds."""
    counts: dict[str, int] = {}
    for each in state:
        mask = _mask((each["gpu"] or {}).get("throttle"))
        for word in {w for bit, w in THROTTLES.items() if mask & bit}:
            counts[word] = counts.get(word, 0) + 1
    if not counts:
        return None
    return "clocks were held back: " + ", ".join(f"{w} in {n} of {len(state)} rounds" for w, n in counts.items())


def clocks_text(state: Sequence[dict[str, Any]]) -> str | None:
    """``SM at 1965 to 1980 of 1980 MHz, 41 to 52 degrees``, seen at the starts of the rounds."""
    seen = [s["gpu"] for s in state if s["gpu"]]
    numbers = {k: [g[k] for g in seen if isinstance(g.get(k), float)] for k in ("sm_mhz", "sm_max_mhz", "celsius")}
    if not all(numbers.values()):
        return None
    low, high = min(numbers["sm_mhz"]), max(numbers["sm_mhz"])
    heat = f"{min(numbers['celsius']):.0f} to {max(numbers['celsius']):.0f} degrees"
    return f"SM at {low:.0f} to {high:.0f} of {max(numbers['sm_max_mhz']):.0f} MHz, {heat}"


def _mask(value: Any) -> int:
    try:
        return int(str(value), 0)
    except ValueError:
        return 0


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
