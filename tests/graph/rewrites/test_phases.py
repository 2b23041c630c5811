"""The sub-pixel phases of a transposed convolution, against PyTorch and for every residue."""

from __future__ import annotations

import itertools

import pytest
import torch

from crucible.graph.phases import Phase, Tap, output_length, phases

pytestmark = pytest.mark.quick


def by_phases(x: torch.Tensor, w: torch.Tensor, stride: int, padding: int, dilation: int, extra: int) -> torch.Tensor:
    settings = (len(w), stride, padding, dilation, extra)
    y = torch.zeros(output_length(len(x), *settings), dtype=x.dtype)
    table = phases(*settings)
    for position in range(len(y)):
        q, r = divmod(position, stride)
        for term in table[r].taps:
            if 0 <= q + term.offset < len(x):
                y[position] += x[q + term.offset] * w[term.tap]
    return y


@pytest.mark.parametrize("kernel,stride", list(itertools.product([1, 2, 3, 4, 5], [1, 2, 3, 5])))
def test_matches_pytorch(kernel: int, stride: int) -> None:
    w = torch.randn(kernel, dtype=torch.float64)
    for n, padding, dilation in itertools.product([1, 4], [0, 1, 3], [1, 2, 3]):
        for extra in range(min(2, max(stride, dilation))):
            if output_length(n, kernel, stride, padding, dilation, extra) < 1:
                continue
            x = torch.randn(n, dtype=torch.float64)
            want = torch.nn.functional.conv_transpose1d(
                x[None, None], w[None, None], None, stride, padding, extra, 1, dilation
            )
            got = by_phases(x, w, stride, padding, dilation, extra)
            torch.testing.assert_close(got, want[0, 0], rtol=1e-13, atol=1e-13)


def test_every_tap_belongs_to_one_phase_when_undilated() -> None:
    table = phases(7, 3, 2, 1, 0)
    assert [p.residue for p in table] == [0, 1, 2]
    assert sorted(t.tap for p in table for t in p.taps) == list(range(7))


def test_known_table() -> None:
    assert phases(4, 2, 1, 1, 0) == (Phase(0, (Tap(1, 0), Tap(3, -1))), Phase(1, (Tap(0, 1), Tap(2, 0))))


def test_a_stride_beyond_the_kernel_leaves_phases_empty() -> None:
    assert phases(1, 3, 0, 1, 0)[1].taps == ()


@pytest.mark.parametrize(
    "settings", [(0, 1, 0, 1, 0), (3, 0, 0, 1, 0), (3, 2, -1, 1, 0), (3, 2, 0, 1, 2), (3, 2, 0, 0, 0)]
)
def test_impossible_settings_are_refused(settings: tuple[int, int, int, int, int]) -> None:
    with pytest.raises(ValueError):
        phases(*settings)
