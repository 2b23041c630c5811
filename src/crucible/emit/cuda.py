"""Stages as CUDA: a functor for each, and a function that launches it. Kernel bodies are in ``kernels/*.cuh``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType

from crucible.emit.contraction import contraction
from crucible.emit.functor import STREAM, Functor, Parts, assemble
from crucible.emit.rows import element_of, expect, row
from crucible.emit.vectors import Dealing, Loops, begins, distance
from crucible.emit.writer import indented
from crucible.plan.program import Buffer
from crucible.plan.stages import Contraction, Map, Row, Stage
from crucible.plan.vectors import Vectors, as_pass, vectors


def functor(
    stage: Stage, buffers: Mapping[str, Buffer], comment: Iterable[str], later: frozenset[str] = frozenset(),
    same: Mapping[str, str] = MappingProxyType({}),
) -> Functor:  # fmt: skip
    """The functor of a stage that is not torch's. ``later``: what others read; ``same``: see plan/same_place.py."""
    if isinstance(stage, Map):
        return _map(stage, Parts(stage, buffers, later, same), comment)
    if isinstance(stage, Row):
        return row(stage, Parts(stage, buffers, later, same), comment)
    assert isinstance(stage, Contraction)
    return contraction(stage, buffers, comment)


def _map(stage: Map, parts: Parts, comment: Iterable[str]) -> Functor:
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
    return assemble(parts, stage.name, comment, body, launch, [], {"map.cuh"})


def _map_vectors(parts: Parts, v: Vectors) -> list[str]:
    """Which elements go by vectors, and a thread's."""
    w, at = parts.writer(), parts.writer()
    expect(w, [v])
    far = distance(at, v, list(begins(at, v, at.top).values()), at.top)
    threads = Dealing("threads.vector()", "MAP_THREADS", "threads.turn()", "threads.first()", "threads.step()")
    made = Loops(w, v, w.top, w.top, threads, "i", parts.once(v.place.extent))
    lines = made.text(partial(element_of, w, 0, "", None), lambda _: False)
    return [
        "__host__ __device__ Stretch places() const {",
        *indented(at.top.lines), f"  return stretch(0, count(), {far});", "}",
        "__device__ __forceinline__ void walk(const MapThreads& threads, const Stretch& run) const {",
        *indented([*w.top.lines, *lines]), "}",
    ]  # fmt: skip
