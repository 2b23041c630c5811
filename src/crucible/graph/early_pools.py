"""A maximum over windows is taken before a normalisation by statistics of what is pooled.

Identity, for ``f`` a chain of calls on ``x`` that are each monotone in every window (a sum with, or a product by, what
is constant in each window; a non-decreasing function): ``pool(f(x)) = f(s * pool(s * x))``, where ``s`` is the sign of
the product of the factors: a negative one turns a maximum into a minimum. Products with ``s`` are exact, and rounding
is monotone. A factor of 0 makes the elements of a window equal, but for infinities and nan, which give nan; so does
``s = 0``. Not the same: an infinite factor, which makes nan of an element that is 0 and not the largest of its window.

Where ``x`` is a convolution, the planner lets it store ``pool(s * x)`` alone: statistics are taken as it is computed.

Conditions: values alone matter (a graph without gradients); windows do not overlap; a call of the chain has an operand
that is computed from all of ``x``, else the whole chain can be computed before anything is stored; nobody else uses
a call of the chain; ``x`` is a convolution, or computed from one element by element.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from crucible.graph.edit import (
    arguments,
    aten,
    dtype,
    erase_dead,
    insert,
    is_call,
    only_user,
    replace,
    same_sizes,
    value,
)
from crucible.graph.joint import Joint
from crucible.graph.reach import computed_from
from crucible.graph.rewrites import pools
from crucible.graph.rewrites.pool_monotone import MONOTONE
from crucible.graph.verify import verify

NAME = "early_pools"

_POOLS = (
    aten.max_pool2d_with_indices.default,
    aten.max_pool3d_with_indices.default,
)
_CLAMPS = (aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default)
# Calls whose results are not negative (or nan): factors without a sign of their own.
_POSITIVE = (aten.rsqrt.default, aten.sqrt.default, aten.exp.default, aten.sigmoid.default, aten.abs.default)
_VIEWS = (aten.view.default, aten.reshape.default, aten.alias.default, aten.unsqueeze.default, aten.expand.default)


@dataclass(frozen=True)
class _Place:
    """What a pool is over: a tensor, or one with a dimension more (a length is pooled as an image of one row)."""

    pool: pools.Pool
    x: fx.Node
    extra: int | None

    @property
    def axes(self) -> list[int]:
        if self.extra is None:
            return list(self.pool.axes)
        return [a - (a > self.extra) for a in self.pool.axes if a != self.extra]

    def on(self, x: fx.Node) -> fx.Node:
        call = self.pool.call
        if self.extra is None:
            return self.pool.on(x)
        made = self.pool.on(insert(call, aten.unsqueeze.default, x, self.extra))
        return insert(call, aten.squeeze.dims, made, [self.extra])

    def whole(self, made: fx.Node) -> fx.Node:
        """With the dimensions that the pool's values have."""
        return made if self.extra is None else insert(self.pool.call, aten.unsqueeze.default, made, self.extra)


def _place(pool: pools.Pool) -> _Place:
    node = pool.input
    if is_call(node, aten.unsqueeze.default) and only_user(node) is not None:
        bound = arguments(node)
        return _Place(pool, bound["self"], bound["dim"] % value(node).dim())
    return _Place(pool, node, None)


@dataclass(frozen=True)
class _Step:
    """A call of the chain: its operand that is pooled, and the one that is constant in each window."""

    call: fx.Node
    x: fx.Node
    constant: fx.Node | None = None


def apply(joint: Joint) -> list[str]:
    """Rewrite a graph without gradients in place; a sentence for each pool that moved."""
    graph, done = joint.graph, []
    if joint.wanted:
        return []
    for node in list(graph.nodes):
        pool = pools.match(node) if is_call(node, *_POOLS) else None
        if pool is None or not _apart(arguments(node)):
            continue
        place = _place(pool)
        steps = _chain(place)
        if not steps or not _of_convolution(steps[-1].x):
            continue
        x = steps[-1].x
        made = _exchange(place, steps)
        done.append(f"{NAME}: {node.name} of {steps[0].call.name} is taken of {x.name}")
        joint.updates, joint.outputs = (
            [made if n is pool.values else n for n in nodes] for nodes in (joint.updates, joint.outputs)
        )
        replace(pool.values, made)
    if done:
        erase_dead(graph)
        verify(graph)
    return done


