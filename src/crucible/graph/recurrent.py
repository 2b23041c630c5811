"""Recurrent layers (LSTM, GRU, RNN) as operators that are not taken apart: they stay torch's, forward and backward.

torch's own are composites that autograd differentiates step by step, in other steps on each device, and for which there
are no symbolic shapes. These have both: what is captured has them, and a generated file calls torch's by the names
in ``WRITTEN``. Their gradients come from running the layer again.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch._VF

aten, ours = torch.ops.aten, torch.ops.crucible
KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")

# Nothing is dropped within these: their gradients come from running the layer again, which would drop something else.
_OPTIONS = "bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first"
_library = torch.library.Library("crucible", "DEF")
_library.define(f"lstm(Tensor input, Tensor[] hx, Tensor[] params, {_OPTIONS}) -> (Tensor, Tensor, Tensor)")
for _kind in KINDS[1:]:
    _library.define(f"{_kind}(Tensor input, Tensor hx, Tensor[] params, {_OPTIONS}) -> (Tensor, Tensor)")
_library.define(
    "recurrent_backward(str kind, Tensor?[] gradients, Tensor input, Tensor[] states, Tensor[] params, "
    "bool has_biases, int num_layers, bool bidirectional, bool batch_first) -> Tensor[]"
)


def _layers(
    own: Any, x: torch.Tensor, hx: Any, params: Sequence[torch.Tensor], has_biases: bool, layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    """One call for all layers, or where something is dropped between them, one for each."""
    if not (dropout and train and layers > 1):
        return own(x, hx, params, has_biases, layers, 0.0, train, bidirectional, batch_first)
    directions, each = 2 if bidirectional else 1, len(params) // layers
    states, ends = list(hx) if isinstance(hx, (list, tuple)) else [hx], []
    for k in range(layers):
        x = torch.dropout(x, dropout, True) if k > 0 else x
        mine = [s[k * directions : (k + 1) * directions] for s in states]
        given = mine if isinstance(hx, (list, tuple)) else mine[0]
        weights = list(params[k * each : (k + 1) * each])
        x, *end = own(x, given, weights, has_biases, 1, 0.0, train, bidirectional, batch_first)
        ends.append(end)
    return (x, *(torch.cat(list(end)) for end in zip(*ends)))


@contextlib.contextmanager
def whole() -> Iterator[None]:
    """Meanwhile torch's layers call these operators, whatever the lengths of their sequences."""

    def instead(kind: str) -> Any:
        original, own = getattr(torch._VF, kind), getattr(ours, kind).default

        def layer(x: torch.Tensor, *rest: Any) -> Any:
            if isinstance(rest[2], (list, tuple)):  # sequences of different lengths: ``rest`` begins with those
                return original(x, *rest)
            return _layers(own, x, *rest)

        return layer

    replaced = {kind: instead(kind) for kind in KINDS}
    torch._VF.__dict__.update(replaced)
    try:
        yield
    finally:
        for kind in replaced:
            del torch._VF.__dict__[kind]


def _recurrent_backward(kind, gradients, x, states, params, has_biases, layers, bidirectional, batch_first):
    """Gradients of a recurrent layer by what goes into it: torch's operator runs again, watched by autograd."""
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (x, *states, *params)]
        x, states, params = leaves[0], leaves[1 : len(states) + 1], leaves[len(states) + 1 :]
        hx = states if kind == "lstm" else states[0]
        layer = getattr(torch.ops.aten, kind).input
        made = layer(x, hx, params, has_biases, layers, 0.0, True, bidirectional, batch_first)
    pairs = [(y, g) for y, g in zip(made, gradients) if g is not None]
    found = torch.autograd.grad([y for y, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, found)]


# What a file calls in their stead, and the function that it carries for that.
NAME = _recurrent_backward.__name__
WRITTEN = {
    **{getattr(ours, kind).default: f"torch.ops.aten.{kind}.input" for kind in KINDS},
    ours.recurrent_backward.default: NAME,
}


def shown(target: Any) -> str:
    """The operator as a user knows it."""
    return WRITTEN[target].removeprefix("torch.ops.") if target in WRITTEN else str(target)


def source() -> str:
    """The function's text for a generated file."""
    return inspect.getsource(_recurrent_backward)


# -- shapes


def _results(x: torch.Tensor, states: Sequence[torch.Tensor], bidirectional: bool) -> tuple[torch.Tensor, ...]:
    features = states[0].shape[-1] * (2 if bidirectional else 1)
    return (x.new_empty((*x.shape[:-1], features)), *(s.new_empty(s.shape) for s in states))


def _shapes(kind: str) -> Any:
    def shapes(x, hx, params, has_biases, layers, dropout, train, bidirectional, batch_first):
        return _results(x, list(hx) if kind == "lstm" else [hx], bidirectional)

    return shapes


@torch.library.register_fake("crucible::recurrent_backward", lib=_library)
def _(kind: str, gradients: Any, x: Any, states: Any, params: Any, *_: Any) -> list[torch.Tensor]:
    return [t.new_empty(t.shape) for t in (x, *states, *params)]


# -- derivatives


def _setup(kind: str) -> Any:
    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, hx, params, has_biases, layers, _, _, bidirectional, batch_first = inputs
        states = list(hx) if kind == "lstm" else [hx]
        ctx.count = len(states)
        ctx.options = has_biases, layers, bidirectional, batch_first
        ctx.save_for_backward(x, *states, *params)

    return setup


def _derivative(kind: str) -> Any:
    def derivative(ctx: Any, *gradients: Any) -> Any:
        x, *others = ctx.saved_tensors
        states, params = others[: ctx.count], others[ctx.count :]
        found = ours.recurrent_backward.default(kind, list(gradients), x, states, params, *ctx.options)
        states, params = found[1 : ctx.count + 1], found[ctx.count + 1 :]
        return (found[0], states if kind == "lstm" else states[0], params, *[None] * 6)

    return derivative


for _kind in KINDS:
    torch.library.register_fake(f"crucible::{_kind}", _shapes(_kind), lib=_library)
    torch.library.register_autograd(
        f"crucible::{_kind}", _derivative(_kind), setup_context=_setup(_kind), lib=_library
    )
