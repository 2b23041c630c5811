"""LSTM and GRU on the simulated device: torch's own on the CPU, forward and backward."""

from __future__ import annotations

import pytest

SCRIPT = """
import copy
import torch.nn as nn
for kind in (nn.LSTM, nn.GRU):
    for bias in (True, False):
        torch.manual_seed(0)
        layer = kind(5, 4, 2, bias=bias, bidirectional=True).double()
        there = copy.deepcopy(layer).cuda()
        x = torch.randn(7, 3, 5).double()
        mine, other = x.clone().requires_grad_(), x.cuda().requires_grad_()
        outs = [(y, *(s if isinstance(s, tuple) else (s,))) for y, s in (layer(mine), there(other))]
        tangents = [torch.randn_like(y) for y in outs[0]]
        torch.autograd.backward(outs[0], tangents)
        torch.autograd.backward(outs[1], [t.cuda() for t in tangents])
        for a, b in zip(outs[0], outs[1]):
            torch.testing.assert_close(a, b.cpu())
        torch.testing.assert_close(mine.grad, other.grad.cpu())
        for a, b in zip(layer.parameters(), there.parameters()):
            torch.testing.assert_close(a.grad, b.grad.cpu())
print("right")
"""


@pytest.mark.quick
def test_recurrent_layers(run_on_device):
    assert run_on_device(SCRIPT).startswith("right")
