"""What older versions of torch do in another way while a Model is captured and traced, made like that of later ones."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch._meta_registrations as shapes

from crucible.torch_version import number


def _divided(x: Any, y: Any) -> Any:
    return x // y


def _channels_fit(original: Any) -> Any:
    @functools.wraps(original)
    def checked(x: Any, weight: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, *others: Any) -> Any:
        if transposed:
            torch._check(x.shape[-len(weight.shape) + 1] == weight.shape[0])
        return original(x, weight, stride, padding, dilation, transposed, *others)

    return checked


def like_later_ones() -> None:
    """Before 2.13 a pool's size was rounded by a question about the remainder, a guard, and so a refusal of odd sizes,
    of what Python rounds the same way without asking. Before 2.10 a transposed convolution in one dimension took any
    number of channels."""
    if number(torch.__version__) < (2, 13) and getattr(shapes, "div_rtn", _divided) is not _divided:
        shapes.div_rtn = _divided
        shapes.calc_conv_nd_return_shape = _channels_fit(shapes.calc_conv_nd_return_shape)
