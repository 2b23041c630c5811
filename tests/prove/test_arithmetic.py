"""The yardstick arithmetics: the same function as torch's operators, with the rounding that they claim."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from crucible.prove import products
from crucible.prove.arithmetic import (
    SequentialSums,
    TensorCores,
    TF32Operands,
    mixtures,
    round_to_tf32,
    sequential_sum,
)


def gradients(f, *args):
    leaves = [a.detach().clone().requires_grad_() for a in args]
    out = f(*leaves)
    torch.manual_seed(1)
    grads = torch.autograd.grad(out, leaves, torch.randn(out.shape, dtype=out.dtype))
    return [out.detach(), *grads]


CONVOLUTIONS = [
    (F.conv2d, (2, 6, 9, 8), (4, 3, 3, 2), {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 2}),
    (F.conv1d, (2, 3, 11), (5, 3, 4), {"stride": 3, "padding": 2}),
    (F.conv3d, (1, 2, 4, 5, 6), (3, 2, 2, 3, 2), {"padding": 1}),
    (
        F.conv_transpose2d,
        (2, 4, 5, 4),
        (4, 3, 3, 4),
        {"stride": (2, 3), "padding": (1, 2), "output_padding": (1, 2), "groups": 2},
    ),
    (F.conv_transpose2d, (2, 4, 5, 4), (4, 3, 3, 2), {"dilation": (2, 3), "padding": 3}),
    (F.conv_transpose3d, (1, 4, 2, 3, 2), (4, 2, 3, 3, 3), {}),
]


@pytest.mark.parametrize("f,xs,ws,options", CONVOLUTIONS)
def test_sequential_convolution_is_the_convolution(f, xs, ws, options):
    torch.manual_seed(0)
    x, w = torch.randn(xs), torch.randn(ws)
    channels = ws[0] if f in (F.conv1d, F.conv2d, F.conv3d) else ws[1] * options.get("groups", 1)
    b = torch.randn(channels)
    expected = gradients(lambda x, w, b: f(x, w, b, **options), x, w, b)
    with SequentialSums() as mode:
        got = gradients(lambda x, w, b: f(x, w, b, **options), x, w, b)
    assert mode.used
    for e, g in zip(expected, got, strict=True):
        torch.testing.assert_close(g, e, rtol=1e-4, atol=1e-4)


MODULES = [
    (lambda x: F.group_norm(x, 2, torch.arange(1.0, 5.0), torch.ones(4)), (3, 4, 5, 6)),
    (lambda x: F.layer_norm(x, (6,), torch.arange(6.0), torch.ones(6)), (3, 4, 6)),
    (lambda x: F.batch_norm(x, None, None, training=True), (3, 4, 5, 6)),
    (lambda x: F.softmax(x, -1), (3, 7)),
    (lambda x: x.mean((0, 2)), (3, 4, 6)),
    (lambda x: x.var(1), (3, 4, 6)),
    (lambda x: x.sum(), (3, 4, 6)),
    (lambda x: x.cumsum(1), (3, 4, 6)),
    (lambda x: torch.linalg.vector_norm(x, dim=1), (3, 4, 6)),
    (lambda x: F.linear(x, torch.arange(12.0).reshape(2, 6) / 12, torch.ones(2)), (3, 4, 6)),
]


@pytest.mark.parametrize("f,shape", MODULES)
def test_sequential_reductions_are_the_reductions(f, shape):
    torch.manual_seed(0)
    x = torch.randn(shape)
    expected = gradients(f, x)
    with SequentialSums() as mode:
        got = gradients(f, x)
    assert mode.used
    for e, g in zip(expected, got, strict=True):
        torch.testing.assert_close(g, e, rtol=1e-4, atol=1e-5)


def test_batch_norm_statistics_are_updated_below_the_mode():
    torch.manual_seed(0)
    x = torch.randn(4, 3, 5)
    a, b = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    a(x)
    with SequentialSums():
        b(x)
    torch.testing.assert_close(a.running_mean, b.running_mean)
    torch.testing.assert_close(a.running_var, b.running_var)
    assert b.num_batches_tracked == 1


def test_sequential_sum_rounds_after_every_term():
    x = torch.ones(3000) * 0.1
    total = torch.zeros(())
    for v in x:
        total = total + v
    assert sequential_sum(x, [0]).item() == total.item()


def test_tf32_rounding_is_to_nearest_even():
    one = 1 + 2.0**-10
    x = torch.tensor([1 + 2.0**-11, one + 2.0**-11, one, -one, 3.0, 0.0, float("inf"), 1 + 2.0**-11 + 2.0**-20])
    expected = torch.tensor([1.0, 1 + 2.0**-9, one, -one, 3.0, 0.0, float("inf"), one])
    assert torch.equal(round_to_tf32(x), expected)
    assert round_to_tf32(torch.tensor([float("nan")])).isnan().all()


def test_tf32_operands_leave_matmuls_alone_unless_asked():
    torch.manual_seed(0)
    x, w = torch.randn(4, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    with TF32Operands(convolutions=True, matmuls=False) as mode:
        assert torch.equal(F.linear(x, w), F.linear(x, w))
    assert not mode.used
    plain = F.linear(x, w)
    with TF32Operands(convolutions=True, matmuls=True) as mode:
        rounded = F.linear(x, w)
    assert mode.used
    error = ((rounded - plain).norm() / plain.norm()).item()
    assert 1e-5 < error < 2e-3


def test_chosen_contractions_of_the_forward_pass_stay_exact():
    torch.manual_seed(0)
    x, *weights = (torch.randn(5, 5, dtype=torch.float64) for _ in range(4))

    def chain(x, a, b, c):
        return x @ a @ b @ c

    plain = gradients(chain, x, *weights)
    for exact in ({0, 1, 2}, {0, 2}):
        with TF32Operands(convolutions=False, matmuls=True, exact=frozenset(exact)) as mode:
            got = gradients(chain, x, *weights)
        assert mode.used and mode.count == 3
        assert torch.equal(got[0], plain[0]) == (len(exact) == 3)
        assert not any(map(torch.equal, got[1:], plain[1:])), "the backward pass is in TF32"


@pytest.mark.parametrize("count", range(12))
def test_any_three_contractions_are_mixed_in_every_way(count):
    chosen = mixtures(count)
    assert len(chosen) == len(set(chosen)) <= 14 and all(0 < len(c) < count for c in chosen)
    every = [frozenset(), frozenset(range(count)), *chosen]
    for three in combinations(range(min(count, 8)), min(count, 3)):
        assert len({tuple(i in c for i in three) for c in every}) == 2 ** len(three)


@pytest.mark.parametrize("f,xs,ws,options", CONVOLUTIONS)
def test_tensor_cores_convolve_with_rounded_operands(f, xs, ws, options):
    torch.manual_seed(0)
    x, w = (round_to_tf32(torch.randn(s)) for s in (xs, ws))
    expected = gradients(lambda x, w: f(x, w, **options), x, w)
    with TensorCores(convolutions=True, matmuls=False):
        got = gradients(lambda x, w: f(x, w, **options), x, w)
    torch.testing.assert_close(got[0], expected[0], rtol=1e-5, atol=1e-5)  # exact operands: only sums differ
    for e, g in zip(expected[1:], got[1:], strict=True):  # the incoming gradient is rounded
        torch.testing.assert_close(g, e, rtol=1e-2, atol=1e-2)
        assert not torch.equal(g, e)


def test_tensor_cores_cut_what_they_add():
    """A long sum of numbers that float32 holds: rounding would lose nothing on average, cutting always loses."""
    a = torch.full((1, 1, 4096), 1 + 2.0**-10)
    b = torch.full((1, 4096, 1), 1 + 2.0**-9)
    exact = (a.double() @ b.double()).item()
    got = products.tensor_core_product(a, b).item()
    assert exact * (1 - 4096 / 8 * 2**-23) < got < exact
    assert products.tensor_core_product(-a, b).item() == -got  # towards zero, whatever the sign
    ones = torch.ones(1, 1, 4096)
    assert products.tensor_core_product(ones, ones.mT).item() == 4096  # what is exact stays so


def test_tensor_cores_leave_what_is_not_permitted():
    a, b = torch.randn(3, 40), torch.randn(40, 5)
    with TensorCores(convolutions=True, matmuls=False):
        assert torch.equal(a @ b, torch.mm(a, b))
    with TensorCores(convolutions=False, matmuls=True):
        assert not torch.equal(torch.mm(a, b), (a.double() @ b.double()).float())
