"""Tall and wide convolutions of one input side by side, GELU, channels joined, average pool."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, in_channels, branch_channels, length):
        super().__init__()
        self.tall = nn.Conv2d(in_channels, branch_channels, (length, 1), padding=(length // 2, 0))
        self.wide = nn.Conv2d(in_channels, branch_channels, (1, length), padding=(0, length // 2))
        self.pool = nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.tall(x), self.wide(x), x], dim=1)
        return self.pool(F.gelu(x))


batch_size = 16
in_channels = 16
branch_channels = 24
height = 80
width = 80
length = 7


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, branch_channels, length]
