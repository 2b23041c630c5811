"""Dilated three-dimensional transposed convolution, clamp, batch norm (training), the largest channel, GELU."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, dilation):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose3d(in_channels, out_channels, kernel_size, dilation=dilation, padding=2)
        self.norm = nn.BatchNorm3d(out_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.clamp(self.conv_transpose(x), -1.0, 1.0)
        return F.gelu(torch.max(self.norm(x), dim=1).values)


batch_size = 8
in_channels = 16
out_channels = 24
depth = 16
height = 32
width = 32
kernel_size = 3
dilation = 2


def get_inputs():
    return [torch.randn(batch_size, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, dilation]
