"""Linear, hardtanh, logsumexp over the features, Mish."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, in_features, out_features, bound):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.bound = bound

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.hardtanh(self.linear(x), -self.bound, self.bound)
        return F.mish(torch.logsumexp(x, dim=1, keepdim=True))


batch_size = 16384
in_features = 192
out_features = 256
bound = 2.0


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, bound]
