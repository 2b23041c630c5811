"""A copy of any module, and a Model in float64 throughout: what others are held to."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

NARROW = (torch.float32, torch.float16, torch.bfloat16, torch.complex32, torch.complex64)


def copied(model: torch.nn.Module) -> torch.nn.Module:
    """A copy, also of a module that holds what it has computed, as weight norms of torch.nn.utils do."""
    known: dict[int, Any] = {}
    for part in model.modules():
        for value in vars(part).values():
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                known[id(value)] = value.detach().clone()
    return copy.deepcopy(model, known)


def wider(dtype: torch.dtype) -> torch.dtype:
    """The type of numbers that truth is computed in; other types are exact as they are."""
    return torch.float64 if dtype.is_floating_point else torch.complex128 if dtype.is_complex else dtype


def typed(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """The module itself, its real numbers in this type. ``model.to(dtype)`` would take imaginary parts of others."""
    return model._apply(lambda t: t.to(dtype) if t.is_floating_point() else t)


def widened(model: torch.nn.Module) -> torch.nn.Module:
    """The module itself, with all its numbers as wide as there are; double() leaves complex ones as they are."""
    return model._apply(wide)


def wide(value: Any) -> Any:
    """A tensor with numbers as wide as there are, anything else as it is."""
    return value.to(wider(value.dtype)) if isinstance(value, torch.Tensor) else value


def is_number(value: Any) -> bool:
    """Whether a value is a tensor that may have a gradient."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def parts(x: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs of real ones."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


class Wide(TorchDispatchMode):
    """Everything in float64, also what a Model says to be narrower, or makes of integers: a table of angles, say.

    Without it the truth would have eager's own rounding in it, or there would be none: such a tensor meets weights.
    """

    def __enter__(self) -> Any:
        self.default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *failure: Any) -> None:
        torch.set_default_dtype(self.default)
        super().__exit__(*failure)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") in NARROW:
            kwargs["dtype"] = wider(kwargs["dtype"])
        return func(*args, **kwargs)
