"""Captures modules for the rewrite tests and compares a rewritten graph with the module, gradients included."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.export import Dim, export

from crucible.graph.verify import verify

F64 = torch.float64


class Captured:
    """A module and its graph, parameters and buffers as placeholders."""

    def __init__(self, module: nn.Module, inputs: Sequence[torch.Tensor]) -> None:
        self.module = module
        shapes = tuple({d: Dim.AUTO for d in range(x.dim())} for x in inputs)  # noqa: C420
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.program = export(module, tuple(inputs), dynamic_shapes=shapes, strict=False).run_decompositions({})
        self.gm: fx.GraphModule = self.program.graph_module
        self.inputs = list(inputs)

    @property
    def graph(self) -> fx.Graph:
        return self.gm.graph

    def targets(self) -> list[str]:
        return [str(n.target) for n in self.graph.nodes if n.op == "call_function"]

    def run(self, state: dict[str, torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The user outputs of the graph on real tensors."""
        signature = self.program.graph_signature
        rest = list(inputs)
        values = []
        for spec in signature.input_specs:
            if spec.target is None:
                values.append(rest.pop(0))
            elif spec.target in state:
                values.append(state[spec.target])
            else:
                values.append(self.program.constants[spec.target])
        results = fx.Interpreter(self.gm).run(*values)
        updates = len(results) - len(signature.user_outputs)
        return list(results[updates:])


def capture(
    function: Callable[..., Any] | nn.Module, *inputs: torch.Tensor, parameters: dict[str, torch.Tensor] | None = None
) -> Captured:
    """The graph of a module, or of ``function(module, *inputs)`` with a module that holds ``parameters``."""
    if isinstance(function, nn.Module):
        return Captured(function, inputs)
    holder = nn.Module()
    for name, tensor in (parameters or {}).items():
        holder.register_parameter(name, nn.Parameter(tensor))
    forwards = {
        1: lambda self, x: function(self, x),
        2: lambda self, x, y: function(self, x, y),
        3: lambda self, x, y, z: function(self, x, y, z),
    }
    kind = type("Case", (nn.Module,), {"forward": forwards[len(inputs)]})
    holder.__class__ = kind
    return Captured(holder, inputs)


def random(*sizes: int, dtype: torch.dtype = F64) -> torch.Tensor:
    return torch.randn(*sizes, dtype=dtype)


def assert_same(captured: Captured, *others: Sequence[torch.Tensor], tolerance: float = 1e-12) -> None:
    """Rewritten graph and module agree, outputs and all gradients, on the traced inputs and on ``others``."""
    verify(captured.graph)
    for inputs in (captured.inputs, *others):
        _assert_same_on(captured, inputs, tolerance, True)


def assert_same_values(captured: Captured, inputs: Sequence[torch.Tensor], tolerance: float = 1e-12) -> None:
    """Rewritten graph and module agree in their outputs."""
    _assert_same_on(captured, inputs, tolerance, False)


def _assert_same_on(captured: Captured, inputs: Sequence[torch.Tensor], tolerance: float, gradients: bool) -> None:
    module = copy.deepcopy(captured.module)
    want_in, got_in = _leaves(inputs), _leaves(inputs)
    state: dict[str, torch.Tensor] = dict(copy.deepcopy(captured.module).named_parameters())
    state.update({k: v.clone() for k, v in captured.module.named_buffers()})
    want = module(*want_in)
    want = list(want) if isinstance(want, (list, tuple)) else [want]
    got = captured.run(state, got_in)
    assert len(got) == len(want)
    for g, w in zip(got, want):
        assert g.dtype == w.dtype
        torch.testing.assert_close(g, w, rtol=tolerance, atol=tolerance, equal_nan=True)
    if gradients:
        leaves = [*_parameters(captured, state), *got_in]
        _compare_gradients(want, [*module.parameters(), *want_in], got, leaves, tolerance)


def _parameters(captured: Captured, state: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return [state[name] for name, _ in captured.module.named_parameters()]


def _leaves(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]


def _compare_gradients(
    want: list[torch.Tensor],
    want_in: list[torch.Tensor],
    got: list[torch.Tensor],
    got_in: list[torch.Tensor],
    tolerance: float,
) -> None:
    want_in = [x for x in want_in if x.requires_grad]
    got_in = [x for x in got_in if x.requires_grad]
    for w, g in zip(want, got):
        if not w.requires_grad:
            continue
        # One output at a time: NaN in one must not hide the others.
        seed = torch.randn_like(w)
        expected = torch.autograd.grad(w, want_in, seed, retain_graph=True, allow_unused=True)
        actual = torch.autograd.grad(g, got_in, seed, retain_graph=True, allow_unused=True)
        for a, e, x in zip(actual, expected, got_in):
            a, e = (torch.zeros_like(x) if t is None else t for t in (a, e))
            torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance, equal_nan=True)
