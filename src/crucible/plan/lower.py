"""Lower a traced graph to a Program: what each node's elements are, and which operations stand on their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from crucible.graph.joint import Joint

# Importing these is what registers their operators.
from crucible.plan import contractions, lower_pointwise, lower_reductions, lower_views, windows  # noqa: F401
from crucible.plan.lowering import Lowering, Unsupported
from crucible.plan.program import Program

__all__ = ["Unsupported", "lower"]


def lower(
    joint: Joint, roles: Sequence[tuple[str, str]], element: torch.dtype = torch.float32, *, pools: bool = False
) -> Program:  # fmt: skip
    """The program of a traced graph. ``roles`` names each primal and tangent: (buffer name, role).

    ``pools``: the result of a pool over a contraction goes through memory, since contractions can pool what they store.
    """
    return Lowering(joint, roles, element, pools).run()
