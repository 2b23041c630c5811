"""Quantiles, noise, claims, and what counts as right."""

from __future__ import annotations

import math

import pytest

from crucible.race import stats

pytestmark = pytest.mark.quick


def test_quantiles():
    assert stats.quantiles([5, 1, 2, 4, 3]) == stats.Quantiles(3, 2, 4)
    assert stats.quantiles([7.0]) == stats.Quantiles(7.0, 7.0, 7.0)
    assert stats.quantiles(range(1, 101)).low == 21 and stats.quantiles(range(1, 101), 10).high == 90


def test_noise_is_what_eager_differs_from_itself():
    same = [[1.0, 1.0]] * 5
    assert stats.noise(same, same).part == 0.0
    shaken = [[1.0], [1.1], [1.0], [0.8], [1.0]]
    found = stats.noise(shaken, [[1.0]] * 5)
    assert found.between_medians == 0.0 and found.part == pytest.approx(0.1) and len(found.by_round) == 5
    drifted = stats.noise([[1.2]] * 5, [[1.0]] * 5)
    assert drifted.part == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("mine", "other", "part", "word"),
    [
        ((1.0, 0.9, 1.1), (2.0, 1.9, 2.1), 0.05, "faster"),
        ((2.0, 1.9, 2.1), (1.0, 0.9, 1.1), 0.05, "slower"),
        ((1.0, 0.99, 1.01), (1.04, 1.03, 1.05), 0.05, "same"),  # within the noise
        ((1.0, 0.5, 1.9), (2.0, 1.5, 2.1), 0.05, "same"),  # quantiles overlap
        ((1.0, 0.9, 1.1), (9.0, 8.9, 9.1), math.inf, "same"),  # nobody knows the noise
    ],
)
def test_claims(mine, other, part, word):
    assert stats.claim(stats.Quantiles(*mine), stats.Quantiles(*other), part) == word


def look(values, shape=(4,), real=True):
    return {"shape": list(shape), "real": real, "at": list(values)}


TRUTH = {"output 0": look([1.0, 2.0, 3.0, 4.0])}
SAME = {"output 0": look([1.0, 2.0, 3.0, 4.0])}  # other inputs that happen to give the same leave the strictest gate


def held(got, eager=None, other=None, truth=None, dtype="float32"):
    return stats.check(got, truth or TRUTH, eager or truth or TRUTH, other or truth or SAME, "float64", dtype)


def test_right_is_twice_eagers_error_or_a_few_ulps():
    off = {"output 0": look([1.0, 2.0, 3.0, 4.004])}
    assert held(TRUTH).right and held(TRUTH).error == 0.0
    assert not held(off).right and held(off).where == "output 0"
    assert held(off, eager={"output 0": look([1.0, 2.0, 3.0, 4.003])}).right
    assert held({"output 0": look([1.0, 2.0, 3.0, 4.000001])}).right
    assert held(off, dtype="bfloat16").right


def test_another_precision_is_right_and_the_result_of_other_inputs_is_not():
    far, near = {"output 0": look([4.0, 3.0, 2.0, 1.0])}, {"output 0": look([1.001, 2.002, 3.0, 4.0])}
    tf32 = {"output 0": look([1.0005, 2.0, 3.001, 4.0])}
    assert held(tf32, other=far).right and not held(far, other=far).right
    assert held(tf32, other=far).limit == stats.AT_MOST
    assert not held(near, other=near).right  # inputs that hardly matter: their results are still told apart
    assert not held({"output 0": look([1.1, 2.2, 3.3, 4.4])}, other=far).right


@pytest.mark.parametrize(
    "got",
    [
        {},
        {**TRUTH, "gradient of x": look([1.0])},
        {"output 0": look([1.0, 2.0, 3.0, 4.0], (2, 2))},
        {"output 0": look([1.0, 2.0, 3.0, math.nan])},
        {"output 0": look([1.0, 2.0, 3.0, math.inf])},
        {"output 0": look([1, 2, 3, 4], real=False)},
        {"output 0": look([0.0, 0.0, 0.0, 0.0])},
    ],
)
def test_wrong(got):
    assert not held(got).right and held(got).error > held(got).limit


def test_nan_and_infinity_where_they_belong():
    odd = {"output 0": look([math.nan, math.inf, -math.inf, 4.0])}
    assert held(odd, truth=odd).right


def test_whole_numbers():
    truth = {"output 0": look(range(2000), (2000,), False)}
    one = {"output 0": look([9, *range(1, 2000)], (2000,), False)}
    many = {"output 0": look([9] * 2000, (2000,), False)}
    assert held(one, truth=truth).right and not held(many, truth=truth).right


def test_of_several_tensors_the_wrong_one_is_named():
    truth = {"a": look([1.0] * 4), "b": look([1.0] * 4), "c": look([1.0] * 4)}
    got = {**truth, "b": look([1.5] * 4)}
    found = stats.check(got, truth, truth, truth, "float64", "float32")
    assert found.where == "b" and not found.right
    assert stats.check(truth, truth, truth, truth, "float64", "float32").right
