"""Turn a Program into Stages: which operations share a kernel, and which tensors must go through memory.

Operations are taken in order. A tensor that must be kept is stored by the contraction whose elements it is computed
from, or by the walk over rows whose results it needs; statistics of a contraction's elements are taken in its
epilogue; reductions over the same rows share a walk. What fits nowhere gets a kernel of its own, and why is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from crucible.plan.boxes import WindowTile
from crucible.plan.forms import NO_POOL
from crucible.plan.gradients import GradientTile
from crucible.plan.index import ONE, ZERO, Atom, Int, Var, of_atom, of_var, product, size
from crucible.plan.program import (
    Buffer,
    Contract,
    Extern,
    Index,
    Keep,
    Operation,
    Program,
    Reduce,
    Sliding,
    Tensor,
    flat,
    item_bytes,
    reshaped,
    unflat,
)
from crucible.plan.split import rows_of
from crucible.plan.stages import Call, Contraction, Map, Pass, Pool, Row, Stage, Statistics, Store, read, written
from crucible.plan.value import Fold, Load, Local, Result, Value, replace, walk
from crucible.plan.vectors import choose
from crucible.plan.walks import LAUNCH, Access, across_rows, arrange, traffic
from crucible.plan.ways import Choices, Site, best

# A walk with fewer rows than this leaves most of a GPU idle: long ones are split, and little else is hung on them.
FEW_ROWS = 256
LONG_ROW = 4096
# The type that results are kept in, by kind, and the element type that bytes are counted for.
HOMES = {"f": "accum", "l": "int64", "b": "bool"}
ELEMENT = "float32"

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


@dataclass
class _Seen:
    """An operation with its values written out, and what they refer to."""

    operation: Operation
    values: tuple[Value, ...] = ()
    loads: set[str] = field(default_factory=set)
    results: set[str] = field(default_factory=set)


class Scheduler:
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

    # -- order

    def run(self) -> Plan:
        seen = [self._look(o) for o in self.program.operations]
        roots = {b.name for b in [*self.program.updates, *self.program.outputs] if isinstance(b, Buffer)}
        grads = {b.name for b in self.program.gradients if isinstance(b, Buffer)}
        forward = _needed(seen, roots)
        everything = _needed(seen, roots | grads)
        for s in seen:
            if id(s) in forward:
                self._place(s)
        boundary = self.floor = len(self.stages)
        for s in seen:
            if id(s) in everything and id(s) not in forward:
                self._place(s)
        for stage in self.stages:
            if isinstance(stage, Row):
                arrange(stage, self.program)
        plan = Plan(self.program, self.stages, boundary, reasons=[*self.program.reasons, *self.reasons])
        self._resolve(plan)
        for stage in self.stages:
            if isinstance(stage, (Map, Row)):
                choose(stage, self.program)
        return plan

    def _look(self, operation: Operation) -> _Seen:
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
        return _Seen(operation, values, *_references(values, loads))

    def _var(self, stem: str, extent: Int) -> Int:
        self.counter += 1
        return ZERO if extent == 1 else of_atom(Var(f"{stem}{self.counter}", extent))

    def _fresh(self, stem: str, extent: Int) -> Var:
        self.counter += 1
        return Var(f"{stem}{self.counter}", extent)

    # -- placing

    def _place(self, seen: _Seen) -> None:
        operation = seen.operation
        if isinstance(operation, Extern):
            self._add(Call(self._name("call"), operation, [operation.node.name]))
            for t in operation.results:
                if t is not None and t.buffer is not None:
                    self.made_by[t.buffer.name] = len(self.stages) - 1
        elif isinstance(operation, Contract):
            self._contract(operation, seen)
        elif isinstance(operation, Reduce):
            self._reduce(operation, seen)
        else:
            self._keep(operation, seen)

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

    # -- contractions

    def _contract(self, c: Contract, seen: _Seen) -> None:
        site = self._site(c)
        way = self.choices.way(site) or best(site)
        a, b = seen.values
        stage = Contraction(self._name("contract"), c, a, b, way.tile, packed=way.packed, site=site, nodes=[c.node])
        s = c.sliding
        if isinstance(way.tile, GradientTile):
            assert s is not None and s.plain is not None
            stage.source, stage.plain = s.source(), s.plain()
            each = way.tile.warps_k  # partial sums of a block
            text = f"max(1, min({way.splits}, {_boxes(stage).python()})) * {each}"
            stage.splits = self._size(f"{c.name}_splits", text, way.splits * each)
        elif isinstance(way.tile, WindowTile):
            assert s is not None
            stage.source = s.source()
        elif way.splits > 1:
            parts = (c.depth.extent // 256).python()
            stage.splits = self._size(f"{c.name}_splits", f"max(1, min({way.splits}, {parts}))", way.splits)
        at = self._add(stage)
        if stage.splits == 1:
            self.made_by[c.name] = at
            return
        # Partial sums go to memory; a walk over them adds them up, and what follows hangs on that walk.
        partial = self._buffer(f"{c.name}_parts", (stage.splits, *c.shape), "accum")
        self.made_by[partial.name] = at
        where = flat((of_atom(Var("split", stage.splits)), *c.place), partial.shape)
        stage.stores.append(Store(partial, where, Local("value", "f")))
        outer = tuple(self._fresh("r", s) for s in c.shape)
        inner = (self._fresh("k", stage.splits),)
        total = Reduce(
            f"{c.name}_total", outer, inner, lambda o, i: (partial.load((*i, *o)),), "sum", (), c.node,
            tuple(range(1, len(c.shape) + 1)), c.result,
        )  # fmt: skip
        self.operations[total.name] = total
        self.replaced[c.name] = total.name
        self._reduce(total, _Seen(total, (), {partial.name}, set()))

    def _in_lines(self, load: Load, s: Sliding) -> bool:
        """Whether pixels of a line are neighbours in memory, and channels equally far from each other."""
        buffer = self.program.buffers.get(load.buffer)
        if load.dynamic or buffer is None or buffer.dtype != "scalar":
            return False
        pixel, channel = load.index.slope(s.position[-1]), load.index.slope(s.channel)
        return pixel is not None and pixel.constant == 1 and channel is not None

    def _site(self, c: Contract) -> Site:
        hint = self.program.hint
        rows, cols, depth = (hint(v.extent) for v in (c.rows, c.cols, c.depth))
        batches = prod(hint(v.extent) for v in c.batch)
        s = c.sliding
        if s is None:
            return Site(self.engine, c.rule, rows, cols, depth, batches)
        extents = tuple(hint(e) for e in s.extents)
        channels = hint(s.channel.extent)
        samples = hint(c.batch[0].extent) if len(c.batch) > 1 else 1
        source = s.source() if s.plain is None else None
        return Site(
            self.engine, c.rule, rows, cols, depth, batches, s.form, extents, channels, samples,
            direct=isinstance(source, Load) and self._in_lines(source, s),
            pool=self._pool_of(c), gradient=s.plain is not None,
            phases=1 if c.phases is None else c.phases.inside, beside=1 if c.phases is None else c.phases.beside,
            groups=self._neighbours(c, s, source),
        )  # fmt: skip

    def _neighbours(self, c: Contract, s: Sliding, source: Value | None) -> int:
        """Groups whose channels follow each other in memory, so that several may be taken for one; else 1."""
        group = c.batch[-1]
        if c.phases is not None or not isinstance(source, Load) or not self._in_lines(source, s):
            return 1
        channel, apart = source.index.slope(s.channel), source.index.slope(group)
        beside = channel is not None and apart is not None and apart == channel * s.channel.extent
        return self.program.hint(group.extent) if beside else 1

    def _tiles(self, stage: Contraction) -> Int:
        """Into how many tiles the columns of a contraction are cut."""
        tile = stage.tile
        if not isinstance(tile, WindowTile):
            return (stage.contract.cols.extent + (tile.cols - 1)) // tile.cols
        # Each kernel has boxes of its own: in float32's precision on Hopper, otherwise on Hopper, elsewhere.
        boxes = [_boxes(stage, tile.box if t is None else t.box) for t in (tile.precise, tile.pair)]
        boxes.append(_boxes(stage))
        if len(set(boxes)) == 1:
            return boxes[0]
        given = [b.python() for b in boxes]
        if tile.pair is not None and tile.pair.merged > 1:  # other types take the boxes of other chips
            given[1] = f"{given[1]} if dtype == torch.float32 else {given[2]}"
        text = f"_boxes(dtype, device, {', '.join(given)})"
        return self._size(f"{stage.contract.name}_boxes", text, max(map(self.program.hint, boxes[1:])))

    def _size(self, name: str, text: str, hint: int) -> Int:
        """A size that the host computes."""
        self.program.sizes[name] = text
        self.program.hints[name] = hint
        return size(name)

    def _buffer(self, name: str, shape: Index, dtype: str) -> Buffer:
        buffer = Buffer(name, shape, dtype, "made")
        self.program.buffers[name] = buffer
        return buffer

    def _in_epilogue(self, c: Contract, tensor: Tensor) -> Value | None:
        """The tensor's element at the place of the contraction's, if it is computed from that element alone."""
        if tensor.numel != product(c.shape):
            return None
        return self._at_place(c, tensor.at(reshaped(c.place, c.shape, tensor.shape)))

    def _at_place(self, c: Contract, value: Value) -> Value | None:
        for v in walk(value):
            if isinstance(v, Result) and v.source == c.name and v.index != c.place:
                return None
        return value

    def _contraction_of(self, seen: _Seen) -> tuple[int, Contraction] | None:
        """The contraction that this is computed from, if everything else was there before it."""
        best: tuple[int, Contraction] | None = None
        for name in seen.results:
            at = self.made_by.get(self._source(name), -1)
            if at >= self.floor and isinstance(self.stages[at], Contraction) and self._source(name) == name:
                stage = self.stages[at]
                assert isinstance(stage, Contraction)
                # What the stage itself writes is there only after it: other results of it, and its stores.
                others = {x for x in seen.results if self.made_by[self._source(x)] == at} - {name}
                others |= {b for b in seen.loads if self.made_by.get(b, -1) == at}
                if not others and self._latest(seen.loads, seen.results, but=at) < at:
                    best = at, stage
        return best

    def _contraction_with(self, tensor: Tensor) -> tuple[int, Contraction] | None:
        """The contraction that stores this."""
        at = -1 if tensor.buffer is None else self.made_by.get(tensor.buffer.name, -1)
        if at < self.floor:
            return None
        stage = self.stages[at]
        return (at, stage) if isinstance(stage, Contraction) else None

    # -- reductions

    def _reduce(self, r: Reduce, seen: _Seen) -> None:
        if r.reducer == "moments" and self._statistics(r, seen):
            return
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

    def _row_stage(self, r: Reduce, seen: _Seen, rows: Sequence[Int], inner: Index, lanes: int, split: bool) -> None:
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
        self, r: Reduce, seen: _Seen, rows: Sequence[Int], inner: Index, lanes: int, split: bool
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

    def _statistics(self, r: Reduce, seen: _Seen) -> bool:
        """Take the moments of a contraction's elements in its epilogue, tile by tile; a walk joins the tiles."""
        found = self._contraction_of(seen) or self._contraction_with(r.source)
        if found is None:
            return False
        at, stage = found
        c = stage.contract
        if stage.statistics is not None or stage.splits != 1 or r.source.numel != product(c.shape):
            return False
        stored = [s.value for s in stage.stores if s.buffer is r.source.buffer]
        value = stored[0] if stored else self._in_epilogue(c, r.source)
        if value is None:
            return False
        if c.rule != "conv" or len(c.shape) < 3:
            return self._group_statistics(r, at, stage, value)
        # The outer index in terms of (sample, channel): pixels must not matter.
        sample, channel = self._fresh("s", c.shape[0]), self._fresh("c", c.shape[1])
        pixels = tuple(self._fresh("p", s) for s in c.shape[2:])
        full = reshaped(tuple(of_var(v) for v in (sample, channel, *pixels)), c.shape, r.source.shape)
        outer = [full[d] for d in r.kept]
        variables = set().union(*(o.variables() for o in outer)) if outer else set()
        if variables & set(pixels) or (sample in variables and len(c.batch) == 1):
            return False
        samples = c.shape[0] if len(c.batch) == 2 else ONE
        tiles = self._tiles(stage)
        split = rows_of(outer, (sample, channel))
        if split is None:
            return False
        inside = [s for s in split.inner if not (s is sample and len(c.batch) == 1)]
        phases, number = (1, ZERO) if c.phases is None else (c.phases.count, c.phases.number)

        def ordered(s: Int, ch: Int, part: Int) -> Index:
            """So that what is joined lies together: one channel of all samples, or channels of one sample."""
            return (ch, s, part) if inside == [sample] else (s, ch, part)

        shape = ordered(samples, c.shape[1], tiles * phases)
        count, mean, m2 = (self._buffer(f"{r.name}_tile_{f}", shape, "accum") for f in ("count", "mean", "m2"))
        tile = self._fresh("tile", tiles)
        parts = tile if c.phases is None else self._fresh("part", tiles * phases)
        part = number * tiles + of_var(tile)
        place = flat(ordered(c.place[0] if len(c.batch) == 2 else ZERO, c.place[1], part), shape)
        stage.statistics = Statistics(r, value, count, mean, m2, place, tile)
        stage.nodes.append(r.node)
        for b in (count, mean, m2):
            self.made_by[b.name] = at
        inner_vars = (*split.inner_vars(inside), parts)

        def body(o: Index, i: Index) -> tuple[Value, ...]:
            s, ch = split.index(o, dict(zip(inside, i)), (sample, channel))
            where = ordered(s if len(c.batch) == 2 else ZERO, ch, i[-1])
            return count.load(where), mean.load(where), m2.load(where)

        joined = Reduce(r.name, r.outer, inner_vars, body, "moments_of", (), r.node, r.kept, r.source)
        self.operations[r.name] = joined
        rows = [v.extent for v in r.outer if v.extent != 1]
        extents = tuple(v.extent for v in inner_vars)
        length = self.program.hint(product(extents))
        self._row_stage(joined, _Seen(joined, (), {b.name for b in (count, mean, m2)}, set()), rows, extents,
                        32 if length <= 1024 else 256, False)  # fmt: skip
        return True

    def _group_statistics(self, r: Reduce, at: int, stage: Contraction, value: Value) -> bool:
        """Moments of groups of neighbouring columns: each lies within a tile, so nothing is left to join."""
        c = stage.contract
        index = tuple(self._fresh("d", s) for s in c.shape)
        full = reshaped(tuple(of_var(v) for v in index), c.shape, r.source.shape)
        split = rows_of([full[d] for d in r.kept], index)
        if split is None or c.place[-1] != of_var(c.cols) or split.inner != [index[-1]]:
            return False
        group = split.extent(index[-1]).constant
        if group is None or group < 2 or group & (group - 1) or stage.tile.cols % group:
            return False
        shape = r.outer_shape
        count, mean, m2 = (self._buffer(f"{r.name}_{f}", shape, "accum") for f in ("count", "mean", "m2"))
        block = self._fresh("block", c.cols.extent // group)
        # The outer index, with the last part of the place replaced by the group's number.
        at_place: dict[Atom, Int] = dict(zip(index, (*c.place[:-1], of_var(block) * group)))
        outer = [full[d].substitute(at_place) for d in r.kept]
        stage.statistics = Statistics(r, value, count, mean, m2, flat(outer, shape), block, group)
        stage.nodes.append(r.node)
        self.made_by[r.name] = at
        for part, b in enumerate((mean, m2, count)):
            self.made_by[b.name] = at
            self.homes[f"{r.name}/{part}"] = b
        return True

    # -- kept tensors

    def _keep(self, keep: Keep, seen: _Seen) -> None:
        if self._store_in_epilogue(keep, seen) or self._pool(keep, seen) or self._store_in_walk(keep, seen):
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

    def _store_in_epilogue(self, keep: Keep, seen: _Seen) -> bool:
        found = self._contraction_of(seen)
        if found is None:
            return False
        at, stage = found
        value = self._in_epilogue(stage.contract, keep.tensor)
        if value is None:
            return False
        where = flat(stage.contract.place, stage.contract.shape)
        stage.stores.append(Store(keep.buffer, where, value))
        stage.nodes.extend(keep.tensor.nodes)
        self.made_by[keep.buffer.name] = at
        return True

    def _pool_of(self, c: Contract) -> tuple[int, ...]:
        """The windows, in the form's dimensions, by which a contraction's pixels are pooled when they are stored."""
        for o in self.program.operations:
            if isinstance(o, Keep) and c.name in o.tensor.results:
                found = _windows(c, o.tensor)
                if found is not None:
                    return found
        return NO_POOL

    def _pool(self, keep: Keep, seen: _Seen) -> bool:
        """Pool a contraction's elements in its epilogue: a box has whole windows."""
        found = self._contraction_of(seen)
        if found is None:
            return False
        at, stage = found
        c, tile, tensor, pooled = stage.contract, stage.tile, keep.tensor, keep.tensor.pooled
        window = _windows(c, tensor)
        if window is None or pooled is None or c.sliding is None:
            return False
        if not isinstance(tile, WindowTile) or not tile.divided(window):
            return False
        if stage.pool is not None and stage.pool.pooled is not pooled:
            return False
        value = self._in_epilogue(c, pooled.source)
        if value is None:
            return False
        extents = tuple(e // w for e, w in zip(c.sliding.extents, window))
        spatial = extents[4 - len(c.shape[2:]) :]
        cols = self._fresh("w", product(extents)) if stage.pool is None else stage.pool.cols
        sample, rest = c.place[0], of_var(cols)
        if len(c.batch) == 1:  # samples are pixels too
            sample, rest = rest // product(spatial), rest % product(spatial)
        where = (sample * c.shape[1] + c.place[1]) * product(spatial) + rest
        # The stored value, with what is pooled at hand.
        index = reshaped((sample, c.place[1], *unflat(rest, spatial)), (*c.shape[:2], *spatial), tensor.shape)
        own = pooled.tensor.element(index)
        stored = replace(tensor.at(index), lambda v: Local("pooled", "f") if v == own else None)
        if any(isinstance(v, (Result, Fold)) for v in walk(stored)):
            return False
        if stage.pool is None:
            stage.pool = Pool(window, pooled, value, cols)
        stage.pool.stores.append(Store(keep.buffer, where, stored))
        stage.nodes.extend(tensor.nodes)
        self.made_by[keep.buffer.name] = at
        return True

    def _store_in_walk(self, keep: Keep, seen: _Seen) -> bool:
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

    def _hang_on(self, stage: Row, keep: Keep, seen: _Seen) -> bool:
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
                loads, results = _references(values, set())
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


def _boxes(stage: Contraction, box: Sequence[int] | None = None) -> Int:
    """How many boxes the pixels of a window are cut into."""
    s, tile = stage.contract.sliding, stage.tile
    assert s is not None and isinstance(tile, (WindowTile, GradientTile))
    return product([(e + (b - 1)) // b for e, b in zip(s.extents, tile.box if box is None else box)])


def _windows(c: Contract, tensor: Tensor) -> tuple[int, ...] | None:
    """The windows of a pool over a contraction's pixels, in its form's dimensions; none where it is no such pool."""
    pooled = tensor.pooled
    if pooled is None or c.sliding is None or c.phases is not None:
        return None
    shape, kernel = pooled.source.shape, pooled.kernel
    lead = len(shape) - len(kernel)
    long = [(e, k) for e, k in zip(shape[lead:], kernel) if e != 1 or k != 1]
    if lead != 2 or shape[:2] != c.shape[:2] or [e for e, _ in long] != [e for e in c.shape[2:] if e != 1]:
        return None
    sizes = iter(long)
    spatial = tuple(1 if e == 1 else next(sizes)[1] for e in c.shape[2:])
    return (*[1] * (4 - len(spatial)), *spatial)


def _steps_by_one(index: Int, v: Var) -> bool:
    return v.extent != 1 and index.substitute({v: of_atom(v) + 1}) - index == 1


def _references(values: Iterable[Value], loads: set[str]) -> tuple[set[str], set[str]]:
    results: set[str] = set()
    seen: set[Value] = set()
    for value in values:
        for v in walk(value, seen):
            if isinstance(v, Load):
                loads.add(v.buffer)
            elif isinstance(v, Result):
                results.add(v.source)
    return loads, results


def _needed(seen: list[_Seen], roots: set[str]) -> set[int]:
    """The operations that these buffers are computed by, directly or not."""
    buffers, results = set(roots), set()
    needed: set[int] = set()
    for s in reversed(seen):
        o = s.operation
        if isinstance(o, Keep):
            wanted = o.buffer.name in buffers
        elif isinstance(o, Extern):
            wanted = any(t is not None and t.buffer is not None and t.buffer.name in buffers for t in o.results)
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
    plan.stages = [*_small_last(plan.forward_stages), *plan.backward_stages]
    have = {b.name for b in program.buffers.values() if b.role != "made" and b.role != "tangent"}
    have |= _written(plan.forward_stages)
    plan.saved = sorted(_read(plan.backward_stages) & have)
    return plan


def _small_last(stages: list[Stage]) -> list[Stage]:
    """A map of a few elements that no stage waits for comes last: launched first it would keep the others waiting."""

    def small(stage: Stage) -> bool:
        count = stage.element.extent.constant if isinstance(stage, Map) else None
        others = (s for s in stages if s is not stage)
        return count is not None and count <= SMALL_MAP and not _written([stage]) & _read(others)

    late = [s for s in stages if small(s)]
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
