"""Max pool of volumes with padding and ceil mode, tanh, group norm."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels, num_groups):
        super().__init__()
        self.pool = nn.MaxPool3d(kernel_size=3, stride=2, padding=1, ceil_mode=True)
        self.norm = nn.GroupNorm(num_groups, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.tanh(self.pool(x)))


batch_size = 8
channels = 32
depth = 16
height = 40
width = 40
num_groups = 8


def get_inputs():
    return [torch.randn(batch_size, channels, depth, height, width)]


def get_init_inputs():
    return [channels, num_groups]
