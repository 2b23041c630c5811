"""Drawn operator graphs, fused and run in the simulator: right outputs, gradients and buffers at several sizes.

Graphs are drawn once and checked in batches, half of them with each engine. Those that together have every kind of
operator that was drawn, contractions with each engine, come first: they are the ordinary run, the others are left to
``make exhaustive``. One that fails is made smaller by dropping steps while it still fails (hypothesis cannot shrink
what is checked many at a time), and printed as a Problem file. ``CRUCIBLE_FUZZ=3000`` draws that many, and leaves none
of them out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
from graph_kinds import FAMILIES
from graphs import Program, Step, programs
from hypothesis import HealthCheck, given, settings
from simulated import Job, Simulated, Verdict

DRAWN = int(os.environ.get("CRUCIBLE_FUZZ", "300"))
CHUNK = 22  # graphs a test, so that a failure names a part; those of an engine share a build
ORDINARY = DRAWN if "CRUCIBLE_FUZZ" in os.environ else 44  # of the ordinary run
ENGINES = ("simt", "mma")
CONTRACTIONS = {kind.name for family in ("contraction", "convolution") for kind in FAMILIES[family]}


def drawn(count: int) -> list[Program]:
    """The first programs that hypothesis draws; the same ones every time."""
    found: dict[str, Program] = {}

    @given(programs())
    @settings(
        max_examples=2 * count, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    def collect(program: Program) -> None:
        found.setdefault(program.source(), program)

    collect()
    return list(found.values())[:count]


def met(program: Program, number: int) -> set[tuple[str, str]]:
    """The kinds of operators of a program, with its engine where that matters."""
    return {(step.kind, ENGINES[number % 2] if step.kind in CONTRACTIONS else "") for step in program.steps}


def widest_first(found: list[Program]) -> list[tuple[int, Program]]:
    """Numbered; always next the one that adds most to what those before it have, for what it costs.

    Any graph costs as much as some ten steps, to trace it and to compile what all kernels have.
    """
    left, had, ordered = dict(enumerate(found)), set(), []
    while left:
        number = max(left, key=lambda k: len(met(left[k], k) - had) / (len(left[k].steps) + 10))
        had |= met(left[number], number)
        ordered.append((number, left.pop(number)))
    return ordered


@pytest.fixture(scope="module")
def everything() -> list[tuple[int, Program]]:
    return widest_first(drawn(DRAWN))


@pytest.fixture(scope="module")
def simulated() -> Iterator[Simulated]:
    with Simulated() as worker:
        yield worker


def job(program: Program, number: int) -> Job:
    return Job(program.source(), tuple(program.input_shapes.values()), ENGINES[number % 2], number // 2 % 2)


def chunks() -> Iterator[object]:
    for chunk in range(0, DRAWN, CHUNK):
        yield pytest.param(chunk, marks=[pytest.mark.exhaustive] if chunk >= ORDINARY else [])


@pytest.mark.parametrize("chunk", chunks())
def test_fused_graph_is_right(chunk: int, everything: list[tuple[int, Program]], simulated: Simulated) -> None:
    numbered = everything[chunk : chunk + CHUNK]
    numbered.sort(key=lambda item: item[0] % 2)  # one engine after the other: a batch shares a build
    verdicts = simulated.check([job(p, k) for k, p in numbered], batch=CHUNK)
    for (k, program), verdict in zip(numbered, verdicts):
        if not verdict.ok:
            least, problem = smaller(program, k, simulated, verdict.problem)
            pytest.fail(f"graph {k} with engine {ENGINES[k % 2]}:\n{problem}\n\n{least.source()}", pytrace=False)


def smaller(program: Program, number: int, simulated: Simulated, problem: str) -> tuple[Program, str]:
    """The program with as few steps as still fail, and what is wrong with it."""
    while True:
        candidates = list(simpler(program))
        verdicts = simulated.check([job(c, number) for c in candidates])
        failing = [(c, v.problem) for c, v in zip(candidates, verdicts) if not v.ok]
        if not failing:
            return program, problem
        program, problem = min(failing, key=lambda item: len(item[0].source()))


def simpler(program: Program) -> Iterator[Program]:
    """Programs with fewer outputs or without one step; what used its result uses an argument of the same shape."""
    if len(program.outputs) > 1:
        for name in program.outputs:
            yield pruned(replace(program, outputs=(name,)))
    shapes = {**program.input_shapes, **{s.result: s.shape for s in program.steps}}
    for step in program.steps:
        for argument in dict.fromkeys(step.arguments):
            if shapes[argument] == step.shape:
                made = without(program, step, argument)
                if made.steps and all(name in {s.result for s in made.steps} for name in made.outputs):
                    yield pruned(made)
    for step in program.steps:
        used = {a for s in program.steps for a in s.arguments}
        if step.result in used and step.result not in program.outputs:
            yield pruned(replace(program, outputs=(step.result,)))


def without(program: Program, dropped: Step, argument: str) -> Program:
    def renamed(name: str) -> str:
        return argument if name == dropped.result else name

    steps = [replace(s, arguments=tuple(map(renamed, s.arguments))) for s in program.steps if s is not dropped]
    return replace(program, steps=steps, outputs=tuple(dict.fromkeys(map(renamed, program.outputs))))


def pruned(program: Program) -> Program:
    """Without the steps and inputs that lead to no output."""
    needed = set(program.outputs)
    steps: list[Step] = []
    for step in reversed(program.steps):
        if step.result in needed:
            needed |= set(step.arguments)
            steps.insert(0, step)
    return replace(program, steps=steps, input_shapes={n: s for n, s in program.input_shapes.items() if n in needed})


def test_the_ordinary_run_has_every_kind(everything: list[tuple[int, Program]]) -> None:
    every, ordinary = (set().union(*(met(p, k) for k, p in some)) for some in (everything, everything[:ORDINARY]))
    assert every == ordinary, "ORDINARY has become too few"
    assert DRAWN < 300 or len({kind for kind, _ in every}) >= 120


def test_a_failing_graph_gets_smaller(everything: list[tuple[int, Program]]) -> None:
    """Shrinking keeps what fails: here, any program that pools."""

    class Pretended:
        def check(self, jobs: list[Job]) -> list[Verdict]:
            return [Verdict("pool" not in j.source.split("class Model")[1], "pools") for j in jobs]

    pooling = next(p for _, p in everything if len(p.steps) > 4 and any("pool" in s.kind for s in p.steps))
    least, problem = smaller(pooling, 0, Pretended(), "pools")  # type: ignore[arg-type]
    assert problem == "pools" and len(least.steps) < len(pooling.steps)
    assert any("pool" in s.kind for s in least.steps)
    least.module(0)(*least.inputs(0))
