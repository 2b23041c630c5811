"""Stages as CUDA: a functor for each, and a function that launches it. Kernel bodies are in ``kernels/*.cuh``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from crucible.emit.engines import asks, boxes, few_sides, launch, workspace
from crucible.emit.vectors import Body, Dealing, Loops, begins, distance
from crucible.emit.writer import TYPES, Block, Writer, indented, pointer
from crucible.plan import reducers
from crucible.plan.boxes import GradientTile, WindowTile
from crucible.plan.index import ZERO, Int, Var, below, of_atom, product
from crucible.plan.kept import Keeping, keeping
from crucible.plan.program import STORAGE, Buffer, Phases, unflat
from crucible.plan.schedule import written
from crucible.plan.stages import Contraction, Map, Pass, Pool, Row, Stage, Store
from crucible.plan.value import Inside, Load, Value, walk
from crucible.plan.vectors import Vectors, as_pass, by_parts, joined, vectors


@dataclass
class Functor:
    """The text of a stage's functor and launcher, and the arguments that the launcher takes, in order."""

    name: str
    text: str
    pointers: list[str]
    sizes: list[str]
    extra: list[str]  # "parts", "splits", "packed": further arguments of the launcher
    launcher: str
    functions: set[str] = field(default_factory=set)
    structs: set[str] = field(default_factory=set)
    templates: set[str] = field(default_factory=set)
    columns: set[int] = field(default_factory=set)  # of Hopper's matrix instructions
    tf32: set[int] = field(default_factory=set)  # the same, of those that are needed in kind Tf32 alone
    asks: bool = False  # whether bytes_NAME(sizes) says how much memory `packed` must have


class _Parts:
    """Collects the member functions of a functor and what they need."""

    def __init__(self, stage: Stage, buffers: Mapping[str, Buffer], later: frozenset[str] = frozenset()) -> None:
        self.stage = stage
        self.buffers = buffers
        self.last = frozenset(buffers) - later
        self.writers: list[Writer] = []
        self.sizes: set[str] = set()
        self.written = frozenset(b.name for b in written(stage))

    def writer(self, fields: Mapping[object, str] | None = None) -> Writer:
        made = Writer(self.buffers, fields, self.written)
        self.writers.append(made)
        return made

    def extent(self, value: Int) -> str:
        """A size as text, on the host or the device."""
        w = self.writer()
        text = w.int(value, w.top)
        assert not w.top.lines or value.sizes(), value
        if w.top.lines:
            return str(value)  # divisions written in place
        return text

    def once(self, places: Int) -> frozenset[str]:
        """Buffers that later stages do not read, with an element for each of so many places: all are met once."""
        return frozenset(b for b in self.last if self.buffers[b].numel == places)

    def need(self, value: Int) -> None:
        self.sizes |= {s.name for s in value.sizes()}

    def members(self) -> tuple[list[str], list[str], list[str]]:
        """Declarations, pointers and sizes."""
        out = self.written
        loads = sorted(set().union(*(w.loads for w in self.writers)) - out) if self.writers else []
        sizes = sorted(self.sizes.union(*(w.sizes for w in self.writers)))
        lines = [f"const {STORAGE[self.buffers[b].dtype]}* __restrict__ {pointer(b)};" for b in loads]
        lines += [f"{STORAGE[self.buffers[b].dtype]}* __restrict__ {pointer(b)};" for b in sorted(out)]
        if sizes:
            lines.append(f"Index {', '.join(sizes)};")
        return lines, [*loads, *sorted(out)], sizes

    def used(self) -> tuple[set[str], set[str]]:
        return (
            set().union(*(w.functions for w in self.writers)),
            set().union(*(w.structs for w in self.writers)),
        )


def _plain(v: Var) -> Int:
    return ZERO if v.extent == 1 else of_atom(v)


def functor(
    stage: Stage, buffers: Mapping[str, Buffer], comment: Iterable[str], later: frozenset[str] = frozenset()
) -> Functor:
    """The functor of a stage that is not torch's; ``later``: what stages after it read."""
    if isinstance(stage, Map):
        return _map(stage, _Parts(stage, buffers, later), comment)
    if isinstance(stage, Row):
        return _row(stage, _Parts(stage, buffers, later), comment)
    assert isinstance(stage, Contraction)
    return _contraction(stage, buffers, comment)


