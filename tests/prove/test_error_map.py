"""Maps of errors: the wrong place is where the map has it, at any size and shape."""

from __future__ import annotations

import pytest
import torch

from crucible.prove.error_map import COLUMNS, ROWS, error_maps

pytestmark = pytest.mark.quick


def wrong_at(shape: tuple[int, ...], index: tuple[int, ...], by: float = 3.0):
    exact = torch.ones(shape, dtype=torch.float64)
    got = exact.float()
    got[index] += by
    flat = int(torch.arange(exact.numel()).reshape(shape)[index])
    return error_maps(exact, got, flat)


def cells(grid) -> list[tuple[int, int]]:
    return [(r, c) for r, row in enumerate(grid["values"]) for c, v in enumerate(row) if v]


@pytest.mark.parametrize(("shape", "index", "found"), [
    ((7,), (4,), [(0, 4)]), ((5, 7), (3, 2), [(3, 2)]), ((1, 1, 3, 5), (0, 0, 2, 4), [(2, 4)]),
    ((33, 49), (32, 48), [(31, 47)]), ((64, 96), (0, 1), [(0, 0)]),
])  # fmt: skip
def test_one_grid(shape, index, found):
    (grid,) = wrong_at(shape, index)
    assert cells(grid) == found
    assert len(grid["values"]) <= ROWS and len(grid["values"][0]) <= COLUMNS
    assert grid["values"][found[0][0]][found[0][1]] == pytest.approx(1.5)  # 3 beside 1 and a mean square of 1


@pytest.mark.parametrize(("shape", "index", "whole", "plane"), [
    ((3, 4, 5), (2, 1, 3), (2, 0), (1, 3)), ((2, 3, 4, 5), (1, 2, 3, 4), (1, 2), (3, 4)),
    ((2, 3, 2, 4, 5), (1, 2, 1, 0, 4), (1, 5), (0, 4)),
])  # fmt: skip
def test_planes(shape, index, whole, plane):
    first, second = wrong_at(shape, index)
    assert cells(first) == [whole] and cells(second) == [plane]
    assert first["rows"]["size"] * first["columns"]["size"] == torch.Size(shape[:-2]).numel()
    assert str(list(index[:-2]))[1:-1] in second["title"]


def test_nan_counts_where_it_is_not_expected():
    exact = torch.tensor([[1.0, float("nan"), float("inf"), 2.0]], dtype=torch.float64)
    got = exact.clone()
    got[0, 3] = float("nan")
    (grid,) = error_maps(exact, got, 3)
    assert grid["values"] == [[0.0, 0.0, 0.0, float("inf")]]


@pytest.mark.parametrize("shape", [(), (1,), (0, 4), (2, 0, 3, 3)])
def test_nothing_to_see(shape):
    assert error_maps(torch.zeros(shape), torch.zeros(shape), -1) == []


def test_other_shapes_have_no_map():
    assert error_maps(torch.zeros(4), torch.zeros(5), 0) == []
