"""Narrower boxes beside Hopper's first ones, for smaller extents than the declared, where those are half empty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from crucible.plan.forms import Form
from crucible.plan.hopper import PAIR_ROWS, PairTile, joint_of, pair_cost, ranked_pairs
from crucible.plan.tiles import PROCESSORS

HALVINGS = 2  # of the declared extents, for each of which there may be boxes
PAYS = 1.15  # times faster at least: each is a kernel more to compile
WORTH = 10_000.0  # cycles that are saved at least


def halved(form: Form, extents: Sequence[int]) -> tuple[int, ...]:
    """The output's extents where the input's are half as large; samples that are taken for pixels are as many."""
    found = [extents[0]]
    for d in range(1, 4):
        # Borders as wide on both sides, as most are; of a gradient the output itself is half as large.
        seen = form.halo(extents)[d] + 2 * min(form.shift[d], 0)
        found.append(max(-(-extents[d] // 2), extents[d] + max(seen, 0) // -(2 * form.stride[d])))
    return tuple(found)


def with_narrower(
    form: Form, first: PairTile, extents: Sequence[int], rows: int, channels: int, samples: int
) -> PairTile:
    """With boxes for half the extents, and for a quarter, where these are faster than the first and those before them.

    They are launched as the first are, with the same memory: rows of their halos are no longer. None beside strips.
    """
    if first.landings:
        return first
    tiles = -(-rows // PAIR_ROWS)
    found: list[PairTile] = []
    for _ in range(HALVINGS):
        extents = halved(form, extents)
        others = ranked_pairs(form, extents, rows, channels, samples, pool=first.pool, beside=first.beside)
        best = next((p for p in others if _alike(form, p, first)), None)
        if best is None:
            continue
        before = min(pair_cost(form, p, extents, rows, channels, samples) for p in (first, *found))
        after = pair_cost(form, best, extents, rows, channels, samples)
        if before >= PAYS * after and (before - after) * samples * tiles / PROCESSORS >= WORTH:
            found.append(best)
    return replace(first, narrower=tuple(found))


def _alike(form: Form, pair: PairTile, first: PairTile) -> bool:
    return pair.ready == first.ready and joint_of(form, pair).each[3] <= joint_of(form, first).each[3]
