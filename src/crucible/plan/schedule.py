"""Turn a Program into Stages: which operations share a kernel, and which tensors must go through memory.

Operations are taken in order. A tensor that must be kept is stored by the contraction whose elements it is computed
from, or by the walk over rows whose results it needs; statistics of a contraction's elements are taken in its
epilogue; reductions over the same rows share a walk. What fits nowhere gets a kernel of its own, and why is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from crucible.plan.index import Atom, Int, of_var
from crucible.plan.kept import renamed
from crucible.plan.placing import HOMES, Seen
from crucible.plan.placing_tails import Tails
from crucible.plan.program import Buffer, Contract, Extern, Keep, Operation, Program, Reduce, flat, unflat
from crucible.plan.stages import Call, Contraction, Map, Row, Stage, Store, Tail, read, written
from crucible.plan.value import Local, Result, Value, replace
from crucible.plan.vectors import choose
from crucible.plan.walks import arrange
from crucible.plan.ways import Choices

SMALL_MAP = 256  # elements of a map that takes no time to speak of


@dataclass
class Plan:
    """Stages in order; those before ``forward`` are the forward pass, the rest the backward."""

    program: Program
    stages: list[Stage]
    forward: int
    saved: list[str] = field(default_factory=list)  # buffers that the backward pass reads and the forward has
    reasons: list[tuple[str, str]] = field(default_factory=list)

    @property
    def forward_stages(self) -> list[Stage]:
        return self.stages[: self.forward]

    @property
    def backward_stages(self) -> list[Stage]:
        return self.stages[self.forward :]


class Scheduler(Tails):
    """Takes the operations in order."""

    def run(self) -> Plan:
        seen = [self._look(o) for o in self.program.operations]
        roots = {b.name for b in [*self.program.updates, *self.program.outputs] if isinstance(b, Buffer)}
        grads = {b.name for b in self.program.gradients if isinstance(b, Buffer)}
        forward = _needed(seen, roots)
        everything = _needed(seen, roots | grads)
        self._place_all([s for s in seen if id(s) in forward])
        boundary = self.floor = len(self.stages)
        self._place_all([s for s in seen if id(s) in everything and id(s) not in forward])
        for stage in self.stages:
            if isinstance(stage, Row):
                arrange(stage, self.program)
        plan = Plan(self.program, self.stages, boundary, reasons=[*self.program.reasons, *self.reasons])
        self._resolve(plan)
        for stage in self.stages:
            if isinstance(stage, (Map, Row)):
                choose(stage, self.program)
        return plan

    def _place_all(self, operations: list[Seen]) -> None:
        for number, seen in enumerate(operations):
            self.ahead = operations[number + 1 :]
            self._place(seen)

    def _place(self, seen: Seen) -> None:
        operation = seen.operation
        if isinstance(operation, Extern):
            self._add(Call(self._name("call"), operation, [operation.node.name]))
            for t in operation.results:
                if t is not None and t.buffer is not None:
                    self.made_by[t.buffer.name] = len(self.stages) - 1
        elif isinstance(operation, Contract):
            self._contract(operation, seen)
        elif isinstance(operation, Reduce):
            moments = operation.reducer == "moments"
            if not (self._statistics(operation, seen) if moments else self._along_rows(operation, seen)):
                self._reduce(operation, seen)
        else:
            self._keep(operation, seen)

    def _keep(self, keep: Keep, seen: Seen) -> None:
        ways = (self._store_in_epilogue, self._pool, self._store_in_tail, self._store_in_walk)
        if any(way(keep, seen) for way in ways):
            return
        tensor, buffer = keep.tensor, keep.buffer
        for at in range(len(self.stages) - 1, self.floor - 1, -1):
            stage = self.stages[at]
            if (
                isinstance(stage, Map)
                and stage.element.extent == tensor.numel
                and self._latest(seen.loads, seen.results) < at
            ):
                break
        else:
            stage = Map(self._name("map"), self._fresh("i", tensor.numel))
            at = self._add(stage)
        assert isinstance(stage, Map)
        element = of_var(stage.element)
        stage.stores.append(Store(buffer, element, tensor.at(unflat(element, tensor.shape))))
        stage.nodes.extend(tensor.nodes)
        self.made_by[buffer.name] = at

    # -- results across stages

    def _resolve(self, plan: Plan) -> None:
        """Point every Result at a variable of its own stage or at memory, and store what others read."""
        for at, stage in enumerate(self.stages):
            if isinstance(stage, Map):
                stage.stores = [Store(s.buffer, s.index, self._settle(s.value, at)) for s in stage.stores]
            elif isinstance(stage, Row):
                for number, p in enumerate(stage.passes):
                    p.reduces = [(r, tuple(self._settle(v, at, number) for v in values)) for r, values in p.reduces]
                    p.stores = [Store(s.buffer, s.index, self._settle(s.value, at, number)) for s in p.stores]
                stage.finals = [(n, Store(s.buffer, s.index, self._settle(s.value, at, n))) for n, s in stage.finals]
            elif isinstance(stage, Contraction):
                stage.a, stage.b = self._settle(stage.a, at), self._settle(stage.b, at)
                if stage.source is not None:
                    stage.source = self._settle(stage.source, at)
                if stage.plain is not None:
                    stage.plain = self._settle(stage.plain, at)
                stage.stores = [Store(s.buffer, s.index, self._settle(s.value, at)) for s in stage.stores]
                if stage.statistics is not None:
                    stage.statistics.value = self._settle(stage.statistics.value, at)
                if stage.pool is not None:
                    stage.pool.value = self._settle(stage.pool.value, at)
                if stage.tail is not None:
                    self._settle_tail(stage.tail, at)
        for key, buffer in self.homes.items():
            name, part = key.rsplit("/", 1)
            stage = self.stages[self.made_by[name]]
            operation = self.operations[name]
            if isinstance(stage, Contraction):
                if not isinstance(operation, Contract):
                    continue  # statistics are stored as they are taken
                stage.stores.append(Store(buffer, flat(operation.place, operation.shape), Local("value", "f")))
            else:
                assert isinstance(stage, Row) and isinstance(operation, Reduce)
                where = flat(self._outer(operation, stage), operation.outer_shape)
                local = Local(f"{name}_{part}", buffer.kind)
                stage.finals.append((self._pass_of(stage, name) + 1, Store(buffer, where, local)))

    def _settle_tail(self, tail: Tail, at: int) -> None:
        tail.stores = [Store(s.buffer, s.index, self._settle(s.value, at)) for s in tail.stores]
        for p in tail.partials:
            p.values = tuple(self._settle(v, at) for v in p.values)

    def _settle(self, value: Value, at: int, number: int = 0) -> Value:
        def change(v: Value) -> Value | None:
            if not isinstance(v, Result):
                return None
            name = self._source(v.source)
            if self.made_by[name] == at:
                stage = self.stages[at]
                if isinstance(stage, Contraction):
                    assert name == stage.contract.name, name
                    return Local("value", "f")
                return Local(f"{name}_{v.part}", v.kind)
            return self._home(name, v.part, v.kind).load(v.index)

        return replace(value, change)

    def _home(self, name: str, part: int, kind: str) -> Buffer:
        key = f"{name}/{part}"
        if key not in self.homes:
            operation = self.operations[name]
            shape = operation.shape if isinstance(operation, Contract) else operation.outer_shape
            dtype = "scalar" if kind == "f" and self._is_product(operation) else HOMES[kind]
            self.homes[key] = self._buffer(f"{name}_{part}_kept", shape, dtype)
            self.made_by[self.homes[key].name] = self.made_by[name]
        return self.homes[key]

    def _is_product(self, operation: Operation) -> bool:
        return isinstance(operation, Contract) or operation.name in self.replaced.values()  # type: ignore[union-attr]


def _needed(seen: list[Seen], roots: set[str]) -> set[int]:
    """The operations that these buffers are computed by, directly or not."""
    buffers, results = set(roots), set()
    needed: set[int] = set()
    for s in reversed(seen):
        o = s.operation
        if isinstance(o, Keep):
            wanted = o.buffer.name in buffers
        elif isinstance(o, Extern):
            made = [t for t in o.results if t is not None]  # what makes nothing is there for its error
            wanted = not made or any(t.buffer is not None and t.buffer.name in buffers for t in made)
        else:
            wanted = o.name in results
        if wanted:
            needed.add(id(s))
            buffers |= s.loads
            results |= s.results
    return needed


def schedule(program: Program, engine: str, choices: Choices | None = None) -> Plan:
    """The stages of a program. ``engine`` is how contractions are computed: ``simt`` or ``mma``."""
    plan = Scheduler(program, engine, choices or Choices()).run()
    _drop_unread(plan)
    forward = _small_last(_hung(plan.forward_stages))
    plan.stages, plan.forward = [*forward, *plan.backward_stages], len(forward)
    have = {b.name for b in program.buffers.values() if b.role != "made" and b.role != "tangent"}
    have |= _written(plan.forward_stages)
    plan.saved = sorted(_read(plan.backward_stages) & have)
    return plan


def _drop_unread(plan: Plan) -> None:
    """What was needed in a contraction's registers alone, or not at all, is not stored."""
    program = plan.program
    wanted = _read(plan.stages)
    wanted |= {b.name for b in [*program.updates, *program.outputs, *program.gradients] if isinstance(b, Buffer)}
    for stage in plan.stages:
        if isinstance(stage, Contraction):
            stage.stores = [s for s in stage.stores if s.buffer.name in wanted]
            if stage.statistics is not None:
                stage.statistics.parts = {k: b for k, b in stage.statistics.parts.items() if b.name in wanted}


