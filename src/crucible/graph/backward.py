"""What of a Model's backward pass is Python of its own, of which a captured graph has nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


def backward_hooks(model: torch.nn.Module) -> list[str]:
    """Layers with hooks that may change gradients; the Model's own run around what is fused."""
    layers = ((name, m) for name, m in model.named_modules() if name)
    return [f"a backward hook of {name}" for name, m in layers if m._backward_hooks or m._backward_pre_hooks]


@contextlib.contextmanager
def own_functions() -> Iterator[dict[str, None]]:
    """The Model's own classes of torch.autograd.Function that run meanwhile, and hooks of tensors."""
    original = torch.autograd.Function.__dict__["apply"]
    found: dict[str, None] = {}

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not cls.__module__.startswith("torch."):
            found[f"backward() of {cls.__name__}"] = None
        return original.__get__(None, cls)(*args, **kwargs)

    hook = torch.Tensor.register_hook

    def register_hook(self: torch.Tensor, function: Any) -> Any:
        found["Tensor.register_hook()"] = None
        return hook(self, function)

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[method-assign,assignment]
    torch.Tensor.register_hook = register_hook  # type: ignore[method-assign]
    try:
        yield found
    finally:
        torch.autograd.Function.apply = original  # type: ignore[method-assign]
        torch.Tensor.register_hook = hook  # type: ignore[method-assign]
