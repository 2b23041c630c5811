"""Operators of single elements: rows of the table of pointwise functions, and those whose arguments are not a row's."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from crucible.plan import pointwise
from crucible.plan.lowering import (
    CASTS,
    HANDLERS,
    UNCHANGED,
    Handler,
    Lowering,
    Unsupported,
    broadcast,
    convert,
    lowers,
    name_of,
)
from crucible.plan.program import Index, Tensor, kind_of, loses
from crucible.plan.value import IndexValue, Op, Value

aten = torch.ops.aten


def _apply(low: Lowering, node: Any, row: str, args: Sequence[Any], kind: str | None = None) -> Tensor:
    """A row of the table on tensors and numbers; ``kind`` is that of the arguments."""
    entry = pointwise.TABLE[row]
    tensors = [low.tensor(a) for a in args if isinstance(a, fx.Node) and isinstance(low.env[a], Tensor)]
    tensors += [a for a in args if isinstance(a, Tensor)]
    out_kind = kind_of(low.dtype(node.meta["val"]))
    if kind is None:
        kind = out_kind if entry.result == "=" else _common(low, tensors, args)
    text = {"f": entry.real, "l": entry.whole, "b": entry.logical or (entry.whole if entry.result == "b" else None)}[
        kind
    ]
    if text is None and kind == "b" and entry.whole is not None:
        kind = "l"
        text = entry.whole
    if text is None:
        raise Unsupported(f"{row} of {'integers' if kind == 'l' else 'booleans'}")
    result_kind = kind if entry.result == "=" else entry.result
    shape = low.result_shape(node)

    def element(index: Index) -> Value:
        values = []
        for position, a in enumerate(args):
            wanted = "b" if row == "where" and position == 0 else kind
            if isinstance(a, Tensor):
                values.append(convert(broadcast(a, index), wanted))
            elif isinstance(a, fx.Node) and isinstance(low.env[a], Tensor):
                values.append(convert(broadcast(low.env[a], index), wanted))
            else:
                values.append(convert(low.scalar(a, wanted), wanted))
        return convert(Op(row, tuple(values), result_kind), out_kind)

    pooled = low.passed_on(tensors, shape, low.dtype(node.meta["val"]))
    return low.lazy(node, element, tensors, cost=entry.cost, shape=shape, pooled=pooled)


def _common(low: Lowering, tensors: Sequence[Tensor], args: Sequence[Any]) -> str:
    kinds = {t.kind for t in tensors}
    for a in args:
        if isinstance(a, float) or isinstance(low.number(a) if isinstance(a, fx.Node) else a, torch.SymFloat):
            kinds.add("f")
        elif isinstance(a, int) and not isinstance(a, bool):
            kinds.add("l" if kinds != {"f"} else "f")
    return "f" if "f" in kinds else "l" if "l" in kinds else "b"


@lowers(torch.ops.prims.hypot.default)
def _hypot(low: Lowering, node: Any) -> Tensor:
    return _apply(low, node, "hypot", node.args)


@lowers(aten.round.default)
def _round(low: Lowering, node: Any) -> Tensor:
    return _apply(low, node, "round", node.args)


@lowers(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar)
def _add(low: Lowering, node: Any) -> Tensor:
    row = "add" if "add" in str(node.target) else "sub"
    alpha = node.kwargs.get("alpha", node.args[2] if len(node.args) > 2 else 1)
    a, b = node.args[:2]
    if alpha == 1:
        return _apply(low, node, row, (a, b))
    scaled = low.tensor(b) if isinstance(b, fx.Node) else None
    if scaled is None:
        return _apply(low, node, row, (a, b * alpha))
    kind = scaled.kind
    product = Tensor(
        scaled.name, scaled.shape, scaled.dtype,
        lambda i: Op("mul", (scaled.at(i), low.scalar(alpha, kind)), kind), scaled.cost + 1, scaled.folds, None,
        scaled.results, scaled.nodes,
    )  # fmt: skip
    return _apply(low, node, row, (a, product))


@lowers(aten.mul.Tensor, aten.mul.Scalar)
def _mul(low: Lowering, node: Any) -> Tensor:
    return _apply(low, node, "mul", node.args)


@lowers(aten.div.Tensor, aten.div.Scalar)
def _div(low: Lowering, node: Any) -> Tensor:
    return _apply(low, node, "div", node.args, "f")


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _div_mode(low: Lowering, node: Any) -> Tensor:
    mode = node.kwargs.get("rounding_mode", node.args[2] if len(node.args) > 2 else None)
    row = {None: "div", "floor": "floor_divide", "trunc": "trunc_divide"}[mode]
    return _apply(low, node, row, node.args[:2])


@lowers(aten.pow.Tensor_Scalar)
def _pow_scalar(low: Lowering, node: Any) -> Tensor:
    x, power = node.args
    simple = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}.get(low.number(power))
    if simple is not None and (simple == "square" or low.tensor(x).kind == "f"):
        return _apply(low, node, simple, (x,))
    if low.number(power) == 3:
        t = low.tensor(x)
        return low.lazy(
            node, lambda i: Op("mul", (Op("mul", (t.at(i), t.at(i)), t.kind), t.at(i)), t.kind), [t], cost=2
        )
    return _apply(low, node, "pow", node.args)


@lowers(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def _pow(low: Lowering, node: Any) -> Tensor:
    return _apply(low, node, "pow", node.args)


@lowers(aten.gelu.default)
def _gelu(low: Lowering, node: Any) -> Tensor:
    tanh = node.kwargs.get("approximate", node.args[1] if len(node.args) > 1 else "none") == "tanh"
    return _apply(low, node, "gelu_tanh" if tanh else "gelu", node.args[:1])


@lowers(aten.gelu_backward.default)
def _gelu_backward(low: Lowering, node: Any) -> Tensor:
    tanh = node.kwargs.get("approximate", node.args[2] if len(node.args) > 2 else "none") == "tanh"
    return _apply(low, node, "gelu_tanh_backward" if tanh else "gelu_backward", node.args[:2])


def _with_defaults(row: str, *defaults: float) -> Handler:
    def handler(low: Lowering, node: Any) -> Tensor:
        given = list(node.args[1:])
        names = {"elu": ("alpha", "scale", "input_scale"), "leaky_relu": ("negative_slope",),
                 "hardtanh": ("min_val", "max_val"), "softplus": ("beta", "threshold")}[row]  # fmt: skip
        full = [given[i] if i < len(given) else node.kwargs.get(n, d) for i, (n, d) in enumerate(zip(names, defaults))]
        return _apply(low, node, row, (node.args[0], *full))

    return handler


HANDLERS[aten.elu.default] = _with_defaults("elu", 1.0, 1.0, 1.0)
HANDLERS[aten.leaky_relu.default] = _with_defaults("leaky_relu", 0.01)
HANDLERS[aten.hardtanh.default] = _with_defaults("hardtanh", -1.0, 1.0)
HANDLERS[aten.softplus.default] = _with_defaults("softplus", 1.0, 20.0)


@lowers(aten.log_sigmoid_forward.default)
def _log_sigmoid(low: Lowering, node: Any) -> Any:
    x = low.tensor(node.args[0])
    out = Tensor(node.name, x.shape, x.dtype, lambda i: Op("log_sigmoid", (x.at(i),), "f"), x.cost + 24, x.folds, None,
                 x.results, (*x.nodes, node.name))  # fmt: skip

    def small(i: Index) -> Value:
        """exp(-|x|), which the derivative is computed from."""
        return Op("exp", (Op("neg", (Op("abs", (x.at(i),), "f"),), "f"),), "f")

    return out, Tensor(node.name, x.shape, x.dtype, small, x.cost + 10, x.folds, None, x.results, x.nodes)


@lowers(aten.clamp.default, aten.clamp.Tensor, aten.clamp_min.default, aten.clamp_max.default, aten.clamp_min.Tensor,
        aten.clamp_max.Tensor)  # fmt: skip
def _clamp(low: Lowering, node: Any) -> Tensor:
    name = str(node.target)
    arguments = [*node.args[1:], None, None]
    low_bound = node.kwargs.get("min", arguments[0])
    high = node.kwargs.get("max", arguments[1])
    if "clamp_max" in name:
        low_bound, high = None, arguments[0] if arguments[0] is not None else high
    x = node.args[0]
    if low_bound is None and high is None:
        return low.tensor(x)
    if high is None:
        return _apply(low, node, "clamp_min", (x, low_bound))
    if low_bound is None:
        return _apply(low, node, "clamp_max", (x, high))
    return _apply(low, node, "clamp", (x, low_bound, high))


@lowers(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def _where(low: Lowering, node: Any) -> Tensor:
    return _apply(low, node, "where", node.args, kind_of(low.dtype(node.meta["val"])))


@lowers(*UNCHANGED)
def _same(low: Lowering, node: Any) -> Tensor:
    return low.tensor(node.args[0])


@lowers(*CASTS)
def _to(low: Lowering, node: Any) -> Tensor:
    x = low.tensor(node.args[0])
    dtype = low.dtype(node.meta["val"])
    if dtype == x.dtype:
        return x
    kind = kind_of(dtype)
    if kind_of(x.dtype) == "l" and kind == "l":
        raise Unsupported("a change between integer types")
    if kind == x.kind == "f":
        source, target = low.type_of(x), name_of(low.element) if dtype == "scalar" else dtype
        if loses(source, target):  # an explicit change of type rounds, as torch does
            return low.lazy(node, lambda i: Op(f"as_{target}", (x.at(i),), "f"), [x], cost=4)
    return low.lazy(node, lambda i: convert(x.at(i), kind), [x], cost=1)


@lowers(aten.full.default, aten.full_like.default, aten.zeros.default, aten.ones.default, aten.zeros_like.default,
        aten.ones_like.default, aten.new_zeros.default, aten.new_full.default, aten.scalar_tensor.default,
        aten.new_ones.default, aten.empty_like.default, aten.empty.memory_format, aten.new_empty.default,
        aten.new_empty_strided.default, aten.empty_strided.default, aten.empty_permuted.default,
        aten.fill.Scalar)  # fmt: skip
def _full(low: Lowering, node: Any) -> Tensor:
    name = str(node.target)
    kind = kind_of(low.dtype(node.meta["val"]))
    if "full" in name or "fill" in name:
        fill = node.args[2] if "new_full" in name else node.args[1]
    elif "scalar_tensor" in name:
        fill = node.args[0]
    else:
        fill = 1 if "ones" in name else 0
    value = low.scalar(fill, kind)
    return low.lazy(node, lambda i: value, [])


@lowers(aten.arange.start_step, aten.arange.start, aten.arange.default, torch.ops.prims.iota.default)
def _arange(low: Lowering, node: Any) -> Tensor:
    name = str(node.target)
    if "iota" in name:
        start, step = node.kwargs.get("start", 0), node.kwargs.get("step", 1)
    else:
        start = node.args[0] if len(node.args) > 1 else 0
        step = node.args[2] if len(node.args) > 2 else 1
    dtype = low.dtype(node.meta["val"])
    if kind_of(dtype) == "l":
        first, each = low.whole(start), low.whole(step)
        return low.lazy(node, lambda i: IndexValue(first + each * i[0]), [])
    a, b = low.scalar(start, "f"), low.scalar(step, "f")
    return low.lazy(node, lambda i: Op("add", (a, Op("mul", (b, Op("to_f", (IndexValue(i[0]),), "f")), "f")), "f"), [])


@lowers(operator.getitem)
def _getitem(low: Lowering, node: Any) -> Any:
    return low.env[node.args[0]][node.args[1]]


def _as_it_is(row: str) -> Handler:
    return lambda low, node: _apply(low, node, row, node.args)


def register_rows() -> None:
    """A row whose name and arguments are those of an ATen operator needs no handler, unless one is there already."""
    handled = {getattr(target, "overloadpacket", None) for target in HANDLERS}
    for name in pointwise.TABLE:
        packet = getattr(aten, name, None)
        if packet is None or packet in handled:
            continue
        for overload in packet.overloads():
            if overload in ("default", "Tensor", "Scalar", "self"):
                HANDLERS[getattr(packet, overload)] = _as_it_is(name)


register_rows()
