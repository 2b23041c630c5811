"""Convolution, the smallest channel at every pixel, tanh, added to the input's mean channel."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = torch.min(self.conv(x), dim=1, keepdim=True).values
        return torch.tanh(low) + x.mean(dim=1, keepdim=True)


batch_size = 32
in_channels = 16
out_channels = 64
height = 64
width = 64
kernel_size = 3


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
