"""Linear score and hinge loss against labels of -1 and 1."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.score = nn.Linear(features, 1)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        score = self.score(x).squeeze(1)
        return F.relu(1 - score * label).mean()


batch_size = 32768
features = 200


def get_inputs():
    return [torch.randn(batch_size, features), torch.randint(0, 2, (batch_size,)).float() * 2 - 1]


def get_init_inputs():
    return [features]
