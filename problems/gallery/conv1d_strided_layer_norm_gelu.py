"""Strided convolution over a waveform's features, layer norm over the channels, exact GELU: a speech encoder stage."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride):
        super().__init__()
        self.conv = nn.Conv1d(in_channels, out_channels, kernel_size, stride, bias=False)
        self.norm = nn.LayerNorm(out_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x).transpose(1, 2)
        x = self.norm(x).transpose(1, 2)
        return F.gelu(x)


batch_size = 16
in_channels = 32
out_channels = 64
length = 12000
kernel_size = 5
stride = 3


def get_inputs():
    return [torch.randn(batch_size, in_channels, length)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, stride]
