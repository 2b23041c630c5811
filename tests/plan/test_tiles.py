"""When operands are packed for Hopper's own instructions: where the work is large against what packing moves."""

from __future__ import annotations

import pytest

from crucible.plan.tiles import choose, packing_pays


@pytest.mark.parametrize(
    ("rows", "cols", "depth", "batches", "pays"),
    [
        (1024, 8192, 8192, 1, True),
        (8192, 8192, 1024, 1, True),  # the gradient of its weight
        (256, 256, 256, 64, True),
        (1, 8192, 8192, 1, False),  # a vector: moving the matrix is all there is to do
        (100, 100, 100, 1, False),  # two more launches cost more
        (65536, 16, 64, 1, False),
    ],
)
def test_packing_pays(rows: int, cols: int, depth: int, batches: int, pays: bool) -> None:
    tile = choose("mma", "float32", "fp32", rows, cols, depth, batches)
    assert packing_pays(tile, rows, cols, depth, batches) == pays


def test_other_engines_pack_nothing() -> None:
    tile = choose("simt", "float32", "fp32", 1024, 8192, 8192)
    assert not packing_pays(tile, 1024, 8192, 8192, 1)
