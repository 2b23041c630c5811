"""Transposed convolution, mean of every image plane, a bias per channel, logsumexp over the channels, scale."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, scale):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose2d(in_channels, out_channels, kernel_size)
        self.bias = nn.Parameter(torch.randn(out_channels) * 0.1)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv_transpose(x).mean(dim=(2, 3)) + self.bias
        return torch.logsumexp(x, dim=1, keepdim=True) * self.scale


batch_size = 64
in_channels = 32
out_channels = 64
height = 56
width = 56
kernel_size = 3
scale = 10.0


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, scale]
