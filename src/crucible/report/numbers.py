"""Numbers as people write them; the same in a terminal and on a page."""

from __future__ import annotations


def amount(count: float) -> str:
    """Bytes: 256 B, 147 kB, 2147 MB, 30.48 GB."""
    if count < 1000:
        return f"{count:.0f} B"
    if count < 1e6:
        return f"{count / 1e3:.3g} kB"
    return f"{count / 1e6:.4g} MB" if count < 9.9995e9 else f"{count / 1e9:.4g} GB"


def gflop(operations: float) -> str:
    """Operations, in GFLOP: four digits at most, and never a bare zero for something."""
    value = operations / 1e9
    return "0" if not operations else "<0.01" if value < 0.01 else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def least(seconds: float) -> str:
    """A time at the speed of light."""
    return f"{seconds * 1e6:.2f} us" if seconds < 1e-4 else f"{seconds * 1e3:.3f} ms"


def milliseconds(value: float | None) -> str:
    """A measured time."""
    if value is None:
        return "-"
    return f"{value * 1e3:.3g} us" if value < 0.1 else f"{value:.3f} ms"
