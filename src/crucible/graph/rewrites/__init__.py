"""Algebraic rewrites of an ATen graph, each an identity of its own file, run in order until nothing changes.

Every pass is a module with ``NAME``, ``ENABLED`` and ``apply(graph)``, which rewrites the graph in place and returns a
sentence for each application. Values and gradients stay what they were, up to rounding; each file says exactly when.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from torch import fx

from crucible.graph.rewrites import (
    batch_norm_eval,
    batch_norm_fold,
    clamp_chains,
    dead_nodes,
    dropout_off,
    identity_arithmetic,
    identity_layout,
    pool_affine,
    pool_monotone,
    scalar_out_of_sum,
    scale_chains,
    sum_into_weights,
    transposed_conv,
    unit_axes,
)
from crucible.graph.verify import InvalidGraph, verify


class Pass(Protocol):
    """What a module of this folder offers."""

    NAME: str
    ENABLED: bool

    def apply(self, graph: fx.Graph) -> list[str]: ...


# First what removes nodes, so that fewer users hold the later passes back; folding sees a batch norm before it is
# written out; pools move once the functions they move across are as few as they get.
PASSES: tuple[Pass, ...] = (
    dead_nodes,
    dropout_off,
    identity_arithmetic,
    identity_layout,
    unit_axes,
    scalar_out_of_sum,
    sum_into_weights,
    scale_chains,
    clamp_chains,
    batch_norm_fold,
    batch_norm_eval,
    pool_monotone,
    pool_affine,
    transposed_conv,
)


def run_all(gm: fx.GraphModule, also: Collection[str] = ()) -> list[str]:
    """Run the enabled passes, and those named in ``also``, to a fixed point; returns what was done, in order.

    The graph is verified after every pass that changed it. Outputs keep their positions, not their nodes' names.
    """
    unknown = set(also) - {p.NAME for p in PASSES}
    if unknown:
        raise ValueError(f"no such rewrite: {', '.join(sorted(unknown))}")
    chosen = [p for p in PASSES if p.ENABLED or p.NAME in also]
    done: list[str] = []
    # Every application removes a node or moves one past another, so this many rounds are more than enough.
    for _ in range(len(gm.graph.nodes) + 2):
        before = len(done)
        for each in chosen:
            sentences = each.apply(gm.graph)
            if sentences:
                _verify_after(each, gm.graph)
                done += [f"{each.NAME}: {sentence}" for sentence in sentences]
        if len(done) == before:
            gm.recompile()
            return done
    raise InvalidGraph("the rewrites go round in circles: " + "; ".join(done[-4:]))


def _verify_after(each: Pass, graph: fx.Graph) -> None:
    try:
        verify(graph)
    except InvalidGraph as error:
        raise InvalidGraph(f"after {each.NAME}: {error}") from error
