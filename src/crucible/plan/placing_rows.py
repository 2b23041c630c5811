"""Reductions and what is computed from them: which walk over rows takes them, and how many threads share a row."""

from __future__ import annotations

from collections.abc import Sequence

from crucible.plan.index import ZERO, Int, Var, of_atom, of_var, product
from crucible.plan.placing import ELEMENT, FEW_ROWS, HOMES, LONG_ROW, Placing, Seen, references
from crucible.plan.program import Contract, Index, Keep, Reduce, Tensor, flat, item_bytes, unflat
from crucible.plan.split import rows_of
from crucible.plan.stages import Pass, Row, Store
from crucible.plan.value import Load, Result, Value, walk
from crucible.plan.walks import LAUNCH, Access, across_rows, traffic


class Rows(Placing):
    """Places reductions in walks, and stores what needs their results there."""

    def _reduce(self, r: Reduce, seen: Seen) -> None:
        rows = [v.extent for v in r.outer if v.extent != 1]
        inner = tuple(v.extent for v in r.inner)
        length = self.program.hint(product(inner))
        count = self.program.hint(product(rows))
        lanes, split = self._shape(r, count, length)
        self._row_stage(r, seen, rows, inner, lanes, split)

    def _shape(self, r: Reduce, count: int, length: int) -> tuple[int, bool]:
        """How many threads share a row, and whether a row is shared by blocks."""
        columns = self._columnwise(r)
        if columns and count >= 32:
            return 1, count < 64 * FEW_ROWS and length >= 64
        if length <= 16 and count >= FEW_ROWS:
            return 1, False
        if length <= 1024:
            return 32, False
        return 256, count < FEW_ROWS and length >= LONG_ROW

    def _columnwise(self, r: Reduce) -> bool:
        """Whether neighbours in memory belong to different rows."""
        if not r.outer or not r.inner:
            return False
        outer, inner = tuple(of_var(v) for v in r.outer), tuple(of_var(v) for v in r.inner)
        last = next((v for v in reversed(r.outer) if v.extent != 1), None)
        if last is None:
            return False
        for body in r.body(outer, inner):
            for v in walk(body):
                if isinstance(v, (Load, Result)):
                    index = v.index if isinstance(v, Load) else flat(v.index, self._result_shape(v.source))
                    if not index.variables() & set(r.inner):
                        continue  # one element for the whole row
                    rowwise = any(_steps_by_one(index, k) for k in r.inner)
                    if not rowwise and _steps_by_one(index, last):
                        return True
        return False

    def _result_shape(self, source: str) -> Index:
        operation = self.operations[self._source(source)]
        return operation.shape if isinstance(operation, Contract) else operation.outer_shape

    def _row_stage(self, r: Reduce, seen: Seen, rows: Sequence[Int], inner: Index, lanes: int, split: bool) -> None:
        at = self._row_home(r, seen, rows, inner, lanes, split)
        if at is None:
            row = self._fresh("row", product(list(rows)))
            stage = Row(self._name("rows"), row, tuple(rows), lanes=lanes, split=split)
            at = self._add(stage)
        else:
            found = self.stages[at]
            assert isinstance(found, Row)
            stage = found
        number = 1 + max((self._pass_of(stage, self._source(x)) for x in seen.results), default=-1)
        while number < len(stage.passes) and (stage.passes[number].shape != inner or stage.passes[number].stores):
            number += 1
        if number >= len(stage.passes):
            stage.passes.append(Pass(self._fresh("j", product(inner)), inner))
        walk_ = stage.passes[number]
        values = r.body(self._outer(r, stage), unflat(of_var(walk_.inner), inner))
        walk_.reduces.append((r, values))
        stage.nodes.append(r.node)
        self.made_by[r.name] = at

    def _outer(self, r: Reduce, stage: Row) -> Index:
        """A reduction's outer index in terms of a stage's row."""
        place = iter(unflat(of_var(stage.row), stage.shape))
        return tuple(ZERO if v.extent == 1 else next(place) for v in r.outer)

    def _pass_of(self, stage: Row, name: str) -> int:
        for number, p in enumerate(stage.passes):
            if any(r.name == name for r, _ in p.reduces):
                return number
        return -1

    def _row_home(
        self, r: Reduce, seen: Seen, rows: Sequence[Int], inner: Index, lanes: int, split: bool
    ) -> int | None:
        """An earlier walk over the same rows that this can join."""
        for at in range(len(self.stages) - 1, self.floor - 1, -1):
            stage = self.stages[at]
            if not isinstance(stage, Row) or stage.shape != tuple(rows) or stage.split != split or stage.lanes != lanes:
                continue
            if self._latest(seen.loads, seen.results, but=at) >= at:
                continue
            own = {b for b in seen.loads if self.made_by.get(b, -1) == at}
            inside = {x for x in seen.results if self.made_by[self._source(x)] == at}
            if own or (split and (inside or stage.passes[0].shape != inner)):
                continue
            values = r.body(self._outer(r, stage), tuple(of_var(v) for v in r.inner))
            if all(self._at_row(stage, v) for v in values):
                return at
        return None

    def _at_row(self, stage: Row, value: Value) -> bool:
        """Whether every result of this stage that the value needs is that of the row itself."""
        for v in walk(value):
            if isinstance(v, Result) and self._pass_of(stage, self._source(v.source)) >= 0:
                operation = self.operations[self._source(v.source)]
                assert isinstance(operation, Reduce)
                if v.index != self._outer(operation, stage):
                    return False
        return True

    def _store_in_walk(self, keep: Keep, seen: Seen) -> bool:
        homes = {self.made_by[self._source(x)] for x in seen.results}
        for at in sorted(homes, reverse=True):
            stage = self.stages[at]
            if at < self.floor or not isinstance(stage, Row) or self._latest(seen.loads, seen.results, but=at) >= at:
                continue
            if any(self.made_by.get(b, -1) == at for b in seen.loads):
                continue
            if self._hang_on(stage, keep, seen):
                self.made_by[keep.buffer.name] = at
                stage.nodes.extend(keep.tensor.nodes)
                return True
        return False

    def _hang_on(self, stage: Row, keep: Keep, seen: Seen) -> bool:
        """Store a tensor from a walk: its index split into the row and what varies along it."""
        tensor = keep.tensor
        variables = tuple(self._fresh("d", s) for s in tensor.shape)
        value = tensor.at(tuple(of_var(v) for v in variables))
        wanted: set[tuple[Int, ...]] = set()
        needed = -1
        for v in walk(value):
            if isinstance(v, Result) and self._pass_of(stage, self._source(v.source)) >= 0:
                operation = self.operations[self._source(v.source)]
                assert isinstance(operation, Reduce)
                wanted.add(tuple(i for i, o in zip(v.index, operation.outer) if o.extent != 1))
                needed = max(needed, self._pass_of(stage, self._source(v.source)))
        if len(wanted) != 1:
            return False
        split = rows_of(list(wanted.pop()), variables)
        if split is None or [split.row_extent(at) for at in range(len(stage.shape))] != list(stage.shape):
            return False  # a part of the rows, such as a slice: the others have no element to store
        inner = tuple(v.extent for v in split.inner_vars(split.inner) if v.extent != 1)
        rows = self.program.hint(product(stage.shape))
        if product(inner) != 1 and (stage.split or stage.lanes == 1 or rows < FEW_ROWS // 4):
            return False  # too few threads for the work, or none that know the result
        index = split.index(unflat(of_var(stage.row), stage.shape), {}, variables)
        if product(inner) == 1:
            at = tensor.at(index)
            if not self._at_row(stage, at):
                return False
            stage.finals.append((needed + 1, Store(keep.buffer, flat(index, tensor.shape), at)))
            return True
        number = needed + 1
        while number < len(stage.passes) and (stage.passes[number].shape != inner):
            number += 1
        fresh = number >= len(stage.passes)
        walk_ = Pass(self._fresh("j", product(inner)), inner) if fresh else stage.passes[number]
        parts = iter(unflat(of_var(walk_.inner), inner))
        given = {v: ZERO if split.extent(v) == 1 else next(parts) for v in split.inner}
        index = split.index(unflat(of_var(stage.row), stage.shape), given, variables)
        at = tensor.at(index)
        store = Store(keep.buffer, flat(index, tensor.shape), at)
        if not self._at_row(stage, at) or self._against_memory(stage, walk_.inner, store, tensor):
            return False
        if fresh:
            stage.passes.append(walk_)
        walk_.stores.append(store)
        return True

    def _against_memory(self, stage: Row, inner: Var, store: Store, tensor: Tensor) -> bool:
        """Whether a walk would store across rows, and a map that reads the rows' results moves fewer bytes."""
        if not across_rows(store.index, stage.row, inner, self.program):
            return False
        have = {r.name for p in stage.passes for r, _ in p.reduces}
        for p in stage.passes:
            for _, values in p.reduces:
                loads, results = references(values, set())
                have |= loads | {self._source(x) for x in results}
        element = self._fresh("i", tensor.numel)
        mapped = Store(store.buffer, of_var(element), tensor.at(unflat(of_var(element), tensor.shape)))
        walked = traffic(self._accesses(store, have), inner, self.program)
        return traffic(self._accesses(mapped, set()), element, self.program) + LAUNCH < walked

    def _accesses(self, store: Store, have: set[str]) -> set[Access]:
        """The elements of memory that a store and its value need, but for what is in registers or caches."""
        found = {Access(store.index, store.buffer.numel, item_bytes(store.buffer.dtype, ELEMENT))}
        for v in walk(store.value):
            if isinstance(v, Load) and v.buffer not in have:
                buffer = self.program.buffers[v.buffer]
                found.add(Access(v.index, buffer.numel, item_bytes(buffer.dtype, ELEMENT), bool(v.dynamic)))
            elif isinstance(v, Result) and self._source(v.source) not in have:
                shape = self._result_shape(v.source)
                found.add(Access(flat(v.index, shape), product(shape), item_bytes(HOMES[v.kind], ELEMENT)))
        return found


def _steps_by_one(index: Int, v: Var) -> bool:
    return v.extent != 1 and index.substitute({v: of_atom(v) + 1}) - index == 1
