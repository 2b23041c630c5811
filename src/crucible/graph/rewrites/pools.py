"""The calls that take a maximum or minimum over windows or axes, read alike.

Not a pass: the passes that move pointwise work across a pool share it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx

from crucible.graph.edit import arguments, aten, dims, insert, ints, is_call, used_items, value

_WINDOWS = {
    aten.max_pool1d.default: 1,
    aten.max_pool2d.default: 2,
    aten.max_pool3d.default: 3,
    aten.max_pool1d_with_indices.default: 1,
    aten.max_pool2d_with_indices.default: 2,
    aten.max_pool3d_with_indices.default: 3,
}
_ADAPTIVE = {
    aten.adaptive_max_pool1d.default: 1,
    aten.adaptive_max_pool2d.default: 2,
    aten.adaptive_max_pool3d.default: 3,
}
_AXES = (aten.amax.default, aten.amin.default)
_AXIS = (aten.max.dim, aten.min.dim)
SINGLE = (aten.max_pool1d.default, aten.max_pool2d.default, aten.max_pool3d.default, *_AXES)


@dataclass(frozen=True)
class Pool:
    """A pool: its call, its input, the node that is its values, the axes it runs over, maximum or minimum."""

    call: fx.Node
    input: fx.Node
    values: fx.Node
    axes: tuple[int, ...]
    maximum: bool

    def on(self, x: fx.Node) -> fx.Node:
        """The values of the same pool over another input of the same shape, in front of it."""
        call = insert(self.call, self.call.target, x, *self.call.args[1:], **self.call.kwargs)
        if self.values is self.call:
            return call
        return insert(self.call, self.values.target, call, 0)

    def drop(self) -> None:
        """Erase the pool once nobody uses its values."""
        for unused in list(self.call.users):
            unused.graph.erase_node(unused)
        if not self.call._erased:
            self.call.graph.erase_node(self.call)


def match(node: Any) -> Pool | None:
    """The pool that ``node`` calls, if only its values are used and every window has an element in it."""
    if not is_call(node, *_WINDOWS, *_ADAPTIVE, *_AXES, *_AXIS):
        return None
    bound = arguments(node)
    x = bound["self"]
    rank = value(x).dim()
    if rank == 0:
        return None
    if is_call(node, *_AXES, *_AXIS):
        axes = dims(bound["dim"], rank) or tuple(range(rank))
    else:
        spatial = _WINDOWS.get(node.target, 0) or _ADAPTIVE[node.target]
        axes = tuple(range(rank - spatial, rank))
        if is_call(node, *_WINDOWS) and not _never_empty(bound, spatial):
            return None
    values = node
    if not is_call(node, *SINGLE):
        taken = used_items(node)
        if taken is None or set(taken) != {0} or len(taken[0]) != 1:
            return None
        values = taken[0][0]
    return Pool(node, x, values, axes, not is_call(node, aten.amin.default, aten.min.dim))


def _never_empty(bound: dict[str, Any], spatial: int) -> bool:
    """Padding counts as minus infinity, so a window with nothing but padding in it would give that."""
    padding, dilation = ints(bound["padding"], spatial), ints(bound["dilation"], spatial)
    if padding is None or dilation is None:
        return False
    # Padding is at most half the window, so only the gaps of a dilated window can step over the whole input.
    return all(p == 0 or d == 1 for p, d in zip(padding, dilation))
