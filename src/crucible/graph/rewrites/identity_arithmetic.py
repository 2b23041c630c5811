"""Arithmetic with a Python number that changes nothing.

Identities, each exact for every value including NaN, infinities and both zeros, in value and gradient:

* ``x * 1``, ``x / 1``, ``x ** 1``
* ``x - 0``: ``-0.0 - 0.0`` is ``-0.0``. But ``x + 0`` turns ``-0.0`` into ``0.0``, so it stays, unless the zero is
  ``-0.0`` itself or the dtype is an integer one. ``x - (-0.0)`` is ``x + 0.0`` and stays as well.
* ``-(-x)``

Conditions: dtype and shape of the result are those of ``x`` (``ints * 1.0`` is a conversion); no ``alpha``; division
without a rounding mode; no caller gets the same memory twice.
"""

from __future__ import annotations

import math

from torch import fx

from crucible.graph.edit import arguments, aten, dtype, is_call, may_share, replace, same_sizes, scalar, value

NAME = "identity_arithmetic"
ENABLED = True

_TIMES = (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar, aten.pow.Tensor_Scalar)
_PLUS = (aten.add.Tensor, aten.add.Scalar)
_MINUS = (aten.sub.Tensor, aten.sub.Scalar)


def apply(graph: fx.Graph) -> list[str]:
    done = []
    for node in list(graph.nodes):
        same = _unchanged(node)
        if same is not None and may_share(node, same):
            done.append(f"{node.name} is {same.name}: {node.target} changes nothing here")
            replace(node, same)
    return done


def _unchanged(node: fx.Node) -> fx.Node | None:
    """The node that has the same value already."""
    if is_call(node, aten.neg.default):
        inner = node.args[0]
        outer = inner.args[0] if is_call(inner, aten.neg.default) else None  # type: ignore[union-attr]
        return outer if isinstance(outer, fx.Node) else None
    if not is_call(node, *_TIMES, *_PLUS, *_MINUS):
        return None
    bound = arguments(node)
    x, number = bound["self"], scalar(bound.get("other", bound.get("exponent")))
    if not isinstance(x, fx.Node) or number is None or bound.get("alpha", 1) != 1:
        return None
    if dtype(x) != dtype(node) or not same_sizes(value(x).shape, value(node).shape):
        return None
    if is_call(node, *_TIMES):
        return x if number == 1 else None
    if number != 0:
        return None
    negative_zero = math.copysign(1.0, number) < 0
    harmless = not value(x).dtype.is_floating_point or negative_zero == is_call(node, *_PLUS)
    return x if harmless else None
