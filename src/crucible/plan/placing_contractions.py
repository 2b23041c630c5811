"""Contractions: the tile of each, and what its epilogue takes over: stores, statistics of its elements, pooling."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from crucible.plan.boxes import WindowTile
from crucible.plan.forms import NO_POOL
from crucible.plan.gradients import GradientTile
from crucible.plan.hopper import PAIR_ROWS, SAMPLES, joint_of, tile_cycles
from crucible.plan.index import ONE, ZERO, Atom, Int, Var, of_atom, of_var, product
from crucible.plan.placing import Seen
from crucible.plan.placing_rows import Rows
from crucible.plan.program import Contract, Index, Keep, Reduce, Sliding, Tensor, flat, reshaped, unflat
from crucible.plan.split import rows_of
from crucible.plan.stages import Contraction, Pool, Statistics, Store
from crucible.plan.tiles import PROCESSORS
from crucible.plan.value import Fold, Load, Local, Result, Value, replace, walk
from crucible.plan.ways import Site, best


class Contractions(Rows):
    """Places contractions, and in their epilogues what is computed from their elements."""

    def _contract(self, c: Contract, seen: Seen) -> None:
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
            stage.box = self._box(stage, way.tile)
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
        self._reduce(total, Seen(total, (), {partial.name}, set()))

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

    def _box(self, stage: Contraction, tile: WindowTile) -> Int:
        """Which of Hopper's boxes is taken: those of the fewest cycles at the sizes at hand, by the cost model."""
        c, pair = stage.contract, tile.pair
        if pair is None or not pair.narrower:
            return ZERO
        assert c.sliding is not None
        form, channels = c.sliding.form, self.program.hint(c.sliding.channel.extent)
        samples = c.batch[0].extent if len(c.batch) > 1 else ONE
        kinds = self.program.hint(c.batch[-1].extent) // pair.beside * -(-self.program.hint(c.rows.extent) // PAIR_ROWS)
        given = [str(max(1, PROCESSORS // kinds))]
        for p in (pair, *pair.narrower):
            together = p.boxes if p.join == SAMPLES else 1
            tiles = _boxes(stage, joint_of(form, p).both) * ((samples + (together - 1)) // together)
            given.append(f"({round(tile_cycles(form, p, channels))}, {tiles.python()})")
        return self._size(f"{c.name}_box", f"_box(dtype, device, {', '.join(given)})", 0)

    def _tiles(self, stage: Contraction) -> Int:
        """Into how many tiles the columns of a contraction are cut."""
        tile = stage.tile
        if not isinstance(tile, WindowTile):
            return (stage.contract.cols.extent + (tile.cols - 1)) // tile.cols
        # Each kernel has boxes of its own: in float32's precision on Hopper, otherwise on Hopper, elsewhere.
        boxes = [_boxes(stage, tile.box if t is None else t.box) for t in (tile.precise, tile.pair)]
        boxes.append(_boxes(stage))
        narrow = [] if tile.pair is None else [_boxes(stage, t.box) for t in tile.pair.narrower]
        if len({*boxes, *narrow}) == 1:
            return boxes[0]
        given = [b.python() for b in boxes]
        if narrow:
            given[1] = f"({', '.join([given[1], *(b.python() for b in narrow)])})[{stage.box.python()}]"
        if tile.pair is not None and tile.pair.merged > 1:  # other types take the boxes of other chips
            given[1] = f"{given[1]} if dtype == torch.float32 else {given[2]}"
        text = f"_boxes(dtype, device, {', '.join(given)})"
        return self._size(f"{stage.contract.name}_boxes", text, max(map(self.program.hint, boxes[1:])))

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

    def _contraction_of(self, seen: Seen) -> tuple[int, Contraction] | None:
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

    def _statistics(self, r: Reduce, seen: Seen) -> bool:
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
        stage.statistics = Statistics(r, value, {"count": count, "mean": mean, "m2": m2}, place, tile)
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
        self._row_stage(joined, Seen(joined, (), {b.name for b in (count, mean, m2)}, set()), rows, extents,
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
        parts = {"mean": mean, "m2": m2, "count": count}
        own = tuple(full[d].substitute(dict(zip(index, c.place))) for d in r.kept)
        stage.statistics = Statistics(r, value, parts, flat(outer, shape), block, group, own)
        stage.nodes.append(r.node)
        self.made_by[r.name] = at
        for part, b in enumerate(parts.values()):
            self.made_by[b.name] = at
            self.homes[f"{r.name}/{part}"] = b
        return True

    def _store_in_epilogue(self, keep: Keep, seen: Seen) -> bool:
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

    def _pool(self, keep: Keep, seen: Seen) -> bool:
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
