"""Squared ReLU and a residual in bf16: relu(x)^2 + residual."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).square() + residual


def get_inputs():
    return [torch.rand(32, 1022).bfloat16(), torch.rand(32, 1022).bfloat16()]


def get_init_inputs():
    return []
