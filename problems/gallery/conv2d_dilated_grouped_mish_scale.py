"""Dilated convolution in groups, a learnt offset, Mish, a constant scale."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, dilation, groups, scale):
        super().__init__()
        self.conv = nn.Conv2d(
            in_channels, out_channels, kernel_size, padding=dilation, dilation=dilation, groups=groups
        )
        self.offset = nn.Parameter(torch.randn(out_channels, 1, 1) * 0.1)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x) - self.offset
        return F.mish(x) * self.scale


batch_size = 32
in_channels = 32
out_channels = 48
height = 64
width = 64
kernel_size = 3
dilation = 2
groups = 4
scale = 1.7


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, dilation, groups, scale]
