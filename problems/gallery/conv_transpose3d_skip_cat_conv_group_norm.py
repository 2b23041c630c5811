"""Decoder step of a volumetric U-Net: upsampling by 2, skip joined, pointwise convolution, group norm, leaky ReLU."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, in_channels, skip_channels, out_channels, num_groups):
        super().__init__()
        self.up = nn.ConvTranspose3d(in_channels, skip_channels, kernel_size=2, stride=2)
        self.mix = nn.Conv3d(2 * skip_channels, out_channels, kernel_size=1, bias=False)
        self.norm = nn.GroupNorm(num_groups, out_channels)

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.up(x), skip], dim=1)
        return F.leaky_relu(self.norm(self.mix(x)), 0.01)


batch_size = 32
in_channels = 32
skip_channels = 16
out_channels = 16
depth = 6
height = 12
width = 12
num_groups = 4


def get_inputs():
    return [
        torch.randn(batch_size, in_channels, depth, height, width),
        torch.randn(batch_size, skip_channels, 2 * depth, 2 * height, 2 * width),
    ]


def get_init_inputs():
    return [in_channels, skip_channels, out_channels, num_groups]
