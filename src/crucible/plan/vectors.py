"""Neighbours along a walk or a map that lie together in memory: a thread may take several of them at once.

What is computed for an element is lifted to a vector of them, ``VECTOR`` neighbours from a place on. Loads and stores
that grow by one from neighbour to neighbour become 16 bytes at a time, what stays the same within a vector is computed
once for it. Sizes and addresses are known when a kernel runs: it looks whether they allow it (kernels/vectors.cuh).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from crucible.plan.index import ONE, ZERO, Atom, Int, Quotient, Remainder, Size, Var, of_atom
from crucible.plan.kept import renamed
from crucible.plan.program import Program
from crucible.plan.stages import Map, Pass, Row, Store
from crucible.plan.value import Condition, Fold, IndexValue, Inside, Kept, Load, Masked, Multiple, Op, Value
from crucible.plan.walks import USED, WARP

# Which of a vector's elements. How many there are depends on the element type: kernels know.
LANE = Var("u", of_atom(Size("VECTOR")))
# The number of elements that a plan counts with, and of those that every element type's divides.
USUAL, MOST = 4, 8


@dataclass(frozen=True)
class Vectors:
    """A walk of single elements, ``place`` along it (of a ``part``), and the same with vectors."""

    part: Var | None
    place: Var
    single: Pass
    several: Pass  # in terms of the vector's first place, and LANE
    loads: tuple[tuple[str, Int], ...]  # buffer and index of the first element
    stores: tuple[tuple[str, Int], ...]
    runs: tuple[tuple[str, Int], ...]  # what must begin at a multiple of 16 bytes wherever a vector begins
    whole: tuple[Int, ...]  # numbers that must be multiples of a vector's length
    placed: bool  # whether vectors must begin at multiples of their length
    also_single: tuple[Value, ...] = ()  # further values of an element
    also_several: tuple[Value, ...] = ()


class _Apart(Exception):
    """Neighbours do not lie together."""


def vectors(p: Pass, also: tuple[Value, ...] = ()) -> Vectors | None:
    """How a walk would take several neighbours at once; none where they do not lie together in memory."""
    part, place, single, also = by_parts(p, also)
    along = _Along(place, {s.buffer.name for s in p.stores})
    try:
        reduces = [(r, tuple(along.lifted(v) for v in values)) for r, values in single.reduces]
        stores = [along.stored(s) for s in single.stores]
        lifted = tuple(along.lifted(v) for v in also)
    except _Apart:
        return None
    if not along.loads and not stores:
        return None
    several = Pass(single.inner, single.shape, reduces, stores, single.by, single.warps)
    loaded, stored = tuple(along.loads), tuple((s.buffer.name, s.index) for s in single.stores)
    runs = tuple(dict.fromkeys((*loaded, *stored)))
    # Where a number is a multiple, so are its own multiples.
    whole = tuple(n for n in along.whole if not any(m != n and n % m == ZERO for m in along.whole))
    return Vectors(
        part, place, single, several, loaded, stored, runs, whole, along.placed, also, lifted,
    )  # fmt: skip


def as_pass(stage: Map) -> Pass:
    """A map is a walk over one long row."""
    return Pass(stage.element, (stage.element.extent,), [], stage.stores)


def joined(several: Iterable[Vectors]) -> list[Vectors]:
    """Walks that all take vectors of the same places, or none does: what one needs all of them need."""
    several = list(several)
    runs = tuple(dict.fromkeys(r for v in several for r in v.runs))
    whole = tuple(dict.fromkeys(n for v in several for n in v.whole))
    placed = any(v.placed for v in several)
    return [replace(v, runs=runs, whole=whole, placed=placed) for v in several]


def choose(stage: Map | Row, program: Program) -> None:
    """Set ``several`` of a map or of a row's walks: where threads would not be idle for want of vectors."""
    if isinstance(stage, Map):
        stage.several = _worth(as_pass(stage), 1, program)
        return
    for p in stage.passes:
        lanes = 1 if stage.sliced and p is stage.passes[-1] else WARP if p.warps else stage.lanes
        p.several = stage.lanes > 1 and _worth(p, lanes, program)


