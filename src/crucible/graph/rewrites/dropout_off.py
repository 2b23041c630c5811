"""Dropout that drops nothing.

Identity: ``dropout(x, p, train) = x`` when ``train`` is false or ``p`` is 0, for the plain, feature and alpha kinds;
exact in value and gradient. PyTorch draws no random numbers in these cases either.

Conditions for ``native_dropout``: nobody uses its mask.
"""

from __future__ import annotations

from torch import fx

from crucible.graph.edit import arguments, aten, is_call, replace, scalar, used_items

NAME = "dropout_off"
ENABLED = True

_PLAIN = (
    aten.dropout.default,
    aten.feature_dropout.default,
    aten.alpha_dropout.default,
    aten.feature_alpha_dropout.default,
)


def apply(graph: fx.Graph) -> list[str]:
    done = []
    for node in list(graph.nodes):
        if not is_call(node, *_PLAIN, aten.native_dropout.default):
            continue
        bound = arguments(node)
        # native_dropout's ``train`` is optional, and None means training.
        if bound["train"] is not False and scalar(bound["p"]) != 0:
            continue
        sentence = f"{node.name} is its input: the dropout is off"
        if is_call(node, *_PLAIN):
            replace(node, bound["input"])
            done.append(sentence)
            continue
        taken = used_items(node)
        if taken is None or set(taken) != {0}:
            continue
        for item in taken[0]:
            replace(item, bound["input"])
        for unused in list(node.users):
            graph.erase_node(unused)
        graph.erase_node(node)
        done.append(sentence)
    return done
