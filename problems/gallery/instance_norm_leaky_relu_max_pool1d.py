"""Instance norm of a sequence without parameters, leaky ReLU, max pool with dilation."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels, negative_slope):
        super().__init__()
        self.norm = nn.InstanceNorm1d(channels)
        self.negative_slope = negative_slope

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.leaky_relu(self.norm(x), self.negative_slope)
        return F.max_pool1d(x, kernel_size=3, stride=2, padding=1, dilation=2)


batch_size = 32
channels = 48
length = 6000
negative_slope = 0.2


def get_inputs():
    return [torch.randn(batch_size, channels, length)]


def get_init_inputs():
    return [channels, negative_slope]
