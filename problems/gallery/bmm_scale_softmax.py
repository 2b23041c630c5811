"""Batched product of two inputs, scale by the square root of the depth, softmax of every row, product with a third."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        scores = torch.bmm(left, right.transpose(1, 2)) / left.shape[-1] ** 0.5
        return torch.bmm(torch.softmax(scores, dim=-1), values)


batch_size = 32
rows = 256
columns = 320
depth = 64


def get_inputs():
    return [
        torch.randn(batch_size, rows, depth),
        torch.randn(batch_size, columns, depth),
        torch.randn(batch_size, columns, depth),
    ]


def get_init_inputs():
    return []
