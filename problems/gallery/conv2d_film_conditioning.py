"""Convolution and group norm, scaled and shifted per channel by a conditioning vector, SiLU; two uses of the scale."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, condition_features, num_groups):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.norm = nn.GroupNorm(num_groups, out_channels)
        self.condition = nn.Linear(condition_features, 2 * out_channels)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        scale, shift = self.condition(F.silu(condition))[:, :, None, None].chunk(2, dim=1)
        x = self.norm(self.conv(x))
        return F.silu(x * (1 + scale) + shift) + scale


batch_size = 16
in_channels = 32
out_channels = 32
height = 64
width = 64
condition_features = 128
num_groups = 8


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width), torch.randn(batch_size, condition_features)]


def get_init_inputs():
    return [in_channels, out_channels, condition_features, num_groups]
