"""Contractions as CUDA: operands, what becomes of a sum, and which engine computes it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from crucible.emit.engines import asks, boxes, few_sides, launch, pieces, workspace
from crucible.emit.functor import STREAM, Functor, Parts, assemble
from crucible.emit.rows import accumulator, steps
from crucible.emit.writer import Block, Writer, indented, pointer
from crucible.plan import reducers
from crucible.plan.boxes import WindowTile
from crucible.plan.gradients import GradientTile
from crucible.plan.held import by_rows
from crucible.plan.index import Int, Var, below, of_var, product
from crucible.plan.program import Buffer, Phases, unflat
from crucible.plan.stages import Contraction, Pool, Store, Tail
from crucible.plan.value import MOMENTS, Const, Inside, Load, Local, Op, Value, replace, walk


def _decoded(w: Writer, variables: Iterable[Var], flat: str, extents: list[Int], block: Block) -> None:
    """Names for the variables that a flat index is made of."""
    variables = list(variables)
    total = Var(flat, product(extents))
    block.names[total] = flat
    for v, value in zip(variables, unflat(of_var(total), extents)):
        if v.extent != 1:
            block.names[v] = w.factor(value, block)


def _fields(w: Writer, d: Writer, fixed: Iterable[Var], text: str) -> list[tuple[str, str]]:
    """What is decoded beforehand by ``d``, with its names: variables that ``w`` uses, and the sums it set aside."""
    used = [v for v in fixed if any(f"at.{v.name}" in line for line in [*w.top.lines, text])]
    fields = [(v.name, d.int(of_var(v), d.top)) for v in used]
    return fields + [(n, d.int(i, d.top)) for i, n in w.hoisted.items()]


def _operand(parts: Parts, name: str, value: Value, fixed: list[Var], stage: Contraction) -> list[str]:
    """``a_row`` and ``a`` (or ``b_col`` and ``b``): what can be decoded beforehand, and the element."""
    c = stage.contract
    side = "Row" if name == "a" else "Col"
    variable = c.rows if name == "a" else c.cols
    along = c.a_along_k if name == "a" else c.b_along_k
    letter = "m" if name == "a" else "n"
    w = parts.writer({c.depth: "k"})
    w.hoist = frozenset(fixed)
    for v in fixed:
        w.top.names[v] = f"at.{v.name}"
    w.expect([value])
    text = w.value(value, w.top)
    d = parts.writer()
    extents = [v.extent for v in c.batch]
    _decoded(d, c.batch, "z", extents, d.top)
    d.top.names[variable] = letter
    # By kernels that read several elements at a time; of packed operands it is the second that may roll.
    asked = bool(few_sides(stage)) or (stage.packed and name == "b")
    element = _direct(parts, w, value, c.depth if along else variable, c.depth) if asked else ""
    fields = _fields(w, d, fixed, text)
    names = ", ".join(n for n, _ in fields)
    struct = f"{name.upper()}{side}"
    at = "row" if name == "a" else "col"
    member = f"Index {names};" if fields else "Index none;"
    return [
        f"struct {struct} {{ {member} }};",
        f"__device__ __forceinline__ {struct} {name}_{at}(Index z, Index {letter}) const {{",
        *indented(d.top.lines),
        f"  return {{{', '.join(t for _, t in fields) or '0'}}};",
        "}",
        f"__device__ __forceinline__ accum {name}(const {struct}& at, Index k) const {{",
        *indented(w.top.lines),
        f"  return {text};",
        "}",
        *(_from(name, struct, w, element, "Index k") if asked else []),
    ]


def _direct(parts: Parts, w: Writer, value: Value, beside: Var, steady: Var) -> str:
    """The text of an element that is one of memory as it is; nothing where it is none.

    Neighbours along ``beside`` lie at its sides, those along ``steady`` all as far apart.
    """
    if not isinstance(value, Load) or value.dynamic or parts.buffers[value.buffer].dtype != "scalar":
        return ""
    slope = value.index.slope(beside)
    if slope is None or slope.constant != 1 or value.index.slope(steady) is None:
        return ""
    return f"{pointer(value.buffer)}[{w.int(value.index, w.top)}]"


def _from(name: str, struct: str, w: Writer, element: str, given: str) -> list[str]:
    """``a_direct`` and ``a_from`` (or ``b_...``): whether elements are those of memory, and where."""
    return [
        f"static constexpr bool {name}_direct = {str(bool(element)).lower()};  // an element of memory as it is",
        f"__device__ __forceinline__ const scalar* {name}_from(const {struct}& at, {given}) const {{",
        *indented([*w.top.lines, f"return &{element};"] if element else ["return nullptr;"]),
        "}",
    ]


def _placed(
    parts: Parts, name: str, value: Value, which: Var, place: tuple[Var, ...], limits: Sequence[Int],
    batch: tuple[Var, ...],
) -> list[str]:  # fmt: skip
    """``b_at`` and ``b_in`` (or ``a_at`` and ``a_in``): a pixel, decoded once, and the element of a channel there.

    Of a pixel that does not exist the nearest is decoded, so that loading from it does no harm.
    """
    w = parts.writer({which: "channel"})
    fixed = [*batch, *place]
    w.hoist = frozenset(fixed)
    for v in fixed:
        w.top.names[v] = f"at.{v.name}"
    w.expect([value])
    element = ""
    text = w.value(value, w.top)
    if isinstance(value, Load) and parts.buffers[value.buffer].dtype == "scalar" and not value.dynamic:
        element = f"{pointer(value.buffer)}[{w.int(value.index, w.top)}]"
    d = parts.writer()
    _decoded(d, batch, "z", [v.extent for v in batch], d.top)
    checked = [(k, limit) for k, limit in enumerate(limits) if place[k].extent != 1]
    for k, _ in checked:
        d.top.names[place[k]] = f"y{k}"
    fields = _fields(w, d, fixed, text)
    members = "".join(f"Index {n}; " for n, _ in fields)
    struct = f"{name.upper()}At"
    inside = [f"inside(i{k}, {limit})" for k, limit in enumerate(limits)]
    return [
        f"struct {struct} {{ {members}bool inside; }};",
        f"__device__ __forceinline__ {struct} {name}_at(Index z, Index i0, Index i1, Index i2, Index i3) const {{",
        *(f"  const Index y{k} = nearest(i{k}, {limit});" for k, limit in checked),
        *indented(d.top.lines),
        f"  return {{{', '.join([*(t for _, t in fields), ' && '.join(inside)])}}};",
        "}",
        f"__device__ __forceinline__ accum {name}_in(const {struct}& at, Index channel) const {{",
        *indented(w.top.lines),
        f"  return {text};",
        "}",
        *_from(name, struct, w, element, "Index channel"),
    ]


def _dims(name: str, values: Iterable[int]) -> str:
    return f"using {name} = Dims<{', '.join(map(str, values))}>;"


def _window(parts: Parts, stage: Contraction, tile: WindowTile | GradientTile) -> list[str]:
    """The form of a window, and the elements of its tensors by channel and pixel."""
    c = stage.contract
    s = c.sliding
    assert s is not None and stage.source is not None
    for e in (*s.extents, *s.limits):
        parts.need(e)
    form = s.form
    rows = [
        ("Kernel", form.kernel), ("Stride", form.stride), ("Dilation", form.dilation), ("Shift", form.shift),
    ]  # fmt: skip
    lines = [_dims("Box", tile.box)]
    found = boxes(tile) if isinstance(tile, WindowTile) else []
    if len(found) > 1:
        words = ["#if", *["#elif"] * (len(found) - 2), "#else"]
        lines = [t for w, (c, box) in zip(words, found) for t in (f"{w} {c}".rstrip(), _dims("Box", box))]
        lines.append("#endif")
    extents = " : ".join([*(f"d == {k} ? {e}" for k, e in enumerate(s.extents[:-1])), str(s.extents[-1])])
    lines += [
        *(_dims(name, values) for name, values in rows),
        f"static constexpr bool flipped = {str(form.flipped).lower()};",
        f"__host__ __device__ Index extent(int d) const {{ return {extents}; }}",
        f"__host__ __device__ Index groups() const {{ return {c.batch[-1].extent}; }}",
        f"static constexpr Index CHANNELS = {s.channel.extent};",
        "__host__ __device__ Index channels() const { return CHANNELS; }",
        *_placed(parts, "b", stage.source, s.channel, s.position, s.limits, c.batch),
    ]
    if stage.plain is not None:
        lines += _placed(parts, "a", stage.plain, c.rows, s.pixel, s.extents, c.batch)
    return lines


def contraction(stage: Contraction, buffers: Mapping[str, Buffer], comment: Iterable[str]) -> Functor:
    c = stage.contract
    parts = Parts(stage, buffers)
    extents = [v.extent for v in c.batch]
    for v in (c.rows, c.cols, c.depth, *c.batch):
        parts.need(v.extent)
    body = [
        f"static constexpr bool a_along_k = {str(c.a_along_k).lower()}, b_along_k = {str(c.b_along_k).lower()}, "
        f"statistics = {str(stage.statistics is not None).lower()};",
        f"static constexpr int group = {stage.statistics.group if stage.statistics is not None else 0};",
        f"static constexpr bool boxed = {str(isinstance(stage.tile, WindowTile)).lower()};",
        f"__host__ __device__ Index batches() const {{ return {product(extents)}; }}",
        f"__host__ __device__ Index rows() const {{ return {c.rows.extent}; }}",
        f"__host__ __device__ Index cols() const {{ return {c.cols.extent}; }}",
        f"__host__ __device__ Index depth() const {{ return {c.depth.extent}; }}",
        *_operand(parts, "a", stage.a, [*c.batch, c.rows], stage),
        *_operand(parts, "b", stage.b, [*c.batch, c.cols], stage),
        *(_window(parts, stage, stage.tile) if isinstance(stage.tile, (WindowTile, GradientTile)) else []),
    ]
    stats = stage.statistics
    body += _finish(parts, stage)
    if stage.held is not None:
        body += _known(parts, stage)
    if c.phases is not None:
        body += _phases(parts, stage, c.phases)
    if _in_fragments(stage):
        body += _stored(parts, stage)
    if stats is not None:
        t = parts.writer()
        _decoded(t, c.batch, "z", extents, t.top)
        t.top.names[c.rows] = "m"
        t.top.names[stats.tile] = "tile_n"
        where = t.int(stats.index, t.top)
        body += [
            "__device__ __forceinline__ void sink(Index z, Index m, Index tile_n, accum count, accum mean,",
            "                                     accum m2) const {",
            *indented(t.top.lines),
            *([f"  const Index at = {where};"] if stats.parts else []),
            *(f"  {pointer(buffer.name)}[at] = {part};" for part, buffer in stats.parts.items()),
            "}",
        ]
    if stage.tail is not None:
        body += _tail(parts, stage, stage.tail)
    if stage.pool is not None:
        body += _pool(parts, stage, stage.pool)
    boxed = isinstance(stage.tile, WindowTile)
    gradient = isinstance(stage.tile, GradientTile)
    templates = {"window.cuh" if boxed else "window_gradient.cuh" if gradient else "contract.cuh"}
    pair, precise = (stage.tile.pair, stage.tile.precise) if isinstance(stage.tile, WindowTile) else (None, None)
    templates |= {t.template for t in (pair, precise) if t is not None}
    groups = stage.tile.groups if isinstance(stage.tile, GradientTile) else None
    if groups is not None:
        templates.add(groups.template)
    if stage.packed:
        templates.add("contract_wgmma.cuh")
    few = few_sides(stage)
    if few:
        templates.add("contract_few.cuh")
    if stage.pool is not None or stage.tail is not None:
        templates.add("reduce.cuh")
    for size in (stage.splits, stage.box):
        parts.need(size)
    extra = ["packed"] if boxed or stage.packed or few or groups is not None else []
    memory = {"packed": workspace(stage)} if asks(stage) else {}
    if stage.packed:
        extra.append("pieces")
        memory["pieces"] = pieces(stage)
    made = assemble(parts, stage.name, comment, body, launch(stage, STREAM), extra, templates, memory)
    made.columns = pair.instructions if pair is not None else {stage.tile.cols} if stage.packed else set()
    made.tf32 = {precise.columns} if precise is not None else set()
    made.across = {groups.columns} if groups is not None else set()
    if stage.held is not None and pair is not None:
        made.kept = {pair.columns}
        made.templates.add("window_held.cuh")
    return made


def _finish(parts: Parts, stage: Contraction) -> list[str]:
    """What becomes of an element."""
    stats = stage.statistics
    w, name, given = _element(parts, stage)
    for part in _splits_in(stage):
        w.top.names[part] = "split"
    fragments = _in_fragments(stage)
    there = _pixels(w, stage, "" if fragments else "there")
    w.expect(s.value for s in stage.stores)
    if stats is not None:
        w.expect([stats.value])
    for s in stage.stores:
        w.store(s.buffer, s.index, s.value, w.top, there, "to" if fragments else "")
    result = w.value(stats.value, w.top) if stats is not None else "value"
    head = f"__device__ __forceinline__ accum finish{name}{'_to' if fragments else ''}("
    lines = [
        *(["template <class To>"] if fragments else []),
        f"{head}{given}, int split, accum value,",
        f"{' ' * len(head)}{'To& to' if fragments else 'bool there'}) const {{",
        *indented([*_column(stage, w.top.lines), *w.top.lines]),
        f"  return {result};",
        "}",
    ]
    if fragments:
        head = f"__device__ __forceinline__ accum finish{name}("
        passed = given.replace("Index ", "")
        lines += [
            f"{head}{given}, int split, accum value,",
            f"{' ' * len(head)}bool there) const {{",
            "  StoreOne to{there};",
            f"  return finish{name}_to({passed}, split, value, to);",
            "}",
        ]
    return lines


def _known(parts: Parts, stage: Contraction) -> list[str]:
    """The same for a kernel that has many elements of a row: what they have in common, and what becomes of each."""
    c, stats = stage.contract, stage.statistics
    assert stats is not None
    value, common = by_rows(stats.value)
    g, w = parts.writer(), parts.writer()
    _decoded(g, c.batch, "z", [v.extent for v in c.batch], g.top)
    g.top.names[c.rows] = "m"
    g.expect(common)
    fields = [g.value(v, g.top) for v in common]
    w.expect([value])
    text = w.value(value, w.top)
    return [
        f"struct Known {{ accum {', '.join(common.values()) or 'none'}; }};",
        "__device__ __forceinline__ Known known(Index z, Index m) const {",
        *indented(g.top.lines), f"  return {{{', '.join(fields) or '0'}}};", "}",
        "__device__ __forceinline__ accum finish_known(const Known& of, accum value) const {",
        *indented(w.top.lines), f"  return {text};", "}",
    ]  # fmt: skip


def _in_fragments(stage: Contraction) -> bool:
    """Whether a kernel finishes sums where the matrix instructions leave them (kernels/fragments.cuh)."""
    return isinstance(stage.tile, WindowTile) and stage.tile.pair is not None


def _element(parts: Parts, stage: Contraction) -> tuple[Writer, str, str]:
    """A writer that knows an element: by its column, or, that of a phase in a box, by its place, so as not to divide.

    Also what is added to the name of a function of such elements, and its arguments.
    """
    c = stage.contract
    w = parts.writer()
    _decoded(w, c.batch, "z", [v.extent for v in c.batch], w.top)
    w.top.names[c.rows] = "m"
    w.top.names[c.cols] = "n"
    if c.phases is None or not isinstance(stage.tile, WindowTile):
        return w, "", "Index z, Index m, Index n"
    assert c.sliding is not None
    for k, i in enumerate(unflat(of_var(c.cols), c.sliding.extents)):
        if i.atom is not None:
            w.top.names[i.atom] = f"i{k}"
    return w, "_at", "Index z, Index m, Index i0, Index i1, Index i2, Index i3"


def _column(stage: Contraction, lines: list[str]) -> list[str]:
    """The column of an element that is known by its place, where it is wanted: dimensions without a stride in a row."""
    c = stage.contract
    if c.phases is None or not isinstance(stage.tile, WindowTile) or not any(re.search(r"\bn\b", x) for x in lines):
        return []
    assert c.sliding is not None
    e = [f"({x})" for x in c.sliding.extents]
    return [f"const Index n = ((i0 * {e[1]} + i1) * {e[2]} + i2) * {e[3]} + i3;"]


def _pixels(w: Writer, stage: Contraction, known: str) -> str:
    """Names for the pixel of a place and a phase; the text of whether there is an element, where ``known`` says so."""
    phases = stage.contract.phases
    if phases is None:
        return known
    values = [s.value for s in stage.stores] + ([stage.statistics.value] if stage.statistics is not None else [])
    loaded = {v for value in values for v in value.free}
    conditions = [known] if known else []
    for v, value in phases.pixels:
        name, limit = f"at_{v.name}", w.int(v.extent, w.top)
        w.top.lines.append(f"const Index {name} = {w.int(value, w.top)};")
        w.top.names[v] = name
        if below(value, v.extent):
            continue
        conditions.append(f"inside({name}, {limit})")
        if v in loaded:  # of a pixel that does not exist the nearest, so that loading from it does no harm
            w.top.lines.append(f"const Index {v.name} = nearest({name}, {limit});")
            w.top.names[v] = v.name
    if conditions == [known] or not conditions:
        return known
    w.top.lines.append(f"const bool exists = {' && '.join(conditions)};")
    return "exists"


def _phases(parts: Parts, stage: Contraction, phases: Phases) -> list[str]:
    """Which places of a phase are pixels of the output, and which taps it has."""
    w, name, given = _element(parts, stage)
    lines = ["using Phased = void;  // elements are known by their places"] if name else []
    if phases.inside > 1:
        sizes = f"PHASES = {phases.inside}, BESIDE = {phases.beside}"
        lines += ["using Inside = void;  // groups are phases", f"static constexpr int {sizes};"]
    if phases.ragged:
        inside = [w.condition(Inside(value, v.extent), w.top) for v, value in phases.pixels]
        alike = not any(stage.contract.rows in value.variables() for _, value in phases.pixels)
        lines += [
            "using Ragged = void;  // some places of a phase lie outside the output",
            f"static constexpr bool ALIKE = {str(alike).lower()};  // the same of all rows",
            f"__device__ __forceinline__ bool exists{name}({given}) const {{",
            *indented(w.top.lines),
            f"  return {' && '.join(inside)};",
            "}",
        ]
    if phases.taps:
        w = parts.writer({stage.contract.depth: "tap", stage.contract.batch[-1]: "group"})
        there = [w.condition(t, w.top) for t in phases.taps]
        lines += [
            "using Sparse = void;  // a phase has not all the taps",
            "__device__ __forceinline__ bool has(Index group, Index tap) const {",
            *indented(w.top.lines),
            f"  return {' && '.join(there)};",
            "}",
        ]
    return lines


def _stored(parts: Parts, stage: Contraction) -> list[str]:
    """Where elements are stored, for kernels that align stores and join neighbours; those of a phase lie apart."""
    c = stage.contract
    place = "0"
    w = parts.writer()
    if stage.stores and c.phases is None:
        _decoded(w, c.batch, "z", [v.extent for v in c.batch], w.top)
        w.top.names[c.rows] = "m"
        w.top.names[c.cols] = "n"
        buffer = stage.stores[0].buffer
        at = w.int(stage.stores[0].index, w.top)
        place = f"reinterpret_cast<uintptr_t>(&{pointer(buffer.name)}[{at}]) / sizeof({pointer(buffer.name)}[0])"
    pairs = c.phases is None and len(stage.stores) < 2 and all(_beside(s, c.cols) for s in stage.stores)
    return [
        f"static constexpr bool in_pairs = {str(pairs).lower()};  // columns are neighbours in memory",
        f"static constexpr bool reads = {str(_reads(stage)).lower()};  // finish reads what depends on the column",
        "__device__ __forceinline__ uintptr_t stored(Index z, Index m, Index n) const {",
        *indented(w.top.lines),
        f"  return {place};",
        "}",
    ]


def _reads(stage: Contraction) -> bool:
    values = [s.value for s in stage.stores] + ([stage.statistics.value] if stage.statistics is not None else [])
    values += [stage.pool.value] if stage.pool is not None else []
    return any(
        isinstance(v, Load) and (v.dynamic or stage.contract.cols in v.index.variables())
        for value in values for v in walk(value)
    )  # fmt: skip


def _beside(store: Store, cols: Var) -> bool:
    """Whether neighbours among the columns are stored as neighbours in memory."""
    slope = store.index.slope(cols)
    return store.buffer.dtype == "scalar" and slope is not None and slope.constant == 1


def _pool(parts: Parts, stage: Contraction, pool: Pool) -> list[str]:
    """What is pooled, by which windows, and where that goes."""
    c = stage.contract
    row = reducers.TABLE[pool.pooled.reducer]
    w, out = parts.writer(), parts.writer()
    out.structs.add(row.struct)
    for each, cols in ((w, c.cols), (out, pool.cols)):
        _decoded(each, c.batch, "z", [v.extent for v in c.batch], each.top)
        each.top.names[c.rows] = "m"
        each.top.names[cols] = "n"
    w.expect([pool.value])
    element = w.value(pool.value, w.top)
    out.expect(s.value for s in pool.stores)
    for s in pool.stores:
        out.store(s.buffer, s.index, s.value, out.top)
    return [
        _dims("Pool", pool.window),
        f"using Pooling = {row.struct};",
        "__device__ __forceinline__ accum pool_in(Index z, Index m, Index n, accum value) const {",
        *indented(w.top.lines),
        f"  return {element};",
        "}",
        "__device__ __forceinline__ void pool_out(Index z, Index m, Index n, const Pooling& found) const {",
        f"  const accum pooled = found.{row.results[0][1]}();",
        *indented(out.top.lines),
        "}",
    ]


def _tail(parts: Parts, stage: Contraction, tail: Tail) -> list[str]:
    """What becomes of a finished element when the moments of its group are known, and of a tile's part of a row."""
    common: dict[Value, str] = {}
    known = {p.reduce.name: tuple(_of_group(v, common) for v in p.values) for p in tail.partials}
    stores = [Store(s.buffer, s.index, _of_group(s.value, common)) for s in tail.stores]
    g, (w, *_), (out, *_) = parts.writer(), _element(parts, stage), _element(parts, stage)
    g.expect(common)
    fields = [g.value(v, g.top) for v in common]
    if not fields and stage.statistics is not None:  # kernels pass a group's numbers from lane to lane: there are some
        common, fields = {Const(0.0, "f"): "none"}, ["0"]
    w.expect(v for values in known.values() for v in values)
    w.expect(s.value for s in stores)
    structs = accumulator(w, "Tail", [p.reduce for p in tail.partials])
    steps([(p.reduce, known[p.reduce.name]) for p in tail.partials], stores, w, "row", w.top)
    lines: list[str] = []
    if tail.tile is not None:
        out.top.names[tail.tile] = "tile_n"
        lines.append(f"const Index at = {out.int(tail.index, out.top)};")
    for k, p in enumerate(tail.partials):
        results = reducers.TABLE[p.reduce.reducer].results
        lines += [f"{pointer(b.name)}[at] = row.r{k}.{member}();" for b, (_, member) in zip(p.buffers, results)]
    members = f"accum {', '.join(common.values())}; " if common else ""
    return [
        f"struct Group {{ {members}}};",
        "__device__ __forceinline__ Group grouped(accum group_count, accum group_mean, accum group_m2) const {",
        *indented(g.top.lines),
        f"  return {{{', '.join(fields)}}};",
        "}",
        *structs,
        f"static constexpr bool reduces = {str(bool(tail.partials)).lower()};",
        "__device__ __forceinline__ void tail(Index z, Index m, Index n, accum finished, const Group& of,",
        "                                     Tail& row) const {",
        *indented(w.top.lines),
        "}",
        "__device__ __forceinline__ void tail_out(Index z, Index m, Index tile_n, const Tail& row) const {",
        *indented([*out.top.lines, *lines]),
        "}",
    ]


def _of_group(value: Value, common: dict[Value, str]) -> Value:
    """The value with what a group's elements have in common, computed from moments alone, in fields of their own."""

    def change(v: Value) -> Value | None:
        inside = list(walk(v))
        alone = all(x in MOMENTS or isinstance(x, (Const, Op)) for x in inside)
        if v.kind != "f" or not alone or not any(x in MOMENTS for x in inside):
            return None
        return Local(f"of.{common.setdefault(v, f'g{len(common)}')}", "f")

    return replace(value, change)


def _splits_in(stage: Contraction) -> set[Var]:
    return {v for s in stage.stores for v in s.index.variables() if v.name == "split"}
