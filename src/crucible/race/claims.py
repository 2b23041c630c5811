"""What may be said of a pass: quantiles, noise, who is faster, and what the speed of light has to say to it."""

from __future__ import annotations

from crucible.race import stats
from crucible.race.light import Light
from crucible.race.names import AGAIN, EAGER
from crucible.race.record import Pass, Race


def conclude(result: Race, done: Pass) -> None:
    """Quantiles, noise, claims and the speed of light for one pass."""
    for row in done.rows:
        if row.samples:
            row.times = stats.quantiles([t for samples in row.samples for t in samples])
    part = _noise(result, done)
    _beyond_light(result, done)
    shone = Light(**result.light[done.what])
    timed = [r for r in done.rows if r.times is not None]
    for row in timed:
        assert row.times is not None
        row.of_floor = shone.floor / row.times.median if row.times.median else None
        for other in timed:
            if other is not row and other.times is not None and row.times.median:
                speedup = other.times.median / row.times.median
                row.against[other.contender] = {
                    "speedup": speedup, "claim": stats.claim(row.times, other.times, part)
                }  # fmt: skip
    for row in timed:
        entry = next((c for c in result.candidates if c.name == row.contender), None)
        if entry is not None and entry.verdict == "unproven":
            row.status = "unproven"


def _noise(result: Race, done: Pass) -> float:
    """The part that medians must differ by; infinite where eager could not be raced against itself."""
    eager, again = done.row(EAGER), done.row(AGAIN)
    if eager is None or again is None or not eager.samples or not again.samples:
        result.warnings.append(f"{done.what}: eager did not race against itself, so that nothing is called faster")
        return float("inf")
    found = stats.noise(eager.samples, again.samples)
    done.noise = found.to_json()
    return found.part


def _beyond_light(result: Race, done: Pass) -> None:
    """A candidate below the limit is wrong, unless a baseline is too: then the limit is."""
    limit = result.light[done.what]["limit"]
    fast = [r for r in done.rows if r.times is not None and r.times.median < limit]
    if any(r.kind == "baseline" for r in fast):
        result.warnings.append(f"{done.what}: a baseline is below the limit of {limit:.4f} ms, which must be wrong")
        return
    for row in fast:
        assert row.times is not None
        row.end("refuted", f"faster than light: {row.times.median:.4f} ms, where the bytes that must move take "
                           f"{limit:.4f} ms at the vendor's bandwidth")  # fmt: skip
