"""Values: what one element of a tensor is, as an expression of loads, operators and small loops.

A Value has a kind: ``f`` (the type arithmetic is done in), ``l`` (64-bit integer) or ``b`` (bool). Values are
immutable and compare by content, so that code generation can compute each one once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from crucible.plan.index import Int, Var


class Value:
    """Base: children, free loop variables, cost."""

    kind: str

    @property
    def children(self) -> tuple[Value, ...]:
        return ()

    @property
    def indices(self) -> tuple[Int, ...]:
        """The integers of this node itself, not of its children."""
        return ()

    @property
    def bound(self) -> frozenset[Var]:
        """Variables that this node itself binds."""
        return frozenset()

    @cached_property
    def free(self) -> frozenset[Var]:
        found: set[Var] = set()
        for index in self.indices:
            found |= index.variables()
        for child in self.children:
            found |= child.free
        return frozenset(found - self.bound)

    @cached_property
    def _hash(self) -> int:
        return hash((type(self).__name__, *(getattr(self, f) for f in self.__dataclass_fields__)))  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, eq=True)
class Const(Value):
    value: float | int | bool
    kind: str

    __hash__ = Value.__hash__

    @cached_property
    def _hash(self) -> int:
        return hash((repr(self.value), self.kind))

    def __eq__(self, other: object) -> bool:  # 0.0 and -0.0 differ, and so do 1 and True
        return isinstance(other, Const) and repr(self.value) == repr(other.value) and self.kind == other.kind


@dataclass(frozen=True, eq=True)
class IndexValue(Value):
    """An integer of index arithmetic as a value."""

    index: Int
    kind: str = "l"

    __hash__ = Value.__hash__

    @property
    def indices(self) -> tuple[Int, ...]:
        return (self.index,)


@dataclass(frozen=True, eq=True)
class Load(Value):
    """An element of a buffer: the linear index, plus values times strides where the data say which element."""

    buffer: str
    index: Int
    kind: str
    dynamic: tuple[tuple[Value, Int], ...] = ()

    __hash__ = Value.__hash__

    @property
    def indices(self) -> tuple[Int, ...]:
        return (self.index, *(s for _, s in self.dynamic))

    @property
    def children(self) -> tuple[Value, ...]:
        return tuple(v for v, _ in self.dynamic)


@dataclass(frozen=True, eq=True)
class Op(Value):
    """A pointwise operator of the table, by name."""

    name: str
    args: tuple[Value, ...]
    kind: str

    __hash__ = Value.__hash__

    @property
    def children(self) -> tuple[Value, ...]:
        return self.args


@dataclass(frozen=True)
class Inside:
    """``0 <= value < limit``."""

    value: Int
    limit: Int

    @property
    def indices(self) -> tuple[Int, ...]:
        return (self.value, self.limit)


@dataclass(frozen=True)
class Multiple:
    """``value`` is a multiple of ``step`` (and not negative)."""

    value: Int
    step: Int

    @property
    def indices(self) -> tuple[Int, ...]:
        return (self.value, self.step)


Condition = Inside | Multiple


@dataclass(frozen=True, eq=True)
class Masked(Value):
    """``body`` where every condition holds, ``other`` elsewhere; body is not evaluated there."""

    conditions: tuple[Condition, ...]
    body: Value
    other: Value
    kind: str

    __hash__ = Value.__hash__

    @property
    def children(self) -> tuple[Value, ...]:
        return (self.body, self.other)

    @property
    def indices(self) -> tuple[Int, ...]:
        return tuple(i for c in self.conditions for i in c.indices)


@dataclass(frozen=True, eq=True)
class Fold(Value):
    """One result of a reduction over a few elements, done by a loop inside the thread."""

    reducer: str
    vars: tuple[Var, ...]
    body: tuple[Value, ...]
    part: int
    kind: str

    __hash__ = Value.__hash__

    @property
    def children(self) -> tuple[Value, ...]:
        return self.body

    @property
    def indices(self) -> tuple[Int, ...]:
        return tuple(v.extent for v in self.vars)

    @property
    def bound(self) -> frozenset[Var]:
        return frozenset(self.vars)


@dataclass(frozen=True, eq=True)
class Result(Value):
    """An element of what a contraction or a large reduction yields; where it is kept is the scheduler's matter."""

    source: str
    part: int
    index: tuple[Int, ...]
    kind: str

    __hash__ = Value.__hash__

    @property
    def indices(self) -> tuple[Int, ...]:
        return self.index


@dataclass(frozen=True, eq=True)
class Local(Value):
    """A variable of the kernel."""

    name: str
    kind: str

    __hash__ = Value.__hash__


# The moments of an element's group, by the parts of their reduction.
MOMENTS = tuple(Local(f"group_{part}", "f") for part in ("mean", "m2", "count"))


@dataclass(frozen=True, eq=True)
class Kept(Value):
    """What an earlier walk over a row left of one of its elements."""

    name: str
    index: Int
    kind: str

    __hash__ = Value.__hash__

    @property
    def indices(self) -> tuple[Int, ...]:
        return (self.index,)


def walk(value: Value, seen: set[Value] | None = None) -> Iterable[Value]:
    """Every distinct value in here, the innermost first."""
    seen = set() if seen is None else seen
    if value in seen:
        return
    seen.add(value)
    for child in value.children:
        yield from walk(child, seen)
    yield value


def replace(value: Value, change: Callable[[Value], Value | None], memo: dict[Value, Value] | None = None) -> Value:
    """The value with parts exchanged: ``change`` gives a substitute, or none to look inside."""
    memo = {} if memo is None else memo
    if value in memo:
        return memo[value]
    new = change(value)
    if new is None:
        new = _rebuilt(value, lambda v: replace(v, change, memo))
    memo[value] = new
    return new


def _rebuilt(value: Value, go: Callable[[Value], Value]) -> Value:
    if isinstance(value, Op):
        return Op(value.name, tuple(go(a) for a in value.args), value.kind)
    if isinstance(value, Load) and value.dynamic:
        return Load(value.buffer, value.index, value.kind, tuple((go(v), s) for v, s in value.dynamic))
    if isinstance(value, Masked):
        return Masked(value.conditions, go(value.body), go(value.other), value.kind)
    if isinstance(value, Fold):
        return Fold(value.reducer, value.vars, tuple(go(b) for b in value.body), value.part, value.kind)
    return value


@dataclass(frozen=True, eq=True)
class SizeText(Value):
    """A number computed from sizes, as C++ text."""

    text: str
    sizes: tuple[Int, ...]
    kind: str = "f"

    __hash__ = Value.__hash__

    @property
    def indices(self) -> tuple[Int, ...]:
        return self.sizes
