"""Two clamps in a row become one.

Identity: clamping to ``[l1, h1]`` and then to ``[l2, h2]`` is clamping to their intersection, if that is not empty.

Two families, because PyTorch's gradients differ at the bounds and at NaN, and both must stay as they are:

* ``clamp``, ``clamp_min``, ``clamp_max``: the gradient passes at the bounds and stops at NaN. An element passes both
  clamps exactly if it lies in both intervals, bounds included, so it passes the merged one.
* ``relu``, ``relu6``, ``hardtanh``: the gradient stops at the bounds (and ``hardtanh`` decides about NaN, alone or
  next to ``relu``). An element passes both exactly if it lies strictly inside both.

The families are not mixed: ``relu(clamp(x, min=0))`` stops the gradient both at 0 and at NaN, which neither does alone.

Conditions: bounds are Python numbers, in order, and overlap (strictly, for the second family); the inner clamp has no
other user; the dtype stays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import fx

from crucible.graph.edit import arguments, aten, dtype, insert, is_call, only_user, replace, scalar

NAME = "clamp_chains"
ENABLED = True

_CLAMPS = (aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default)
_HARD = (aten.relu.default, aten.relu6.default, aten.hardtanh.default)


@dataclass(frozen=True)
class _Interval:
    """What a clamp leaves; infinite where it has no bound."""

    x: fx.Node
    low: float
    high: float
    hard: bool  # of the second family


def apply(graph: fx.Graph) -> list[str]:
    done = []
    for node in list(graph.nodes):
        outer = _interval(node)
        inner = _interval(outer.x) if outer is not None else None
        if outer is None or inner is None or outer.hard != inner.hard or only_user(outer.x) is None:
            continue
        low, high = max(inner.low, outer.low), min(inner.high, outer.high)
        if low > high or (outer.hard and low == high):
            continue
        result = _emit(node, inner.x, low, high, outer.hard)
        done.append(f"{node.name} of {outer.x.name} is {result.name}: one clamp to [{low}, {high}]")
        replace(node, result)
        graph.erase_node(outer.x)
    return done


def _interval(node: fx.Node) -> _Interval | None:
    if not is_call(node, *_CLAMPS, *_HARD):
        return None
    bound = arguments(node)
    x = bound["self"]
    kind = dtype(node)
    if not isinstance(x, fx.Node) or dtype(x) != kind or kind is None or not kind.is_floating_point:
        return None
    hard = is_call(node, *_HARD)
    low: Any
    high: Any
    if is_call(node, aten.relu.default):
        low, high = 0, None
    elif is_call(node, aten.relu6.default):
        low, high = 0, 6
    elif hard:
        low, high = bound["min_val"], bound["max_val"]
    else:
        low, high = bound.get("min"), bound.get("max")
    if any(b is not None and (scalar(b) is None or math.isnan(b)) for b in (low, high)):
        return None
    interval = _Interval(x, -math.inf if low is None else low, math.inf if high is None else high, hard)
    return interval if interval.low <= interval.high else None


def _emit(before: fx.Node, x: fx.Node, low: float, high: float, hard: bool) -> fx.Node:
    if hard:
        if (low, high) == (0, math.inf) and is_call(before, aten.relu.default):
            return insert(before, aten.relu.default, x)
        return insert(before, aten.hardtanh.default, x, low, high)
    return insert(before, aten.clamp.default, x, None if low == -math.inf else low, None if high == math.inf else high)
