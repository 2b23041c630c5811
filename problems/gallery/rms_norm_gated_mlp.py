"""RMS norm, gate and value projections of the same rows, GELU gate, projection back, residual."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, features, hidden, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.gate = nn.Linear(features, hidden, bias=False)
        self.up = nn.Linear(features, hidden, bias=False)
        self.down = nn.Linear(hidden, features, bias=False)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps) * self.weight
        return x + self.down(F.gelu(self.gate(y)) * self.up(y))


batch_size = 8
tokens = 2048
features = 96
hidden = 160
eps = 1e-6


def get_inputs():
    return [torch.randn(batch_size, tokens, features)]


def get_init_inputs():
    return [features, hidden, eps]
