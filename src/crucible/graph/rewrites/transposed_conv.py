"""A transposed convolution of stride 1 is a convolution with its weights turned round.

Identity, in each spatial dimension: ``conv_transpose(x, w, stride=1, padding=p, dilation=d)`` is
``conv(x, w', stride=1, padding=d * (k - 1) - p, dilation=d)``, where ``w'`` has the taps of ``w`` reversed and, within
each group, its two channel axes exchanged. ``w'`` is computed in the graph, so gradients reach ``w``.

Conditions: stride 1 and output padding 0 in every dimension, ``d * (k - 1) >= p``, sizes of the weights known.

The same products are added, in whatever order the convolution adds them; nothing is rounded on the way to ``w'``.
Only weights that are NaN or infinite can tell the two apart, at the border: there the convolution multiplies them
with padding zeros. Off by default: a planner that reads weights through its own indexing turns them for free.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from crucible.graph.edit import arguments, aten, insert, ints, is_call, replace, static_shape

NAME = "transposed_conv"
ENABLED = False

_FORWARD = {
    aten.conv_transpose1d.default: aten.conv1d.default,
    aten.conv_transpose2d.input: aten.conv2d.default,
    aten.conv_transpose3d.input: aten.conv3d.default,
}


def apply(graph: fx.Graph) -> list[str]:
    done = []
    for node in list(graph.nodes):
        if not is_call(node, *_FORWARD, aten.convolution.default):
            continue
        bound = arguments(node)
        padding = _forward_padding(bound)
        if padding is None:
            continue
        ones, dilation, groups = [1] * len(padding), list(bound["dilation"]), bound["groups"]
        turned = _turned(node, bound["weight"], groups)
        x, bias = bound["input"], bound["bias"]
        if is_call(node, aten.convolution.default):
            tail: tuple[Any, ...] = (ones, padding, dilation, False, [0] * len(padding), groups)
            forward = insert(node, node.target, x, turned, bias, *tail)
        else:
            forward = insert(node, _FORWARD[node.target], x, turned, bias, ones, padding, dilation, groups)
        done.append(f"{node.name} is {forward.name}: a convolution with the weights {bound['weight'].name} turned")
        replace(node, forward)
    return done


def _forward_padding(bound: dict[str, Any]) -> list[int] | None:
    """The padding of the plain convolution, or None where there is none."""
    shape = static_shape(bound["weight"])
    if shape is None or not bound.get("transposed", True):
        return None
    kernel = shape[2:]
    rank = len(kernel)
    stride, padding, dilation = (ints(bound[k], rank) for k in ("stride", "padding", "dilation"))
    if stride != (1,) * rank or padding is None or dilation is None:
        return None
    if ints(bound["output_padding"], rank) != (0,) * rank:
        return None
    forward = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding)]
    return forward if min(forward) >= 0 else None


def _turned(before: fx.Node, weight: fx.Node, groups: int) -> fx.Node:
    shape = static_shape(weight)
    assert shape is not None
    inputs, outputs, kernel = shape[0], shape[1], shape[2:]
    if groups > 1:
        grouped = insert(before, aten.reshape.default, weight, [groups, inputs // groups, outputs, *kernel])
        exchanged = insert(before, aten.transpose.int, grouped, 1, 2)
        weight = insert(before, aten.reshape.default, exchanged, [groups * outputs, inputs // groups, *kernel])
    else:
        weight = insert(before, aten.transpose.int, weight, 0, 1)
    reversible = [2 + i for i, k in enumerate(kernel) if k > 1]
    return insert(before, aten.flip.default, weight, reversible) if reversible else weight
