"""Linear, then everything in place: scale, bias, ReLU, clamp, and a slice that is overwritten."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, in_features, out_features, scale):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=False)
        self.bias = nn.Parameter(torch.randn(out_features) * 0.1)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        y.mul_(self.scale)
        y += self.bias
        y[:, :4] = torch.tanh(y[:, :4])
        y.clamp_(max=2.0)
        return F.leaky_relu_(y, 0.05)


batch_size = 16384
in_features = 128
out_features = 160
scale = 1.5


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, scale]
