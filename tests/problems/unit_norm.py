"""The whole tensor divided by its Euclidean norm: every element of the output depends on every element of the input."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / (x.square().sum().sqrt() + self.eps)


def get_inputs():
    return [torch.rand(64, 500)]


def get_init_inputs():
    return []
