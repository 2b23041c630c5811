"""Tensors as raw files, values as tagged JSON: how the processes of a prove run talk to each other.

Nothing is pickled: the parent reads what a candidate wrote, and unpickling would run the candidate's code in it.
A tensor file holds the elements in logical (row-major) order; the JSON beside it says dtype, shape and, where they are
not the usual ones, the strides with which the receiver must lay the tensor out again.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import torch

DTYPES: dict[str, torch.dtype] = {
    str(d).removeprefix("torch."): d
    for d in (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.bool,
        torch.complex64,
        torch.complex128,
    )
}
MAX_ELEMENTS = 1 << 40


class BadTensor(Exception):
    """A tensor description or file that does not hold together (a candidate may have written nonsense on purpose)."""


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _itemsize(dtype: torch.dtype) -> int:
    return torch.empty(0, dtype=dtype).element_size()  # dtype.itemsize came with torch 2.1


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    dense = tensor.detach().cpu().contiguous()
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)  # one element may have any stride


def save(tensor: torch.Tensor, folder: Path, name: str, *, keep_layout: bool = False) -> dict[str, Any]:
    """Write a tensor's elements to ``folder/name`` and return its description."""
    if dtype_name(tensor.dtype) not in DTYPES:
        raise BadTensor(f"tensors of dtype {tensor.dtype} are not supported")
    path = folder / name
    _bytes_of(tensor).numpy().tofile(path)
    info: dict[str, Any] = {"file": name, "dtype": dtype_name(tensor.dtype), "shape": list(tensor.shape)}
    if keep_layout and not tensor.is_contiguous():
        info["strides"] = list(tensor.stride())
    return info


def _check(info: Any) -> tuple[str, torch.dtype, list[int], int]:
    """Validate a description; returns file name, dtype, shape and number of elements."""
    if not isinstance(info, dict):
        raise BadTensor("a tensor description is not an object")
    name, dtype, shape = info.get("file"), info.get("dtype"), info.get("shape")
    if not isinstance(name, str) or "/" in name or name in ("", ".", ".."):
        raise BadTensor(f"bad tensor file name {name!r}")
    if dtype not in DTYPES:
        raise BadTensor(f"unknown tensor dtype {dtype!r}")
    if (
        not isinstance(shape, list)
        or len(shape) > 64
        or not all(type(n) is int and 0 <= n < MAX_ELEMENTS for n in shape)
    ):
        raise BadTensor(f"bad tensor shape {shape!r}")
    count = 1
    for n in shape:
        count *= n
    if count > MAX_ELEMENTS:
        raise BadTensor(f"a tensor of shape {shape} is too large")
    return name, DTYPES[dtype], shape, count


def load_untrusted(info: Any, folder: Path) -> torch.Tensor:
    """Read a tensor that a candidate wrote.

    The file is opened without following links, must be a regular file of exactly the promised size, and is copied
    rather than mapped: a mapped file that its writer truncates later would kill the reader with SIGBUS.
    """
    name, dtype, shape, count = _check(info)
    size = count * _itemsize(dtype)
    try:
        fd = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise BadTensor(f"tensor file {name} cannot be opened: {error.strerror}") from None
    with os.fdopen(fd, "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_size != size:
            raise BadTensor(f"tensor file {name} holds {facts.st_size} bytes, {size} were promised")
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        data = bytearray(size)
        if file.readinto(data) != size:
            raise BadTensor(f"tensor file {name} changed while it was read")
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


def load(info: Any, folder: Path) -> torch.Tensor:
    """Read a tensor that a trusted process wrote: mapped copy-on-write, so large weights cost nothing until used."""
    name, dtype, shape, count = _check(info)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    path = folder / name
    if path.stat().st_size != count * _itemsize(dtype):
        raise BadTensor(f"tensor file {name} has the wrong size")
    return torch.from_file(str(path), shared=False, size=count, dtype=dtype).reshape(shape)


def place(tensor: torch.Tensor, strides: list[int] | None, device: torch.device) -> torch.Tensor:
    """A fresh tensor on ``device`` with the elements of ``tensor`` and the given strides.

    Elements in the gaps of a strided layout are NaN (or -1 for integers): code that ignores strides reads them.
    """
    if strides is None or tensor.numel() == 0:
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        copy.copy_(tensor)
        return copy
    dense = tensor[tuple(slice(0, 1) if s == 0 else slice(None) for s in strides)]
    if dense.numel() == 1:
        return dense.reshape([1] * tensor.dim()).to(device, copy=True).expand(tensor.shape)
    extent = 1 + sum((n - 1) * s for n, s in zip(dense.shape, strides, strict=True))
    gap: float = (
        float("nan") if tensor.is_floating_point() else (0 if tensor.dtype in (torch.bool, torch.uint8) else -1)
    )
    storage = torch.full((extent,), gap, dtype=tensor.dtype).to(device)
    view = storage.as_strided(dense.shape, strides)
    view.copy_(dense)
    return view.expand(tensor.shape)


# --- plain Python values -------------------------------------------------------------------------------------------


def encode(value: Any, folder: Path, prefix: str) -> Any:
    """A JSON form of an argument or result: numbers, strings, containers, dtypes, tensors (written to files)."""
    if value is None or isinstance(value, (bool, str)) or type(value) is int:
        return value
    if type(value) is float:
        return {"t": "float", "v": value.hex()}
    if isinstance(value, torch.Tensor):
        return {"t": "tensor", **save(value, folder, f"{prefix}.bin", keep_layout=True)}
    if isinstance(value, (list, tuple, torch.Size)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {"t": kind, "v": [encode(v, folder, f"{prefix}_{i}") for i, v in enumerate(value)]}
    if isinstance(value, dict):
        pairs = [
            [encode(k, folder, f"{prefix}_k{i}"), encode(v, folder, f"{prefix}_v{i}")]
            for i, (k, v) in enumerate(value.items())
        ]
        return {"t": "dict", "v": pairs}
    if isinstance(value, torch.dtype):
        return {"t": "dtype", "v": dtype_name(value)}
    if isinstance(value, torch.device):
        return {"t": "device", "v": str(value)}
    if isinstance(value, int):  # bool is handled above; IntEnum and numpy integers arrive here
        return int(value)
    return {"t": "other", "type": type(value).__name__, "v": repr(value)[:200]}


def decode(data: Any, folder: Path) -> Any:
    """The inverse of :func:`encode`, for values that a trusted process wrote. Tensors come back on the CPU."""
    if not isinstance(data, dict):
        return data
    kind, value = data["t"], data.get("v")
    if kind == "float":
        return float.fromhex(str(value))
    if kind == "tensor":
        return load({k: data[k] for k in ("file", "dtype", "shape")}, folder)
    if kind == "list":
        return [decode(v, folder) for v in value or []]
    if kind == "tuple":
        return tuple(decode(v, folder) for v in value or [])
    if kind == "dict":
        return {decode(k, folder): decode(v, folder) for k, v in value or []}
    if kind == "dtype":
        return DTYPES[str(value)]
    if kind == "device":
        return torch.device(str(value))
    raise BadTensor(f"a value of type {data.get('type', kind)} cannot be handed to another process: {value}")


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """The tensors (and other leaves) of a nested result, each with a readable path: ``""``, ``"[0]"``, ``"['y']"``."""
    if isinstance(value, (list, tuple)):
        return [leaf for i, v in enumerate(value) for leaf in leaves(v, f"{path}[{i}]")]
    if isinstance(value, dict):
        return [leaf for k, v in value.items() for leaf in leaves(v, f"{path}[{k!r}]")]
    return [(path, value)]
