"""Functions of torch's that torch.export follows badly, said in other operators while a Model is captured.

Some fix a size that the Model leaves open, one changes buffers without saying so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

_instance_norm = torch.instance_norm


@contextlib.contextmanager
def said_otherwise() -> Iterator[None]:
    originals = {name: getattr(torch, name) for name in INSTEAD}
    for name, function in INSTEAD.items():
        setattr(torch, name, function)
    try:
        yield
    finally:
        for name, function in originals.items():
            setattr(torch, name, function)


def max_pool1d(
    x: torch.Tensor, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> torch.Tensor:
    def pair(value: Any, other: int) -> list[Any]:
        return [other, *(value if isinstance(value, (list, tuple)) else [value])]

    step = pair(stride, 1) if stride is not None and stride != [] else pair(kernel, 1)
    wide = x.unsqueeze(-2)
    return torch.max_pool2d(wide, pair(kernel, 1), step, pair(padding, 0), pair(dilation, 1), ceil_mode).squeeze(-2)


def affine_grid_generator(theta: torch.Tensor, size: Sequence[int], align_corners: bool) -> torch.Tensor:
    spatial = size[2:]
    wide = theta.reshape(theta.shape[0], *[1] * len(spatial), *theta.shape[1:])
    grid = wide[..., -1]
    for k, n in enumerate(spatial):
        place = torch.arange(n, dtype=theta.dtype, device=theta.device) * 2 - (n - 1)  # whole numbers
        place = place / (torch.sym_max(n - 1, 1) if align_corners else n)
        axis = len(spatial) - 1 - k  # the last extent is x
        grid = grid + wide[..., axis] * place.reshape(n, *[1] * axis, 1)
    return grid


def instance_norm(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, variance: Any, use_input: bool, momentum: float, eps: float,
    cudnn: bool,
) -> torch.Tensor:  # fmt: skip
    """Running statistics are means over the samples' own."""
    if mean is None or not use_input:
        return _instance_norm(x, weight, bias, mean, variance, use_input, momentum, eps, cudnn)
    dims = list(range(2, x.dim()))
    with torch.no_grad():
        mean.mul_(1 - momentum).add_(x.mean(dims).mean(0).to(mean.dtype), alpha=momentum)
        variance.mul_(1 - momentum).add_(x.var(dims).mean(0).to(variance.dtype), alpha=momentum)
    return _instance_norm(x, weight, bias, None, None, True, momentum, eps, cudnn)


INSTEAD = {f.__name__: f for f in (max_pool1d, affine_grid_generator, instance_norm)}
