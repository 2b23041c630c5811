"""A sum or mean over the output features of a product is taken over the weights instead.

Identity: ``sum(linear(x, w, b), features) = linear(x, sum(w, features), sum(b))``, and so for ``mm`` and ``matmul``
with a matrix on the right, for convolutions (features are channels), transposed ones included, and for ``mean``. One
feature is computed instead of all.

Conditions: the reduction runs over the feature axis alone and keeps the dtype; the product has no other user; one
group; float32 or float64 throughout (in 16-bit types the summed weights would be rounded to 11 bits or fewer before
the product, where the operator keeps its products in float32).

Rounding: the same terms are added in another order; both errors are bounded by eps times the sum of all ``|w * x|``.
Range: summed weights overflow only if weights are within their number of the largest float. An infinite or NaN input
gives a result that is not finite before and after, but NaN (``inf - inf``) may become infinity.
"""

from __future__ import annotations

import torch
from torch import fx

from crucible.graph.edit import arguments, aten, dims, dtype, insert, is_call, only_user, replace, value
from crucible.graph.rewrites import contraction

NAME = "sum_into_weights"
ENABLED = True

_REDUCTIONS = (aten.sum.dim_IntList, aten.mean.dim)


def apply(graph: fx.Graph) -> list[str]:
    done = []
    for node in list(graph.nodes):
        if not is_call(node, *_REDUCTIONS):
            continue
        bound = arguments(node)
        found = contraction.match(bound["self"])
        if found is None or not _fits(node, found):
            continue
        weight = insert(found.call, node.target, found.weight, [found.feature_axis], True)
        bias = None if found.bias is None else insert(found.call, node.target, found.bias, [0], True)
        product = found.with_weights(weight, bias)
        result = product if bound["keepdim"] else insert(node, aten.squeeze.dims, product, [found.output_axis])
        done.append(f"{node.name} over the features of {found.call.name} went into its weights {found.weight.name}")
        replace(node, result)
        graph.erase_node(found.call)
    return done


def _fits(node: fx.Node, found: contraction.Contraction) -> bool:
    bound = arguments(node)
    call: fx.Node = found.call
    rank = value(call).dim()
    return (
        found.groups == 1
        and contraction.is_wide(found)
        and only_user(call) is node
        and bound["dim"] is not None
        and dims(bound["dim"], rank) == (found.output_axis,)
        and dtype(node) == dtype(call)
        and isinstance(found.weight.meta.get("val"), torch.Tensor)
    )
