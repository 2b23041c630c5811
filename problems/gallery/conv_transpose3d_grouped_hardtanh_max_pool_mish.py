"""Three-dimensional transposed convolution in groups with output padding, hardtanh, max pool, Mish."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, groups):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose3d(
            in_channels, out_channels, kernel_size, stride=2, padding=1, output_padding=1, groups=groups
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.hardtanh(self.conv_transpose(x), -0.5, 0.5)
        return F.mish(F.max_pool3d(x, kernel_size=3, stride=2))


batch_size = 8
in_channels = 32
out_channels = 32
depth = 12
height = 24
width = 24
kernel_size = 3
groups = 4


def get_inputs():
    return [torch.randn(batch_size, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, groups]