def _assemble(
    parts: _Parts,
    name: str,
    comment: Iterable[str],
    body: list[str],
    launch: str,
    extra: list[str],
    templates: set[str],
    memory: str = "",
) -> Functor:
    members, pointers, sizes = parts.members()
    buffers = parts.buffers
    lines = [f"// {c}" for c in comment]
    lines += [f"struct {name} {{", *indented(members), "", *indented(body), "};"]
    arguments = [f"uint64_t {pointer(b)}" for b in pointers] + [f"int64_t {s}" for s in sizes]
    arguments += [{"parts": "uint64_t parts", "splits": "int splits", "packed": "uint64_t packed"}[e] for e in extra]
    arguments.append("uint64_t stream")
    fill = []
    for b in pointers:
        const = "const " if b not in parts.written else ""
        fill.append(f"reinterpret_cast<{const}{STORAGE[buffers[b].dtype]}*>({pointer(b)})")
    fill += [f"static_cast<Index>({s})" for s in sizes]
    lines += [
        "",
        f"void run_{name}({', '.join(arguments)}) {{",
        f"  const {name} stage{{{', '.join(fill)}}};",
        *indented(launch.splitlines()),
        "}",
    ]
    if memory:
        nothing = ["nullptr"] * len(pointers) + [f"static_cast<Index>({s})" for s in sizes]
        lines += [
            "",
            f"int64_t bytes_{name}({', '.join(f'int64_t {s}' for s in sizes)}) {{",
            f"  const {name} stage{{{', '.join(nothing)}}};",
            *indented(memory.splitlines()),
            "}",
        ]
    functions, structs = parts.used()
    made = Functor(
        name, "\n".join(_wrapped(lines)), pointers, sizes, extra, f"run_{name}", functions, structs, templates
    )
    made.asks = bool(memory)
    return made


def _wrapped(lines: list[str]) -> list[str]:
    return [line.rstrip() for line in lines]


# Lines of a loop's body up to which it is unrolled: where it stores, and where it only sums.
SHORT, SHORT_REDUCTION = 40, 20
STREAM = "reinterpret_cast<cudaStream_t>(stream)"


def _map(stage: Map, parts: _Parts, comment: Iterable[str]) -> Functor:
    parts.need(stage.element.extent)
    v = vectors(as_pass(stage)) if stage.several else None
    body = [
        f"static constexpr bool in_vectors = {str(v is not None).lower()};",
        f"__host__ __device__ Index count() const {{ return {stage.element.extent}; }}",
    ]
    if v is not None:
        body += _map_vectors(parts, v)
    else:
        w = parts.writer({stage.element: "i"})
        w.expect(s.value for s in stage.stores)
        for s in stage.stores:
            w.store(s.buffer, s.index, s.value, w.top)
        body += ["__device__ __forceinline__ void operator()(Index i) const {", *indented(w.top.lines), "}"]
    launch = f'check(launch_map(stage, {STREAM}), "{stage.name}");'
    return _assemble(parts, stage.name, comment, body, launch, [], {"map.cuh"})


def _map_vectors(parts: _Parts, v: Vectors) -> list[str]:
    """Which elements go by vectors, and a thread's."""
    w, at = parts.writer(), parts.writer()
    _expect(w, [v])
    far = distance(at, v, list(begins(at, v, at.top).values()), at.top)
    threads = Dealing("threads.vector()", "MAP_THREADS", "threads.turn()", "threads.first()", "threads.step()")
    made = Loops(w, v, w.top, w.top, threads, "i", parts.once(v.place.extent))
    lines = made.text(partial(_element_of, w, 0, "", None), lambda _: False)
    return [
        "__host__ __device__ Stretch places() const {",
        *indented(at.top.lines), f"  return stretch(0, count(), {far});", "}",
        "__device__ __forceinline__ void walk(const MapThreads& threads, const Stretch& run) const {",
        *indented([*w.top.lines, *lines]), "}",
    ]  # fmt: skip


