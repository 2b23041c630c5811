"""What a program that torch.export made says in another way before its blocks are opened, and what it has lost."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import statically_known_true


class Lost(Exception):
    """Something of forward() is not in the program; the message names the line and what to do about it."""


def mend(program: Any) -> None:
    _nothing_lost(program)
    _detach_where_no_grad(program.graph_module)
    _copy_apart(program.graph_module)


def _nothing_lost(program: Any) -> None:
    """torch.export takes what it could not follow for a constant, which then has no values."""
    for spec in program.graph_signature.input_specs:
        if not isinstance(program.constants.get(spec.target), FakeTensor):
            continue
        (node,) = (n for n in program.graph_module.graph.find_nodes(op="placeholder") if n.name == spec.arg.name)
        frames = [str(user.meta.get("stack_trace", "")).strip() for user in node.users]
        where = next((f.splitlines()[-2:] for f in frames if f), [])
        raise Lost(
            "forward() could not be captured: it takes the .data of a tensor or calls torch.autograd.grad(), which "
            "torch.export cannot follow. Use .detach(), and write a gradient out in operators"
            + "".join(f"\n    {line.strip()}" for line in where)
        )


def _detach_where_no_grad(module: fx.GraphModule) -> None:
    """Say by detach() what torch.no_grad() says: its blocks are opened later, and nothing else would remember it."""
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.higher_order.wrap_with_set_grad_enabled):
        enabled, block, *_ = node.args
        inner = getattr(module, str(block.target))
        if not enabled:
            for given in inner.graph.find_nodes(op="placeholder"):
                written = any(_writes(user, given) for user in given.users)
                if isinstance(given.meta.get("val"), torch.Tensor) and not written:
                    with inner.graph.inserting_after(given):
                        alone = inner.graph.call_function(torch.ops.aten.detach.default, (given,))
                    alone.meta["val"] = given.meta["val"]
                    given.replace_all_uses_with(alone, lambda user, own=alone: user is not own)
            inner.recompile()
    for _, part in module.named_children():
        if isinstance(part, fx.GraphModule):
            _detach_where_no_grad(part)


def _copy_apart(module: fx.GraphModule) -> None:
    """What is copied into a tensor, and used elsewhere too, gets a name of its own: torch.export knows new values of
    buffers by their names."""
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        source = node.args[1]
        if len(source.users) == 1:
            continue
        with module.graph.inserting_before(node):
            own = module.graph.call_function(torch.ops.aten.clone.default, (source,))
        own.meta["val"] = source.meta["val"]
        node.update_arg(1, own)
    module.recompile()
    for _, part in module.named_children():
        if isinstance(part, fx.GraphModule):
            _copy_apart(part)


def without_assertions(module: fx.GraphModule) -> None:
    """Before torch 2.9, what is known of sizes by now is asserted once more."""
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default):
        condition: Any = node.args[0]
        if not node.users and statically_known_true(getattr(condition, "meta", {}).get("val", condition)):
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()


def _writes(node: fx.Node, value: fx.Node) -> bool:
    """Whether a call changes one of its arguments."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return False
    named = ((a, node.kwargs[a.name]) for a in schema.arguments if a.name in node.kwargs)
    given = [*zip(schema.arguments, node.args), *named]
    return any(a.alias_info is not None and a.alias_info.is_write and x is value for a, x in given)
