"""Reductions over axes of length one.

Identities, where every reduced axis has length 1 for every input:

* ``sum``, ``mean``, ``amax``, ``amin``, ``max``, ``min``, ``prod``, ``logsumexp`` are their input (without the axis
  unless it is kept); indices, ``argmax`` and ``argmin`` are 0;
* ``linalg_vector_norm`` of order 1, 2 or infinity is ``abs``, in gradient too (0 at 0);
* ``softmax`` is ``x - x + 1`` and ``log_softmax`` is ``x - x``: 1 and 0 for finite ``x``, NaN otherwise, and the two
  gradients of ``x - x`` cancel to the exact 0 that the operators give.

Values are the same to the bit, with one exception: ``sum``, ``mean`` and ``logsumexp`` give 0.0 for -0.0, their input
keeps -0.0. Gradients are the same for finite ``x``; at NaN or infinity ``amax``, ``amin``, ``logsumexp`` and norms
give NaN (0 / 0 in their backward formulas) where the identity gives a plain gradient.

Conditions: sizes are the number 1, not a symbol that happens to be; axes are named; the result has the input's dtype;
no caller gets the same memory twice. ``var`` and ``std`` (NaN over one element), norms of other orders (their
gradients overflow) and ``sum`` of integers that widens stay.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from crucible.graph.edit import arguments, aten, dims, dtype, insert, is_call, may_share, replace, used_items, value

NAME = "unit_axes"
ENABLED = True

_SAME = (
    aten.sum.dim_IntList,
    aten.mean.dim,
    aten.amax.default,
    aten.amin.default,
    aten.prod.dim_int,
    aten.logsumexp.default,
)
_PAIRS = (aten.max.dim, aten.min.dim)
_INDICES = (aten.argmax.default, aten.argmin.default)
_NORM = aten.linalg_vector_norm.default
_SOFTMAX = (aten.softmax.int, aten._softmax.default)
_LOG_SOFTMAX = (aten.log_softmax.int, aten._log_softmax.default)


def apply(graph: fx.Graph) -> list[str]:
    done = []
    for node in list(graph.nodes):
        if not is_call(node, *_SAME, *_PAIRS, *_INDICES, _NORM, *_SOFTMAX, *_LOG_SOFTMAX):
            continue
        bound = arguments(node)
        x = bound["self"]
        axes = _unit_axes(x, bound["dim"])
        if axes is None:
            continue
        if is_call(node, *_PAIRS):
            changed = _pair(node, x, axes)
        else:
            changed = _single(node, x, axes, bound)
        if changed:
            done.append(f"{node.name} reduces axes {list(axes)} of {x.name}, which have length 1: no reduction")
    return done


def _unit_axes(x: fx.Node, named: Any) -> tuple[int, ...] | None:
    rank = value(x).dim()
    if rank == 0 or named is None or named == []:
        return None
    axes = dims(named, rank)
    sizes = value(x).shape
    return axes if all(type(sizes[a]) is int and sizes[a] == 1 for a in axes) else None


def _single(node: fx.Node, x: fx.Node, axes: tuple[int, ...], bound: dict[str, Any]) -> bool:
    if is_call(node, *_INDICES):
        replace(node, _zeros(node, _without(node, x, axes, bound["keepdim"])))
        return True
    if dtype(node) != dtype(x):
        return False
    if is_call(node, *_SAME):
        if not may_share(node, x):
            return False
        replace(node, _without(node, x, axes, bound["keepdim"]))
        return True
    if is_call(node, _NORM):
        if bound["ord"] not in (1, 2, math.inf):
            return False
        replace(node, _without(node, insert(node, aten.abs.default, x), axes, bound["keepdim"]))
        return True
    result = insert(node, aten.sub.Tensor, x, x)
    if is_call(node, *_SOFTMAX):
        result = insert(node, aten.add.Tensor, result, 1)
    replace(node, result)
    return True


def _pair(node: fx.Node, x: fx.Node, axes: tuple[int, ...]) -> bool:
    """Values and indices of max and min."""
    taken = used_items(node)
    if taken is None or any(not may_share(item, x) for item in taken.get(0, [])):
        return False
    same = _without(node, x, axes, arguments(node)["keepdim"])
    for item in taken.get(0, []):
        replace(item, same)
    for item in taken.get(1, []):
        replace(item, _zeros(node, same))
    for unused in list(node.users):
        node.graph.erase_node(unused)
    node.graph.erase_node(node)
    return True


def _without(before: fx.Node, x: fx.Node, axes: tuple[int, ...], keep: bool) -> fx.Node:
    return x if keep else insert(before, aten.squeeze.dims, x, list(axes))


def _zeros(before: fx.Node, like: fx.Node) -> fx.Node:
    return insert(before, aten.zeros_like.default, like, dtype=torch.int64)