def _expect(w: Writer, several: Iterable[Vectors]) -> None:
    for v in several:
        for p, also in ((v.single, v.also_single), (v.several, v.also_several)):
            w.expect(x for _, values in p.reduces for x in values)
            w.expect(s.value for s in p.stores)
            w.expect(also)


def _row(stage: Row, parts: _Parts, comment: Iterable[str]) -> Functor:
    parts.need(stage.row.extent)
    head = [f"__host__ __device__ Index rows() const {{ return {stage.row.extent}; }}"]
    if stage.sliced:
        return _sliced_row(stage, parts, head, comment)
    return _split_row(stage, parts, head, comment) if stage.split else _whole_row(stage, parts, head, comment)


def _accumulator(parts: _Parts, w: Writer, name: str, stage: Row, number: int) -> list[str]:
    """A struct of the reductions of one walk."""
    reduces = stage.passes[number].reduces
    structs = [reducers.TABLE[r.reducer].struct for r, _ in reduces]
    w.structs.update(structs)
    lines = [f"struct {name} {{"]
    lines += [f"  {s} r{k};  // {r.node}" for k, ((r, _), s) in enumerate(zip(reduces, structs))]
    joins = " ".join(f"r{k}.join(b.r{k});" for k in range(len(structs)))
    lines += [f"  __device__ __forceinline__ void join(const {name}& b) {{ {joins} }}", "};"]
    return lines


def _steps(w: Writer, p: Pass, acc: str, block: Block) -> None:
    """The body of one walk: reductions take their elements in, then stores."""
    for k, (_, values) in enumerate(p.reduces):
        args = [w.value(v, block) for v in values]
        block.lines.append(f"{acc}.r{k}.step({', '.join(args)});")
    for s in p.stores:
        w.store(s.buffer, s.index, s.value, block)


def _results(w: Writer, stage: Row, number: int, acc: str, wanted: set[str], block: Block) -> None:
    for k, (r, _) in enumerate(stage.passes[number].reduces):
        for part, (kind, member) in enumerate(reducers.TABLE[r.reducer].results):
            name = f"{r.name}_{part}"
            if name in wanted:
                block.lines.append(f"const {TYPES[kind]} {name} = {acc}.r{k}.{member}();")


def _locals_of(stage: Row) -> set[str]:
    from crucible.plan.value import Local

    values: list[Value] = [s.value for p in stage.passes for s in p.stores] + [s.value for _, s in stage.finals]
    values += [v for p in stage.passes for _, vs in p.reduces for v in vs]
    return {v.name for value in values for v in walk(value) if isinstance(v, Local)}


def _finals(w: Writer, stage: Row, block: Block, ready: int, lanes: int) -> None:
    stores = [s for n, s in stage.finals if n == ready]
    if not stores:
        return
    inner = block if lanes == 1 else Block(block, mask=True)
    for s in stores:
        w.store(s.buffer, s.index, s.value, inner)
    if inner is not block:
        block.lines.extend(["if (lanes.leads()) {", *indented(inner.lines), "}"])


def _whole_row(stage: Row, parts: _Parts, head: list[str], comment: Iterable[str]) -> Functor:
    w = parts.writer({stage.row: "row"})
    structs = _walks(stage, w, parts, len(stage.passes))
    top = w.top
    body = [
        *head, *structs, "template <class L>",
        "__device__ __forceinline__ void operator()(const L& lanes, Index row) const {", *indented(top.lines), "}",
    ]  # fmt: skip
    kept = keeping(stage)
    if kept is not None:
        k = parts.writer({stage.row: "row"})
        _walks(kept.stage, k, parts, len(stage.passes), kept)
        extent = stage.passes[0].inner.extent
        parts.need(extent)
        numbers = f"{len(kept.names)} * static_cast<int64_t>({extent})"
        body += [
            f"__host__ __device__ int64_t kept() const {{ return {numbers}; }}",
            "template <class L>",
            "__device__ __forceinline__ void keeping(const L& lanes, Index row, accum* kept) const {",
            *indented(k.top.lines), "}",
        ]  # fmt: skip
    rows = "launch_rows" if kept is None else "launch_keeping_rows"
    launch = f'check({rows}<{stage.lanes}>(stage, {STREAM}), "{stage.name}");'
    return _assemble(parts, stage.name, comment, body, launch, [], {"row.cuh", "reduce.cuh"})


