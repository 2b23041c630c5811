"""Complex numbers inside a Model: torch's own operators compute with them; what torch cannot say of them is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

# A conjugate is a note beside the numbers, and so is a sign, which nobody reads in another's memory.
WRITTEN_OUT = {
    aten._conj.default: aten._conj_physical.default,
    aten._neg_view.default: aten.neg.default,
    aten.resolve_conj.default: aten.clone.default,
    aten.resolve_neg.default: aten.clone.default,
}
VIEWS = (aten.view.default, aten._unsafe_view.default)


def write_out(graph: fx.Graph) -> None:
    """Conjugates and signs, and copies of arguments that are returned as they came."""
    (last,) = graph.find_nodes(op="output")
    for node in list(graph.nodes):
        if node.op == "call_function":
            node.target = WRITTEN_OUT.get(node.target, node.target)
            if node.target in VIEWS and _is_complex(node.meta.get("val")):  # tensors may lie otherwise than when traced
                node.target = aten.reshape.default
        elif node.op == "placeholder" and last in node.users and _is_complex(node.meta.get("val")):
            with graph.inserting_before(last):
                own = graph.call_function(aten.clone.default, (node,))
            own.meta.update(node.meta)
            last.replace_input_with(node, own)


def _is_complex(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_complex()


def _by_parts(operator: Any) -> Callable[..., torch.Tensor]:
    """The operator on the last dimension's pairs: torch has no derivative of it for complex numbers."""

    def form(into: torch.Tensor, part: torch.Tensor, *where: Any, **named: Any) -> Any:
        if not into.is_complex():
            return operator(into, part, *where, **named)
        dims = [d % into.dim() if isinstance(d, int) and k in DIMS[operator] else d for k, d in enumerate(where)]
        pairs = operator(*(torch.view_as_real(t.to(into.dtype).resolve_conj()) for t in (into, part)), *dims, **named)
        return torch.view_as_complex(pairs)

    return form


# Those whose arguments after the first two are dimensions at these places.
DIMS = {
    aten.slice_scatter.default: (0,),
    aten.select_scatter.default: (0,),
    aten.diagonal_scatter.default: (1, 2),
}
FORMS = {operator: _by_parts(operator) for operator in DIMS}
