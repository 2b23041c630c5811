"""The sub-pixel phases of a transposed convolution, against PyTorch and for every phase."""

from __future__ import annotations

import itertools

import pytest
import torch

from crucible.plan.phases import Along

pytestmark = pytest.mark.quick


def by_phases(x: torch.Tensor, w: torch.Tensor, along: Along, outputs: int) -> torch.Tensor:
    """Each output must be written once: what no phase reaches stays nan."""
    y = torch.full((outputs,), float("nan"), dtype=x.dtype)
    for place, phase in itertools.product(range(along.places(outputs)), range(along.stride)):
        at = along.output(place, phase)
        if not 0 <= at < outputs:
            continue
        assert y[at].isnan(), "an output of two phases"
        y[at] = 0
        for tap in range(along.taps):
            t, i = along.weight(phase, tap), along.input(place, tap)
            if t < along.kernel and phase % along.common == 0 and 0 <= i < len(x):
                y[at] += x[i] * w[t]
    return y


@pytest.mark.parametrize("kernel,stride", list(itertools.product([1, 2, 3, 4, 5], [1, 2, 3, 4, 6])))
def test_matches_pytorch(kernel: int, stride: int) -> None:
    w = torch.randn(kernel, dtype=torch.float64)
    for n, padding, dilation in itertools.product([1, 4], [0, 1, 3], [1, 2, 3, 4]):
        for extra in range(min(3, max(stride, dilation))):
            if stride * (n - 1) + dilation * (kernel - 1) + 1 - 2 * padding + extra < 1:
                continue
            x = torch.randn(n, dtype=torch.float64)
            want = torch.nn.functional.conv_transpose1d(
                x[None, None], w[None, None], None, stride, padding, extra, 1, dilation
            )[0, 0]
            got = by_phases(x, w, Along(kernel, stride, padding, dilation), len(want))
            torch.testing.assert_close(got, want, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("kernel,padding", [(4, 1), (4, 0), (2, 0), (6, 2), (3, 1)])
def test_no_more_taps_than_a_stride_leaves(kernel: int, padding: int) -> None:
    """Whatever the padding: it moves places, and widens no window."""
    along = Along(kernel, 2, padding, 1)
    assert along.taps == -(-kernel // 2) and along.even == (kernel % 2 == 0)


@pytest.mark.parametrize(
    "settings,beside", [((3, 2, 1, 1), 2), ((5, 3, 0, 1), 3), ((3, 2, 0, 3), 1), ((3, 2, 0, 2), 2), ((3, 1, 0, 1), 1)]
)
def test_phases_beside_each_other(settings: tuple[int, int, int, int], beside: int) -> None:
    """As many as the stride, unless a dilation moves one past another."""
    along = Along(*settings)
    assert along.beside == beside
    places = [along.output(3, f) for f in range(beside)]
    assert places == list(range(places[0], places[0] + beside))


def test_a_stride_of_one_is_one_phase() -> None:
    along = Along(3, 1, 2, 2)
    assert (along.taps, along.spacing, along.places(9), along.output(4, 0)) == (3, 2, 9, 4)


@pytest.mark.parametrize("settings", [(0, 1, 0, 1), (3, 0, 0, 1), (3, 2, -1, 1), (3, 2, 0, 0)])
def test_impossible_settings_are_refused(settings: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError):
        Along(*settings)