def _walks(stage: Row, w: Writer, parts: _Parts, count: int, kept: Keeping | None = None) -> list[str]:
    """The first walks of a row, and what is stored after each; returns their structs."""
    passes = stage.passes[:count]
    several = _several(passes, kept)
    single = [_Singles.of(p, kept.values if kept and n == 0 else ()) for n, p in enumerate(passes)]
    _expect(w, (v for v in several if v is not None))
    for each in (s for s, found in zip(single, several) if found is None):
        each.expect(w)
    w.expect(s.value for n, s in stage.finals if n <= count)
    wanted = _locals_of(stage)
    structs: list[str] = []
    top = w.top
    for number, p in enumerate(passes):
        acc = f"a{number}"
        if p.reduces:
            structs += _accumulator(parts, w, f"Acc{number}", stage, number)
            top.lines.append(f"Acc{number} {acc};")
        v = several[number]
        if v is not None:
            keeps = kept if kept is not None and p.inner == kept.stage.passes[0].inner else None
            body = partial(_element_of, w, number, acc, keeps)
            again = {b for other in several[number + 1 :] if other is not None for b, _ in other.loads}
            once = parts.once(stage.row.extent * p.inner.extent) - again
            top.lines += _vector_loops(w, v, body, once, w.int(p.length, top))
        else:
            keeps = kept if kept is not None and p.inner == kept.stage.passes[0].inner else None
            body = partial(_element_of, w, number, acc, keeps)
            top.lines += single[number].text(w, body, "", w.int(p.length, top))
        if p.reduces:
            if stage.lanes > 1:
                top.lines.append(f"lanes.join({acc});")
            _results(w, stage, number, acc, wanted, top)
        _finals(w, stage, top, number + 1, stage.lanes)
    return structs


def _several(passes: Sequence[Pass], kept: Keeping | None) -> list[Vectors | None]:
    """The walks that take vectors. Those that share what is kept meet the same elements, so they do alike."""
    found = [
        vectors(p, kept.values if kept is not None and n == 0 else ()) if p.several else None
        for n, p in enumerate(passes)
    ]
    if kept is None:
        return found
    sharing = [n for n, p in enumerate(passes) if p.inner == kept.stage.passes[0].inner]
    alike = [v for n in sharing if (v := found[n]) is not None]
    together = iter(joined(alike)) if len(alike) == len(sharing) else None
    for n in sharing:
        found[n] = next(together) if together is not None else None
    return found


def _element_of(
    w: Writer, number: int, acc: str, kept: Keeping | None, p: Pass, values: Sequence[Value], block: Block, where: str
) -> None:
    """What a walk does with an element; ``where`` the row keeps something of it."""
    names = kept.names if kept is not None else ()
    places = [f"kept[{where}]" if k == 0 else f"kept[{k} * ({p.inner.extent}) + {where}]" for k in range(len(names))]
    if number > 0:
        block.lines += [f"const accum {name} = {place};" for name, place in zip(names, places)]
    _steps(w, p, acc, block)
    if number == 0 and kept is not None:
        texts = [w.value(v, block) for v in values]
        block.lines += [f"{place} = {text};" for place, text in zip(places, texts)]


