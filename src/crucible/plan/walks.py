"""How walks over rows are dealt to threads, when all that happens in them is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from crucible.plan.index import ONE, ZERO, Int, Quotient, Remainder, Var, of_atom, product
from crucible.plan.program import Program
from crucible.plan.stages import Pass, Row
from crucible.plan.value import Value, walk

# Elements for each thread below which an inner loop leaves too many idle at its end.
LEAST_EACH = 4
# Threads of a warp, warps and threads of a block, and the least part of them that may be busy.
WARP, WARPS, BLOCK, USED = 32, 8, 256, 0.75
# How much longer than the walks before it the last must be, and how long, for a launch of its own.
LONGER, LONG = 8, 2048
# Bytes that memory moves at least, and bytes that take about as long as one more launch.
SECTOR, LAUNCH = 32, 4 << 20


def arrange(stage: Row, program: Program) -> None:
    """Set ``Pass.by``, ``Pass.warps`` and ``Row.sliced``."""
    for p in stage.passes:
        p.by = _repeated(p, stage.lanes, program)
    *before, last = stage.passes
    stage.sliced = (
        not stage.split and stage.lanes > 1 and bool(before) and not last.reduces
        and all(not p.stores for p in before)
        and any(p.reduces for p in before) and program.hint(last.length) >= LONG
        and all(program.hint(p.inner.extent) * LONGER <= program.hint(last.inner.extent) for p in before)
    )  # fmt: skip
    if stage.lanes == BLOCK and not stage.split and all(p.by is None for p in stage.passes):
        _deal_to_warps(stage.passes[:-1] if stage.sliced else stage.passes, program)


def _deal_to_warps(passes: list[Pass], program: Program) -> None:
    """Inner loops too short for a block are long enough for a warp, where every warp has some."""
    numbers = [_repeated(p, WARP, program) for p in passes]
    by = next((n for n in numbers if n is not None), None)
    # All walks alike, so that a thread meets the elements it met before.
    alike = all(p.inner.extent == passes[0].inner.extent and n in (None, by) for n, p in zip(numbers, passes))
    if by is None or not alike:
        return
    times, length = program.hint(passes[0].inner.extent // by), program.hint(by)
    used = times * length / (-(-times // WARPS) * WARPS * -(-length // WARP) * WARP)
    if used >= USED:
        for p in passes:
            p.by, p.warps = by, True


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


@dataclass(frozen=True)
class Access:
    """Of memory, by the threads of a stage: which element of how many, and the bytes of one."""

    index: Int
    count: Int
    size: int
    picked: bool = False  # by the data


def across_rows(index: Int, row: Var, inner: Var, program: Program) -> bool:
    """Whether neighbours in memory belong to neighbouring rows, not to neighbours along one."""
    return 0 < _step(index, row, program) < _step(index, inner, program)


def traffic(accesses: Iterable[Access], fast: Var, program: Program) -> int:
    """Bytes that memory moves when neighbouring threads take neighbours along ``fast``."""
    total = 0
    for a in accesses:
        times = program.hint(product([v.extent for v in a.index.variables()]))
        step = SECTOR if a.picked else abs(_step(a.index, fast, program))
        total += min(times, program.hint(a.count)) * max(a.size, min(step * a.size, SECTOR))
    return total


def _step(index: Int, v: Var, program: Program) -> int:
    """By how much an index grows from the first to the second element along a variable."""
    return program.hint(index.substitute({v: ONE}) - index.substitute({v: ZERO}))
