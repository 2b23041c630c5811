"""How the time of a call divides among kernels on a GPU, by torch's profiler, which is not the clock of a race."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CALLS = 3
SHOWN = 64  # of different names; the rest is added up


def by_kernel(call: Callable[[], Any], before: Callable[[], Any], wait: Callable[[], Any]) -> list[dict[str, Any]]:
    """Name, launches and milliseconds of each kernel in a call, averaged over a few, in the order of their first start.

    ``before`` runs ahead of every call and is not recorded.
    """
    from torch.profiler import ProfilerActivity, profile

    found: dict[str, list[float]] = {}
    for _ in range(CALLS):
        before()
        wait()
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            call()
            wait()
        events = [e for e in recorded.events() if "CUDA" in str(getattr(e, "device_type", ""))]
        for event in sorted(events, key=lambda e: e.time_range.start):
            row = found.setdefault(event.name, [0.0, 0.0])
            row[0] += 1
            row[1] += _microseconds(event) / 1e3
    rows = [{"name": n, "launches": c / CALLS, "milliseconds": ms / CALLS} for n, (c, ms) in found.items()]
    return shortened(rows)


def shortened(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The longest ones by name, and what is left as one row."""
    if len(rows) <= SHOWN:
        return rows
    longest = sorted(rows, key=lambda r: -r["milliseconds"])[: SHOWN - 1]
    kept = {r["name"] for r in longest}
    rest = [r for r in rows if r["name"] not in kept]
    other = {"name": f"{len(rest)} others", "launches": sum(r["launches"] for r in rest),
             "milliseconds": sum(r["milliseconds"] for r in rest)}  # fmt: skip
    return [r for r in rows if r["name"] in kept] + [other]


def _microseconds(event: Any) -> float:
    span = event.time_range
    return float(span.end - span.start)