def _sliced_row(stage: Row, parts: _Parts, head: list[str], comment: Iterable[str]) -> Functor:
    """Reductions (of partial results) in a first launch; the last walk in another, in the order of memory."""
    *before, last = stage.passes
    w = parts.writer({stage.row: "row"})
    structs = _walks(stage, w, parts, len(before))
    kept = [n for n, p in enumerate(before) if p.reduces]
    f = parts.writer({stage.row: "row"})
    v = vectors(last) if last.several else None
    single = _Singles.of(last)
    single.expect(f) if v is None else _expect(f, [v])
    found = Block(f.top)
    for number in kept:
        found.lines.append(f"const Acc{number}& a{number} = found.a{number};")
        _results(f, stage, number, f"a{number}", _locals_of(stage), found)
    if v is not None:
        if v.part is not None:
            f.top.names[v.part] = "part"
        # What depends on results comes after elements have been asked for.
        once = parts.once(stage.row.extent * last.inner.extent)
        made = Loops(f, v, f.top, Block(f.top, mask=True), SLICE_LANES, _place(v), once, found.lines)
        loop = [made.stretch("from", "to")]
        loop += made.text(partial(_element_of, f, len(before), "", None), partial(_short, last))
    else:
        f.top.lines += found.lines
        loop = single.text(f, partial(_element_of, f, len(before), "", None), "from", "to", known=True)
    times = 1 if last.by is None else last.inner.extent // last.by
    for value in (last.length, *([times] if isinstance(times, Int) else [])):
        parts.need(value)
    body = [
        *head,
        f"__host__ __device__ int64_t length() const {{ return {last.length}; }}",
        f"__host__ __device__ Index repeats() const {{ return {times}; }}",
        *structs,
        f"struct Found {{ {' '.join(f'Acc{n} a{n};' for n in kept)} }};",
        "template <class L>",
        "__device__ __forceinline__ Found reduce(const L& lanes, Index row) const {",
        *indented(w.top.lines), f"  return {{{', '.join(f'a{n}' for n in kept)}}};", "}",
        "template <class L>",
        "__device__ __forceinline__ void walk(const L& lanes, Index row, Index part, int64_t from, int64_t to,",
        "                                     const Found& found) const {",
        *indented(f.top.lines), *indented(loop), "}",
    ]  # fmt: skip
    given = f"stage, reinterpret_cast<void*>(parts), {STREAM}"
    launch = f'check(launch_sliced_rows<{stage.lanes}>({given}), "{stage.name}");'
    return _assemble(parts, stage.name, comment, body, launch, ["parts"], {"row.cuh", "reduce.cuh"})


LANES = Dealing("lanes.first()", "lanes.step()", "lanes.step() * IN_FLIGHT", "lanes.first()", "lanes.step()")
# A slice has no more vectors than its threads ask for at once.
SLICE_LANES = Dealing("lanes.first()", "lanes.step()", "", "lanes.first()", "lanes.step()", "SLICE_VECTORS")
WARP_LANES = Dealing("lanes.lane()", "lanes.WIDTH", "lanes.WIDTH * IN_FLIGHT", "lanes.lane()", "lanes.WIDTH")


def _place(v: Vectors) -> str:
    return "j" if v.part is None else "rest"


def _short(p: Pass, block: Block) -> bool:
    """Whether several single elements go at a time, so that their loads do not wait for each other."""
    return len(block.lines) < (SHORT if p.stores else SHORT_REDUCTION)


@dataclass(frozen=True)
class _Singles:
    """A walk over single elements; where rows have parts, what a part has in common stands before its elements."""

    walk: Pass
    part: Var | None
    place: Var
    also: tuple[Value, ...]  # further values of an element

    @classmethod
    def of(cls, p: Pass, also: Sequence[Value] = ()) -> _Singles:
        part, place, walk, also = by_parts(p, tuple(also))
        return cls(walk, part, place, also)

    def expect(self, w: Writer) -> None:
        w.expect(self.also)
        w.expect(v for _, values in self.walk.reduces for v in values)
        w.expect(s.value for s in self.walk.stores)

    def text(self, w: Writer, body: Body, start: str, end: str, *, known: bool = False) -> list[str]:
        """Of all threads over what they share, from ``start`` (nothing: zero) to below ``end``.

        ``known``: the part is.
        """
        p, top = self.walk, w.top
        outer = top if self.part is None or known else Block(top, [self.part])
        inner = Block(outer, [self.place])
        inner.names[self.place] = name = "j" if self.part is None else "rest"
        shift = ""
        if self.part is not None:
            assert p.by is not None
            outer.names[self.part] = "part"
            shift = f"part * {w.factor(p.by, top)} + "
        body(p, self.also, inner, f"{shift}{name}")
        if p.inner.extent == 1:
            # A row of one element belongs to one thread.
            return ["if (lanes.leads()) {", *indented(inner.lines), "}"]
        loop = _loop(p, inner, name, start, end)
        return loop if outer is top else _for_parts(w, p, [*outer.lines, *loop])


