"""Batch norm with running statistics is absorbed by the weights of the convolution or linear layer before it.

Identity: ``batch_norm(conv(x, w, b)) = conv(x, w * s[c], (b - mean) * s + beta)`` with ``s = gamma / sqrt(var + eps)``
and ``c`` the output channel of each weight; computed in the graph on every call, since parameters change.

Conditions: those of ``batch_norm_eval``; the convolution has no other user; float32 or float64 throughout. In 16-bit
types ``w * s`` is rounded to 11 bits or fewer and leaves the normal range easily (float16 ends at 6e-5 and 65504), so
they are left alone.

Rounding: each product ``w * x * s`` is associated differently, nothing else; the errors have the same bound. Range:
``|w * s|`` would have to leave 1e-38..1e38 while ``w * x`` does not, with ``s`` between ``5e-20 gamma`` (float32's
largest variance) and ``gamma / sqrt(eps)``: only weights or activations near the ends of the range themselves can. A
channel with ``gamma = 0`` whose convolution overflows gives 0 instead of NaN.

Off by default: an epilogue that scales and shifts in registers is free, scaling the weights is one more kernel.
"""

from __future__ import annotations

from torch import fx

from crucible.graph.edit import aten, insert, only_user, replace, static_shape
from crucible.graph.rewrites import batch_norm_eval, contraction
from crucible.graph.rewrites.batch_norm_eval import EvalBatchNorm
from crucible.graph.rewrites.contraction import Contraction

NAME = "batch_norm_fold"
ENABLED = False


def apply(graph: fx.Graph) -> list[str]:
    done = []
    for node in list(graph.nodes):
        norm = batch_norm_eval.match(node)
        found = contraction.match(norm.input) if norm is not None else None
        if norm is None or found is None or not _fits(norm, found):
            continue
        folded = _fold(norm, found)
        done.append(f"{node.name} went into the weights of {found.call.name}, which is {folded.name} now")
        for unused in list(node.users):
            graph.erase_node(unused)
        for gone in (node, found.call):
            if not gone._erased:
                graph.erase_node(gone)
    return done


def _fits(norm: EvalBatchNorm, found: Contraction) -> bool:
    return (
        contraction.is_wide(found)
        and only_user(found.call) is norm.call
        and found.output_axis == 1
        and static_shape(found.weight) is not None
        # The parameters must exist before the convolution does.
        and all(n is None or n.op == "placeholder" for n in (norm.bound["weight"], norm.bound["bias"]))
        # A matrix product has nowhere to put a bias.
        and not any(found.call.target is p for p in contraction.PRODUCTS)
    )


def _fold(norm: EvalBatchNorm, found: Contraction) -> fx.Node:
    call = found.call
    shape = static_shape(found.weight)
    assert shape is not None
    scale = batch_norm_eval.scale(norm, call)
    weight = _scaled(found, shape, scale)
    mean = norm.bound["running_mean"]
    start = (
        insert(call, aten.neg.default, mean) if found.bias is None else insert(call, aten.sub.Tensor, found.bias, mean)
    )
    bias = insert(call, aten.mul.Tensor, start, scale)
    if norm.bound["bias"] is not None:
        bias = insert(call, aten.add.Tensor, bias, norm.bound["bias"])
    folded = found.with_weights(weight, bias)
    replace(norm.result, folded)
    return folded


def _scaled(found: Contraction, shape: tuple[int, ...], scale: fx.Node) -> fx.Node:
    call, ones = found.call, [1] * (len(shape) - 2)
    if found.feature_axis == 0:
        return insert(call, aten.mul.Tensor, found.weight, insert(call, aten.view.default, scale, [-1, 1, *ones]))
    # Transposed weights are [inputs, outputs of one group, ...]: each group's inputs see that group's scales.
    groups = found.groups
    grouped = insert(call, aten.view.default, found.weight, [groups, shape[0] // groups, *shape[1:]])
    factors = insert(call, aten.view.default, scale, [groups, 1, shape[1], *ones])
    return insert(call, aten.view.default, insert(call, aten.mul.Tensor, grouped, factors), list(shape))
