"""Linear, group norm of a matrix, hardtanh, the largest feature and its index: two outputs, one of integers."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, in_features, out_features, num_groups):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.norm = nn.GroupNorm(num_groups, out_features)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = F.hardtanh(self.norm(self.linear(x)), -4.0, 4.0)
        best = torch.max(x, dim=1)
        return best.values, best.indices


batch_size = 8192
in_features = 256
out_features = 256
num_groups = 16


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, num_groups]
