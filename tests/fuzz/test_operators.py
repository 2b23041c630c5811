"""Operators one by one, with the parameters that random graphs seldom draw: fused, run in the simulator, compared.

``OURS`` must not need torch at all; ``THEIRS`` stay torch calls, and the file around them must still be right.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from simulated import Job, Simulated

IMAGE, SIGNAL, VOLUME, MATRIX = "2, 4, 7, 6", "2, 4, 9", "2, 2, 5, 4, 6", "3, 8"

# name: (expression of x, shape of x)
OURS: dict[str, tuple[str, str]] = {
    # pooling
    "max_pool_ceil": ("F.max_pool2d(x, 3, 2, ceil_mode=True)", IMAGE),
    "max_pool_ceil_padded": ("F.max_pool2d(x, 3, 2, padding=1, ceil_mode=True)", IMAGE),
    "max_pool_overlapping": ("F.max_pool2d(x, 3, 1, padding=1)", IMAGE),
    "max_pool_indices": ("F.max_pool2d(x, 2, return_indices=True)", IMAGE),
    "max_pool1d": ("F.max_pool1d(x, 3, 2, padding=1)", SIGNAL),
    "max_pool3d": ("F.max_pool3d(x, 2, 2)", VOLUME),
    "avg_pool_ceil": ("F.avg_pool2d(x, 3, 2, ceil_mode=True)", IMAGE),
    "avg_pool_ceil_padded": ("F.avg_pool2d(x, 3, 2, padding=1, ceil_mode=True)", IMAGE),
    "avg_pool_not_counting": ("F.avg_pool2d(x, 3, 2, padding=1, count_include_pad=False)", IMAGE),
    "avg_pool_divisor": ("F.avg_pool2d(x, (2, 3), divisor_override=5)", IMAGE),
    "avg_pool1d": ("F.avg_pool1d(x, 3, 2, padding=1)", SIGNAL),
    "avg_pool3d": ("F.avg_pool3d(x, 2, 1, padding=1)", VOLUME),
    "global_avg_pool": ("F.adaptive_avg_pool2d(x, 1)", IMAGE),
    "global_max_pool": ("F.adaptive_max_pool2d(x, 1)", IMAGE),
    "lp_pool": ("F.lp_pool2d(x.abs() + 0.1, 2, 2)", IMAGE),
    # padding and views
    "pad_constant": ("F.pad(x, (1, 2, 0, 1), value=0.5)", IMAGE),
    "pad_negative": ("F.pad(x, (-1, 1))", IMAGE),
    "pad_reflect": ('F.pad(x, (1, 2, 2, 1), mode="reflect")', IMAGE),
    "pad_circular": ('F.pad(x, (1, 2, 2, 1), mode="circular")', IMAGE),
    "slice_negative": ("x[:, -3:-1]", MATRIX),
    "slice_half": ("x[:, x.shape[1] // 2 :]", MATRIX),
    "split_sizes": ("torch.cat(x.split([3, 5], dim=1)[::-1], dim=1)", MATRIX),
    "unbind": ("x.unbind(1)[2] * x.unbind(1)[0]", MATRIX),
    "repeat": ("x.repeat(1, 2)", MATRIX),
    "expand": ("x.unsqueeze(1).expand(-1, 3, -1) * 2", MATRIX),
    "repeat_interleave": ("x.repeat_interleave(2, dim=1)", MATRIX),
    "tril": ("torch.tril(x) + torch.triu(x, 1) * 2", MATRIX),
    "pixel_unshuffle": ("F.pixel_unshuffle(x, 2)", "2, 3, 4, 6"),
    "channel_shuffle": ("F.channel_shuffle(x, 2)", IMAGE),
    "select_assign": ("_select_assign(x)", MATRIX),
    # reductions
    "sum_axes": ("x.sum((1, 3))", IMAGE),
    "mean_none": ("x.mean()", IMAGE),
    "norm": ("x.norm(dim=1)", MATRIX),
    "norm_one": ("x.norm(p=1, dim=1)", MATRIX),
    "norm_three": ("torch.linalg.vector_norm(x, 3, dim=1)", MATRIX),
    "norm_inf": ("torch.linalg.vector_norm(x, float('inf'), dim=1)", MATRIX),
    "var_std": ("x.var(1, unbiased=False) + x.std(1)", MATRIX),
    "std_mean": ("torch.std_mean(x, (2, 3))", IMAGE),
    "logsumexp_axes": ("torch.logsumexp(x, (1, 2))", IMAGE),
    "max_min": ("x.max() - x.min()", MATRIX),
    "argmin": ("(x.sum(1), x.argmin(1), x.argmax())", MATRIX),
    "aminmax": ("torch.aminmax(x, dim=1)", MATRIX),
    "any_all": ("((x > 0).any(1) | (x > -3).all(1)) * x.sum(1)", MATRIX),
    "softmax_channels": ("torch.softmax(x, 1)", IMAGE),
    "softmin": ("F.softmin(x, 1)", MATRIX),
    # pointwise
    "powers": ("(x.abs() + 0.1) ** 1.7 + x ** 4 + 2.0 ** x", MATRIX),
    "logs": ("torch.log2(x.abs() + 1) + torch.log10(x.abs() + 1) + torch.expm1(x)", MATRIX),
    "trigonometry": ("torch.tan(x * 0.3) + torch.sinh(x) + torch.asinh(x) + torch.atan2(x, x * x + 1)", MATRIX),
    "rounding": ("x * (torch.floor(x) + torch.ceil(x) + torch.round(x) + torch.trunc(x) + torch.sign(x))", MATRIX),
    "remainders": ("torch.remainder(x, 0.7) + torch.fmod(x, 0.7) + x // 0.6", MATRIX),
    "shrinks": ("F.hardshrink(x) + F.softshrink(x) + F.tanhshrink(x) + F.threshold(x, 0.1, 2.0)", MATRIX),
    "celu_glu": ("F.celu(x, 1.3)[:, :4] + F.glu(x, 1)", MATRIX),
    "logaddexp": ("torch.logaddexp(x, -x) + torch.hypot(x, x + 1)", MATRIX),
    "nan_to_num": ("torch.nan_to_num(x / x.abs().sqrt().floor(), 1.0, 2.0, -2.0)", MATRIX),
    "erfs": ("torch.erf(x) + torch.erfc(x)", MATRIX),
    # losses
    "cross_entropy": ("F.cross_entropy(x, x.argmin(1))", MATRIX),
    "cross_entropy_pixels": ("F.cross_entropy(x, x.argmin(1), label_smoothing=0.1)", IMAGE),
    "nll_ignoring": ("F.nll_loss(F.log_softmax(x, 1), x.argmin(1), ignore_index=2)", MATRIX),
    "binary_cross_entropy": ("F.binary_cross_entropy_with_logits(x, torch.sigmoid(x).detach())", MATRIX),
    "bce": ("F.binary_cross_entropy(torch.sigmoid(x), (x > 0).to(x.dtype))", MATRIX),
    "kl": ("F.kl_div(F.log_softmax(x, 1), torch.softmax(x * 2, 1), reduction='batchmean')", MATRIX),
    "huber": ("F.huber_loss(x, x.detach() * 0.5 + 1, delta=0.7)", MATRIX),
    "l1": ("F.l1_loss(x, x.detach() * 0.5 + 1)", MATRIX),
    "triplet": ("F.triplet_margin_loss(x, x.flip(1), x.roll(1, 1))", MATRIX),
    # contractions
    "attention": ("F.scaled_dot_product_attention(x, x.flip(2), x * 0.5)", "2, 3, 5, 4"),
    "attention_causal": ("F.scaled_dot_product_attention(x, x, x, is_causal=True)", "2, 3, 5, 4"),
    "einsum": ("torch.einsum('nchw,ndhw->ncd', x, x.flip(1))", IMAGE),
    "outer": ("torch.outer(x[0], x[1])", MATRIX),
    "vector": ("x @ x[0]", MATRIX),
    "baddbmm": ("torch.baddbmm(x[:, 0], x[:, 1], x[:, 2].transpose(1, 2), beta=0.5, alpha=2)", "2, 3, 4, 4"),
    "conv_of_input": ("F.conv2d(x, x[:1, :, :3, :3])", IMAGE),
}

THEIRS: dict[str, tuple[str, str]] = {
    # only the derivative is torch's
    "pad_replicate": ('F.pad(x, (1, 2, 2, 1), mode="replicate")', IMAGE),
    "index_list": ("x[:, [2, 0, -1]]", MATRIX),
    "index_select": ("torch.index_select(x, 1, torch.tensor([3, 1], device=x.device))", MATRIX),
    "unfold": ("x.unfold(-1, 3, 2)", SIGNAL),
    "diagonal": ("torch.diagonal(x, dim1=-2, dim2=-1)", IMAGE),
    "upsample": ('F.interpolate(x, scale_factor=2, mode="nearest")', IMAGE),
    "prod": ("x.prod(1)", MATRIX),
    "prod_all": ("(x * 0.5 + 1).prod()", MATRIX),
    # all of it
    "sort": ("torch.sort(x, dim=1).values * 2", MATRIX),
    "cumsum": ("torch.tanh(torch.cumsum(x + 1, 1))", MATRIX),
    "cumprod": ("torch.cumprod(x, 1)", MATRIX),
    "topk": ("torch.topk(torch.sin(x), 3, dim=1).values", MATRIX),
    "median": ("x.median(1).values + 1", MATRIX),
    "qr": ("torch.linalg.qr(x)[1]", "5, 3"),
    "adaptive_avg": ("torch.relu(F.adaptive_avg_pool2d(x, (3, 4)))", IMAGE),
    "adaptive_max": ("F.adaptive_max_pool2d(x, (3, 4)) + 1", IMAGE),
    "bilinear": ('torch.relu(F.interpolate(x, scale_factor=2, mode="bilinear"))', IMAGE),
    "scatter_add": ("torch.zeros_like(x).scatter_add(1, x.argsort(1), x)", MATRIX),
}

SOURCE = '''
import torch
import torch.nn as nn
import torch.nn.functional as F


def _select_assign(x):
    y = x * 2
    y[:, 1] = y[:, 0] * y[:, 2]
    y[:, 2:4] += 1
    return y


class Model(nn.Module):
    def forward(self, x):
        return {expression}


def get_inputs():
    return [torch.randn({shape})]


def get_init_inputs():
    return []
'''


def job(expression: str, shape: str, engine: str = "simt") -> Job:
    text = SOURCE.replace("{expression}", expression).replace("{shape}", shape)
    return Job(text, (tuple(int(s) for s in shape.split(",")),), engine)


@pytest.fixture(scope="module")
def simulated() -> Iterator[Simulated]:
    with Simulated() as worker:
        yield worker


def test_fused_operators(simulated: Simulated) -> None:
    verdicts = simulated.check([job(*row) for row in OURS.values()])
    wrong = [f"{name}: {v.problem}" for name, v in zip(OURS, verdicts) if not v.ok]
    kept = [f"{name}: {v.unfused}" for name, v in zip(OURS, verdicts) if v.unfused]
    assert not wrong and not kept, "\n\n".join([*wrong, *kept])


def test_operators_that_stay_torchs(simulated: Simulated) -> None:
    verdicts = simulated.check([job(*row) for row in THEIRS.values()])
    wrong = [f"{name}: {v.problem}" for name, v in zip(THEIRS, verdicts) if not v.ok]
    assert not wrong, "\n\n".join(wrong)
    assert all(v.unfused for v in verdicts)
