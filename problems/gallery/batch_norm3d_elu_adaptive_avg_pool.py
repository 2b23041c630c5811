"""Batch norm of volumes (training), ELU, adaptive average pool to a fixed grid, flattened."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels, grid):
        super().__init__()
        self.norm = nn.BatchNorm3d(channels)
        self.pool = nn.AdaptiveAvgPool3d(grid)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(F.elu(self.norm(x))).flatten(1)


batch_size = 8
channels = 32
depth = 16
height = 36
width = 36
grid = (2, 3, 3)


def get_inputs():
    return [torch.randn(batch_size, channels, depth, height, width)]


def get_init_inputs():
    return [channels, grid]
