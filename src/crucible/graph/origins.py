"""Which operator of the Model every traced node comes from, of the forward and of its derivatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

KEY = "origin"  # in a node's meta


@dataclass(frozen=True)
class Origin:
    """A node of the captured graph, and whether this is a part of its derivative."""

    name: str
    gradient: bool = False


class Origins:
    """Told whose turn it is while a graph is traced, it marks the nodes that were added since."""

    def __init__(self) -> None:
        self._current: Origin | None = None
        self._last: fx.Node | None = None
        self._hooked: dict[int, Any] = {}  # derivatives that are known; kept so that no identity is used twice

    def begin(self, name: str, gradient: bool = False) -> None:
        """From here on nodes belong to this operator."""
        self.finish()
        self._current = Origin(name, gradient)

    def finish(self) -> None:
        """Mark what was added since the last call."""
        graph = _graph()
        if graph is None:
            return
        node = self._last.next if self._last is not None else next(iter(graph.nodes), None)
        while node is not None and node.op != "root":
            if self._current is not None and node.op == "call_function":
                node.meta.setdefault(KEY, self._current)
            self._last, node = node, node.next

    def follow(self, name: str, result: Any) -> None:
        """Have the derivatives that this operator added say so when they run."""
        found = result if isinstance(result, (tuple, list)) else [result]
        stack = [t.grad_fn for t in found if isinstance(t, torch.Tensor) and t.grad_fn is not None]
        while stack:
            step = stack.pop()
            if id(step) in self._hooked or type(step).__name__ == "AccumulateGrad":
                continue
            self._hooked[id(step)] = step
            step.register_prehook(lambda _, name=name: self.begin(name, True))
            stack += [f for f, _ in step.next_functions if f is not None]


def origin_of(node: fx.Node) -> Origin | None:
    found = node.meta.get(KEY)
    return found if isinstance(found, Origin) else None


def _graph() -> fx.Graph | None:
    """The graph that is being traced; None with a torch that does not tell."""
    from torch.fx.experimental import proxy_tensor

    getter = getattr(proxy_tensor, "get_proxy_mode", None)
    mode = getter() if getter is not None else None
    return mode.tracer.graph if mode is not None else None
