"""Mean squared error with a weight per sample, and the plain error beside it: two scalar outputs."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(
        self, predicted: torch.Tensor, target: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        error = F.mse_loss(predicted, target, reduction="none")
        return (error.mean(dim=1) * weight).sum() / weight.sum(), error.mean()


batch_size = 16384
features = 200


def get_inputs():
    return [torch.randn(batch_size, features), torch.randn(batch_size, features), torch.rand(batch_size) + 0.1]


def get_init_inputs():
    return []
