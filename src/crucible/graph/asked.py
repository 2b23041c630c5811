"""What a captured graph takes for granted of sizes, of which torch makes no guards.

torch takes every size for two or more: so it knows the answer where forward() asks `if x.size(0) > 1`, and the length
of a slice.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import sympy
import torch
from torch import fx

aten = torch.ops.aten


def within_torch(place: str) -> bool:
    """Whether a question is torch's own: one that came through here is among the others, if it is not."""
    return "/torch/" in place or __file__ in place


@contextlib.contextmanager
def asked_of_sizes() -> Iterator[dict[Any, None]]:
    """Conditions that code outside of torch asks for meanwhile, each as it is true for the sizes at hand."""
    original = torch.SymBool.__bool__
    found: dict[Any, None] = {}

    def answered(self: torch.SymBool) -> bool:
        condition = self.node.expr
        answer = original(self)
        if not within_torch(sys._getframe(1).f_code.co_filename) and isinstance(condition, sympy.Basic):
            found[condition if answer else sympy.Not(condition)] = None
        return answer

    torch.SymBool.__bool__ = answered  # type: ignore[method-assign]
    try:
        yield found
    finally:
        torch.SymBool.__bool__ = original  # type: ignore[method-assign]


def assumed_of_sizes(module: fx.GraphModule) -> list[Any]:
    """Conditions without which results would have other shapes."""
    found: dict[Any, None] = {}
    for node in module.graph.nodes:
        if node.target is aten.slice.Tensor:
            rest = (*node.args[1:], *(0, None, None, 1)[len(node.args) - 1 :])
            dim, begin, step = rest[0], rest[1] or 0, rest[3]
            size, length = node.args[0].meta["val"].shape[dim], node.meta["val"].shape[dim]
            if isinstance(size, torch.SymInt) and isinstance(length, int) and length and isinstance(begin, int):
                least = -begin if begin < 0 else begin + (length - 1) * step + 1
                found[sympy.Ge(size.node.expr, least)] = None
        elif getattr(node.target, "overloadpacket", None) is aten.squeeze:
            shape = node.args[0].meta["val"].shape
            dims = node.args[1] if len(node.args) > 1 else range(len(shape))
            for size in (shape[d] for d in ([dims] if isinstance(dims, int) else dims)):
                if isinstance(size, torch.SymInt):
                    found[sympy.Ne(size.node.expr, 1)] = None
    return list(found)
