"""Strided three-dimensional convolution, hardswish, group norm, mean over the volume: a video clip's embedding."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, num_groups):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel_size, stride=(1, 2, 2), padding=(1, 1, 1))
        self.norm = nn.GroupNorm(num_groups, out_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(F.hardswish(self.conv(x)))
        return x.mean(dim=(2, 3, 4))


batch_size = 16
in_channels = 8
out_channels = 32
frames = 16
height = 48
width = 48
kernel_size = 3
num_groups = 8


def get_inputs():
    return [torch.randn(batch_size, in_channels, frames, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, num_groups]
