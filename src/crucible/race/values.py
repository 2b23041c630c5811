"""Tensors of a race: inputs of any size from the Problem's own get_inputs(), results, and how far they are off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from crucible.exact import parts
from crucible.problem import Problem, Shape

PICKS = 4096  # elements of a tensor that are looked at after a timed call


def scaled_shapes(problem: Problem, batch: int | None = None, spatial: float = 1.0) -> list[Shape | None]:
    """The shapes of get_inputs() with another batch, and with pixels scaled by a factor in each dimension.

    The batch is the first size of the first tensor, wherever a tensor begins with it; pixels are the third and later
    sizes of tensors that have them.
    """
    first = next((s[0] for s in problem.shapes if s), None)

    def change(shape: Shape | None) -> Shape | None:
        if not shape:
            return shape
        sizes = [max(1, round(n * spatial)) if d >= 2 else n for d, n in enumerate(shape)]
        if batch is not None and shape[0] == first:
            sizes[0] = batch
        return tuple(sizes)

    return [change(s) for s in problem.shapes]


def make_inputs(
    problem: Problem, shapes: Sequence[Shape | None], seed: int, dtype: torch.dtype | None, device: str = "cuda"
) -> list[Any]:
    """Arguments of forward() on the device with the values that the problem's author chose; no ``dtype``: in the
    author's types."""
    with torch.device(device):
        made = problem.inputs(list(shapes), seed)
    return problem.arguments([_placed(t, dtype, device) for t in made])


def _placed(value: Any, dtype: torch.dtype | None, device: str) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    value = value.to(device)
    return value.to(dtype) if dtype is not None and value.is_floating_point() else value


def sizes_text(shapes: Sequence[Shape | None]) -> str:
    return " ".join("x".join(map(str, s)) for s in shapes if s)


def tensors(out: Any) -> list[torch.Tensor]:
    if isinstance(out, torch.Tensor):
        return [out]
    if isinstance(out, dict):
        return [t for part in out.values() for t in tensors(part)]
    return [t for part in out for t in tensors(part)] if isinstance(out, (list, tuple)) else []


def total(out: Any) -> torch.Tensor:
    """One number that depends on every output of numbers."""
    return torch.stack([parts(t).sum() for t in tensors(out) if t.requires_grad]).sum()


def leaf(value: Any) -> Any:
    """A tensor of its own without a gradient yet, where it can have one."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().requires_grad_()
    return value


def distance(got: torch.Tensor, truth: torch.Tensor) -> float:
    """Relative, in the L2 norm; of whole numbers the part that differs."""
    if got.shape != truth.shape:
        return float("inf")
    if not truth.numel():
        return 0.0
    got, truth = parts(got), parts(truth)
    if not truth.is_floating_point():
        return float((got.to(truth.dtype) != truth).double().mean())
    off = got.double() - truth.double()
    same = (got.double() == truth.double()) | (got.isnan() & truth.isnan())  # infinities and NaNs that agree
    truth = truth.double().nan_to_num(0.0, 0.0, 0.0)
    return float(off.masked_fill(same, 0.0).norm() / truth.norm().clamp_min(1e-300))


def picked(tensor: torch.Tensor, seed: int, number: int) -> torch.Tensor:
    """Elements of a tensor at places that nobody can know before ``seed``, which is drawn after the call."""
    tensor = parts(tensor)
    count = tensor.numel()
    if not count:
        return tensor.detach().reshape(-1).cpu()
    places = torch.randint(count, (min(PICKS, count),), generator=torch.Generator().manual_seed(seed + number))
    return torch.take(tensor.detach(), places.to(tensor.device)).cpu()
