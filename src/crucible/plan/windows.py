"""Pooling: small loops over a window inside one thread, and their derivatives as gathers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from crucible.plan.index import Int, Var, integer, of_var
from crucible.plan.lowering import Lowering, lowers
from crucible.plan.program import Contract, Index, Pooled, Tensor, flat
from crucible.plan.value import Condition, Const, Fold, IndexValue, Inside, Masked, Multiple, Op, Value

aten = torch.ops.aten

# A loop inside a thread is at most this long.
LONGEST = 512
# Elements of a window that a contraction pools: a thread holds them all.
POOLED = 16


def _loop(low: Lowering, kernel: Sequence[int]) -> tuple[tuple[Var, ...], list[Int]]:
    """Variables over a window, and their values (zero for a length of one)."""
    made = [low.fresh("t", integer(k)) for k in kernel]
    return tuple(v for v in made if v.extent != 1), [of_var(v) for v in made]


def _parameters(low: Lowering, node: Any, rank: int, args: Sequence[Any]) -> list[list[int]]:
    """Lists of one or rank numbers, each made rank long."""
    out = []
    for given in args:
        values = [low.constant(v) for v in (given if isinstance(given, (list, tuple)) else [given])]
        out.append(values * rank if len(values) == 1 else values)
    return out


def _read(low: Lowering, x: Tensor, kernel: Sequence[int], stride: Sequence[int]) -> Tensor:
    """The tensor under a window, kept first where windows overlap and an element costs much."""
    overlap = 1.0
    for k, s in zip(kernel, stride):
        overlap *= k / s
    if x.buffer is None and (x.folds or (overlap > 1.5 and x.cost * overlap > 60)):
        low.keep(x, "windows overlap and each element is costly")
    return x


@lowers(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def max_pool(low: Lowering, node: Any) -> Any:
    x = low.tensor(node.args[0])
    rank = 3 if "3d" in str(node.target) else 2
    given = [*node.args[1:], *[None] * 5]
    kernel = _parameters(low, node, rank, [given[0]])[0]
    stride = _parameters(low, node, rank, [given[1]])[0] if given[1] else kernel
    padding, dilation = _parameters(low, node, rank, [given[2] if given[2] is not None else 0,
                                                       given[3] if given[3] is not None else 1])  # fmt: skip
    _check(low, kernel)
    x = _read(low, x, kernel, stride)
    shape = low.shape(node.meta["val"][0])
    loops, taps = _loop(low, kernel)
    lead = len(shape) - rank

    def body(index: Index) -> tuple[Value, ...]:
        at = [i * s - p + t * d for i, s, p, t, d in zip(index[lead:], stride, padding, taps, dilation)]
        value = x.at((*index[:lead], *at))
        place: Value = IndexValue(flat(at, x.shape[lead:]))
        conditions = _bounds(at, x.shape[lead:], padding, node, shape[lead:], kernel, stride, dilation)
        if conditions:
            # Outside the input there is nothing to choose: minus infinity loses, and -1 is never first.
            value = Masked(conditions, value, Const(float("-inf"), "f"), "f")
            place = Masked(conditions, place, Const(-1, "l"), "l")
        return value, place

    def part(k: int, kind: str) -> Any:
        return lambda i: Fold("argmax_window", loops, body(i), k, kind) if loops else _single(body(i), k)

    cost = 2 * _size(kernel) * (1 + x.cost if x.buffer is None else 1)
    values = low.lazy(node, part(0, "f"), [x], cost=cost, folds=bool(loops), shape=shape, dtype=x.dtype)
    plain = kernel == stride and not any(padding) and all(d == 1 for d in dilation) and not _ceil(node)
    if plain and loops and values.buffer is None and _beside_contraction(low, node, x, kernel):
        values.pooled = Pooled(x, tuple(kernel), "max", values)
    indices = low.lazy(node, part(1, "l"), [x], cost=cost, folds=bool(loops), shape=shape, dtype="int64")
    return values, indices


def _ceil(node: Any) -> bool:
    return any(a is True for a in node.args)


def _beside_contraction(low: Lowering, node: Any, x: Tensor, kernel: Sequence[int]) -> bool:
    """Whether a contraction with boxes of pixels can pool its own elements, or what is computed from each alone."""
    if not low.pools or x.buffer is not None or x.folds or _size(kernel) > POOLED or len(x.results) != 1:
        return False
    if any(user.args[1] != 0 and user.users for user in node.users):
        return False  # the chosen places are wanted
    made = [o for o in low.operations if isinstance(o, Contract) and o.name in x.results]
    return any(c.sliding is not None and c.sliding.plain is None and c.phases is None for c in made)


def _single(body: tuple[Value, ...], part: int) -> Value:
    return body[part]


def _size(kernel: Sequence[int]) -> int:
    total = 1
    for k in kernel:
        total *= k
    return total


def _check(low: Lowering, kernel: Sequence[int]) -> None:
    if _size(kernel) > LONGEST:
        raise low.refusal(f"a window of {_size(kernel)} elements is too long for a loop in one thread")


def _bounds(
    at: Sequence[Int], extents: Sequence[Int], padding: Sequence[int], node: Any, out: Sequence[Int],
    kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int],
) -> tuple[Condition, ...]:  # fmt: skip
    """Bounds that matter: dimensions with padding, and those where a last window may hang over (ceil mode)."""
    ceil = _ceil(node)
    return tuple(Inside(i, e) for i, e, p in zip(at, extents, padding) if p or ceil)


@lowers(aten.max_pool2d_with_indices_backward.default, aten.max_pool3d_with_indices_backward.default)
def max_pool_backward(low: Lowering, node: Any) -> Tensor:
    """Each input element asks the windows over it whether it was chosen."""
    g, x = low.tensor(node.args[0]), low.tensor(node.args[1])
    rank = 3 if "3d" in str(node.target) else 2
    kernel, stride, padding, dilation = _parameters(low, node, rank, [
        node.args[2], node.args[3] or node.args[2], node.args[4], node.args[5],
    ])  # fmt: skip
    indices = low.tensor(node.args[7])
    low.keep(indices, "the chosen places")
    if g.folds or g.cost > 8:
        low.keep(g, "every window over an element reads it")
    shape = x.shape
    lead = len(shape) - rank
    out = g.shape[lead:]
    loops, over = _over(low, kernel, stride, padding, dilation, out)

    def element(index: Index) -> Value:
        at, conditions = over(index[lead:])
        place = IndexValue(flat(index[lead:], shape[lead:]))
        own = (*index[:lead], *at)
        chosen = Op("eq", (indices.at(own), place), "b")
        value = Op("where", (chosen, g.at(own), Const(0.0, "f")), "f")
        body = Masked(conditions, value, Const(0.0, "f"), "f")
        return Fold("sum", loops, (body,), 0, "f") if loops else body

    return low.lazy(node, element, [g, indices], cost=4 * _windows(loops), folds=bool(loops))


def _over(
    low: Lowering, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    out: Sequence[Int],
) -> tuple[tuple[Var, ...], Callable[[Sequence[Int]], tuple[list[Int], tuple[Condition, ...]]]]:  # fmt: skip
    """The windows over an element: loops over them, and which they are for its place, under which conditions.

    Without dilation no more are looked at than there may be: one, where windows lie side by side.
    """
    loops, steps = _loop(low, [-(-k // s) if d == 1 else k for k, s, d in zip(kernel, stride, dilation)])

    def over(place: Sequence[Int]) -> tuple[list[Int], tuple[Condition, ...]]:
        at: list[Int] = []
        conditions: list[Condition] = []
        for i, k, s, p, d, t, o in zip(place, kernel, stride, padding, dilation, steps, out):
            if d == 1:
                window = (i + p) // s - t
                conditions.append(Inside(window, o))
                if k % s:  # the last that is looked at may not reach so far
                    conditions.append(Inside(i + p - window * s, integer(k)))
            else:
                reach = i + p - t * d
                conditions.append(Inside(reach, o * s))
                if s > 1:
                    conditions.append(Multiple(reach, integer(s)))
                window = reach // s
            at.append(window)
        return at, tuple(conditions)

    return loops, over


def _windows(loops: Sequence[Var]) -> int:
    total = 1
    for v in loops:
        total *= v.extent.constant or 1
    return total


@lowers(aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default)
def avg_pool(low: Lowering, node: Any) -> Tensor:
    x = low.tensor(node.args[0])
    name = str(node.target)
    rank = 3 if "3d" in name else 2 if "2d" in name else 1
    kernel, stride, padding, ceil, include, override = _avg_parameters(low, node, rank, node.args[1:])
    _check(low, kernel)
    x = _read(low, x, kernel, stride)
    shape = low.result_shape(node)
    lead = len(shape) - rank
    loops, taps = _loop(low, kernel)
    extents = x.shape[lead:]

    def element(index: Index) -> Value:
        at = [i * s - p + t for i, s, p, t in zip(index[lead:], stride, padding, taps)]
        value = x.at((*index[:lead], *at))
        conditions = _bounds(at, extents, padding, node, shape[lead:], kernel, stride, [1] * rank)
        if conditions:
            value = Masked(conditions, value, Const(0.0, "f"), "f")
        total = Fold("sum", loops, (value,), 0, "f") if loops else value
        return Op(
            "div", (total, _divisor(index[lead:], extents, kernel, stride, padding, ceil, include, override)), "f"
        )

    return low.lazy(
        node, element, [x], cost=_size(kernel) * (1 + (x.cost if x.buffer is None else 0)) + 4, folds=bool(loops)
    )


def _avg_parameters(low: Lowering, node: Any, rank: int, args: Sequence[Any]) -> Any:
    given = [*args, *[None] * 6]
    kernel = _parameters(low, node, rank, [given[0]])[0]
    stride = _parameters(low, node, rank, [given[1]])[0] if given[1] else kernel
    padding = _parameters(low, node, rank, [given[2] if given[2] is not None else 0])[0]
    include = True if given[4] is None else bool(given[4])
    return kernel, stride, padding, bool(given[3]), include, given[5]


def _divisor(
    index: Sequence[Int], extents: Sequence[Int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    ceil: bool, include: bool, override: Any,
) -> Value:  # fmt: skip
    """What a window's sum is divided by: its size, or how much of it lies inside (the padding counted or not)."""
    if override:
        return Const(float(override), "f")
    if not ceil and (include or not any(padding)):
        return Const(float(_size(kernel)), "f")
    total: Value | None = None
    for i, e, k, s, p in zip(index, extents, kernel, stride, padding):
        first: Value = IndexValue(i * s - p)
        if not include:
            first = Op("maximum", (first, Const(0, "l")), "l")
        last = Op("minimum", (IndexValue(i * s - p + k), IndexValue(e + p if include else e)), "l")
        length = Op("sub", (last, first), "l")
        total = length if total is None else Op("mul", (total, length), "l")
    assert total is not None
    return Op("to_f", (total,), "f")


