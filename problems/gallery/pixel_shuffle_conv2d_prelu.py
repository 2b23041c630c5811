"""Convolution to four times the channels, pixel shuffle to twice the size, PReLU: super-resolution upsampling."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels, factor):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels * factor * factor, 3, padding=1)
        self.activation = nn.PReLU(channels)
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(F.pixel_shuffle(self.conv(x), self.factor))


batch_size = 16
channels = 16
height = 96
width = 96
factor = 2


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return [channels, factor]
