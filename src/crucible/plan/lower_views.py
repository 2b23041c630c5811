"""Operators that only say where an element is: views, parts, joins, and lookups by index."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from crucible.plan.index import ONE, ZERO, Int, Quotient, integer, nonnegative
from crucible.plan.lowering import Lowering, Unsupported, broadcast, convert, lowers
from crucible.plan.program import Index, Tensor, flat, kind_of, reshaped
from crucible.plan.value import Const, IndexValue, Load, Masked, Op, Value
from crucible.plan.value import Inside as In

aten = torch.ops.aten


def _view(low: Lowering, node: Any, source: Tensor, back: Callable[[Index], Index]) -> Tensor:
    """A tensor whose element at an index is the source's at ``back(index)``."""
    shape = low.result_shape(node)
    made = low.lazy(node, lambda i: source.at(back(i)), [source], shape=shape)
    return made


@lowers(aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten._reshape_copy.default)
def _reshape(low: Lowering, node: Any) -> Tensor:
    x = low.tensor(node.args[0])
    shape = low.result_shape(node)
    if shape == x.shape:
        return x
    made = _view(low, node, x, lambda i: reshaped(i, shape, x.shape))
    of = x.flat or x
    if shape and of.shape and of.shape[-1] == shape[-1]:  # the same rows, counted in another way
        made.flat = of
    return made


@lowers(aten.permute.default, aten.transpose.int, aten.t.default)
def _permute(low: Lowering, node: Any) -> Tensor:
    x = low.tensor(node.args[0])
    rank = len(x.shape)
    name = str(node.target)
    if "permute" in name:
        order = [d % rank for d in node.args[1]]
    elif "transpose" in name:
        order = list(range(rank))
        a, b = node.args[1] % rank, node.args[2] % rank
        order[a], order[b] = order[b], order[a]
    else:
        order = list(range(rank))[::-1]
    return _view(low, node, x, lambda i: tuple(i[order.index(d)] for d in range(rank)))


@lowers(aten.expand.default)
def _expand(low: Lowering, node: Any) -> Tensor:
    x = low.tensor(node.args[0])
    lead = len(low.result_shape(node)) - len(x.shape)
    return _view(low, node, x, lambda i: tuple(ZERO if s == 1 else k for s, k in zip(x.shape, i[lead:])))


@lowers(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default, aten.unsqueeze.default)
def _squeeze(low: Lowering, node: Any) -> Tensor:
    x = low.tensor(node.args[0])
    shape = low.result_shape(node)
    return _view(low, node, x, lambda i: reshaped(i, shape, x.shape))


def _start(low: Lowering, given: Any, extent: Int) -> Int:
    """Where a slice begins; a negative number counts from the end."""
    start = low.whole(given) if given is not None else ZERO
    if start.constant is not None:
        return extent + start if start.constant < 0 else start
    if not nonnegative(start):
        raise Unsupported("a slice that starts at a computed place")
    return start


@lowers(aten.slice.Tensor)
def _slice(low: Lowering, node: Any) -> Tensor:
    x = low.tensor(node.args[0])
    arguments = [*node.args[1:], *[None] * 4]
    dim = (arguments[0] or 0) % len(x.shape)
    step = low.constant(arguments[3]) if arguments[3] is not None else 1
    start = _start(low, arguments[1], x.shape[dim])
    return _view(low, node, x, lambda i: (*i[:dim], start + i[dim] * step, *i[dim + 1 :]))


@lowers(aten.select.int)
def _select(low: Lowering, node: Any) -> Tensor:
    x = low.tensor(node.args[0])
    dim = node.args[1] % len(x.shape)
    at = low.whole(node.args[2])
    if at.constant is not None and at.constant < 0:
        at = x.shape[dim] + at
    return _view(low, node, x, lambda i: (*i[:dim], at, *i[dim:]))


@lowers(aten.repeat.default)
def _repeat(low: Lowering, node: Any) -> Tensor:
    x = low.tensor(node.args[0])
    lead = len(low.result_shape(node)) - len(x.shape)
    return _view(low, node, x, lambda i: tuple(ZERO if s == 1 else k % s for s, k in zip(x.shape, i[lead:])))


@lowers(aten.unfold.default)
def _unfold(low: Lowering, node: Any) -> Tensor:
    x = low.tensor(node.args[0])
    dim = node.args[1] % max(len(x.shape), 1)
    step = low.constant(node.args[3])
    return _view(low, node, x, lambda i: (*i[:dim], i[dim] * step + i[-1], *i[dim + 1 : -1]))


@lowers(aten.flip.default)
def _flip(low: Lowering, node: Any) -> Tensor:
    x = low.tensor(node.args[0])
    dims = {d % len(x.shape) for d in node.args[1]}
    return _view(low, node, x, lambda i: tuple(x.shape[d] - 1 - k if d in dims else k for d, k in enumerate(i)))


