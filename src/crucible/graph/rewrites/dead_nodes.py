"""Nodes that nobody uses are removed.

Identity: a graph is the function of its outputs; a pure node without users takes no part in it. Pure means: writes
to no argument, returns something (assertions return nothing) and draws no random numbers, since the generator's
state after the call is an effect. An assertion about a tensor's dtype goes as well once the recorded dtype agrees:
it was there for the tracer, and the device it names is the tracer's.
"""

from __future__ import annotations

from torch import fx

from crucible.graph.edit import arguments, aten, dtype, erase_dead, is_call

NAME = "dead_nodes"
ENABLED = True


def apply(graph: fx.Graph) -> list[str]:
    names = []
    for node in list(graph.nodes):
        if is_call(node, aten._assert_tensor_metadata.default) and _holds(node):
            names.append(node.name)
            graph.erase_node(node)
    names += erase_dead(graph)
    return [f"removed {name}: nobody uses it" for name in names]


def _holds(node: fx.Node) -> bool:
    claim = arguments(node)
    if claim["size"] is not None or claim["stride"] is not None:
        return False
    return claim["dtype"] in (None, dtype(claim["a"]))
