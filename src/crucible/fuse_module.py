"""Fuse a module that is at hand: the same parameters and buffers, another forward()."""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from crucible.emit import settings
from crucible.emit.live import bound_forward, load_forward, stand_in
from crucible.fuse import DTYPES, Fused, FuseError, FuseOptions, fuse_source


def fuse_module(
    module: torch.nn.Module, example_inputs: Any, *, engine: str = "auto", precision: str = "torch",
    dtypes: Sequence[str] = DTYPES, strict: bool = False, forward_only: bool = False,
) -> torch.nn.Module:  # fmt: skip
    """A module with ``module``'s own parameters, buffers and submodules whose forward() runs fused CUDA kernels.

    ``example_inputs`` is a tensor or a sequence of arguments of forward(); their sizes need not be those of later
    calls. The result runs where its parameters are, on a CUDA device. It has ``module``'s class as its base, and
    ``fused`` (the plan and the text) as an attribute. Nothing is proven here; ``fuse_file`` does that.
    """
    if not isinstance(module, torch.nn.Module):
        raise FuseError(f"fuse() takes a torch.nn.Module, not {type(module).__name__}")
    inputs = [example_inputs] if isinstance(example_inputs, torch.Tensor) else list(example_inputs)
    inputs = pytree.tree_map_only(torch.Tensor, lambda t: t.detach().to("meta"), inputs)
    options = FuseOptions(engine, precision, tuple(dtypes), forward_only, strict)
    name = type(module).__name__
    signature = inspect.signature(module.forward)
    parameters = list(signature.parameters.values())
    _check_defaults(name, parameters[len(inputs) :])
    twin = _without_memory(module)
    fused = fuse_source(stand_in(parameters), name, twin, inputs, options, digest="")
    return _exchanged(module, fused, signature, settings.digest(twin))


def _check_defaults(name: str, parameters: Sequence[inspect.Parameter]) -> None:
    """Arguments that the examples leave out keep their defaults for good, which the file must be able to check."""
    for p in parameters:
        if p.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            continue
        if p.default is inspect.Parameter.empty:
            raise FuseError(f"forward() of {name} needs {p.name}, and example_inputs has nothing for it")
        try:
            ast.literal_eval(repr(p.default))
        except (ValueError, SyntaxError):
            raise FuseError(
                f"the default of {p.name} in forward() of {name} is no plain value; give it in example_inputs"
            ) from None


def _without_memory(module: torch.nn.Module) -> torch.nn.Module:
    """A copy on the meta device, without hooks of its own: those will run around the fused forward()."""
    known: dict[int, Any] = {}
    for part in module.modules():
        held = [*part._parameters.values(), *part._buffers.values(), *vars(part).values()]
        for t in held:
            if isinstance(t, torch.nn.Parameter):
                known[id(t)] = torch.nn.Parameter(t.detach().to("meta"), t.requires_grad)
            elif isinstance(t, torch.Tensor):
                known[id(t)] = t.detach().to("meta")
    try:
        twin = copy.deepcopy(module, known)
    except Exception as error:  # noqa: BLE001  a module may hold anything
        raise FuseError(f"{type(module).__name__} cannot be copied: {type(error).__name__}: {error}") from error
    for hooks in (twin._forward_hooks, twin._forward_pre_hooks, twin._backward_hooks, twin._backward_pre_hooks):
        hooks.clear()
    return twin


def _exchanged(
    module: torch.nn.Module, fused: Fused, signature: inspect.Signature, digest: str
) -> torch.nn.Module:
    """A shallow copy of the module, which shares all it holds, with a class of its own for the fused forward()."""
    assert fused.request is not None
    layers = fused.request.layers

    def check(self: torch.nn.Module) -> None:
        """Refuse a module whose configuration was changed after it was fused."""
        settings.expect(self, digest, layers)

    name = type(module).__name__
    forward = bound_forward(load_forward(fused.text, name), signature, check)
    made = copy.copy(module)
    made.__class__ = type(f"Fused{name}", (type(module),), {"forward": forward, "fused": fused, "__module__": __name__})
    made.__dict__.pop("forward", None)  # a forward() that was hung on the instance would hide the new one
    return made
