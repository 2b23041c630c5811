"""Group norm, SiLU, average pool: the way down in a diffusion network."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels, num_groups):
        super().__init__()
        self.norm = nn.GroupNorm(num_groups, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(F.silu(self.norm(x)), 2)


batch_size = 16
channels = 64
height = 96
width = 96
num_groups = 16


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return [channels, num_groups]