def _small(stage: Stage, stages: list[Stage]) -> bool:
    """Whether this is a map of a few elements that no other stage waits for."""
    count = stage.element.extent.constant if isinstance(stage, Map) else None
    others = (s for s in stages if s is not stage)
    return count is not None and count <= SMALL_MAP and not _written([stage]) & _read(others)


def _hung(stages: list[Stage]) -> list[Stage]:
    """Such a map needs no launch of its own where a walk has as many rows: each stores an element of it."""
    left = list(stages)
    for stage in [s for s in stages if _small(s, stages)]:
        assert isinstance(stage, Map)
        home = _home_of(stage, left)
        if home is None:
            continue
        to: dict[Atom, Int] = {stage.element: of_var(home.row)}
        below = stage.element.extent.constant
        for s in stage.stores:
            home.finals.append((1, Store(s.buffer, s.index.substitute(to), renamed(s.value, to), below)))
        home.nodes.extend(stage.nodes)
        left = [s for s in left if s is not stage]
    return left


def _home_of(stage: Map, stages: list[Stage]) -> Row | None:
    """The first walk with a row for each element of a map, after all that the map reads."""
    count, wanted = stage.element.extent.constant, set(read(stage))
    for number, s in enumerate(stages):
        rows = s.row.extent.constant if isinstance(s, Row) else None
        if count is not None and rows is not None and rows >= count and not _written(stages[number:]) & wanted:
            assert isinstance(s, Row)
            return s
    return None


def _small_last(stages: list[Stage]) -> list[Stage]:
    """A map of a few elements that no stage waits for comes last: launched first it would keep the others waiting."""
    late = [s for s in stages if _small(s, stages)]
    return [*(s for s in stages if not any(s is t for t in late)), *late]


def _written(stages: Iterable[Stage]) -> set[str]:
    out: set[str] = set()
    for s in stages:
        if isinstance(s, Call):
            out |= {t.buffer.name for t in s.extern.results if t is not None and t.buffer is not None}
        else:
            out |= {b.name for b in written(s)}
    return out


def _read(stages: Iterable[Stage]) -> set[str]:
    out: set[str] = set()
    for s in stages:
        out |= set(read(s))
    return out
