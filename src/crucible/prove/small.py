"""Find which sizes of a Problem may vary, and small ones at which a simulated kernel finishes in seconds.

Every dimension of every input is tried: alone, and tied to dimensions of the same size. The reference decides (on the
meta device, so nothing is allocated): what ``get_init_inputs()`` fixes, such as channels, it refuses to change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from crucible.problem import FreeDimension, Problem, ProblemError, Shape, error_line
from crucible.prove.tensors import leaves

# A checked, simulated access costs tens of nanoseconds; ten million multiply-adds are a second or two.
MULTIPLY_ADDS = 10_000_000
ELEMENTS = 300_000
BATCH_FLOOR = 2
FLOORS = (6, 3, 2)  # preferred smallest sizes of the other dimensions, given up one after the other
PROBE_CALLS = 400

Dim = tuple[int, int]  # (input, dimension)


@dataclass(frozen=True)
class Work:
    """What one forward costs at some sizes: multiply-adds, elements read and written, elements of the outputs."""

    multiply_adds: int
    elements: int
    output_shapes: tuple[Shape, ...]

    @property
    def excess(self) -> float:
        """How far over the budget of a simulated run this is (1 is just within)."""
        return max(self.multiply_adds / MULTIPLY_ADDS, self.elements / ELEMENTS)


class Oracle:
    """Asks the reference whether it accepts input shapes, and what it would cost; answers are remembered."""

    def __init__(self, problem: Problem, device: str) -> None:
        self.problem = problem
        self.device = device
        self.answers: dict[tuple[Shape | None, ...], Work | None] = {}
        self.last_error: BaseException | None = None
        self.model = problem.build(0, device)

    def ask(self, shapes: Sequence[Shape | None]) -> Work | None:
        key = tuple(shapes)
        if key not in self.answers:
            self.answers[key] = None if len(self.answers) > PROBE_CALLS else self._try(shapes)
        return self.answers[key]

    def accepts(self, sizes: dict[Dim, int]) -> bool:
        """Whether the declared shapes with these dimensions changed are accepted."""
        return self.ask(_changed(self.problem, sizes)) is not None

    def _try(self, shapes: Sequence[Shape | None]) -> Work | None:
        try:
            if self.device == "meta":
                inputs = [
                    declared if shape is None else torch.empty(shape, dtype=declared.dtype, device="meta")
                    for declared, shape in zip(self.problem.declared, shapes, strict=True)
                ]
            else:
                inputs = self.problem.inputs(shapes, 0)
            try:
                counter, result = self._counted(inputs, grad=False)
            except AssertionError:  # the counter does not take layers that return a part of a parameter then
                counter, result = self._counted(inputs, grad=True)
        except Exception as error:  # noqa: BLE001  whatever a reference raises is a refusal
            self.last_error = error
            return None
        outputs = [leaf for _, leaf in leaves(result) if isinstance(leaf, torch.Tensor)]
        elements = sum(x.numel() for x in (*inputs, *outputs) if isinstance(x, torch.Tensor))
        return Work(counter.get_total_flops() // 2, elements, tuple(tuple(x.shape) for x in outputs))

    def _counted(self, inputs: list[Any], *, grad: bool) -> tuple[FlopCounterMode, Any]:
        counter = FlopCounterMode(display=False)
        with torch.set_grad_enabled(grad), counter:
            return counter, self.model(*self.problem.arguments(inputs))


def _changed(problem: Problem, sizes: dict[Dim, int]) -> list[Shape | None]:
    shapes = [list(s) if s is not None else None for s in problem.shapes]
    for (i, dim), size in sizes.items():
        row = shapes[i]
        assert row is not None
        row[dim] = size
    return [tuple(s) if s is not None else None for s in shapes]


def find_small(problem: Problem) -> Work:
    """Fill in ``problem.free`` and return the work at the small sizes.

    The meta device answers quickly but some of its shape rules are lax (a transposed convolution there accepts any
    number of channels), so what it lets through is confirmed on the CPU at small sizes.
    """
    oracle = _first_oracle(problem)
    dims = [(i, d) for i, s in enumerate(problem.shapes) if s is not None for d in range(len(s))]
    free = _free_dimensions(problem, oracle, dims, {}, need_growth=False)
    if oracle.device == "meta":
        free = _confirm(problem, oracle, free)
    problem.free = free
    _shrink(problem, oracle)
    _make_distinct(problem, oracle)
    work = oracle.ask(problem.shapes_for(problem.small_sizes))
    assert work is not None
    return work


def _first_oracle(problem: Problem) -> Oracle:
    """An oracle that accepts the declared shapes: on meta, or on the CPU for code that needs real values."""
    error: BaseException | None = None
    for device in ("meta", "cpu"):
        try:
            oracle = Oracle(problem, device)
            if oracle.ask(problem.shapes) is not None:
                return oracle
            error = oracle.last_error
        except Exception as caught:  # noqa: BLE001
            error = caught
    assert error is not None
    raise ProblemError(
        f"Model of {problem.path.name} cannot run on its own get_inputs(): {type(error).__name__}: {error}"
        f"{error_line(error, problem.path)}"
    )


def _confirm(problem: Problem, meta: Oracle, free: list[FreeDimension]) -> list[FreeDimension]:
    """Repeat the search on the CPU, starting from small sizes, among the dimensions that meta let vary."""
    problem.free = free
    _shrink(problem, meta)
    # One base size for each declared size, so that dimensions which turn out to be tied start out equal.
    base_of: dict[int, int] = {}
    for f in free:
        base_of[f.declared] = max(2, min(base_of.get(f.declared, f.small), f.small) * 2 // 3)
    dims = [m for f in free for m in f.members]
    size_of = {m: f.declared for f in free for m in f.members}
    base = {m: base_of[size_of[m]] for m in dims}
    cpu = Oracle(problem, "cpu")
    if not cpu.accepts(base):
        # Some of them may not change at all (channels): put those back one by one until the reference is content.
        for m in dims:
            trial = {k: v for k, v in base.items() if k != m}
            if cpu.accepts(trial):
                base = trial
                break
        else:
            for size in sorted(base_of):
                trial = {k: v for k, v in base.items() if size_of[k] != size}
                if cpu.accepts(trial):
                    base = trial
                    break
            else:
                return []
    return _free_dimensions(problem, cpu, list(base), base, need_growth=True)


def _free_dimensions(
    problem: Problem, oracle: Oracle, dims: list[Dim], base: dict[Dim, int], *, need_growth: bool
) -> list[FreeDimension]:
    """Groups of dimensions that may change together, each tried from ``base`` (or the declared sizes).

    Never at size 1, which broadcasting would accept for the wrong reason. A group should be allowed to grow as well:
    an index tensor may be shorter than what it indexes, but not longer, so the two are tied. Only at the declared sizes
    (``need_growth`` false) may growth be refused: a table of positions has its length.
    """
    declared = {(i, d): (problem.shapes[i] or ())[d] for i, d in dims}
    now = {d: base.get(d, declared[d]) for d in dims}
    free: list[FreeDimension] = []
    taken: set[Dim] = set()
    for dim in dims:
        if dim in taken or declared[dim] < 2:
            continue
        equal = [d for d in dims if d != dim and d not in taken and declared[d] == declared[dim]]
        groups = [[dim], *([dim, d] for d in equal)]
        if len(equal) > 1:
            groups.append([dim, *equal])
        n = now[dim]
        smaller = [m for m in dict.fromkeys((n - 1, n // 2, n // 4)) if 2 <= m < n]
        larger = [n + 1, n * 2]

        def fits(group: list[Dim], sizes: list[int]) -> bool:
            return any(oracle.accepts({**base, **dict.fromkeys(group, m)}) for m in sizes)

        chosen = next((g for g in groups if (fits(g, smaller) or not smaller) and fits(g, larger)), None)
        if chosen is None and not need_growth:
            chosen = next((g for g in groups if fits(g, smaller)), None)
        if chosen is not None:
            taken.update(chosen)
            free.append(FreeDimension(chosen, declared[dim], declared[dim]))
    return free


def _shrink(problem: Problem, oracle: Oracle) -> None:
    """Cut the largest free size by a quarter until the work is within the budget or every floor is reached."""
    for floor in FLOORS:
        stuck: set[int] = set()
        while True:
            work = oracle.ask(problem.shapes_for(problem.small_sizes))
            if work is not None and work.excess <= 1:
                return
            open_dims = [
                i
                for i, f in enumerate(problem.free)
                if i not in stuck and f.small > (BATCH_FLOOR if f.is_batch else floor)
            ]
            if not open_dims:
                break
            # The batch goes first: samples repeat each other, while long rows and wide images find more mistakes.
            index = max(open_dims, key=lambda i: (problem.free[i].is_batch, problem.free[i].small))
            chosen = problem.free[index]
            lowest = BATCH_FLOOR if chosen.is_batch else floor
            if not _step_down(problem, oracle, chosen, max(lowest, int(chosen.small * 0.75))):
                stuck.add(index)


def _step_down(problem: Problem, oracle: Oracle, chosen: FreeDimension, target: int) -> bool:
    """Set a size to ``target`` or the next larger one that the reference accepts."""
    before = chosen.small
    for size in list(dict.fromkeys([*range(target, min(target + 4, before)), before // 2, before * 3 // 4])):
        if 2 <= size < before:
            chosen.small = size
            if oracle.ask(problem.shapes_for(problem.small_sizes)) is not None:
                return True
    chosen.small = before
    return False


def _make_distinct(problem: Problem, oracle: Oracle) -> None:
    """Make equal small sizes of one input differ where that is cheap: a swapped height and width must show."""
    for index, chosen in enumerate(problem.free):
        if chosen.small == chosen.declared:
            continue
        inputs = {i for i, _ in chosen.members}
        others = {f.small for j, f in enumerate(problem.free) if j != index and inputs & {i for i, _ in f.members}}
        before = chosen.small
        for size in (before, before + 1, before + 2, before - 1):
            if size in others or size < 2:
                continue
            chosen.small = size
            work = oracle.ask(problem.shapes_for(problem.small_sizes))
            if work is not None and (work.excess <= 1.5 or size <= before):
                break
            chosen.small = before
