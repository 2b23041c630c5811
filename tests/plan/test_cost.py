"""What stages cost, checked against figures worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from crucible.fuse import FuseOptions, fuse_source
from crucible.plan.cost import Cost, bound, contraction_rate, item_bytes, stage_cost
from crucible.plan.gpus import find
from crucible.plan.stages import Call, Contraction, Map, Row

pytestmark = pytest.mark.quick
SOURCE = "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n        pass\n"


def stages(module: nn.Module, *shape: int, **options):
    """The forward stages of a module with their costs."""
    x = torch.empty(shape, device="meta")
    fused = fuse_source(SOURCE, "model.py", module.to("meta"), [x], FuseOptions(forward_only=True, **options))
    plan = fused.modes[0].plan
    return [(s, stage_cost(s, plan.program, fused.element)) for s in plan.forward_stages]


class Pointwise(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2


class Slice(nn.Module):
    def forward(self, x):
        return x[:3] + 1


class RowSum(nn.Module):
    def forward(self, x):
        return x.sum(1)


class Sorted(nn.Module):
    def forward(self, x):
        return torch.sort(x)[0]


def test_a_map():
    ((stage, cost),) = stages(Pointwise(), 50, 20)
    assert isinstance(stage, Map)
    assert list(cost.reads.values()) == [4000] and list(cost.writes.values()) == [4000] and cost.bytes == 8000
    assert cost.pointwise == 2 * 1000 and cost.contraction == 0  # one for relu, one for the product


def test_a_slice_reads_what_it_needs():
    ((_, cost),) = stages(Slice(), 40, 7)
    assert cost.reads == {"x": 3 * 7 * 4} and sum(cost.writes.values()) == 3 * 7 * 4


def test_a_walk():
    ((stage, cost),) = stages(RowSum(), 300, 70)
    assert isinstance(stage, Row)
    assert cost.reads == {"x": 300 * 70 * 4} and sum(cost.writes.values()) == 300 * 4
    assert cost.pointwise == 300 * 70


def test_a_linear_layer():
    (stage, cost), *rest = stages(nn.Linear(32, 48), 96, 32)
    assert isinstance(stage, Contraction) and not rest
    assert cost.contraction == 2 * 96 * 48 * 32 and cost.rule == "matmul"
    assert sum(cost.reads.values()) == 4 * (96 * 32 + 48 * 32 + 48)
    assert sum(cost.writes.values()) == 4 * 96 * 48 and cost.pointwise == 96 * 48  # the bias


def test_a_convolution():
    (stage, cost), *rest = stages(nn.Conv2d(16, 24, 3, padding=1, groups=2, bias=False), 2, 16, 10, 12)
    assert isinstance(stage, Contraction) and not rest
    assert cost.contraction == 2 * (2 * 24 * 10 * 12) * (8 * 9) and cost.rule == "conv"


def test_an_operator_of_torchs_has_bytes_only():
    calls = [(s, c) for s, c in stages(Sorted(), 9, 11) if isinstance(s, Call)]
    assert len(calls) == 1 and calls[0][1].reads == {"x": 9 * 11 * 4} and calls[0][1].operations == 0


def test_items():
    assert [item_bytes("scalar", t) for t in ("float32", "float64", "float16", "bfloat16")] == [4, 8, 2, 2]
    assert [item_bytes("accum", t) for t in ("float16", "float64")] == [4, 8] and item_bytes("bool", "float16") == 1


def test_the_bound_is_the_slowest_of_three():
    h200 = find("h200")
    memory = bound(Cost({"x": 4_800_000_000}, {}, pointwise=10), h200)
    assert memory.by == "memory" and memory.seconds == pytest.approx(1e-3)
    work = bound(Cost({"x": 4}, {}, contraction=494_700_000_000, rule="conv"), h200)
    assert work.by == "contraction" and work.seconds == pytest.approx(1e-3)
    plain = bound(Cost({"x": 4}, {}, contraction=66_900_000_000, rule="conv"), h200, engine="simt")
    assert plain.seconds == pytest.approx(1e-3)
    assert bound(Cost({"x": 4}, {}, pointwise=66_900_000_000), h200).by == "arithmetic"


def test_rates_follow_precision_type_and_chip():
    h200, a100, t4 = find("h200"), find("a100"), find("t4")
    assert contraction_rate(h200, "conv", "mma", "torch", "float32") == h200.tf32
    assert contraction_rate(h200, "matmul", "mma", "torch", "float32") < h200.tf32  # fp32-grade
    assert contraction_rate(h200, "matmul", "mma", "tf32", "float32") == h200.tf32
    assert contraction_rate(h200, "conv", "mma", "fp32", "float32") < h200.tf32
    assert contraction_rate(h200, "conv", "mma", "torch", "bfloat16") == h200.fp16
    assert contraction_rate(h200, "conv", "mma", "torch", "float64") == h200.fp64
    assert contraction_rate(h200, "conv", "auto", "torch", "float32") == h200.fp16  # scaled, as half
    assert contraction_rate(h200, "matmul", "auto", "torch", "float32") == pytest.approx(h200.fp16 / 3)
    assert contraction_rate(a100, "conv", "auto", "torch", "float32") == a100.tf32
    assert contraction_rate(t4, "conv", "mma", "torch", "float16") == t4.fp32  # the engine needs sm_80
