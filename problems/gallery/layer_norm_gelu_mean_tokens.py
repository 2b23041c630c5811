"""Layer norm, GELU, mean and maximum over the tokens side by side."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.norm(x))
        return torch.cat([x.mean(dim=1), x.amax(dim=1)], dim=-1)


batch_size = 64
tokens = 512
features = 192


def get_inputs():
    return [torch.randn(batch_size, tokens, features)]


def get_init_inputs():
    return [features]