@lowers(aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int)
def _split(low: Lowering, node: Any) -> tuple[Tensor, ...]:
    x = low.tensor(node.args[0])
    unbind = "unbind" in str(node.target)
    dim = (node.args[1] if unbind and len(node.args) > 1 else node.args[2] if len(node.args) > 2 else 0) % len(x.shape)
    parts, start = [], ZERO
    for value in node.meta["val"]:
        shape = low.shape(value)

        def element(i: Index, start: Int = start) -> Value:
            return x.at((*i[:dim], start, *i[dim:]) if unbind else (*i[:dim], start + i[dim], *i[dim + 1 :]))

        parts.append(low.lazy(node, element, [x], shape=shape, dtype=x.dtype))
        start = start + (1 if unbind else shape[dim])
    return tuple(parts)


@lowers(aten.cat.default)
def _cat(low: Lowering, node: Any) -> Tensor:
    tensors = [low.tensor(t) for t in node.args[0]]
    shape = low.result_shape(node)
    tensors = [t for t in tensors if len(t.shape) == len(shape)]  # torch skips empty ones of any shape
    dim = (node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)) % len(shape)
    kind = kind_of(low.dtype(node.meta["val"]))
    starts, total = [], ZERO
    for t in tensors:
        starts.append(total)
        total = total + t.shape[dim]

    def element(i: Index) -> Value:
        value: Value = Const(0.0 if kind == "f" else 0, kind)
        for t, start in reversed(list(zip(tensors, starts))):
            own = (*i[:dim], i[dim] - start, *i[dim + 1 :])
            value = Masked((In(i[dim] - start, t.shape[dim]),), convert(t.at(own), kind), value, kind)
        return value

    return low.lazy(node, element, tensors, cost=2)


def _rounded(value: Int) -> bool:
    """Whether a quotient in it may be one of a negative number."""
    return any(isinstance(a, Quotient) and not nonnegative(a.top) for a in value.atoms())


