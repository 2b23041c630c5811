"""RMS norm by the library's operator, gated by the sigmoid of a second input."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.RMSNorm(features, eps=1e-5)

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return self.norm(x) * torch.sigmoid(gate)


batch_size = 16
tokens = 1024
features = 256


def get_inputs():
    return [torch.randn(batch_size, tokens, features), torch.randn(batch_size, tokens, features)]


def get_init_inputs():
    return [features]
