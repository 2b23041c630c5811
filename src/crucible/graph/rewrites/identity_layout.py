"""Copies, conversions and views that give back the tensor they were given.

Identities, exact in value and gradient:

* ``clone``, ``contiguous``, ``_to_copy`` to the same dtype and device: a copy with the strides of its source;
* ``alias``; ``view``, ``reshape``, ``expand``, ``squeeze``, ``slice``, ``flatten`` to the same shape: they keep the
  order of the elements, so equal shapes mean the same tensor; ``permute`` and ``transpose`` that move nothing.

Conditions: shapes are equal for every input, not only the traced one. A copy that changes strides stays (a later
``view`` may depend on it). ``detach`` stays: it cuts the gradient. A copy whose storage reaches an output stays when
its source is an argument of the graph or reaches an output as well: the caller would get the same memory twice. No
output becomes an argument of the graph.
"""

from __future__ import annotations

import torch
from torch import fx

from crucible.graph.edit import arguments, aten, dims, dtype, is_call, may_share, replace, same_sizes, value

NAME = "identity_layout"
ENABLED = True

_COPIES = (aten.clone.default, aten.contiguous.default, aten._to_copy.default, aten.lift_fresh_copy.default)
_ORDER_KEEPING = (
    aten.alias.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.expand.default,
    aten.slice.Tensor,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.flatten.using_ints,
)


def apply(graph: fx.Graph) -> list[str]:
    done = []
    for node in list(graph.nodes):
        if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
            continue
        source = node.args[0]
        if _is_same(node, source) and _stays_apart(node, source):
            done.append(f"{node.name} is {source.name}: {node.target} gives back the same tensor")
            replace(node, source)
    return done


def _is_same(node: fx.Node, source: fx.Node) -> bool:
    if is_call(node, *_COPIES):
        bound = arguments(node)
        return (
            dtype(node) == dtype(source)
            and bound.get("device") in (None, value(source).device)
            and bound.get("layout") in (None, torch.strided)
            and same_sizes(value(node).stride(), value(source).stride())
        )
    if is_call(node, *_ORDER_KEEPING):
        return same_sizes(value(node).shape, value(source).shape)
    rank = value(source).dim() if isinstance(source.meta.get("val"), torch.Tensor) else 0
    if is_call(node, aten.permute.default):
        return dims(arguments(node)["dims"], rank) == tuple(range(rank))
    if is_call(node, aten.transpose.int):
        bound = arguments(node)
        return rank > 0 and dims(bound["dim0"], rank) == dims(bound["dim1"], rank)
    return False


def _stays_apart(node: fx.Node, source: fx.Node) -> bool:
    if is_call(node, *_COPIES):
        return may_share(node, source)
    # A view shares memory as it is.
    return source.op == "call_function" or not any(user.op == "output" for user in node.users)
