"""Bilinear form of two vectors per sample as an einsum, bias, tanh."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, left_features, right_features, out_features):
        super().__init__()
        scale = (left_features * right_features) ** -0.5
        self.weight = nn.Parameter(torch.randn(out_features, left_features, right_features) * scale)
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        x = torch.einsum("bi,oij,bj->bo", left, self.weight, right)
        return torch.tanh(x + self.bias)


batch_size = 8192
left_features = 32
right_features = 24
out_features = 16


def get_inputs():
    return [torch.randn(batch_size, left_features), torch.randn(batch_size, right_features)]


def get_init_inputs():
    return [left_features, right_features, out_features]
