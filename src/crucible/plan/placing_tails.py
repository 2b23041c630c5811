"""What follows the statistics of a matrix product while its elements are still at hand.

A norm's groups that lie within a tile are normalised there, and reductions along the rows are taken tile by tile (a
walk over these partial results joins them), so that the product itself need not go through memory.
"""

from __future__ import annotations

from crucible.plan import reducers
from crucible.plan.boxes import WindowTile
from crucible.plan.gradients import GradientTile
from crucible.plan.index import of_var, product
from crucible.plan.placing import HOMES, Seen, references
from crucible.plan.placing_contractions import Contractions
from crucible.plan.program import Index, Keep, Reduce, flat, reshaped
from crucible.plan.split import rows_of
from crucible.plan.stages import Contraction, Partial, Store, Tail, read, values_of
from crucible.plan.value import MOMENTS, Load, Local, Result, Value, replace

# Reductions whose results join as elements do.
ALONG = ("sum", "sum_l", "prod", "prod_l", "max", "min", "argmax", "argmin", "any", "all")
FINISHED = Local("finished", "f")  # what the epilogue made of the sum


class Tails(Contractions):
    """Places what can follow a contraction's statistics."""

    def _store_in_tail(self, keep: Keep, seen: Seen) -> bool:
        """Store elements that need the moments of their own group."""
        found = self._tailed(seen)
        if found is None:
            return False
        at, stage = found
        value = self._kept_value(keep, stage)
        if value is None:
            return False
        where = flat(stage.contract.place, stage.contract.shape)
        self._tail_of(stage).stores.append(Store(keep.buffer, where, value))
        stage.nodes.extend(keep.tensor.nodes)
        self.made_by[keep.buffer.name] = at
        return True

    def _along_rows(self, r: Reduce, seen: Seen) -> bool:
        """Reduce along the rows of a product, if nobody else needs its elements in memory."""
        found = self._tailed(seen)
        if found is None:
            return False
        at, stage = found
        values = self._row_values(r, stage)
        if values is None or self._in_memory(at, stage):
            return False
        tiles = self._tiles(stage)
        tail = self._tail_of(stage)
        if tail.tile is None:
            tail.tile = self._fresh("tile", tiles)
            tail.index = flat((*stage.contract.place[:-1], of_var(tail.tile)), (*stage.contract.shape[:-1], tiles))
        shape = (*r.outer_shape, tiles)
        buffers = tuple(
            self._buffer(f"{r.name}_tile_{part}", shape, HOMES[kind])
            for part, (kind, _) in enumerate(reducers.TABLE[r.reducer].results)
        )
        tail.partials.append(Partial(r, values, buffers))
        stage.nodes.append(r.node)
        for b in buffers:
            self.made_by[b.name] = at
        parts = self._fresh("part", tiles)

        def body(o: Index, i: Index) -> tuple[Value, ...]:
            return tuple(b.load((*o, *i)) for b in buffers)

        joined = Reduce(r.name, r.outer, (parts,), body, r.reducer, (), r.node, r.kept, r.source)
        self.operations[r.name] = joined
        self._reduce(joined, Seen(joined, (), {b.name for b in buffers}, set()))
        return True

    def _tail_of(self, stage: Contraction) -> Tail:
        if stage.tail is None:
            stage.tail = Tail()
        return stage.tail

    def _in_memory(self, at: int, stage: Contraction) -> bool:
        """Whether a kernel after the product reads its elements, or will."""
        name, stored = stage.contract.name, {s.buffer.name for s in stage.stores}
        for later in self.stages[at + 1 :]:
            loads, results = references(values_of(later), set(read(later)))
            if name in results or stored & loads:
                return True
        return not all(self._follows(s) for s in self.ahead if name in s.results or stored & s.loads)

    def _follows(self, seen: Seen) -> bool:
        """Whether an operation will find a product's elements in its epilogue or tail."""
        found, o = self._tailed(seen), seen.operation
        if found is None:
            return False
        if isinstance(o, Reduce):
            return self._row_values(o, found[1]) is not None
        return isinstance(o, Keep) and self._kept_value(o, found[1]) is not None

    def _tailed(self, seen: Seen) -> tuple[int, Contraction] | None:
        """The product that this is computed from, and from the moments of its groups, if all else was there before."""
        known = [self.made_by.get(self._source(x)) for x in seen.results]
        known += [self.made_by[b] for b in seen.loads if b in self.made_by]
        for at in sorted({k for k in known if k is not None}, reverse=True):
            stage = self.stages[at]
            if at < self.floor or None in known or not isinstance(stage, Contraction) or stage.splits != 1:
                continue
            if stage.contract.rule != "matmul" or isinstance(stage.tile, (WindowTile, GradientTile)):
                continue
            inside = {self._source(x) for x in seen.results if self.made_by[self._source(x)] == at}
            inside |= {b for b in seen.loads if self.made_by.get(b, -1) == at}
            if inside <= _made(stage) and self._latest(seen.loads, seen.results, but=at) < at:
                return at, stage
        return None

    def _kept_value(self, keep: Keep, stage: Contraction) -> Value | None:
        """An element that a tail can store."""
        c = stage.contract
        if keep.tensor.numel != product(c.shape):
            return None
        return self._in_tail(stage, keep.tensor.at(reshaped(c.place, c.shape, keep.tensor.shape)))

    def _row_values(self, r: Reduce, stage: Contraction) -> tuple[Value, ...] | None:
        """What a reduction along whole rows takes of each element of a product; none where it is no such reduction."""
        c = stage.contract
        if r.reducer not in ALONG or r.source.numel != product(c.shape) or c.place[-1] != of_var(c.cols):
            return None
        index = tuple(self._fresh("d", s) for s in c.shape)
        full = reshaped(tuple(of_var(v) for v in index), c.shape, r.source.shape)
        split = rows_of([full[d] for d in r.kept], index)
        rows = [v for v in index[:-1] if v.extent != 1]
        if split is None or split.inner != [index[-1]] or list(split.rows) != rows or index[-1] in split.rows:
            return None
        at = reshaped(c.place, c.shape, r.source.shape)
        outer = tuple(at[d] for d in r.kept)
        inner = tuple(at[d] for d in range(len(at)) if d not in r.kept)
        values = [self._in_tail(stage, v) for v in r.body(outer, inner)]
        return tuple(v for v in values if v is not None) if None not in values else None

    def _in_tail(self, stage: Contraction, value: Value) -> Value | None:
        """The value in terms of what a tail knows; none where it needs something else of the same product."""
        c, stats = stage.contract, stage.statistics
        stored = {(s.buffer.name, s.index) for s in stage.stores if stats is not None and s.value == stats.value}

        def change(v: Value) -> Value | None:
            if isinstance(v, Load) and (v.buffer, v.index) in stored:
                return FINISHED
            if v == (stats.value if stats is not None else Result(c.name, 0, c.place, "f")):
                return FINISHED
            if stats is not None and isinstance(v, Result) and self._source(v.source) == stats.reduce.name:
                return MOMENTS[v.part] if v.index == stats.outer else None
            return None

        made = replace(value, change)
        loads, results = references([made], set())
        return None if _made(stage) & (loads | {self._source(x) for x in results}) else made


def _made(stage: Contraction) -> set[str]:
    """What a product makes before its tail: its elements, moments, and what is stored of them."""
    moments = [] if stage.statistics is None else [stage.statistics.reduce.name]
    return {stage.contract.name, *moments, *(s.buffer.name for s in stage.stores)}
