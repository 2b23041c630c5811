"""torch's switches for TF32. Since torch 2.9 each operator has its own, and asking for all of them at once by an older
name is an error where they differ."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

_precision = getattr(torch._C, "_get_fp32_precision_getter", None)


def conv_tf32() -> bool:
    """Whether convolutions on a GPU may round operands to TF32."""
    return torch.backends.cudnn.allow_tf32 if _precision is None else _precision("cuda", "conv") == "tf32"


def matmul_tf32() -> bool:
    """Whether matrix products may."""
    return torch.backends.cuda.matmul.allow_tf32 if _precision is None else _precision("cuda", "matmul") == "tf32"


def matmul_precision() -> str:
    """By the older name: highest, high or medium."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set by the newer one
        return "high" if matmul_tf32() else "highest"


@contextlib.contextmanager
def agreeing() -> Iterator[None]:
    """Meanwhile torch's own code may ask by the older names, as torch.export does."""
    try:
        torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
        agree = True
    except RuntimeError:
        agree = False
    if agree:
        yield
        return
    assert _precision is not None
    kept = {name: _precision("cuda", name) for name in ("conv", "rnn", "matmul")}
    older = matmul_precision_before()
    torch.backends.cudnn.allow_tf32 = True
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(older)
        for name, value in kept.items():
            torch._C._set_fp32_precision_setter("cuda", name, value)


def matmul_precision_before() -> str:
    """What the older name was set to, as far as that can be found out."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # the newer one says the opposite
        return "highest" if matmul_tf32() else "high"


def standing() -> dict[str, Any]:
    """As they stand in this process, for ``put``."""
    return {"cudnn_tf32": conv_tf32(), "matmul": matmul_precision()}


def put(given: dict[str, Any]) -> None:
    """In a process in which nobody has touched them."""
    torch.backends.cudnn.allow_tf32 = given["cudnn_tf32"]
    torch.set_float32_matmul_precision(given["matmul"])
