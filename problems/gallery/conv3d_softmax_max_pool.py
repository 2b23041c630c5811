"""Three-dimensional convolution, softmax over the channels, max pool of every class's map."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, in_channels, classes, kernel_size, pool):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, classes, kernel_size)
        self.pool = pool

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.softmax(self.conv(x), dim=1)
        return F.max_pool3d(x, self.pool)


batch_size = 16
in_channels = 8
classes = 16
depth = 18
height = 34
width = 34
kernel_size = 3
pool = 2


def get_inputs():
    return [torch.randn(batch_size, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, classes, kernel_size, pool]
