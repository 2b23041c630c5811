"""What placing operations in stages needs to know: the stages so far, where each result is made, names and sizes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from crucible.plan.index import ZERO, Int, Var, of_atom, of_var, size
from crucible.plan.program import Buffer, Contract, Index, Keep, Operation, Program, Reduce, unflat
from crucible.plan.stages import Stage
from crucible.plan.value import Load, Result, Value, walk
from crucible.plan.ways import Choices

# A walk with fewer rows than this leaves most of a GPU idle: long ones are split, and little else is hung on them.
FEW_ROWS = 256
LONG_ROW = 4096
# The type that results are kept in, by kind, and the element type that bytes are counted for.
HOMES = {"f": "accum", "l": "int64", "b": "bool"}
ELEMENT = "float32"


@dataclass
class Seen:
    """An operation with its values written out, and what they refer to."""

    operation: Operation
    values: tuple[Value, ...] = ()
    loads: set[str] = field(default_factory=set)
    results: set[str] = field(default_factory=set)


class Placing:
    """The stages so far, and what made what."""

    def __init__(self, program: Program, engine: str, choices: Choices) -> None:
        self.program = program
        self.engine = engine
        self.choices = choices
        self.stages: list[Stage] = []
        self.made_by: dict[str, int] = {}  # buffer name, or operation name, to the stage that makes it
        self.homes: dict[str, Buffer] = {}  # "operation/part" to the buffer its results are kept in
        self.operations = {o.name: o for o in program.operations if isinstance(o, (Contract, Reduce))}
        self.replaced: dict[str, str] = {}
        self.reasons: list[tuple[str, str]] = []
        self.counter = 0
        self.floor = 0  # stages before this one are closed: they belong to the forward pass
        self.ahead: list[Seen] = []  # operations of the same pass that are yet to be placed

    def _look(self, operation: Operation) -> Seen:
        values: tuple[Value, ...] = ()
        loads: set[str] = set()
        if isinstance(operation, Keep):
            index = unflat(self._var("i", operation.tensor.numel), operation.tensor.shape)
            values = (operation.tensor.at(index),)
        elif isinstance(operation, Reduce):
            outer = tuple(of_var(v) for v in operation.outer)
            values = operation.body(outer, tuple(of_var(v) for v in operation.inner))
        elif isinstance(operation, Contract):
            values = (operation.a(), operation.b())
        else:
            loads = {t.buffer.name for t in operation.inputs if t.buffer is not None}
        return Seen(operation, values, *references(values, loads))

    def _var(self, stem: str, extent: Int) -> Int:
        self.counter += 1
        return ZERO if extent == 1 else of_atom(Var(f"{stem}{self.counter}", extent))

    def _fresh(self, stem: str, extent: Int) -> Var:
        self.counter += 1
        return Var(f"{stem}{self.counter}", extent)

    def _add(self, stage: Stage) -> int:
        self.stages.append(stage)
        return len(self.stages) - 1

    def _name(self, stem: str) -> str:
        return f"{stem}_{len(self.stages)}"

    def _source(self, name: str) -> str:
        return self.replaced.get(name, name)

    def _latest(self, loads: Iterable[str], results: Iterable[str], but: int = -1) -> int:
        """The last stage that these come from, leaving one out; -1 for arguments alone."""
        made = [self.made_by.get(b, -1) for b in loads] + [self.made_by[self._source(r)] for r in results]
        return max((m for m in made if m != but), default=-1)

    def _size(self, name: str, text: str, hint: int) -> Int:
        """A size that the host computes."""
        self.program.sizes[name] = text
        self.program.hints[name] = hint
        return size(name)

    def _buffer(self, name: str, shape: Index, dtype: str) -> Buffer:
        buffer = Buffer(name, shape, dtype, "made")
        self.program.buffers[name] = buffer
        return buffer


def references(values: Iterable[Value], loads: set[str]) -> tuple[set[str], set[str]]:
    results: set[str] = set()
    seen: set[Value] = set()
    for value in values:
        for v in walk(value, seen):
            if isinstance(v, Load):
                loads.add(v.buffer)
            elif isinstance(v, Result):
                results.add(v.source)
    return loads, results