def _vector_loops(
    w: Writer, v: Vectors, body: Callable[..., None], once: frozenset[str], end: str, start: str = ""
) -> list[str]:
    """A walk with vectors, as often as a row has parts."""
    p = v.single
    outer, shift = w.top, ""
    if v.part is not None:
        assert p.by is not None
        outer = Block(w.top, [v.part])
        outer.names[v.part] = "part"
        shift = f"part * {w.factor(p.by, w.top)} + "

    def shifted(p: Pass, values: Sequence[Value], block: Block, where: str) -> None:
        body(p, values, block, f"{shift}{where}")

    made = Loops(w, v, outer, outer, WARP_LANES if p.warps else LANES, _place(v), once)
    lines = [made.stretch(start, end), *made.text(shifted, partial(_short, p))]
    return lines if v.part is None else _for_parts(w, p, [*outer.lines, *lines])


def _loop(p: Pass, inner: Block, name: str, start: str, end: str) -> list[str]:
    """A walk of all threads over what they share, from ``start`` (nothing: zero) to below ``end``."""
    own = "lanes.lane()" if p.warps else "lanes.first()"
    first, step = f"{start} + {own}" if start else own, "lanes.WIDTH" if p.warps else "lanes.step()"
    unroll = ["#pragma unroll 4"] if _short(p, inner) else []
    loop = [*unroll, f"for (int64_t jj = {first}; jj < {end}; jj += {step}) {{"]
    return [*loop, f"  const Index {name} = static_cast<Index>(jj);", *indented(inner.lines), "}"]


def _for_parts(w: Writer, p: Pass, loop: list[str]) -> list[str]:
    assert p.by is not None
    times = p.inner.extent // p.by
    deal = ("lanes.warp()", "part += lanes.WARPS") if p.warps else ("0", "++part")
    return [f"for (Index part = {deal[0]}; part < {w.int(times, w.top)}; {deal[1]}) {{", *indented(loop), "}"]


def _split_row(stage: Row, parts: _Parts, head: list[str], comment: Iterable[str]) -> Functor:
    (p,) = stage.passes
    w = parts.writer({stage.row: "row"})
    v = vectors(p) if p.several else None
    single = _Singles.of(p)
    single.expect(w) if v is None else _expect(w, [v])
    structs = _accumulator(parts, w, "Acc", stage, 0)
    parts.need(p.length)
    body_of = partial(_element_of, w, 0, "a", None)
    if v is not None:
        walked = _vector_loops(w, v, body_of, parts.once(stage.row.extent * p.inner.extent), "to", "from")
    else:
        walked = single.text(w, body_of, "from", "to")
    f = parts.writer({stage.row: "row"})
    f.expect(s.value for _, s in stage.finals)
    _results(f, stage, 0, "a", _locals_of(stage), f.top)
    _finals(f, stage, f.top, 1, 32)
    body = [
        *head, f"__host__ __device__ int64_t length() const {{ return {p.length}; }}", *structs,
        "template <class L>",
        "__device__ __forceinline__ void walk(const L& lanes, Index row, int64_t from, int64_t to, Acc& a) const {",
        *indented(w.top.lines), *indented(walked), "}",
        "template <class L>",
        "__device__ __forceinline__ void finish(const L& lanes, Index row, const Acc& a) const {",
        *indented(f.top.lines), "}",
    ]  # fmt: skip
    launch = (
        f"check(launch_split_rows<{stage.lanes}>(stage, reinterpret_cast<void*>(parts), splits, {STREAM}), "
        f'"{stage.name}");'
    )
    return _assemble(parts, stage.name, comment, body, launch, ["parts", "splits"], {"row.cuh", "reduce.cuh"})


# -- contractions


def _decoded(w: Writer, variables: Iterable[Var], flat: str, extents: list[Int], block: Block) -> None:
    """Names for the variables that a flat index is made of."""
    variables = list(variables)
    total = Var(flat, product(extents))
    block.names[total] = flat
    for v, value in zip(variables, unflat(_plain(total), extents)):
        if v.extent != 1:
            block.names[v] = w.factor(value, block)


