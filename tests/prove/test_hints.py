"""The guesses: each typical mistake is recognised, and noise is not taken for one."""

from __future__ import annotations

import pytest
import torch

from crucible.prove.compare import Error, judge
from crucible.prove.hints import describe, guess

X = torch.randn(4, 6, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def edited(f):
    y = X.clone()
    f(y)
    return y


CASES = [
    ("dimensions 2 and 3 swapped", X.transpose(2, 3)),
    ("reverse order along dimension 3", X.flip(3)),
    ("1.25 times", X * 1.25),
    ("constant 0.5 everywhere", X + 0.5),
    ("one constant for each channel", X + torch.arange(6.0).reshape(1, 6, 1, 1)),
    ("belongs to channel", X[:, [1, 0, 2, 3, 4, 5]]),
    ("shifted by one along dimension 3", torch.roll(X, 1, 3)),
    ("in sample 2", edited(lambda y: y[2].mul_(2))),
    ("in channel 3", edited(lambda y: y[:, 3].mul_(2))),
    ("last 3 of 8 along dimension 3", edited(lambda y: y[..., 5:].mul_(3))),
    ("nan or inf", edited(lambda y: y[1].fill_(float("nan")))),
    ("every element is 0", torch.zeros_like(X)),
    (
        "are zero: never computed",
        torch.where(torch.rand(X.shape, generator=torch.Generator().manual_seed(1)) < 0.2, 0.0, X),
    ),
]


@pytest.mark.parametrize(("words", "got"), CASES, ids=[c[0] for c in CASES])
def test_typical_mistakes_are_recognised(words, got):
    judged = judge(X, got.float(), Error(), torch.float32)
    hint = guess(X, got.float(), judged)
    assert hint is not None and words in hint


def test_noise_gets_no_hint():
    got = X + torch.randn(X.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 0.1
    assert guess(X, got.float(), judge(X, got.float(), Error(), torch.float32)) is None


def test_a_failure_names_the_worst_element():
    got = X.float()
    got[1, 2, 3, 4] += 1
    text, evidence = describe("output", X, got, judge(X, got, Error(), torch.float32))
    assert evidence["worst"]["index"] == [1, 2, 3, 4] and "[1, 2, 3, 4]" in text
