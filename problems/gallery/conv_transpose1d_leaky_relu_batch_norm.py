"""Upsampling transposed convolution with output padding, leaky ReLU, batch norm: a vocoder stage."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride, padding, output_padding):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose1d(
            in_channels, out_channels, kernel_size, stride, padding, output_padding=output_padding
        )
        self.norm = nn.BatchNorm1d(out_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(F.leaky_relu(self.conv_transpose(x), 0.2))


batch_size = 16
in_channels = 64
out_channels = 32
length = 4096
kernel_size = 5
stride = 3
padding = 2
output_padding = 2


def get_inputs():
    return [torch.randn(batch_size, in_channels, length)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, stride, padding, output_padding]
