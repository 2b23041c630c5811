"""Reductions: sums, extremes and their places, means and variances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from crucible.plan.index import ONE, Int
from crucible.plan.lowering import (
    Lowering,
    Unsupported,
    argument,
    convert,
    lowers,
)
from crucible.plan.program import Index, Tensor, flat, kind_of
from crucible.plan.reducers import TABLE
from crucible.plan.value import Const, IndexValue, Op, Value

aten = torch.ops.aten


def _dims(given: Any, rank: int) -> list[int]:
    if given is None or given == []:
        return list(range(rank))
    many = given if isinstance(given, (list, tuple)) else [given]
    return sorted({d % rank if rank else 0 for d in many} & set(range(rank)))


def _reduction(low: Lowering, node: Any, reducer: str, dims: Any, keepdim: bool) -> Tensor:
    x = low.tensor(node.args[0])
    out_dtype = low.dtype(node.meta["val"])
    kind = kind_of(out_dtype)
    axes = _dims(dims, len(x.shape))
    if not axes:
        return low.lazy(node, lambda i: convert(x.at(i), kind), [x], cost=1)
    name = reducer if kind != "l" or reducer in ("any", "all") else f"{reducer}_l"
    if name not in TABLE:
        raise Unsupported(f"{reducer} of integers")
    body_kind = "b" if reducer in ("any", "all") else kind

    def body(index: Index) -> tuple[Value, ...]:
        value = x.at(index)
        if body_kind == "b" and value.kind != "b":
            value = Op("ne", (value, Const(0.0 if value.kind == "f" else 0, value.kind)), "b")
        return (convert(value, body_kind),)

    (result,) = low.add_reduce(node, x, axes, name, body, [kind], [x], out_dtype)
    return result if keepdim else low.squeezed(result, axes)


@lowers(aten.sum.dim_IntList, aten.sum.default, aten.prod.dim_int, aten.prod.default, aten.amax.default,
        aten.amin.default, aten.any.dim, aten.any.default, aten.all.default, aten.all.dim, aten.any.dims,
        aten.max.default, aten.min.default)  # fmt: skip
def _reduce(low: Lowering, node: Any) -> Tensor:
    name = str(node.target.overloadpacket).split(".")[-1]
    reducer = {"amax": "max", "amin": "min"}.get(name, name)
    if name in ("sum", "prod", "any", "all", "max", "min") and str(node.target).endswith(".default"):
        return _reduction(low, node, reducer, None, False)
    return _reduction(low, node, reducer, argument(node, 1, "dim", None), bool(argument(node, 2, "keepdim", False)))


def _count(shape: Index, dims: Sequence[int]) -> Int:
    total = ONE
    for d in dims:
        total = total * shape[d]
    return total


def real_of(count: Int) -> Value:
    """A size as a number of the type sums are kept in."""
    return Const(float(count.constant), "f") if count.constant is not None else Op("to_f", (IndexValue(count),), "f")


@lowers(aten.mean.dim, aten.mean.default)
def _mean(low: Lowering, node: Any) -> Tensor:
    x = low.tensor(node.args[0])
    whole = str(node.target).endswith("default")
    dims = None if whole else argument(node, 1, "dim", None)
    total = _reduction(low, node, "sum", dims, True if not whole and argument(node, 2, "keepdim", False) else False)
    count = real_of(_count(x.shape, _dims(dims, len(x.shape))))
    return low.lazy(node, lambda i: Op("div", (total.at(i), count), "f"), [total], cost=4)


@lowers(aten.var_mean.correction, aten.var.correction)
def _var_mean(low: Lowering, node: Any) -> Any:
    x = low.tensor(node.args[0])
    axes = _dims(argument(node, 1, "dim", None), len(x.shape))
    correction = node.kwargs.get("correction", 1)
    correction = 1 if correction is None else correction
    keepdim = bool(node.kwargs.get("keepdim", False))
    low.in_stead_of_sums(node, x)
    mean, m2, _count_ = low.add_reduce(node, x, axes, "moments", lambda i: (x.at(i),), ["f", "f", "f"], [x], x.dtype)
    count = _count(x.shape, axes)
    if correction == 0:
        divisor = real_of(count)
    else:
        left: Value = Op("sub", (real_of(count), Const(float(correction), "f")), "f")
        divisor = Op("clamp_min", (left, Const(0.0, "f")), "f")
    if not keepdim:
        mean, m2 = low.squeezed(mean, axes), low.squeezed(m2, axes)

    def derived(source: Tensor, element: Callable[[Index], Value]) -> Tensor:
        return Tensor(f"{node.name}_var", source.shape, x.dtype, element, 4, False, None, source.results, source.nodes)

    variance = derived(m2, lambda i: Op("div", (m2.at(i), divisor), "f"))
    return (variance, mean) if "var_mean" in str(node.target) else variance


def _extreme(low: Lowering, node: Any, which: str, dim: Any, keepdim: bool) -> list[Tensor]:
    x = low.tensor(node.args[0])
    if x.kind != "f":
        raise Unsupported(f"{which} of integers")
    whole = dim is None
    axes = _dims(dim, len(x.shape))
    if not x.shape:
        zero = low.lazy(node, lambda i: Const(0, "l"), [], shape=(), dtype="int64")
        return [x, zero]

    def body(index: Index) -> tuple[Value, ...]:
        at = flat(index, x.shape) if whole else index[axes[0]]
        return x.at(index), IndexValue(at)

    results = low.add_reduce(node, x, axes, f"arg{which}", body, ["f", "l"], [x], x.dtype)
    return results if keepdim else [low.squeezed(r, axes) for r in results]


@lowers(aten.max.dim, aten.min.dim)
def _max_dim(low: Lowering, node: Any) -> Any:
    which = "max" if "max" in str(node.target) else "min"
    x, keepdim = low.tensor(node.args[0]), bool(argument(node, 2, "keepdim", False))
    if x.kind != "f" or not x.shape or any(u.args[1] == 1 for u in node.users):
        return tuple(_extreme(low, node, which, node.args[1], keepdim))
    axes = _dims(node.args[1], len(x.shape))  # nobody asks where it was
    (best,) = low.add_reduce(node, x, axes, which, lambda i: (x.at(i),), ["f"], [x], x.dtype)
    return best if keepdim else low.squeezed(best, axes), None


@lowers(aten.argmax.default, aten.argmin.default)
def _argmax(low: Lowering, node: Any) -> Tensor:
    which = "max" if "max" in str(node.target) else "min"
    return _extreme(low, node, which, argument(node, 1, "dim", None), bool(argument(node, 2, "keepdim", False)))[1]
