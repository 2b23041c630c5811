"""The calls that are one product of an input with weights (convolutions, linear, matrix products), read alike.

Not a pass: the passes that move work into weights share it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from crucible.graph.edit import arguments, aten, insert, is_call, value

CONVS = (
    aten.conv1d.default,
    aten.conv2d.default,
    aten.conv3d.default,
    aten.conv1d.padding,
    aten.conv2d.padding,
    aten.conv3d.padding,
)
TRANSPOSED = (aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)
PRODUCTS = (aten.mm.default, aten.matmul.default)


@dataclass(frozen=True)
class Contraction:
    """A call with its weights: which axis of the weights runs over the output features, and where those end up."""

    call: fx.Node
    weight_name: str
    weight: fx.Node
    bias: fx.Node | None
    feature_axis: int  # of the weights; with groups, of each group's weights
    output_axis: int
    groups: int

    def with_weights(self, weight: fx.Node, bias: fx.Node | None) -> fx.Node:
        """The same call in front of it, on other weights."""
        names = [a.name for a in self.call.target._schema.arguments]  # type: ignore[union-attr]
        given = arguments(self.call)
        given[self.weight_name] = weight
        if "bias" in given:
            given["bias"] = bias
        positional = [given[n] for n in names if n in given]
        return insert(self.call, self.call.target, *positional)


def match(node: Any) -> Contraction | None:
    """The contraction that ``node`` calls, or None."""
    if is_call(node, *CONVS, *TRANSPOSED, aten.convolution.default):
        bound = arguments(node)
        transposed = is_call(node, *TRANSPOSED) or bound.get("transposed", False)
        weight = bound["weight"]
        # An input without a batch has its channels first.
        output_axis = value(node).dim() - (value(weight).dim() - 1)
        return Contraction(node, "weight", weight, bound["bias"], int(transposed), output_axis, bound["groups"])
    if is_call(node, aten.linear.default):
        bound = arguments(node)
        if value(bound["weight"]).dim() != 2 or value(bound["input"]).dim() < 1:
            return None
        return Contraction(node, "weight", bound["weight"], bound["bias"], 0, value(node).dim() - 1, 1)
    if is_call(node, *PRODUCTS):
        bound = arguments(node)
        right = "other" if "other" in bound else "mat2"
        weight = bound[right]
        if value(weight).dim() != 2:
            return None
        return Contraction(node, right, weight, None, 1, value(node).dim() - 1, 1)
    return None


def is_wide(found: Contraction) -> bool:
    """Whether input, weights and result are all float32 or all float64."""
    parts = [value(found.call), value(found.weight)] + ([value(found.bias)] if found.bias is not None else [])
    return len({p.dtype for p in parts}) == 1 and parts[0].dtype in (torch.float32, torch.float64)