def _fields(w: Writer, d: Writer, fixed: Iterable[Var], text: str) -> list[tuple[str, str]]:
    """What is decoded beforehand by ``d``, with its names: variables that ``w`` uses, and the sums it set aside."""
    used = [v for v in fixed if any(f"at.{v.name}" in line for line in [*w.top.lines, text])]
    fields = [(v.name, d.int(_plain(v), d.top)) for v in used]
    return fields + [(n, d.int(i, d.top)) for i, n in w.hoisted.items()]


def _operand(parts: _Parts, name: str, value: Value, fixed: list[Var], stage: Contraction) -> list[str]:
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
    few = bool(few_sides(stage))
    element = _direct(parts, w, value, c.depth if along else variable, c.depth) if few else ""
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
        *(_from(name, struct, w, element, "Index k") if few else []),
    ]


def _direct(parts: _Parts, w: Writer, value: Value, beside: Var, steady: Var) -> str:
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
    parts: _Parts, name: str, value: Value, which: Var, place: tuple[Var, ...], limits: Sequence[Int],
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


def _window(parts: _Parts, stage: Contraction, tile: WindowTile | GradientTile) -> list[str]:
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


def _contraction(stage: Contraction, buffers: Mapping[str, Buffer], comment: Iterable[str]) -> Functor:
    c = stage.contract
    parts = _Parts(stage, buffers)
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
            f"  const Index at = {where};",
            f"  {pointer(stats.count.name)}[at] = count;",
            f"  {pointer(stats.mean.name)}[at] = mean;",
            f"  {pointer(stats.m2.name)}[at] = m2;",
            "}",
        ]
    if stage.pool is not None:
        body += _pool(parts, stage, stage.pool)
    boxed = isinstance(stage.tile, WindowTile)
    gradient = isinstance(stage.tile, GradientTile)
    templates = {"window.cuh" if boxed else "window_gradient.cuh" if gradient else "contract.cuh"}
    pair, precise = (stage.tile.pair, stage.tile.precise) if isinstance(stage.tile, WindowTile) else (None, None)
    templates |= {t.template for t in (pair, precise) if t is not None}
    if stage.packed:
        templates.add("contract_wgmma.cuh")
    few = few_sides(stage)
    if few:
        templates.add("contract_few.cuh")
    if stage.pool is not None:
        templates.add("reduce.cuh")
    parts.need(stage.splits)
    extra = ["packed"] if boxed or stage.packed or few else []
    memory = workspace(stage) if asks(stage) else ""
    made = _assemble(parts, stage.name, comment, body, launch(stage, STREAM), extra, templates, memory)
    made.columns = pair.instructions if pair is not None else {stage.tile.cols} if stage.packed else set()
    made.tf32 = {precise.columns} if precise is not None else set()
    return made


def _finish(parts: _Parts, stage: Contraction) -> list[str]:
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


def _in_fragments(stage: Contraction) -> bool:
    """Whether a kernel finishes sums where the matrix instructions leave them (kernels/fragments.cuh)."""
    return isinstance(stage.tile, WindowTile) and stage.tile.pair is not None


def _element(parts: _Parts, stage: Contraction) -> tuple[Writer, str, str]:
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
    for k, i in enumerate(unflat(_plain(c.cols), c.sliding.extents)):
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


def _phases(parts: _Parts, stage: Contraction, phases: Phases) -> list[str]:
    """Which places of a phase are pixels of the output, and which taps it has."""
    w, name, given = _element(parts, stage)
    lines = ["using Phased = void;  // elements are known by their places"] if name else []
    if phases.inside > 1:
        lines += ["using Inside = void;  // groups are phases", f"static constexpr int PHASES = {phases.inside};"]
    if phases.ragged:
        inside = [w.condition(Inside(value, v.extent), w.top) for v, value in phases.pixels]
        lines += [
            "using Ragged = void;  // some places of a phase lie outside the output",
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


def _stored(parts: _Parts, stage: Contraction) -> list[str]:
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


def _pool(parts: _Parts, stage: Contraction, pool: Pool) -> list[str]:
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


def _splits_in(stage: Contraction) -> set[Var]:
    return {v for s in stage.stores for v in s.index.variables() if v.name == "split"}
