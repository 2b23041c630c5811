"""What a row's first walk computes and later walks need again: they may keep it, in shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from crucible.plan.index import Atom, Int, Var, of_atom
from crucible.plan.stages import Pass, Row, Store
from crucible.plan.value import Fold, IndexValue, Inside, Kept, Load, Masked, Multiple, Op, Value, walk
from crucible.plan.value import replace as exchanged

MOST = 2  # numbers for each element


@dataclass(frozen=True)
class Keeping:
    """The row with later walks that read ``names`` instead of computing ``values`` again."""

    stage: Row
    names: tuple[str, ...]
    values: tuple[Value, ...]


def keeping(stage: Row) -> Keeping | None:
    """How a row would keep what its first walk computes; none where no later walk needs it."""
    first, *later = stage.passes
    if stage.sliced or stage.split or stage.lanes == 1 or not later or first.inner.extent == 1:
        return None
    made = {v for _, values in first.reduces for value in values for v in _always(value)}
    made = {v for v in made if _worth(v, first.inner, stage.row)}
    found: dict[Value, Kept] = {}

    def change(v: Value) -> Value | None:
        if v not in made:
            return None
        return found.setdefault(v, Kept(f"kept{len(found)}", of_atom(first.inner), v.kind))

    passes = [first]
    for p in later:
        if p.inner.extent != first.inner.extent or (p.by, p.warps) != (first.by, first.warps):
            passes.append(p)
            continue
        to: dict[Atom, Int] = {p.inner: of_atom(first.inner)}
        passes.append(
            Pass(
                first.inner, p.shape,
                [(r, tuple(exchanged(renamed(v, to), change) for v in values)) for r, values in p.reduces],
                [Store(s.buffer, s.index.substitute(to), exchanged(renamed(s.value, to), change)) for s in p.stores],
                p.by, p.warps, p.several,
            )
        )  # fmt: skip
    if not found or len(found) > MOST:
        return None
    return Keeping(replace(stage, passes=passes), tuple(v.name for v in found.values()), tuple(found))


def _always(value: Value) -> Iterator[Value]:
    """The value and its parts that every element has: not what a condition guards, nor what a loop repeats."""
    yield value
    if isinstance(value, Op):
        for part in value.args:
            yield from _always(part)


def _worth(value: Value, inner: Var, row: Var) -> bool:
    """Whether it is a number that takes a trip to memory for each element."""
    far = any(isinstance(v, Load) and inner in v.free for v in walk(value))
    return value.kind == "f" and far and inner in value.free and value.free <= {inner, row}


def renamed(value: Value, to: dict[Atom, Int]) -> Value:
    """The value with other indices in place of variables."""
    def change(v: Value) -> Value | None:
        if not v.free & set(to):
            return v
        if isinstance(v, Load):
            dynamic = tuple((renamed(d, to), s) for d, s in v.dynamic)
            return Load(v.buffer, v.index.substitute(to), v.kind, dynamic)
        if isinstance(v, IndexValue):
            return IndexValue(v.index.substitute(to), v.kind)
        if isinstance(v, Kept):
            return Kept(v.name, v.index.substitute(to), v.kind)
        if isinstance(v, Masked):
            conditions = tuple(
                Inside(c.value.substitute(to), c.limit) if isinstance(c, Inside)
                else Multiple(c.value.substitute(to), c.step)
                for c in v.conditions
            )  # fmt: skip
            return Masked(conditions, renamed(v.body, to), renamed(v.other, to), v.kind)
        return None if isinstance(v, (Op, Fold)) else v

    return exchanged(value, change)
