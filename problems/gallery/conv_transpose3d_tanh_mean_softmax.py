"""Three-dimensional transposed convolution, tanh, mean over the depth, softmax over the channels."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride, padding):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose3d(in_channels, out_channels, kernel_size, stride, padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.conv_transpose(x)).mean(dim=2)
        return torch.softmax(x, dim=1)


batch_size = 16
in_channels = 16
out_channels = 32
depth = 8
height = 24
width = 24
kernel_size = 3
stride = 2
padding = 1


def get_inputs():
    return [torch.randn(batch_size, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, stride, padding]
