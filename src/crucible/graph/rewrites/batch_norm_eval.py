"""Batch norm with running statistics is a scale and a shift for each channel.

Identity: ``batch_norm(x) = (x - mean[c]) * (weight[c] / sqrt(var[c] + eps)) + bias[c]``, as pointwise calls on
parameters reshaped to ``[1, C, 1, ...]``. The mean is subtracted first, as PyTorch's CUDA kernel does it: folding it
into the shift (``x * scale + (bias - mean * scale)``) cancels badly where ``|mean|`` is much larger than the spread.
16-bit inputs are computed in float32 and rounded once, as the operator does.

Conditions: inference form; only the normalized tensor is used (PyTorch leaves the saved statistics empty); mean and
variance are arguments of the graph that need no gradient (the operator gives them none).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from crucible.graph.edit import WIDE, arguments, aten, dtype, insert, is_call, replace, used_items, value

NAME = "batch_norm_eval"
ENABLED = True

_MANY = (
    aten._native_batch_norm_legit_no_training.default,
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit_functional.default,
    aten.native_batch_norm.default,
)


@dataclass(frozen=True)
class EvalBatchNorm:
    """A matched batch norm: its call, the node that is the normalized tensor, its arguments by name."""

    call: fx.Node
    result: fx.Node
    bound: dict[str, Any]

    @property
    def input(self) -> fx.Node:
        return self.bound["input"]


def match(node: fx.Node) -> EvalBatchNorm | None:
    """The batch norm that ``node`` calls, where the identity's conditions hold."""
    if not is_call(node, aten.batch_norm.default, *_MANY):
        return None
    bound = arguments(node)
    if bound.get("training", False):
        return None
    for statistic in (bound["running_mean"], bound["running_var"]):
        if statistic is None or statistic.op != "placeholder" or value(statistic).requires_grad:
            return None
    if dtype(bound["input"]) not in (torch.float16, torch.bfloat16, *WIDE):
        return None
    result = node
    if is_call(node, *_MANY):
        taken = used_items(node)
        if taken is None or set(taken) != {0} or len(taken[0]) != 1:
            return None
        result = taken[0][0]
    return EvalBatchNorm(node, result, bound)


def scale(norm: EvalBatchNorm, before: fx.Node) -> fx.Node:
    """``weight / sqrt(var + eps)``, one number for each channel, at least in float32."""
    widened = insert(before, aten.add.Tensor, widen(norm.bound["running_var"], before), norm.bound["eps"])
    spread = insert(before, aten.rsqrt.default, widened)
    weight = norm.bound["weight"]
    return spread if weight is None else insert(before, aten.mul.Tensor, widen(weight, before), spread)


def widen(node: fx.Node, before: fx.Node) -> fx.Node:
    """The node itself, or in float32 if it has 16 bits."""
    return node if dtype(node) in WIDE else insert(before, aten._to_copy.default, node, dtype=torch.float32)


def apply(graph: fx.Graph) -> list[str]:
    done = []
    for node in list(graph.nodes):
        norm = match(node)
        if norm is None:
            continue
        _rewrite(norm)
        done.append(f"{node.name} is a scale and a shift of {norm.input.name} for each channel")
        for unused in list(node.users):
            graph.erase_node(unused)
        if node is not norm.result:
            graph.erase_node(node)
    return done


def _rewrite(norm: EvalBatchNorm) -> None:
    call = norm.call
    rank = value(norm.input).dim()

    def per_channel(node: fx.Node) -> fx.Node:
        return insert(call, aten.view.default, node, [1, -1] + [1] * (rank - 2))

    centered = insert(
        call, aten.sub.Tensor, widen(norm.input, call), per_channel(widen(norm.bound["running_mean"], call))
    )
    out = insert(call, aten.mul.Tensor, centered, per_channel(scale(norm, call)))
    if norm.bound["bias"] is not None:
        out = insert(call, aten.add.Tensor, out, per_channel(widen(norm.bound["bias"], call)))
    wanted = dtype(norm.result)
    if dtype(out) != wanted:
        out = insert(call, aten._to_copy.default, out, dtype=wanted)
    replace(norm.result, out)
