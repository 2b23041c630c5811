"""What a module looks like from outside: signatures, state, hyperparameters (both workers; the parent compares)."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from crucible.prove.tensors import dtype_name

_IGNORED = {"training", "call_super_init", "dump_patches"}


def signature(function: Any) -> list[dict[str, Any]] | None:
    """The parameters of a function without ``self``: name, kind, default."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    if parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    return [
        {
            "name": p.name,
            "kind": p.kind.name,
            "default": None if p.default is inspect.Parameter.empty else _plain(p.default),
            "required": p.default is inspect.Parameter.empty and p.kind.name not in ("VAR_POSITIONAL", "VAR_KEYWORD"),
        }
        for p in parameters
    ]


def signatures(cls: Any) -> dict[str, Any]:
    return {"init": signature(cls.__init__), "forward": signature(getattr(cls, "forward", None))}


def state_layout(model: torch.nn.Module) -> list[list[Any]]:
    """Name, shape, dtype and role of each state entry, in order."""
    parameters = {k for k, _ in model.named_parameters(remove_duplicate=False)}
    return [
        [name, list(value.shape), dtype_name(value.dtype), "parameter" if name in parameters else "buffer"]
        for name, value in model.state_dict().items()
        if isinstance(value, torch.Tensor)
    ]


def tied(model: torch.nn.Module) -> dict[str, str]:
    """Each state entry that is the same tensor as an earlier one, with that one's name: loading either changes both."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    first: dict[int, str] = {}
    for name, value in named:
        first.setdefault(id(value), name)
    return {name: first[id(value)] for name, value in named if first[id(value)] != name}


def attributes(model: torch.nn.Module) -> dict[str, dict[str, Any]]:
    """The plain attributes (numbers, strings, tuples) of every submodule, by its name: its hyperparameters."""
    result: dict[str, dict[str, Any]] = {}
    for name, module in model.named_modules():
        found: dict[str, Any] = {
            "__class__": type(module).__name__,
            "__torch__": type(module).__module__.startswith("torch."),
        }
        for key, value in vars(module).items():
            if key.startswith("_") or key in _IGNORED:
                continue
            text = _plain(value)
            if text is not None:
                found[key] = text
        result[name] = found
    return result


def _plain(value: Any) -> Any:
    """A comparable JSON form: ``3`` and ``(3, 3)`` come out alike, other objects as None."""
    if isinstance(value, bool) or isinstance(value, str):
        return value
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, (tuple, list)) and all(isinstance(v, (int, float, bool, str)) for v in value):
        items = list(value)
        return items[0] if items and all(v == items[0] for v in items) else items
    return "None" if value is None else None
