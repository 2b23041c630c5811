"""Rows as CUDA: walks over what a row has, reductions on the way, and what is stored after each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from crucible.emit.functor import STREAM, Functor, Parts, assemble
from crucible.emit.vectors import Body, Dealing, Loops
from crucible.emit.writer import TYPES, Block, Writer, indented, pointer
from crucible.plan import reducers
from crucible.plan.held import parted
from crucible.plan.index import ONE, ZERO, Int, Var
from crucible.plan.kept import Keeping, keeping
from crucible.plan.program import Reduce
from crucible.plan.stages import Pass, Row, Store
from crucible.plan.value import Local, Value, walk
from crucible.plan.vectors import Vectors, by_parts, joined, vectors

# Lines of a loop's body up to which it is unrolled: where it stores, and where it only sums.
SHORT, SHORT_REDUCTION = 40, 20


def expect(w: Writer, several: Iterable[Vectors]) -> None:
    for v in several:
        for p, also in ((v.single, v.also_single), (v.several, v.also_several)):
            w.expect(x for _, values in p.reduces for x in values)
            w.expect(s.value for s in p.stores)
            w.expect(also)


def row(stage: Row, parts: Parts, comment: Iterable[str]) -> Functor:
    parts.need(stage.row.extent)
    head = [f"__host__ __device__ Index rows() const {{ return {stage.row.extent}; }}"]
    if stage.sliced:
        return _sliced_row(stage, parts, head, comment)
    return _split_row(stage, parts, head, comment) if stage.split else _whole_row(stage, parts, head, comment)


def accumulator(w: Writer, name: str, reduces: Iterable[Reduce]) -> list[str]:
    """A struct of reductions that go on at once."""
    reduces = list(reduces)
    structs = [reducers.TABLE[r.reducer].struct for r in reduces]
    w.structs.update(structs)
    lines = [f"struct {name} {{"]
    lines += [f"  {s} r{k};  // {r.node}" for k, (r, s) in enumerate(zip(reduces, structs))]
    joins = " ".join(f"r{k}.join(b.r{k});" for k in range(len(structs)))
    lines += [f"  __device__ __forceinline__ void join(const {name}& b) {{ {joins} }}", "};"]
    return lines


def steps(
    reduces: Iterable[tuple[Reduce, Sequence[Value]]], stores: Iterable[Store], w: Writer, acc: str, block: Block
) -> None:
    """What is done with an element: reductions take it in, then stores."""
    for k, (_, values) in enumerate(reduces):
        args = [w.value(v, block) for v in values]
        block.lines.append(f"{acc}.r{k}.step({', '.join(args)});")
    for s in stores:
        w.store(s.buffer, s.index, s.value, block)


def _results(w: Writer, stage: Row, number: int, acc: str, wanted: set[str], block: Block) -> None:
    for k, (r, _) in enumerate(stage.passes[number].reduces):
        for part, (kind, member) in enumerate(reducers.TABLE[r.reducer].results):
            name = f"{r.name}_{part}"
            if name in wanted:
                block.lines.append(f"const {TYPES[kind]} {name} = {acc}.r{k}.{member}();")


def _locals_of(stage: Row) -> set[str]:
    values: list[Value] = [s.value for p in stage.passes for s in p.stores] + [s.value for _, s in stage.finals]
    values += [v for p in stage.passes for _, vs in p.reduces for v in vs]
    return {v.name for value in values for v in walk(value) if isinstance(v, Local)}


def _finals(w: Writer, stage: Row, block: Block, ready: int, lanes: int) -> None:
    stores = [s for n, s in stage.finals if n == ready]
    if not stores:
        return
    inner = block if lanes == 1 else Block(block, mask=True)
    for s in stores:
        if s.below is None:
            w.store(s.buffer, s.index, s.value, inner)
        else:
            few = Block(inner, mask=True)
            w.store(s.buffer, s.index, s.value, few)
            inner.lines += [f"if (row < {s.below}) {{", *indented(few.lines), "}"]
    if inner is not block:
        block.lines.extend(["if (lanes.leads()) {", *indented(inner.lines), "}"])


def _whole_row(stage: Row, parts: Parts, head: list[str], comment: Iterable[str]) -> Functor:
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
    return assemble(parts, stage.name, comment, body, launch, [], {"row.cuh", "reduce.cuh"})


def _walks(stage: Row, w: Writer, parts: Parts, count: int, kept: Keeping | None = None) -> list[str]:
    """The first walks of a row, and what is stored after each; returns their structs."""
    passes = stage.passes[:count]
    several = _several(passes, kept)
    single = [_Singles.of(p, kept.values if kept and n == 0 else ()) for n, p in enumerate(passes)]
    expect(w, (v for v in several if v is not None))
    for each in (s for s, found in zip(single, several) if found is None):
        each.expect(w)
    w.expect(s.value for n, s in stage.finals if n <= count)
    wanted = _locals_of(stage)
    structs: list[str] = []
    top = w.top
    for number, p in enumerate(passes):
        acc = f"a{number}"
        if p.reduces:
            structs += accumulator(w, f"Acc{number}", (r for r, _ in p.reduces))
            top.lines.append(f"Acc{number} {acc};")
        v = several[number]
        keeps = kept if kept is not None and p.inner == kept.stage.passes[0].inner else None
        body = partial(element_of, w, number, acc, keeps)
        if v is not None:
            again = {b for other in several[number + 1 :] if other is not None for b, _ in other.loads}
            once = parts.once(stage.row.extent * p.inner.extent) - again
            top.lines += _vector_loops(w, v, body, once, w.int(p.length, top))
        else:
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


def element_of(
    w: Writer, number: int, acc: str, kept: Keeping | None, p: Pass, values: Sequence[Value], block: Block, where: str
) -> None:
    """What a walk does with an element; ``where`` the row keeps something of it."""
    names = kept.names if kept is not None else ()
    places = [f"kept[{where}]" if k == 0 else f"kept[{k} * ({p.inner.extent}) + {where}]" for k in range(len(names))]
    if number > 0:
        block.lines += [f"const accum {name} = {place};" for name, place in zip(names, places)]
    steps(p.reduces, p.stores, w, acc, block)
    if number == 0 and kept is not None:
        texts = [w.value(v, block) for v in values]
        block.lines += [f"{place} = {text};" for place, text in zip(places, texts)]


def _sliced_row(stage: Row, parts: Parts, head: list[str], comment: Iterable[str]) -> Functor:
    """Reductions (of partial results) in a first launch; the last walk in another, in the order of memory."""
    *before, last = stage.passes
    w = parts.writer({stage.row: "row"})
    structs = _walks(stage, w, parts, len(before))
    kept = [n for n, p in enumerate(before) if p.reduces]
    f = parts.writer({stage.row: "row"})
    v = vectors(last) if last.several else None
    single = _Singles.of(last)
    single.expect(f) if v is None else expect(f, [v])
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
        loop += made.text(partial(element_of, f, len(before), "", None), partial(_short, last))
    else:
        f.top.lines += found.lines
        loop = single.text(f, partial(element_of, f, len(before), "", None), "from", "to", known=True)
    times = last.repeats or 1
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
    if stage.held:
        body += _held(stage, parts)
    given = f"stage, reinterpret_cast<void*>(parts), {STREAM}"
    launch = f'check(launch_sliced_rows<{stage.lanes}>({given}), "{stage.name}");'
    return assemble(parts, stage.name, comment, body, launch, ["parts"], {"row.cuh", "reduce.cuh"})


def _held(stage: Row, parts: Parts) -> list[str]:
    """The same for a kernel that has elements at hand: what a part's have in common, and what becomes of each."""
    last = stage.passes[-1]
    part, place, single, _ = by_parts(last, ())
    (store,) = single.stores
    assert part is not None and last.repeats is not None
    value, common = parted(stage)
    g, w, at = (parts.writer({stage.row: "row", part: "part"}) for _ in range(3))
    g.expect(common)
    found = Block(g.top)
    found.lines.append("const Acc0& a0 = found.a0;")
    _results(g, stage, 0, "a0", _locals_of(stage), found)
    g.top.lines += found.lines
    fields = [g.value(v, g.top) for v in common]
    w.expect([value])
    text = w.value(value, w.top)
    start = at.int(store.index.substitute({place: ZERO}), at.top)
    names = ", ".join(common.values()) or "none"
    return [
        f"static constexpr int HELD_ROWS = {last.repeats};  // parts of a row",
        # Read in one piece.
        f"struct alignas({min(4, 1 << (len(common) - 1).bit_length())} * sizeof(accum)) Held {{ accum {names}; }};",
        "static __device__ __forceinline__ Found found_of(accum count, accum mean, accum m2) {",
        "  Found found;", "  found.a0.r0.step(count, mean, m2);", "  return found;", "}",
        "__device__ __forceinline__ Held held(Index row, Index part, const Found& found) const {",
        *indented(g.top.lines), f"  return {{{', '.join(fields) or '0'}}};", "}",
        "__device__ __forceinline__ accum held_value(const Held& of, accum element) const {",
        *indented(w.top.lines), f"  return {text};", "}",
        "__host__ __device__ __forceinline__ scalar* held_at(Index row, Index part) const {",
        *indented(at.top.lines), f"  return &{pointer(store.buffer.name)}[{start}];", "}",
    ]  # fmt: skip


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

    def text(
        self, w: Writer, body: Body, start: str, end: str, *, known: bool = False, times: tuple[str, str] | None = None
    ) -> list[str]:
        """Of all threads over what they share, from ``start`` (nothing: zero) to below ``end``.

        ``known``: the part is. ``times``: the first part and the one behind the last, if not all.
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
        return loop if outer is top else _for_parts(w, p, [*outer.lines, *loop], times)


def _vector_loops(
    w: Writer, v: Vectors, body: Callable[..., None], once: frozenset[str], end: str, start: str = "",
    times: tuple[str, str] | None = None,
) -> list[str]:  # fmt: skip
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
    return lines if v.part is None else _for_parts(w, p, [*outer.lines, *lines], times)


def _loop(p: Pass, inner: Block, name: str, start: str, end: str) -> list[str]:
    """A walk of all threads over what they share, from ``start`` (nothing: zero) to below ``end``."""
    own = "lanes.lane()" if p.warps else "lanes.first()"
    first, step = f"{start} + {own}" if start else own, "lanes.WIDTH" if p.warps else "lanes.step()"
    unroll = ["#pragma unroll 4"] if _short(p, inner) else []
    loop = [*unroll, f"for (int64_t jj = {first}; jj < {end}; jj += {step}) {{"]
    return [*loop, f"  const Index {name} = static_cast<Index>(jj);", *indented(inner.lines), "}"]


def _for_parts(w: Writer, p: Pass, loop: list[str], times: tuple[str, str] | None = None) -> list[str]:
    assert p.repeats is not None
    first, last = times or ("", w.int(p.repeats, w.top))
    own, step = ("lanes.warp()", "part += lanes.WARPS") if p.warps else ("", "++part")
    begin = " + ".join(t for t in (first, own) if t) or "0"
    return [f"for (Index part = {begin}; part < {last}; {step}) {{", *indented(loop), "}"]


def _split_row(stage: Row, parts: Parts, head: list[str], comment: Iterable[str]) -> Functor:
    (p,) = stage.passes
    w = parts.writer({stage.row: "row"})
    v = vectors(p) if p.several else None
    single = _Singles.of(p)
    single.expect(w) if v is None else expect(w, [v])
    structs = accumulator(w, "Acc", (r for r, _ in p.reduces))
    parts.need(p.length)
    repeats = p.repeats if p.repeats is not None else ONE
    times = None if p.repeats is None else ("first", "last")
    body_of = partial(element_of, w, 0, "a", None)
    if v is not None:
        walked = _vector_loops(w, v, body_of, parts.once(stage.row.extent * p.inner.extent), "to", "from", times)
    else:
        walked = single.text(w, body_of, "from", "to", times=times)
    f = parts.writer({stage.row: "row"})
    f.expect(s.value for _, s in stage.finals)
    _results(f, stage, 0, "a", _locals_of(stage), f.top)
    _finals(f, stage, f.top, 1, 32)
    parts.need(repeats)
    body = [
        *head, f"__host__ __device__ int64_t length() const {{ return {p.length}; }}",
        f"__host__ __device__ Index repeats() const {{ return {repeats}; }}", *structs,
        "template <class L>",
        "__device__ __forceinline__ void walk(const L& lanes, Index row, Index first, Index last, int64_t from,",
        "                                     int64_t to, Acc& a) const {",
        *indented(w.top.lines), *indented(walked), "}",
        "template <class L>",
        "__device__ __forceinline__ void finish(const L& lanes, Index row, const Acc& a) const {",
        *indented(f.top.lines), "}",
    ]  # fmt: skip
    given = f"stage, reinterpret_cast<void*>(parts), splits, {STREAM}"
    launch = f'check(launch_split_rows<{stage.lanes}>({given}), "{stage.name}");'
    return assemble(parts, stage.name, comment, body, launch, ["parts", "splits"], {"row.cuh", "reduce.cuh"})
