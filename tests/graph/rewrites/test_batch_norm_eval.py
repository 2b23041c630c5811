"""Batch norm in eval mode becomes pointwise; in training mode it stays."""

from __future__ import annotations

import pytest
import torch
from rewrite_cases import F64, assert_same, capture, random
from torch import nn

from crucible.graph import rewrites
from crucible.graph.rewrites import batch_norm_eval

pytestmark = pytest.mark.quick

KINDS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def used(norm: nn.Module) -> nn.Module:
    """Statistics and parameters as after some training."""
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.1, 3)
        if norm.affine:
            norm.weight.normal_()
            norm.bias.normal_()
    return norm.eval()


@pytest.mark.parametrize("rank", [2, 3, 4, 5])
@pytest.mark.parametrize("affine", [True, False])
def test_applied(rank: int, affine: bool) -> None:
    case = capture(used(KINDS[rank](4, affine=affine, dtype=F64)), random(3, 4, *[5, 6, 2][: rank - 2]))
    assert len(batch_norm_eval.apply(case.graph)) == 1
    assert not any("batch_norm" in t for t in case.targets())
    assert_same(case, [random(2, 4, *[3, 4, 5][: rank - 2])], [random(7, 4, *[2, 3, 3][: rank - 2])])


def test_a_large_mean_does_not_cancel() -> None:
    norm = used(nn.BatchNorm2d(4))
    with torch.no_grad():
        norm.running_mean.fill_(1e4)
    x = 1e4 + torch.randn(2, 4, 3, 3)
    case = capture(norm, x)
    batch_norm_eval.apply(case.graph)
    (got,) = case.run({k: v.detach() for k, v in norm.state_dict().items()}, [x])
    torch.testing.assert_close(got.double(), norm.double()(x.double()), rtol=1e-5, atol=1e-5)


def test_sixteen_bits_are_computed_in_32() -> None:
    norm = used(nn.BatchNorm2d(4)).half()
    case = capture(norm, random(2, 4, 5, 6, dtype=torch.float16))
    assert len(batch_norm_eval.apply(case.graph)) == 1
    assert_same(case, [random(3, 4, 3, 3, dtype=torch.float16)], tolerance=4e-3)


@pytest.mark.parametrize("tracked", [True, False])
def test_not_applied_in_training(tracked: bool) -> None:
    case = capture(nn.BatchNorm2d(4, track_running_stats=tracked, dtype=F64).train(), random(2, 4, 5, 6))
    assert batch_norm_eval.apply(case.graph) == []


def test_not_applied_without_statistics() -> None:
    case = capture(nn.BatchNorm2d(4, track_running_stats=False, dtype=F64).eval(), random(2, 4, 5, 6))
    assert batch_norm_eval.apply(case.graph) == []


def test_statistics_that_are_computed_stay() -> None:
    def computed(m, x):
        return nn.functional.batch_norm(x, m.mean.detach(), m.var.detach().exp())

    case = capture(computed, random(2, 4, 5), parameters={"mean": random(4), "var": random(4)})
    assert batch_norm_eval.apply(case.graph) == []


def test_on_in_run_all() -> None:
    case = capture(used(nn.BatchNorm2d(4, dtype=F64)), random(2, 4, 5, 6))
    assert any(s.startswith("batch_norm_eval: ") for s in rewrites.run_all(case.gm))
    assert_same(case)
