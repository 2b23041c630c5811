"""BatchNorm2d as a module in training mode sees it: batch statistics, running statistics updated."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


def get_inputs():
    return [torch.rand(8, 24, 20, 20)]


def get_init_inputs():
    return [24]