@lowers(aten.constant_pad_nd.default)
def _pad(low: Lowering, node: Any) -> Tensor:
    x = low.tensor(node.args[0])
    pads = [low.whole(p) for p in node.args[1]]
    if any(map(_rounded, pads)):  # kernels round what is negative towards zero
        if any(map(_rounded, low.result_shape(node))):
            raise Unsupported("a padding that depends on the size of the input")
        pads = [low.symbols.by_host(low.number(p)) for p in node.args[1]]
    fill = low.scalar(node.args[2] if len(node.args) > 2 else 0, x.kind)
    rank = len(x.shape)
    before = [ZERO] * rank
    for k in range(len(pads) // 2):
        before[rank - 1 - k] = pads[2 * k]

    def element(i: Index) -> Value:
        own = tuple(k - b for k, b in zip(i, before))
        conditions = tuple(In(o, s) for d, (o, s) in enumerate(zip(own, x.shape)) if d >= rank - len(pads) // 2)
        return Masked(conditions, x.at(own), fill, x.kind)

    return low.lazy(node, element, [x], cost=2)


@lowers(aten.slice_scatter.default)
def _slice_scatter(low: Lowering, node: Any) -> Tensor:
    x, source = low.tensor(node.args[0]), low.tensor(node.args[1])
    arguments = [*node.args[2:], *[None] * 4]
    dim = (arguments[0] or 0) % len(x.shape)
    start = _start(low, arguments[1], x.shape[dim])
    step = low.constant(arguments[3]) if arguments[3] is not None else 1

    def element(i: Index) -> Value:
        from crucible.plan.value import Multiple

        offset = i[dim] - start
        conditions: tuple[Any, ...] = (In(offset, source.shape[dim] * step),)
        if step != 1:
            conditions += (Multiple(offset, integer(step)),)
        own = (*i[:dim], offset // step if step != 1 else offset, *i[dim + 1 :])
        return Masked(conditions, source.at(own), x.at(i), x.kind)

    return low.lazy(node, element, [x, source], cost=2)


@lowers(aten.select_scatter.default)
def _select_scatter(low: Lowering, node: Any) -> Tensor:
    x, source = low.tensor(node.args[0]), low.tensor(node.args[1])
    dim = node.args[2] % len(x.shape)
    at = low.whole(node.args[3])
    if at.constant is not None and at.constant < 0:
        at = x.shape[dim] + at

    def element(i: Index) -> Value:
        return Masked((In(i[dim] - at, ONE),), source.at((*i[:dim], *i[dim + 1 :])), x.at(i), x.kind)

    return low.lazy(node, element, [x, source], cost=2)


def _picked(low: Lowering, node: Any, chosen: Callable[[Tensor, Index, int], Value]) -> Tensor:
    """Elements picked along one dimension; ``chosen``: which, by the tensor of indices, the place and the dimension."""
    x, index = low.tensor(node.args[0]), low.tensor(node.args[2])
    buffer = low.keep(x, "elements are picked from it by index")
    dim = node.args[1] % max(len(x.shape), 1)

    def element(i: Index) -> Value:
        base = flat(tuple(ZERO if d == dim else k for d, k in enumerate(i)), buffer.shape)
        at = _within(chosen(index, i, dim), x.shape[dim])
        return Load(buffer.name, base, buffer.kind, ((at, _strides(buffer.shape)[dim]),))

    return low.lazy(node, element, [index], cost=4)


@lowers(aten.gather.default)
def _gather(low: Lowering, node: Any) -> Tensor:
    return _picked(low, node, lambda index, i, dim: index.at(i))


@lowers(aten.index_select.default)
def _index_select(low: Lowering, node: Any) -> Tensor:
    return _picked(low, node, lambda index, i, dim: broadcast(index, (i[dim],)))


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def _index(low: Lowering, node: Any) -> Tensor:
    """Elements picked by tensors of indices: their common shape takes the place of the dimensions they index."""
    x = low.tensor(node.args[0])
    given = {d: low.tensor(t) for d, t in enumerate(node.args[1]) if t is not None}
    if any(t.kind != "l" for t in given.values()):
        raise Unsupported("an index by a mask: how many elements it picks depends on the data")
    buffer = low.keep(x, "elements are picked from it by index")
    strides = _strides(buffer.shape)
    rank = max(len(t.shape) for t in given.values())
    dims = sorted(given)
    at = _wrapped if node.target is aten._unsafe_index.Tensor else lambda i, n: _within(_wrapped(i, n), n)
    front = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0

    def element(i: Index) -> Value:
        picked = i[front : front + rank]
        others = iter((*i[:front], *i[front + rank :]))
        base = flat(tuple(ZERO if d in given else next(others) for d in range(len(x.shape))), buffer.shape)
        dynamic = tuple((at(broadcast(t, picked), x.shape[d]), strides[d]) for d, t in given.items())
        return Load(buffer.name, base, buffer.kind, dynamic)

    return low.lazy(node, element, list(given.values()), cost=4)


def _wrapped(index: Value, extent: Int) -> Value:
    """An index, where a negative one counts from the end."""
    negative = Op("lt", (index, Const(0, "l")), "b")
    return Op("where", (negative, Op("add", (index, IndexValue(extent)), "l"), index), "l")


def _within(index: Value, extent: Int) -> Value:
    """An index that is not to be trusted."""
    return Op("within", (index, IndexValue(extent)), "l")


@lowers(aten.embedding.default)
def _embedding(low: Lowering, node: Any) -> Tensor:
    table, index = low.tensor(node.args[0]), low.tensor(node.args[1])
    buffer = low.keep(table, "rows are picked from it by index")

    def element(i: Index) -> Value:
        return Load(buffer.name, i[-1], buffer.kind, ((_within(index.at(i[:-1]), buffer.shape[0]), buffer.shape[1]),))

    return low.lazy(node, element, [index], cost=4)


@lowers(aten.copy.default)
def _copy(low: Lowering, node: Any) -> Tensor:
    source = low.tensor(node.args[1])
    kind = kind_of(low.dtype(node.meta["val"]))
    return low.lazy(node, lambda i: convert(broadcast(source, i), kind), [source])


def _strides(shape: Index) -> list[Int]:
    out, total = [], ONE
    for s in reversed(shape):
        out.append(total)
        total = total * s
    return out[::-1]


@lowers(aten.scatter.src, aten.scatter.value)
def _scatter(low: Lowering, node: Any) -> Tensor:
    """One index along the dimension: every element knows whether it is the one."""
    x, index = low.tensor(node.args[0]), low.tensor(node.args[2])
    dim = node.args[1] % max(len(x.shape), 1)
    if (
        not x.shape
        or index.shape[dim] != 1
        or any(a != b for d, (a, b) in enumerate(zip(index.shape, x.shape)) if d != dim)
    ):
        raise Unsupported("a scatter of several elements along its dimension")
    source = node.args[3]
    found = _found_among(low, node.args[2], x.shape[dim])

    def element(i: Index) -> Value:
        at = tuple(ZERO if d == dim else k for d, k in enumerate(i))
        place = index.at(at) if found else _within(index.at(at), x.shape[dim])
        chosen = Op("eq", (place, IndexValue(i[dim])), "b")
        new = low.tensor(source).at(at) if isinstance(source, fx.Node) else low.scalar(source, x.kind)
        return Op("where", (chosen, new, x.at(i)), x.kind)

    inputs = [x, index] + ([low.tensor(source)] if isinstance(source, fx.Node) else [])
    return low.lazy(node, element, inputs, cost=3)


def _found_among(low: Lowering, index: fx.Node, extent: Int) -> bool:
    """Whether an index is where an extreme was found among as many elements, as in the derivatives of extremes."""
    while index.target in (aten.unsqueeze.default, aten.alias.default):
        index = index.args[0]  # type: ignore[assignment]
    of = index.args[0] if index.target is operator.getitem else None
    if not isinstance(of, fx.Node) or of.target not in (aten.min.dim, aten.max.dim):
        return False
    shape = low.tensor(of.args[0]).shape
    return bool(shape) and shape[of.args[1]] == extent  # type: ignore[index]
