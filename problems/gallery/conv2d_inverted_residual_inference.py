"""Expand, depthwise and project convolutions with fixed batch statistics, and a shortcut: a mobile block."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class FrozenNorm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.randn(channels) * 0.1)
        self.register_buffer("var", torch.rand(channels) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, self.mean, self.var, self.weight, self.bias, training=False)


class Model(nn.Module):
    def __init__(self, channels, hidden, kernel_size):
        super().__init__()
        self.expand = nn.Conv2d(channels, hidden, 1, bias=False)
        self.norm1 = FrozenNorm(hidden)
        self.depthwise = nn.Conv2d(hidden, hidden, kernel_size, padding=kernel_size // 2, groups=hidden, bias=False)
        self.norm2 = FrozenNorm(hidden)
        self.project = nn.Conv2d(hidden, channels, 1, bias=False)
        self.norm3 = FrozenNorm(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.hardtanh(self.norm1(self.expand(x)), 0.0, 6.0)
        y = F.hardtanh(self.norm2(self.depthwise(y)), 0.0, 6.0)
        return x + self.norm3(self.project(y))


batch_size = 32
channels = 16
hidden = 64
height = 56
width = 56
kernel_size = 5


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return [channels, hidden, kernel_size]
