"""The invariants of a graph between rewrites: well formed, every value known, shapes and dtypes as its calls give."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from crucible.graph.edit import evaluate


class InvalidGraph(Exception):
    """A rewrite left the graph inconsistent; the message names the node."""


def verify(graph: fx.Graph) -> None:
    """Raise InvalidGraph unless the graph is sound and each node's recorded value is what its call returns."""
    try:
        graph.lint()
    except Exception as error:
        raise InvalidGraph(f"the graph is malformed: {error}") from error
    for node in graph.nodes:
        if node.op in ("output", "get_attr"):
            continue
        if "val" not in node.meta:
            raise InvalidGraph(f"{node.name} has no recorded value")
        if node.op == "call_function":
            _recompute(node)


def _recompute(node: fx.Node) -> None:
    try:
        got = evaluate(node.target, node.args, node.kwargs)
    except Exception as error:
        raise InvalidGraph(f"{node.format_node()} fails on its inputs: {error}") from error
    difference = _differ(node.meta["val"], got)
    if difference:
        raise InvalidGraph(f"{node.format_node()}: {difference}")


def _differ(recorded: Any, got: Any) -> str:
    """What is different, or nothing."""
    if isinstance(recorded, torch.Tensor):
        if not isinstance(got, torch.Tensor):
            return f"recorded a tensor, its call returns {type(got).__name__}"
        if recorded.dtype != got.dtype:
            return f"recorded {recorded.dtype}, its call returns {got.dtype}"
        if len(recorded.shape) != len(got.shape) or not all(map(_same_size, recorded.shape, got.shape)):
            return f"recorded {list(recorded.shape)}, its call returns {list(got.shape)}"
        return ""
    if isinstance(recorded, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(got) != len(recorded):
            return "recorded another number of results than its call returns"
        return next(filter(None, map(_differ, recorded, got)), "")
    if isinstance(recorded, (int, torch.SymInt)) and isinstance(got, (int, torch.SymInt)):
        return "" if _same_size(recorded, got) else f"recorded {recorded}, its call returns {got}"
    return ""


def _same_size(recorded: Any, got: Any) -> bool:
    if statically_known_true(recorded == got):
        return True
    # Two forms of one size that the solver cannot reconcile: they must at least agree on the traced input.
    # A data-dependent size has no traced value and gets a fresh symbol with every evaluation.
    hints = [_hint(recorded), _hint(got)]
    return None in hints or hints[0] == hints[1]


def _hint(size: Any) -> int | None:
    if isinstance(size, int):
        return size
    return size.node.hint if size.node.has_hint() else None
