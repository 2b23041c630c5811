"""Doubling transposed convolution with output padding, a bias of its own, clamp, scale, sigmoid."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, scale):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose2d(
            in_channels, out_channels, kernel_size, stride=2, padding=1, output_padding=1, bias=False
        )
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1) * 0.1)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv_transpose(x) + self.bias
        x = torch.clamp(x, -0.8, 0.8) * self.scale
        return torch.sigmoid(x)


batch_size = 16
in_channels = 64
out_channels = 32
height = 48
width = 48
kernel_size = 3
scale = 3.0


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, scale]
