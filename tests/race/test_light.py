"""The speed of light: bytes and products counted on the graph, and what is certain enough to refute with."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from crucible.plan import gpus
from crucible.race import ceilings
from crucible.race.light import CACHE_BYTES, Work, light, work_of

pytestmark = pytest.mark.quick


class Module(nn.Module):
    """A forward given as a function."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def test_a_linear_layer():
    model = nn.Linear(16, 24)
    work = work_of(model, [meta(8, 16)], False)
    assert work == Work(4 * (8 * 16 + 16 * 24 + 24 + 8 * 24), 4 * 8 * 16, 2 * 8 * 16 * 24, 3 * 2 * 8 * 16 * 24)
    step = work_of(model, [meta(8, 16)], True)
    read, out = 4 * (8 * 16 + 16 * 24 + 24), 4 * 8 * 24
    assert step.operations == 3 * work.operations and step.bytes == 3 * read + 2 * out
    assert work_of(model, [meta(8, 16)], True, sums=True).bytes == 3 * read + out


def test_tf32_is_one_product_and_half_too():
    conv = nn.Conv2d(3, 4, 3)
    work = work_of(conv, [meta(2, 3, 8, 8)], False)
    assert work.weighted == work.operations  # torch permits TF32 for convolutions
    half = work_of(nn.Linear(16, 24).half(), [meta(8, 16, dtype=torch.float16)], False)
    assert half.weighted == half.operations and half.bytes == 2 * (8 * 16 + 16 * 24 + 24 + 8 * 24)


def test_products_of_the_rewritten_graph_count():
    model = Module(lambda m, x: m.conv(x).sum(1), conv=nn.Conv2d(3, 64, 3))
    assert work_of(model, [meta(2, 3, 8, 8)], False).operations == 2 * 2 * 3 * 9 * 36


def test_groups_have_two_products_in_the_backward_pass_too():
    model = nn.ConvTranspose2d(32, 32, 3, groups=8)
    sizes = [meta(2, 32, 9, 9)]
    assert work_of(model, sizes, True).operations == 3 * work_of(model, sizes, False).operations


def test_what_is_not_used_is_not_read():
    model = Module(lambda m, x, y: x * 2, spare=nn.Linear(64, 64))
    assert work_of(model, [meta(10), meta(1000)], False).bytes == 2 * 4 * 10


@pytest.mark.parametrize(
    ("function", "certain"),
    [
        (lambda m, x: torch.relu(x) + 1, 4000),
        (lambda m, x: x.reshape(10, 100).softmax(1).mean(0), 4000),
        (lambda m, x: x[:10] * 2, 0),
        (lambda m, x: torch.where(x > 0, x, 0.0), 0),  # what is not chosen need not be read
        (lambda m, x: torch.zeros_like(x), 0),
        (lambda m, x: x.reshape(1, 1, 1000)[..., ::2].contiguous(), 0),
        (lambda m, x: nn.functional.max_pool1d(x.reshape(1, 1, 1000), 2, 4), 0),
    ],
)
def test_certain_is_what_every_implementation_reads(function, certain):
    assert work_of(Module(function), [meta(1000)], False).certain == certain


def test_strided_windows_skip_elements_and_dense_ones_do_not():
    x = meta(1, 1, 64)
    assert work_of(nn.Conv1d(1, 1, 3), [x], False).certain == 256
    assert work_of(nn.Conv1d(1, 1, 3, stride=5), [x], False).certain == 0
    assert work_of(nn.ConvTranspose1d(1, 1, 3, stride=5), [x], False).certain == 256


def test_a_cache_may_keep_results():
    grown = Module(lambda m, x: x.expand(1 << 20, 256) + 1)
    work = work_of(grown, [meta(256)], False)
    assert work.certain == 1024 + 4 * (1 << 28) - CACHE_BYTES
    seen = Module(lambda m, x: x.expand(1 << 20, 256))
    assert work_of(seen, [meta(256)], False).certain == 1024  # a result that is only a view


def test_no_products_at_all():
    work = work_of(nn.ReLU(), [meta(100)], True)
    assert work.operations == 0 and work.bytes == 5 * 400


def test_a_model_that_cannot_be_captured_still_has_sizes():
    def depends(m, x):
        return x * 2 if x.device.type == "meta" or x.sum().item() > 0 else x

    work = work_of(Module(depends), [meta(100)], False)
    assert work.source == "module" and work.bytes == 800 and work.certain == 0


def test_floor_and_limit():
    h200 = gpus.find("h200")
    found = {"copy": 4000.0, "fp32": 50.0, "tf32": 400.0, "fp16": 800.0}
    heavy = light(Work(4_000_000_000, 2_400_000_000, 0, 1.6e12), found, h200)
    assert (heavy.floor, heavy.bound) == (2.0, "products") and heavy.limit == pytest.approx(0.5)
    thin = light(Work(4_000_000_000, 2_400_000_000, 0, 0.0), found, h200)
    assert (thin.floor, thin.bound) == (1.0, "memory") and thin.limit < thin.floor
    unknown = light(Work(4_000_000_000, 4_000_000_000, 0, 0.0), found, None)
    assert unknown.limit == pytest.approx(0.8)
    assert ceilings.of_data_sheet(gpus.find("t4"))["tf32"] == gpus.find("t4").fp32
