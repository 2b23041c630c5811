"""A copy of any module, and a Model in float64 throughout: what others are held to."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

NARROW = (torch.float32, torch.float16, torch.bfloat16)


def copied(model: torch.nn.Module) -> torch.nn.Module:
    """A copy, also of a module that holds what it has computed, as weight norms of torch.nn.utils do."""
    known: dict[int, Any] = {}
    for part in model.modules():
        for value in vars(part).values():
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                known[id(value)] = value.detach().clone()
    return copy.deepcopy(model, known)


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
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)