def _apart(bound: dict[str, Any]) -> bool:
    """Windows that lie side by side."""
    return list(bound["kernel_size"]) == list(bound["stride"] or bound["kernel_size"])


def _chain(place: _Place) -> list[_Step]:
    """The calls that the pool moves across, the last one first, down to one that needs all of what is pooled."""
    steps: list[_Step] = []
    node = place.x
    while only_user(node) is not None:
        step = _step(place, node)
        if step is None:
            break
        steps.append(step)
        node = step.x
    while steps and not computed_from(steps[-1].constant, [node]):
        node = steps.pop().call
    return steps


def _step(place: _Place, call: fx.Node) -> _Step | None:
    if call.op != "call_function" or dtype(call) is None:
        return None
    if is_call(call, *_CLAMPS) or call.target in MONOTONE:
        found = _function(call)
        if found is not None:
            return found
    if not is_call(call, aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor):
        return None
    bound = arguments(call)
    left, right = bound["self"], bound["other"]
    if not isinstance(left, fx.Node) or not isinstance(right, fx.Node) or bound.get("alpha", 1) != 1:
        return None
    for x, constant in [(left, right)] if is_call(call, aten.sub.Tensor) else [(left, right), (right, left)]:
        if dtype(x) == dtype(constant) == dtype(call) and _constant_in_windows(place, x, constant):
            return _Step(call, x, constant)
    return None


def _function(call: fx.Node) -> _Step | None:
    """A non-decreasing function of one tensor."""
    x, bound, kind = call.args[0], arguments(call), dtype(call)
    if not isinstance(x, fx.Node) or kind is None or dtype(x) != kind or not kind.is_floating_point:
        return None
    if any(isinstance(a, fx.Node) for a in call.args[1:]):
        return None
    if is_call(call, *_CLAMPS):
        bounds = [b for b in (bound.get("min"), bound.get("max")) if b is not None]
        return _Step(call, x) if len(bounds) < 2 or bounds[0] <= bounds[1] else None
    return _Step(call, x) if MONOTONE[call.target].condition(bound, kind) else None


def _constant_in_windows(place: _Place, x: fx.Node, constant: fx.Node) -> bool:
    if not same_sizes(value(x).shape, value(place.x).shape):
        return False
    sizes = [1] * (value(x).dim() - value(constant).dim()) + list(value(constant).shape)
    return all(type(sizes[a]) is int and sizes[a] == 1 for a in place.axes)


def _of_convolution(node: fx.Node) -> bool:
    """Whether a node is a convolution, or a pointwise function of one of its shape."""
    while not is_call(node, aten.convolution.default):
        tags = getattr(node.target, "tags", ())
        if node.op != "call_function" or torch.Tag.pointwise not in tags:
            return False
        same = [
            n for n in node.all_input_nodes
            if isinstance(n.meta.get("val"), torch.Tensor) and same_sizes(value(n).shape, value(node).shape)
        ]  # fmt: skip
        if len(same) != 1:
            return False
        node = same[0]
    return True


def _exchange(place: _Place, steps: list[_Step]) -> fx.Node:
    """What replaces the pool's values."""
    call, x = place.pool.call, steps[-1].x
    sign: fx.Node | None = None
    for step in steps:
        if step.constant is not None and computed_from(step.constant, [x]):
            base = _base(step.constant)
            if not is_call(base, operator.getitem):
                base.meta["once"] = True  # the planner keeps it: else each element computes it again
        if step.constant is not None and is_call(step.call, aten.mul.Tensor) and not _positive(step.constant):
            own = insert(call, aten.sign.default, step.constant)
            sign = own if sign is None else insert(call, aten.mul.Tensor, sign, own)
    made = place.on(x if sign is None else insert(call, aten.mul.Tensor, x, sign))
    if sign is not None:
        made = insert(call, aten.mul.Tensor, made, sign)
    for step in reversed(steps):
        made = insert(call, step.call.target, *(made if a is step.x else a for a in step.call.args), **step.call.kwargs)
    return place.whole(made)


def _positive(node: fx.Node) -> bool:
    return is_call(_base(node), *_POSITIVE)


def _base(node: fx.Node) -> fx.Node:
    """What a node is a view of."""
    while is_call(node, *_VIEWS):
        node = node.args[0]  # type: ignore[assignment]
    return node
