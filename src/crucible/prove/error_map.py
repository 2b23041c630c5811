"""Where a tensor is wrong, small enough for a record: its error over two dimensions at a time, as grids of maxima.

A tensor with more than two dimensions gives two grids. One has its leading dimensions (samples against channels), each
cell the largest error of a whole plane; the other is the plane with the worst element in it. The error of an element
is relative to its magnitude plus the root mean square of the truth, as in ``compare.py``.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from crucible.prove.compare import scale

ROWS, COLUMNS = 32, 48  # the most cells of a grid
CHUNK = 1 << 24


def error_maps(exact: torch.Tensor, got: torch.Tensor, where: int) -> list[dict[str, Any]]:
    """The grids of a tensor, the more telling first; none where there is nothing to see."""
    if exact.numel() < 2 or exact.shape != got.shape or exact.is_complex():
        return []
    if exact.dim() <= 2:
        shape = [1] * (2 - exact.dim()) + list(exact.shape)
        return [_grid(_error(exact, got, _unit(exact)).reshape(shape), shape, _titles(exact.dim()), "the whole tensor")]
    leading, plane = list(exact.shape[:-2]), list(exact.shape[-2:])
    planes = math.prod(leading)
    first, second = exact.reshape(planes, *plane), got.reshape(planes, *plane)
    unit = _unit(exact)
    step = max(1, CHUNK // max(1, math.prod(plane)))
    worst = torch.cat([
        _error(first[k : k + step], second[k : k + step], unit).flatten(1).amax(1) for k in range(0, planes, step)
    ])  # fmt: skip
    at = max(where, 0) // math.prod(plane)
    index = _index(at, leading)
    shown = f"the plane of the worst element, [{', '.join(map(str, index))}, :, :]"
    of_plane = _grid(_error(first[at], second[at], unit), plane, ("row", "column"), shown)
    if planes == 1:
        return [of_plane]
    across = [leading[0], planes // leading[0]]
    names = ("dimension 0", "dimension 1" if len(leading) < 3 else "the dimensions between")
    whole = _grid(worst.reshape(across), across, names, "the largest error of every plane")
    return [whole, of_plane]


def _titles(dimensions: int) -> tuple[str, str]:
    return ("", "element") if dimensions < 2 else ("dimension 0", "dimension 1")


def _unit(exact: torch.Tensor) -> float:
    """The root mean square of the truth, of what is finite in it."""
    found = scale(exact)[1]
    if found == 0.0 and exact.is_floating_point():
        finite = exact[torch.isfinite(exact)]
        return scale(finite)[1] if finite.numel() else 0.0
    return found


def _error(exact: torch.Tensor, got: torch.Tensor, unit: float) -> torch.Tensor:
    a, b = exact.double(), got.double()
    same = (a == b) | (a.isnan() & b.isnan())
    relative = (b - a).abs() / (a.abs() + unit).clamp_min(1e-300)
    return torch.where(same, 0.0, torch.nan_to_num(relative, nan=math.inf, posinf=math.inf))


def _grid(error: torch.Tensor, shape: list[int], names: tuple[str, str], title: str) -> dict[str, Any]:
    cells = _shrunk(_shrunk(error, 0, ROWS), 1, COLUMNS)
    return {
        "title": title,
        "rows": {"name": names[0], "size": shape[0]},
        "columns": {"name": names[1], "size": shape[1]},
        "values": [[float(f"{v:.3g}") for v in row] for row in cells.tolist()],
    }


def _shrunk(error: torch.Tensor, dimension: int, most: int) -> torch.Tensor:
    """The maxima of ``most`` parts of about equal length."""
    size = error.shape[dimension]
    if size <= most:
        return error
    edges = [size * k // most for k in range(most + 1)]
    parts = [error.narrow(dimension, a, b - a).amax(dimension, keepdim=True) for a, b in zip(edges, edges[1:])]
    return torch.cat(parts, dimension)


def _index(flat: int, shape: list[int]) -> list[int]:
    index = []
    for n in reversed(shape):
        index.append(flat % n)
        flat //= n
    return index[::-1]
