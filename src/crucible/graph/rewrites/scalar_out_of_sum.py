"""A number that multiplies every term of a sum multiplies the sum.

Identity: ``sum(x * a) = sum(x) * a`` and ``sum(x / a) = sum(x) / a``; for ``mean`` alike. The sum then stands next to
what made ``x``, where ``sum_into_weights`` can reach it.

Conditions: ``a`` is a Python number with ``2^-16 <= |a| <= 2^16``, so that only values at the very ends of the range
overflow or underflow on one side and not on the other; the reduction is the only user of the product; float32 or
float64 throughout. Rounding: one rounding instead of one for each term.
"""

from __future__ import annotations

from torch import fx

from crucible.graph.edit import WIDE, arguments, aten, dtype, insert, is_call, only_user, replace, scalar

NAME = "scalar_out_of_sum"
ENABLED = True

_REDUCTIONS = (aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, aten.mean.default)
_SCALED = (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar)


def apply(graph: fx.Graph) -> list[str]:
    done = []
    for node in list(graph.nodes):
        if not is_call(node, *_REDUCTIONS):
            continue
        product = node.args[0]
        if not isinstance(product, fx.Node) or not is_call(product, *_SCALED) or only_user(product) is None:
            continue
        bound = arguments(product)
        x, factor = bound["self"], scalar(bound["other"])
        if factor is None or not 2.0**-16 <= abs(factor) <= 2.0**16:
            continue
        if not dtype(x) == dtype(product) == dtype(node) or dtype(x) not in WIDE:
            continue
        total = insert(node, node.target, x, *node.args[1:], **node.kwargs)
        scaled = insert(node, product.target, total, factor)
        done.append(f"{node.name} of {product.name} is {scaled.name}: the factor {factor} is applied to the sum")
        replace(node, scaled)
        graph.erase_node(product)
    return done
