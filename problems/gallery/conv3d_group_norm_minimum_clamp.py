"""Three-dimensional convolution, group norm, an upper bound that is learnt per channel, clamp."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, num_groups):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel_size, padding=kernel_size // 2)
        self.norm = nn.GroupNorm(num_groups, out_channels)
        self.bound = nn.Parameter(torch.rand(out_channels, 1, 1, 1) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.minimum(self.norm(self.conv(x)), self.bound)
        return torch.clamp(x, min=-1.5)


batch_size = 8
in_channels = 8
out_channels = 16
depth = 24
height = 40
width = 40
kernel_size = 3
num_groups = 4


def get_inputs():
    return [torch.randn(batch_size, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, num_groups]
