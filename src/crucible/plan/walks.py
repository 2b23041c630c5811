"""How walks over rows are dealt to threads, when all that happens in them is known."""

from __future__ import annotations

from collections.abc import Iterator

from crucible.plan.index import ZERO, Int, Quotient, Remainder, of_atom
from crucible.plan.program import Program
from crucible.plan.stages import Pass, Row
from crucible.plan.value import Value, walk

# Elements for each thread below which an inner loop leaves too many idle at its end.
LEAST_EACH = 4
# How much longer than the walks before it the last must be, and how long, for a launch of its own.
LONGER, LONG = 8, 2048


def arrange(stage: Row, program: Program) -> None:
    """Set ``Pass.by`` and ``Row.sliced``."""
    for p in stage.passes:
        p.by = _repeated(p, stage.lanes, program)
    *before, last = stage.passes
    stage.sliced = (
        not stage.split and stage.lanes > 1 and bool(before) and not last.reduces
        and all(not p.stores for p in before)
        and any(p.reduces for p in before) and program.hint(last.length) >= LONG
        and all(program.hint(p.inner.extent) * LONGER <= program.hint(last.inner.extent) for p in before)
    )  # fmt: skip


def _repeated(p: Pass, lanes: int, program: Program) -> Int | None:
    """The largest number that the walk divides its place by, where that leaves an inner loop long enough."""
    found: list[tuple[int, Int]] = []
    place = of_atom(p.inner)
    for index in _indices(p):
        for atom in index.atoms():
            if isinstance(atom, (Quotient, Remainder)) and atom.top == place:
                whole = p.inner.extent % atom.bottom == ZERO
                if whole and program.hint(atom.bottom) >= LEAST_EACH * lanes:
                    found.append((program.hint(atom.bottom), atom.bottom))
    return max(found, key=lambda f: f[0])[1] if found else None


def _indices(p: Pass) -> Iterator[Int]:
    values: list[Value] = [v for _, vs in p.reduces for v in vs]
    for s in p.stores:
        values.append(s.value)
        yield s.index
    seen: set[Value] = set()
    for value in values:
        for v in walk(value, seen):
            yield from v.indices
