"""Convolution with circular padding (a periodic field), leaky ReLU, group norm."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, num_groups, negative_slope):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2, padding_mode="circular")
        self.norm = nn.GroupNorm(num_groups, out_channels)
        self.negative_slope = negative_slope

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(F.leaky_relu(self.conv(x), self.negative_slope))


batch_size = 16
in_channels = 16
out_channels = 32
height = 96
width = 96
kernel_size = 5
num_groups = 8
negative_slope = 0.1


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, num_groups, negative_slope]