@lowers(aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default)
def avg_pool_backward(low: Lowering, node: Any) -> Tensor:
    g, x = low.tensor(node.args[0]), low.tensor(node.args[1])
    rank = 3 if "3d" in str(node.target) else 2
    kernel, stride, padding, ceil, include, override = _avg_parameters(low, node, rank, node.args[2:])
    _check(low, kernel)
    if g.folds or g.cost > 8:
        low.keep(g, "every window over an element reads it")
    shape = x.shape
    lead = len(shape) - rank
    out = g.shape[lead:]
    loops, over = _over(low, kernel, stride, padding, [1] * rank, out)

    def element(index: Index) -> Value:
        at, conditions = over(index[lead:])
        divisor = _divisor(at, shape[lead:], kernel, stride, padding, ceil, include, override)
        value = Op("div", (g.at((*index[:lead], *at)), divisor), "f")
        body = Masked(conditions, value, Const(0.0, "f"), "f")
        return Fold("sum", loops, (body,), 0, "f") if loops else body

    return low.lazy(node, element, [g], cost=4 * _windows(loops), folds=bool(loops))


@lowers(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool(low: Lowering, node: Any) -> Tensor:
    """Where the output size divides the input size all windows are alike; else they differ, and torch does it."""
    x = low.tensor(node.args[0])
    shape = low.result_shape(node)
    rank = 3 if "3d" in str(node.target) else 2
    lead = len(shape) - rank
    kernel = _even(low, x.shape[lead:], shape[lead:])
    loops, taps = _loop(low, kernel)

    def element(index: Index) -> Value:
        at = [i * k + t for i, k, t in zip(index[lead:], kernel, taps)]
        total = Fold("sum", loops, (x.at((*index[:lead], *at)),), 0, "f")
        return Op("div", (total, Const(float(_size(kernel)), "f")), "f")

    return low.lazy(node, element, [x], cost=_size(kernel) * (1 + x.cost), folds=True)


def _even(low: Lowering, source: Sequence[Int], target: Sequence[Int]) -> list[int]:
    kernel = []
    for s, t in zip(source, target):
        if s.constant is None or t.constant is None or s.constant % t.constant:
            raise low.refusal("adaptive pooling whose windows depend on the size of the input")
        kernel.append(s.constant // t.constant)
    _check(low, kernel)
    return kernel


@lowers(aten._adaptive_avg_pool2d_backward.default, aten._adaptive_avg_pool3d_backward.default)
def adaptive_avg_pool_backward(low: Lowering, node: Any) -> Tensor:
    g, x = low.tensor(node.args[0]), low.tensor(node.args[1])
    rank = 3 if "3d" in str(node.target) else 2
    lead = len(x.shape) - rank
    kernel = _even(low, x.shape[lead:], g.shape[lead:])

    def element(index: Index) -> Value:
        at = [i // k for i, k in zip(index[lead:], kernel)]
        return Op("div", (g.at((*index[:lead], *at)), Const(float(_size(kernel)), "f")), "f")

    return low.lazy(node, element, [g], cost=4)
