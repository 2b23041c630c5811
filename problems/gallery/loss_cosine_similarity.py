"""One minus the cosine similarity of two projections of the same width, averaged."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, features, projected):
        super().__init__()
        self.left = nn.Linear(features, projected)
        self.right = nn.Linear(features, projected)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (1 - F.cosine_similarity(self.left(x), self.right(y), dim=1)).mean()


batch_size = 8192
features = 192
projected = 64


def get_inputs():
    return [torch.randn(batch_size, features), torch.randn(batch_size, features)]


def get_init_inputs():
    return [features, projected]
