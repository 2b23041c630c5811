"""One projection per head as an einsum over (batch, token, head, feature), sigmoid, heads flattened."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, heads, in_features, out_features):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(heads, in_features, out_features) / in_features**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.einsum("bthi,hio->btho", x, self.weight)
        return torch.sigmoid(x).flatten(2)


batch_size = 16
tokens = 512
heads = 4
in_features = 32
out_features = 48


def get_inputs():
    return [torch.randn(batch_size, tokens, heads, in_features)]


def get_init_inputs():
    return [heads, in_features, out_features]
