"""What a node of a graph is computed from."""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import fx


def computed_from(
    node: fx.Node | None, roots: Collection[fx.Node], through: Callable[[fx.Node], bool] = lambda _: True
) -> bool:
    """Whether a node is one of the roots or computed from one, through others of which ``through`` holds."""
    seen: set[fx.Node] = set()
    stack = [] if node is None else [node]
    while stack:
        current = stack.pop()
        if current in roots:
            return True
        if current not in seen and through(current):
            seen.add(current)
            stack.extend(current.all_input_nodes)
    return False
