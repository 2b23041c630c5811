"""Gradients of gradients: which are there, and whether the others raise an error or vanish without a word."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from crucible.exact import is_number, parts


def differentiated_twice(outputs: Iterable[Any], leaves: dict[str, torch.Tensor]) -> list[str] | str:
    """The leaves at which the gradient of a penalty on all gradients arrives, or the error that is raised."""
    live = [v for v in outputs if is_number(v) and v.requires_grad]
    leaves = {name: x for name, x in leaves.items() if x.requires_grad}
    if not live or not leaves:
        return []
    try:
        total = torch.stack([parts(v).double().sum() for v in live]).sum()
        first = torch.autograd.grad(total, list(leaves.values()), create_graph=True, allow_unused=True)
        again = [parts(g).double().square().sum() for g in first if g is not None and g.requires_grad]
        if not again:
            return []
        second = torch.autograd.grad(torch.stack(again).sum(), list(leaves.values()), allow_unused=True)
    except Exception as error:  # noqa: BLE001  any will do, if there is one
        return f"{type(error).__name__}: {error}"
    return [name for name, g in zip(leaves, second, strict=True) if g is not None]
