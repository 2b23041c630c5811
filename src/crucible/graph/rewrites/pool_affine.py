"""A maximum or minimum over windows is taken before a scale and a shift that are constant in each window.

Identities, for tensors ``a`` and ``b`` of size 1 along the pooled axes (one number for each channel, say):

* ``pool(x + b) = pool(x) + b``, ``pool(x - b) = pool(x) - b``
* ``pool(a * x) = a * (s * pool(s * x))`` with ``s = 1`` where ``a >= 0`` and ``-1`` elsewhere: a negative scale turns
  a maximum into a minimum. Products with ``s`` are exact and rounding is monotone: the values are the same to the bit.

Gradients: as for the strict functions of ``pool_monotone``, so float32 and float64 only. One exception: where ``a`` is
exactly 0 every element ties; PyTorch hands the gradient of ``a`` the first element of the window, the exchange hands
it the largest. (Both are subgradients; that of ``x`` is 0 either way.) Infinite or NaN ``a`` or ``b``, and ``a = 0``
with infinite ``x``, may give NaN for fewer windows than before.

Conditions: the pool keeps the rank of its input and is the only user of what it pools; ``x`` has the shape of the
result. Off by default: ``s`` makes the graph larger, and the exception above needs the planner's consent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from crucible.graph.edit import WIDE, arguments, aten, dtype, insert, is_call, only_user, replace, same_sizes, value
from crucible.graph.rewrites import pools
from crucible.graph.rewrites.pools import Pool

NAME = "pool_affine"
ENABLED = False


@dataclass(frozen=True)
class _Affine:
    """The pooled call: its full-sized operand and the one that is constant in each window."""

    call: fx.Node
    x: fx.Node
    constant: fx.Node


def apply(graph: fx.Graph) -> list[str]:
    done = []
    for node in list(graph.nodes):
        pool = pools.match(node)
        while pool is not None:
            found = _match(pool)
            if found is None:
                break
            pooled, outside = _exchange(pool, found)
            done.append(f"{pool.call.name} of {found.call.name} is {outside.name} of {pooled.name}")
            replace(pool.values, outside)
            pool.drop()
            graph.erase_node(found.call)
            pool = pools.match(pooled if pooled.target in pools.SINGLE else pooled.args[0])
    return done


def _match(pool: Pool) -> _Affine | None:
    call = pool.input
    if not is_call(call, aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor) or only_user(call) is None:
        return None
    if value(pool.values).dim() != value(call).dim() or dtype(call) not in WIDE:
        return None
    bound = arguments(call)
    left, right = bound["self"], bound["other"]
    if not isinstance(left, fx.Node) or not isinstance(right, fx.Node) or bound.get("alpha", 1) != 1:
        return None
    pairs = [(left, right)] if is_call(call, aten.sub.Tensor) else [(left, right), (right, left)]
    for x, constant in pairs:
        if dtype(x) == dtype(constant) == dtype(call) and _fits(pool, x, constant) and not _is_sign(constant):
            return _Affine(call, x, constant)
    return None


def _fits(pool: Pool, x: fx.Node, constant: fx.Node) -> bool:
    if not isinstance(constant.meta.get("val"), torch.Tensor) or not same_sizes(
        value(x).shape, value(pool.input).shape
    ):
        return False
    missing = value(x).dim() - value(constant).dim()
    sizes = [1] * missing + list(value(constant).shape)
    return all(type(sizes[a]) is int and sizes[a] == 1 for a in pool.axes)


def _is_sign(constant: fx.Node) -> bool:
    """Whether this is the ``s`` of an earlier exchange, which has to stay before the pool."""
    return is_call(constant, aten.where.self) and is_call(constant.args[2], aten.ones_like.default)


def _exchange(pool: Pool, found: _Affine) -> tuple[fx.Node, fx.Node]:
    """The new pool and what replaces the old one."""
    call, target = pool.call, found.call.target
    if target is not aten.mul.Tensor:
        pooled = pool.on(found.x)
        return pooled, insert(call, target, pooled, found.constant)
    negative = insert(call, aten.lt.Scalar, found.constant, 0)
    one = insert(call, aten.ones_like.default, found.constant)
    sign = insert(call, aten.where.self, negative, insert(call, aten.neg.default, one), one)
    pooled = pool.on(insert(call, aten.mul.Tensor, found.x, sign))
    return pooled, insert(call, aten.mul.Tensor, insert(call, aten.mul.Tensor, pooled, sign), found.constant)
