"""Two factors or two offsets in a row, Python numbers both, become one.

Identities: ``(x * a) * b = x * (a * b)``, ``(x / a) / b = x / (a * b)``, ``(x * a) / b = (x / b) * a = x * (a / b)``,
``(x + a) + b = x + (a + b)``; one rounding fewer.

Conditions, for floating point ``x`` when nobody else uses the inner result:

* factors: both enlarge (``>= 1`` in absolute value) or both shrink (``<= 1``), so that the value between them lies
  between the ends, in the backward direction too: it overflows or underflows only if the result does.
  ``x * 1e30 * 1e-30`` stays. The merged factor is a normal number of the dtype; 0, infinities and NaN stay.
* offsets: of one sign, so that no digits of ``x`` are lost between them that the merged form would keep
  (``x + 1e8 - 1e8`` stays); no ``alpha``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import fx

from crucible.graph.edit import arguments, aten, dtype, insert, is_call, only_user, replace, scalar, value

NAME = "scale_chains"
ENABLED = True

_TIMES = (aten.mul.Tensor, aten.mul.Scalar)
_OVER = (aten.div.Tensor, aten.div.Scalar)
_PLUS = (aten.add.Tensor, aten.add.Scalar)
_MINUS = (aten.sub.Tensor, aten.sub.Scalar)


@dataclass(frozen=True)
class _Step:
    """``x`` times or over a number, or plus a number."""

    x: fx.Node
    kind: str  # "times", "over" or "plus"
    number: float

    @property
    def enlarges(self) -> bool:
        return abs(self.number) >= 1 if self.kind == "times" else abs(self.number) <= 1

    @property
    def shrinks(self) -> bool:
        return abs(self.number) <= 1 if self.kind == "times" else abs(self.number) >= 1


def apply(graph: fx.Graph) -> list[str]:
    done = []
    for node in list(graph.nodes):
        outer = _step(node)
        inner = _step(outer.x) if outer is not None else None
        if outer is None or inner is None or only_user(outer.x) is None:
            continue
        merged = _merge(inner, outer, torch.finfo(value(node).dtype))
        if merged is None:
            continue
        target = {"times": aten.mul.Tensor, "over": aten.div.Tensor, "plus": aten.add.Tensor}[merged.kind]
        result = insert(node, target, merged.x, merged.number)
        done.append(f"{node.name} of {outer.x.name} is {result.name}: {merged.kind} {merged.number} at once")
        replace(node, result)
        graph.erase_node(outer.x)
    return done


def _step(node: fx.Node) -> _Step | None:
    if not is_call(node, *_TIMES, *_OVER, *_PLUS, *_MINUS):
        return None
    bound = arguments(node)
    x, number = bound["self"], scalar(bound["other"])
    if not isinstance(x, fx.Node) or number is None or bound.get("alpha", 1) != 1:
        return None
    kind = dtype(node)
    if kind is None or not kind.is_floating_point or dtype(x) != kind:
        return None
    if number == 0 or not math.isfinite(number):
        return None
    if is_call(node, *_PLUS, *_MINUS):
        return _Step(x, "plus", float(number) if is_call(node, *_PLUS) else -float(number))
    return _Step(x, "times" if is_call(node, *_TIMES) else "over", float(number))


def _merge(inner: _Step, outer: _Step, limits: torch.finfo) -> _Step | None:
    kinds = {inner.kind, outer.kind}
    if kinds == {"plus"}:
        total = inner.number + outer.number
        same_sign = (inner.number > 0) == (outer.number > 0)
        return _Step(inner.x, "plus", total) if same_sign and abs(total) <= limits.max else None
    if "plus" in kinds:
        return None
    if not (inner.enlarges and outer.enlarges) and not (inner.shrinks and outer.shrinks):
        return None
    if len(kinds) == 1:
        kind, number = inner.kind, inner.number * outer.number
    else:
        times, over = (inner, outer) if inner.kind == "times" else (outer, inner)
        kind, number = "times", times.number / over.number
    return _Step(inner.x, kind, number) if limits.tiny <= abs(number) <= limits.max else None
