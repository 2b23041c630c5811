"""Gradients of gradients, which fused files have not: they raise an error.

torch's own ``once_differentiable`` raises one only where the incoming gradient wants a gradient itself. That of
``y.sum()`` is a constant, and a penalty on the gradient of the input would train nothing, without a word. The text
below stands in the generated file.
"""

from __future__ import annotations

import inspect

import torch


class _BackwardTwice(torch.autograd.Function):
    """Gradients that may be differentiated again, which is an error: taken for constants they would be wrong."""

    @staticmethod
    def forward(ctx, count, *tensors):
        return tuple(g.detach() for g in tensors[:count])

    @staticmethod
    def backward(ctx, *gradients):
        raise RuntimeError(
            "ModelNew: gradients of gradients (a penalty on gradients, a Hessian) are not in this file; "
            "use the Model that it was made from where they are needed"
        )


class _BackwardOnce:
    """What backward() asks of its context, which must be asked for saved tensors once."""

    def __init__(self, ctx):
        self.needs_input_grad, self.sizes, self.saved_tensors = ctx.needs_input_grad, ctx.sizes, ctx.saved_tensors


def _once_backward(function):
    def backward(ctx, *gradients):
        if not torch.is_grad_enabled():  # nobody asked for create_graph
            return function(ctx, *gradients)
        held = _BackwardOnce(ctx)
        with torch.no_grad():
            made = function(held, *gradients)
        found = [g for g in made if g is not None]
        # What they come from, as far as it is at hand, and one tensor that wants a gradient whatever that is.
        sources = [t for t in (*held.saved_tensors, *gradients) if t is not None and t.requires_grad]
        again = iter(_BackwardTwice.apply(len(found), *found, *sources, torch.ones((), requires_grad=True)))
        return tuple(None if g is None else next(again) for g in made)

    return backward


NAME = _once_backward.__name__


def source() -> str:
    """Their text for a generated file."""
    return "\n\n\n".join(inspect.getsource(part).rstrip() for part in (_BackwardTwice, _BackwardOnce, _once_backward))
