"""The gate: what passes, what does not, and where the floors are."""

from __future__ import annotations

import math

import pytest
import torch

from crucible.prove.compare import (
    FINITE,
    NAN,
    OVERFLOW,
    POSITIVE_INF,
    UNJUDGED,
    Error,
    expectations,
    judge,
    measure,
    slack,
)


def noise(x, size, seed=0):
    g = torch.Generator().manual_seed(seed)
    return x + size * x.std() * torch.randn(x.shape, generator=g, dtype=x.dtype)


def test_error_of_equal_tensors_is_zero():
    x = torch.randn(1000, dtype=torch.float64)
    assert measure(x, x.clone()).l2 == 0 and measure(x, x).worst == 0


def test_twice_the_yardstick_is_the_gate():
    x = torch.randn(10000, dtype=torch.float64)
    yard = measure(x, noise(x, 1e-3, 1))
    assert judge(x, noise(x, 1.5e-3, 2).float(), yard, torch.float32).ok
    assert not judge(x, noise(x, 3e-3, 3).float(), yard, torch.float32).ok


def test_a_few_ulps_always_pass_and_many_do_not():
    x = torch.randn(5000, dtype=torch.float64)
    assert judge(x, x.float(), Error(), torch.float32).ok
    assert judge(x, x.half(), Error(), torch.float16).ok
    assert not judge(x, x.half().float(), Error(), torch.float32).ok
    assert not judge(x, noise(x, 1e-6).float(), Error(), torch.float32).ok


def test_one_wrong_element_among_many_shows():
    x = torch.randn(1_000_00, dtype=torch.float64)
    yard = measure(x, noise(x, 1e-5, 1))
    got = noise(x, 1e-5, 2)
    got[777] += 1e-3
    judged = judge(x, got.float(), yard, torch.float32)
    assert not judged.ok and judged.where == 777


def test_nan_never_passes_for_a_number():
    x = torch.ones(100, dtype=torch.float64)
    got = x.float()
    got[3] = math.nan
    assert not judge(x, got, Error(0.5, 0.5), torch.float32).ok


def test_nan_and_inf_are_demanded_where_truth_and_eager_have_them():
    truth = torch.tensor([1.0, math.nan, math.inf, 1e40, 2.0], dtype=torch.float64)
    eager = torch.tensor([1.0, math.nan, math.inf, math.inf, math.nan])
    mask = expectations(truth, eager)
    assert mask is not None and mask.tolist() == [FINITE, NAN, POSITIVE_INF, OVERFLOW, UNJUDGED]
    good = torch.tensor([1.0, math.nan, math.inf, -math.inf, 5.0])
    assert judge(truth, good, Error(), torch.float32, mask).ok
    bad = torch.tensor([1.0, 0.0, math.inf, math.inf, 5.0])
    judged = judge(truth, bad, Error(), torch.float32, mask)
    assert not judged.ok and judged.demanded == "nan" and judged.where == 1


def test_where_eager_is_lost_in_extremes_nothing_is_demanded():
    truth, eager = torch.ones(2, 40, dtype=torch.float64), torch.ones(2, 40)
    eager[0, 7] = 0
    mask = expectations(truth, eager, extreme=True)
    assert mask is not None and mask.tolist() == [FINITE] * 7 + [UNJUDGED] + [FINITE] * 72
    assert expectations(truth, eager) is None
    eager[1, ::2] = 5
    mask = expectations(truth, eager, extreme=True)
    assert mask is not None and mask[40:].tolist() == [UNJUDGED] * 40, "the second sample is lost as a whole"


def test_magnitudes_are_judged_apart_when_asked():
    x = torch.randn(4000, dtype=torch.float64)
    x[:2000] *= 1e-12
    yard = measure(x, x.float(), classes=True)
    got = x.clone()
    got[:2000] = 0
    assert judge(x, x.float(), yard, torch.float32).ok
    judged = judge(x, got.float(), yard, torch.float32)
    assert not judged.ok and judged.magnitude is not None


@pytest.mark.quick
def test_copies_of_a_small_number_are_one_draw():
    """A saturated tanh behind a norm: 500 elements are one number, whose error is luck in any computation."""
    x = torch.randn(4000, dtype=torch.float64)
    x[x.abs() < 0.01] = 1.0
    x[:500] = -0.00102431574
    eager, other = x.float(), x.float()
    eager[:500] += 2e-8
    other[:500] += 2e-7
    assert judge(x, other, measure(x, eager, classes=True), torch.float32).ok


@pytest.mark.quick
def test_small_elements_that_are_lost_show_among_copies():
    x = torch.randn(500, dtype=torch.float64).repeat_interleave(8)
    x[:2000] *= 1e-4
    x[2000:2500] = 1e-5
    yard = measure(x, x.float(), classes=True)
    step = 2.0**-22
    judged = judge(x, (torch.round(x / step) * step).float(), yard, torch.float32)
    assert not judged.ok and judged.magnitude is not None
    assert judge(x, x.float(), yard, torch.float32).ok


def test_noise_around_zero_has_room():
    truth = torch.full((64,), 1e-18, dtype=torch.float64)
    eager = torch.randn(64) * 1e-7
    yard = measure(truth, eager)
    assert judge(truth, torch.randn(64) * 5e-7, yard, torch.float32).ok
    assert not judge(truth, torch.randn(64), yard, torch.float32).ok


def test_integers_are_right_or_wrong():
    truth = torch.arange(10)
    assert judge(truth, truth.clone(), Error(), torch.int64).ok
    wrong = truth.clone()
    wrong[4] += 1
    judged = judge(truth, wrong, Error(), torch.int64)
    assert not judged.ok and judged.where == 4


def test_slack_is_for_handfuls_only():
    assert slack(64) == slack(10**6) == 1 and 2 < slack(1) <= 3


def test_very_large_and_very_small_numbers_do_not_overflow_the_metric():
    for size in (1e300, 1e-300):
        x = torch.randn(100, dtype=torch.float64) * size
        error = measure(x, x * 1.001)
        assert abs(error.l2 - 1e-3) < 1e-6
