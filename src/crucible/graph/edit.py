"""Hands on an ATen graph: read arguments and constants, insert calls with their fake values, replace and erase."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import map_arg

aten = torch.ops.aten

# What torch computes with in float32 or wider keeps about seven digits per step; 16-bit types round visibly.
WIDE = (torch.float32, torch.float64)


def is_call(node: Any, *targets: Any) -> bool:
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target in targets


def arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of an ATen call by name, defaults filled in."""
    assert isinstance(node.target, OpOverload)
    bound: dict[str, Any] = {}
    for position, declared in enumerate(node.target._schema.arguments):
        if position < len(node.args):
            bound[declared.name] = node.args[position]
        elif declared.name in node.kwargs:
            bound[declared.name] = node.kwargs[declared.name]
        elif declared.has_default_value():
            bound[declared.name] = declared.default_value
    return bound


def value(node: fx.Node) -> Any:
    return node.meta["val"]


def dtype(node: fx.Node) -> torch.dtype | None:
    fake = node.meta.get("val")
    return fake.dtype if isinstance(fake, torch.Tensor) else None


def scalar(argument: Any) -> int | float | None:
    """A Python number, or None for anything else; a bool is not a number here."""
    return argument if isinstance(argument, (int, float)) and not isinstance(argument, bool) else None


def ints(argument: Any, length: int) -> tuple[int, ...] | None:
    """A list of plain integers, a single one repeated; None when any is symbolic or the length is another."""
    items = tuple(argument) if isinstance(argument, (list, tuple)) else (argument,)
    if len(items) == 1:
        items = items * length
    if len(items) != length or not all(type(i) is int for i in items):
        return None
    return items


def static_shape(node: fx.Node) -> tuple[int, ...] | None:
    """The sizes when all of them are numbers."""
    fake = node.meta.get("val")
    if not isinstance(fake, torch.Tensor) or not all(type(s) is int for s in fake.shape):
        return None
    return tuple(fake.shape)


def same_sizes(left: Iterable[Any], right: Iterable[Any]) -> bool:
    """Equal for every input, not only for the traced one."""
    left, right = tuple(left), tuple(right)
    return len(left) == len(right) and all(statically_known_true(a == b) for a, b in zip(left, right))


def dims(argument: Any, rank: int) -> tuple[int, ...]:
    """Dimensions counted from the front."""
    items = argument if isinstance(argument, (list, tuple)) else (argument,)
    return tuple(d % rank for d in items)


def only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def used_items(node: fx.Node) -> dict[int, list[fx.Node]] | None:
    """The users of a multi-result call by the result they take; None when someone takes the whole."""
    taken: dict[int, list[fx.Node]] = {}
    for user in node.users:
        if not is_call(user, operator.getitem) or type(user.args[1]) is not int:
            return None
        if user.users:
            taken.setdefault(user.args[1], []).append(user)
    return taken


def is_view(node: fx.Node) -> bool:
    """Whether the node's memory is that of its first argument."""
    if is_call(node, operator.getitem):
        return isinstance(node.args[0], fx.Node) and is_view(node.args[0])
    return isinstance(node.target, OpOverload) and any(r.alias_info for r in node.target._schema.returns)


def escapes(node: fx.Node) -> bool:
    """Whether the caller of the graph gets this memory."""
    return any(user.op == "output" or (is_view(user) and escapes(user)) for user in node.users)


def may_share(node: fx.Node, source: fx.Node) -> bool:
    """Whether a value of its own may become one with ``source`` unseen: no caller gets the same memory twice."""
    if not escapes(node):
        return True
    while is_view(source):
        source = source.args[0]  # type: ignore[assignment]
    return source.op == "call_function" and not escapes(source)


def evaluate(target: Any, args: Any, kwargs: Any) -> Any:
    """The fake result of a call on nodes: shapes and dtypes, nothing computed."""
    nodes: list[fx.Node] = []
    map_arg((args, kwargs), nodes.append)
    fake_args = map_arg(args, lambda n: n.meta["val"])
    fake_kwargs = map_arg(kwargs, lambda n: n.meta["val"])
    mode = detect_fake_mode((fake_args, fake_kwargs))
    if mode is None and nodes:  # a call on sizes alone, such as arange
        mode = detect_fake_mode([n.meta.get("val") for n in nodes[0].graph.nodes])
    # Operators that are made of others take sizes that vary only by way of Python.
    with torch.no_grad(), enable_python_dispatcher(), mode or contextlib.nullcontext():
        return target(*fake_args, **fake_kwargs)


def insert(before: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """A new call in front of ``before``, with its fake value and the origin (stack trace, module) of ``before``."""
    with before.graph.inserting_before(before):
        node = before.graph.call_function(target, args, kwargs)
    node.meta = {k: v for k, v in before.meta.items() if k not in ("val", "tensor_meta", "eager_input_vals")}
    node.meta["val"] = evaluate(target, node.args, node.kwargs)
    return node


def replace(node: fx.Node, by: fx.Node) -> None:
    """Everyone who used ``node`` uses ``by``; ``node`` is gone."""
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)


def is_pure(node: fx.Node) -> bool:
    """Whether an unused node can go: it writes nothing, checks nothing and draws no random numbers."""
    if node.op == "get_attr":
        return True
    if node.op != "call_function":
        return False
    if not isinstance(node.target, OpOverload):
        return getattr(node.target, "__module__", "") in ("_operator", "operator", "math", "torch")
    if node.target._schema.is_mutable or torch.Tag.nondeterministic_seeded in node.target.tags:
        return False
    # Assertions return nothing: a call without a result is there for its effect.
    return len(node.target._schema.returns) > 0


def erase_dead(graph: fx.Graph) -> list[str]:
    """Remove unused pure nodes, users before what they use; returns their names."""
    erased = []
    for node in reversed(list(graph.nodes)):
        if not node.users and is_pure(node):
            erased.append(node.name)
            graph.erase_node(node)
    return erased
