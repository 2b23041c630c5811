"""A maximum or minimum over windows or axes is taken before a non-decreasing function instead of after it.

Identity: ``pool(f(x)) = f(pool(x))`` for ``f`` elementwise and non-decreasing, ``pool`` a max pool, an adaptive max
pool, ``amax``, ``max``, ``amin`` or ``min``. ``f`` is then computed once for each window.

Values: NaN wins in PyTorch's pools and every ``f`` here keeps NaN and makes none, so NaN comes out for the same
windows. Padding counts as minus infinity and never wins in a window with an element in it (``pools.py`` checks that
each has one). ``f`` as computed may be non-monotone by its own rounding: then the two differ by that rounding.

Gradients: a pool hands its gradient to one element of each window, the first largest (``amax``: to all of them in
equal parts). Elements that are equal before ``f`` are equal after it, so ties of ``x`` resolve the same way. Elements
that only ``f`` makes equal are the danger: before the exchange the first of them gets the gradient, after it the
largest. ``MONOTONE`` lists what each ``f`` does about that:

* exact: where ``f`` is flat its gradient in PyTorch is exactly 0, everywhere else it is exactly injective. The
  gradient is the same to the bit.
* strict: ``f`` is strictly increasing, so only rounding makes elements equal: ``f'(x) * (x1 - x2)`` is below the last
  digit of ``f(x)``. Either ``x1`` and ``x2`` are equal to rounding, or ``f'`` is of the order of rounding itself (the
  saturated ends) and so is the gradient that moves. Allowed in float32 and float64, where such ties are as rare as
  those any change of summation order before the pool makes; in 16-bit types they happen in every image.

An input that is NaN itself keeps its NaN result; its own gradient may be 0 where PyTorch multiplies the 0 that the
pool hands it with ``f'(NaN)``.

Left out: ``clamp``, ``clamp_min``, ``clamp_max`` (PyTorch passes the gradient at the bounds themselves, so an element
that equals the bound and one beyond it tie with gradients 1 and 0); ``exp`` (overflows to a tie at infinity with an
infinite gradient); ``softplus`` in float64 (steps down by 2e-9 at its threshold); ``prelu`` (slope of unknown sign);
``gelu``, ``silu``, ``mish``, ``hardswish`` (not monotone).

Condition: the pool is the only user of ``f(x)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from crucible.graph.edit import WIDE, arguments, aten, dtype, insert, only_user, replace, scalar
from crucible.graph.rewrites import pools

NAME = "pool_monotone"
ENABLED = True

Bound = dict[str, Any]


@dataclass(frozen=True)
class Monotone:
    """Why and when a function may be exchanged with a pool."""

    exact: bool
    reason: str
    condition: Callable[[Bound, torch.dtype], bool] = lambda bound, dtype: True


def _number(name: str, test: Callable[[float], bool]) -> Callable[[Bound, torch.dtype], bool]:
    def check(bound: Bound, _: torch.dtype) -> bool:
        number = scalar(bound[name])
        return number is not None and math.isfinite(number) and test(number) and bound.get("alpha", 1) == 1

    return check


def _moderate(number: float) -> bool:
    """Positive, and too near 1 to push anything but the ends of the range into underflow or overflow."""
    return 2.0**-16 <= number <= 2.0**16


def _ordered(low: str, high: str) -> Callable[[Bound, torch.dtype], bool]:
    def check(bound: Bound, _: torch.dtype) -> bool:
        return scalar(bound[low]) is not None and scalar(bound[high]) is not None and bound[low] <= bound[high]

    return check


def _elu(bound: Bound, _: torch.dtype) -> bool:
    return all(scalar(bound[k]) is not None and _moderate(bound[k]) for k in ("alpha", "scale", "input_scale"))


def _softplus(bound: Bound, dtype: torch.dtype) -> bool:
    """At its threshold softplus steps down by log(1 + exp(-threshold)) / beta: that must drown in rounding."""
    beta, threshold = scalar(bound["beta"]), scalar(bound["threshold"])
    if beta is None or threshold is None or not _moderate(beta) or threshold <= 0:
        return False
    return math.exp(-threshold) < threshold * torch.finfo(dtype).eps / 2


_SCALED = Monotone(
    False, "times a positive number: rounded after an exactly monotone product", _number("other", _moderate)
)
_SHIFTED = Monotone(
    False, "plus a number: rounded after an exactly monotone sum", _number("other", lambda n: abs(n) <= 2.0**16)
)

MONOTONE: dict[Any, Monotone] = {
    aten.relu.default: Monotone(True, "gradient 0 where the result is 0, identity above"),
    aten.relu6.default: Monotone(True, "gradient 0 at and beyond 0 and 6, identity between"),
    aten.hardtanh.default: Monotone(
        True, "gradient 0 at and beyond both bounds, identity between", _ordered("min_val", "max_val")
    ),
    aten.threshold.default: Monotone(
        True,
        "gradient 0 up to the threshold, identity above; the value must not top it",
        _ordered("value", "threshold"),
    ),
    aten.hardsigmoid.default: Monotone(False, "gradient 0 at and beyond both bounds, x / 6 + 1 / 2 between"),
    aten.leaky_relu.default: Monotone(
        False,
        "identity above 0, times a positive slope below; slope 0 makes NaN of -inf",
        _number("negative_slope", _moderate),
    ),
    aten.elu.default: Monotone(False, "increasing; gradient alpha * exp(x) vanishes where it saturates", _elu),
    aten.selu.default: Monotone(False, "elu with fixed positive constants"),
    aten.celu.default: Monotone(
        False, "increasing; gradient exp(x / alpha) vanishes where it saturates", lambda b, _: _moderate(b["alpha"])
    ),
    aten.tanh.default: Monotone(False, "increasing; gradient 1 - y * y is 0 where y rounds to 1"),
    aten.sigmoid.default: Monotone(False, "increasing; gradient y * (1 - y) is 0 where y rounds to 0 or 1"),
    aten.log_sigmoid.default: Monotone(False, "increasing; x below, vanishing with its gradient above"),
    aten.softplus.default: Monotone(False, "increasing; x above, vanishing with its gradient below", _softplus),
    aten.atan.default: Monotone(False, "increasing; gradient 1 / (1 + x * x) vanishes where it saturates"),
    aten.erf.default: Monotone(False, "increasing; gradient exp(-x * x) vanishes where it saturates"),
    aten.mul.Tensor: _SCALED,
    aten.mul.Scalar: _SCALED,
    aten.div.Tensor: _SCALED,
    aten.div.Scalar: _SCALED,
    aten.add.Tensor: _SHIFTED,
    aten.add.Scalar: _SHIFTED,
    aten.sub.Tensor: _SHIFTED,
    aten.sub.Scalar: _SHIFTED,
}


def apply(graph: fx.Graph) -> list[str]:
    done = []
    for node in list(graph.nodes):
        pool = pools.match(node)
        while pool is not None and _may_exchange(pool.input):
            function = pool.input
            pooled = pool.on(function.args[0])  # type: ignore[arg-type]
            outside = insert(pool.call, function.target, pooled, *function.args[1:], **function.kwargs)
            done.append(f"{pool.call.name} of {function.name} is {outside.name} of {pooled.name}")
            replace(pool.values, outside)
            pool.drop()
            graph.erase_node(function)
            pool = pools.match(pooled if pooled.target in pools.SINGLE else pooled.args[0])
    return done


def _may_exchange(function: fx.Node) -> bool:
    """Whether the pool's input is a call of the table that nobody else uses."""
    entry = MONOTONE.get(function.target) if function.op == "call_function" else None
    kind = dtype(function)
    if entry is None or kind is None or only_user(function) is None:
        return False
    x = function.args[0]
    if not isinstance(x, fx.Node) or dtype(x) != kind or not kind.is_floating_point:
        return False
    if not entry.exact and kind not in WIDE:
        return False
    return entry.condition(arguments(function), kind)
