"""Three-dimensional transposed convolution, group norm, logsumexp over the channels, gated by its own sigmoid."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, num_groups):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose3d(in_channels, out_channels, kernel_size, padding=1)
        self.norm = nn.GroupNorm(num_groups, out_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv_transpose(x))
        x = torch.logsumexp(x, dim=1, keepdim=True)
        return x * torch.sigmoid(x + 3) / 6


batch_size = 8
in_channels = 16
out_channels = 32
depth = 16
height = 32
width = 32
kernel_size = 3
num_groups = 8


def get_inputs():
    return [torch.randn(batch_size, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, num_groups]
