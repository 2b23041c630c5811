"""Convolution, hardswish, overlapping max pool, sigmoid, sum over everything but the batch."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.hardswish(self.conv(x))
        x = F.max_pool2d(x, kernel_size=3, stride=2, padding=1)
        return torch.sigmoid(x).sum(dim=(1, 2, 3))


batch_size = 32
in_channels = 8
out_channels = 64
height = 72
width = 72
kernel_size = 3


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
