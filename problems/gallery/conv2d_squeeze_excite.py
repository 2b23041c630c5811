"""Convolution, GELU, then channels weighed by a gate from their global means: linear, ReLU, linear, sigmoid."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, in_channels, channels, squeezed):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, channels, 3, padding=1)
        self.reduce = nn.Linear(channels, squeezed)
        self.expand = nn.Linear(squeezed, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.conv(x))
        gate = x.mean(dim=(2, 3))
        gate = F.relu(self.reduce(gate))
        gate = torch.sigmoid(self.expand(gate))
        return x * gate[:, :, None, None]


batch_size = 32
in_channels = 32
channels = 64
squeezed = 8
height = 48
width = 48


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, channels, squeezed]