def _worth(p: Pass, lanes: int, program: Program) -> bool:
    length = program.hint(p.length)
    turns = -(-length // (USUAL * lanes)) * USUAL + (1 if length % USUAL else 0)
    if length < USED * turns * lanes:
        return False
    found = vectors(p)
    # A number that differs from row to row is looked at when rows are known.
    known = [n for n in found.whole if not n.variables()] if found else []
    return found is not None and all(program.hint(n) % USUAL == 0 for n in known)


def by_parts(p: Pass, also: tuple[Value, ...]) -> tuple[Var | None, Var, Pass, tuple[Value, ...]]:
    """The walk with a variable for the part and one for the place in it, where it has parts."""
    if p.by is None:
        return None, p.inner, p, also
    part, place = Var("part", p.inner.extent // p.by), Var("rest", p.by)
    whole = of_atom(p.inner)
    to: dict[Atom, Int] = {
        p.inner: of_atom(part) * p.by + of_atom(place),
        Quotient(whole, p.by): of_atom(part), Remainder(whole, p.by): of_atom(place),
    }  # fmt: skip
    reduces = [(r, tuple(renamed(v, to) for v in values)) for r, values in p.reduces]
    stores = [Store(s.buffer, s.index.substitute(to), renamed(s.value, to)) for s in p.stores]
    also = tuple(renamed(v, to) for v in also)
    return part, place, Pass(p.inner, p.shape, reduces, stores, p.by, p.warps), also


class _Along:
    """Lifts values along a variable, and collects what that takes."""

    def __init__(self, place: Var, written: set[str]) -> None:
        self.place = place
        self.written = written
        self.loads: dict[tuple[str, Int], None] = {}
        self.whole: dict[Int, None] = {}
        self.placed = False

    # -- integers

    def step(self, value: Int) -> Int:
        """What an integer grows by from one element of a vector to the next."""
        total = ZERO
        for monomial, c in value.terms.items():
            growing = [a for a in monomial if self._grows(a)]
            if len(growing) > 1:
                raise _Apart
            if growing:
                rest = list(monomial)
                rest.remove(growing[0])
                total = total + Int({tuple(rest): c})
        return total

    def _grows(self, atom: Atom) -> bool:
        """Whether an atom grows by one; else it stays the same within a vector."""
        if not self._varies(of_atom(atom)):
            return False
        if isinstance(atom, Var):
            return True
        assert isinstance(atom, (Quotient, Remainder))
        if self._varies(atom.bottom):
            raise _Apart
        step = self.step(atom.top)
        if step == ZERO:
            return False
        # No multiple of the divisor lies within a vector where both are multiples of the vector's length.
        self._require(self.begin(atom.top))
        self._require(atom.bottom)
        self.placed = True
        return isinstance(atom, Remainder)

    def begin(self, value: Int) -> Int:
        """An integer that grows by one, without what is a multiple of a vector's length at the first element."""
        rest, grown = ZERO, ZERO
        for monomial, c in value.terms.items():
            varying = [a for a in monomial if self._varies(of_atom(a))]
            if not varying:
                rest = rest + Int({monomial: c})
                continue
            others = list(monomial)
            others.remove(varying[0])
            if len(varying) > 1:
                raise _Apart
            if self._grows(varying[0]):
                grown = grown + Int({tuple(others): c})
            else:
                self._require(Int({tuple(others): c}))
        if grown != ONE:
            raise _Apart
        return rest

    def _varies(self, value: Int) -> bool:
        return self.place in value.variables()

    def _require(self, value: Int) -> None:
        if value.constant is not None and value.constant % 2:
            raise _Apart
        if (value.constant is None or value.constant % MOST) and -value not in self.whole:
            self.whole[value] = None

    # -- values

    def lifted(self, value: Value, guarded: bool = False) -> Value:
        """The value of a vector's element; ``guarded``: only evaluated where a condition holds, or several times."""
        if self.place not in value.free:
            return value
        if isinstance(value, Load):
            return self._load(value, guarded)
        if isinstance(value, IndexValue):
            return IndexValue(self._moved(value.index), value.kind)
        if isinstance(value, Kept):
            return Kept(value.name, self._moved(value.index), value.kind)
        if isinstance(value, Op):
            return Op(value.name, tuple(self.lifted(a, guarded) for a in value.args), value.kind)
        if isinstance(value, Masked):
            conditions = tuple(self._condition(c) for c in value.conditions)
            return Masked(conditions, self.lifted(value.body, True), self.lifted(value.other, True), value.kind)
        if isinstance(value, Fold) and not any(self._varies(v.extent) for v in value.vars):
            body = tuple(self.lifted(b, True) for b in value.body)
            return Fold(value.reducer, value.vars, body, value.part, value.kind)
        raise _Apart

    def _load(self, value: Load, guarded: bool) -> Load:
        if value.dynamic or value.buffer in self.written:
            raise _Apart
        step = self.step(value.index)
        if step == ZERO:
            return value
        if step != ONE or guarded:
            raise _Apart
        self.begin(value.index)
        self.loads[value.buffer, value.index] = None
        return Load(value.buffer, value.index + of_atom(LANE), value.kind)

    def stored(self, store: Store) -> Store:
        self.begin(store.index)
        return Store(store.buffer, store.index + of_atom(LANE), self.lifted(store.value))

    def _moved(self, value: Int) -> Int:
        return value + self.step(value) * of_atom(LANE)

    def _condition(self, c: Condition) -> Condition:
        if self._varies(c.indices[1]):
            raise _Apart
        moved = self._moved(c.value)
        return Inside(moved, c.limit) if isinstance(c, Inside) else Multiple(moved, c.step)
