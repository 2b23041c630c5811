"""Copies of modules that hold what they computed, and Models in float64 throughout."""

from __future__ import annotations

import pytest
import torch
import torch.nn as nn

from crucible.exact import Wide, copied

pytestmark = pytest.mark.quick


def test_a_module_that_holds_what_it_computed():
    with pytest.warns(FutureWarning):
        layer = nn.utils.weight_norm(nn.Linear(3, 3))
    assert not layer.weight.is_leaf
    twin, x = copied(layer), torch.randn(2, 3)
    torch.testing.assert_close(twin(x), layer(x))
    with torch.no_grad():
        twin.weight_g.mul_(2)
    assert not torch.allclose(twin(x), layer(x))


class Angles(nn.Module):
    """float32 by name, by default and through a half, in front of a weight."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, t):
        steps = torch.arange(4) / 3 + torch.zeros(4, dtype=torch.float32) + torch.ones(4)
        return self.linear((t.float()[:, None] * steps.half().to(torch.float32)).sin())


def test_everything_is_wide():
    model, t = Angles(), torch.tensor([3, 700])
    wide = copied(model).double()
    with pytest.raises(RuntimeError, match="dtype"):
        wide(t)
    with Wide():
        got = wide(t)
    assert got.dtype == torch.float64 and torch.get_default_dtype() == torch.float32
    steps = torch.arange(4, dtype=torch.float64) / 3 + 1
    exact = (t.double()[:, None] * steps).sin() @ wide.linear.weight.T + wide.linear.bias
    torch.testing.assert_close(got, exact, rtol=1e-14, atol=1e-14)


def test_a_failure_leaves_the_default_type():
    with pytest.raises(ZeroDivisionError), Wide():
        _ = 1 / 0
    assert torch.get_default_dtype() == torch.float32
