"""Features divided by a running root mean square that every call moves: a buffer that is written."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features, momentum):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.register_buffer("running_square", torch.ones(features))
        self.momentum = momentum

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        square = x.detach().square().mean(dim=0)
        self.running_square.mul_(1 - self.momentum).add_(self.momentum * square)
        return x * self.weight / torch.sqrt(self.running_square + 1e-5)


batch_size = 16384
features = 192
momentum = 0.1


def get_inputs():
    return [torch.randn(batch_size, features)]


def get_init_inputs():
    return [features, momentum]
