"""Dilated causal convolution with a tanh-sigmoid gate, giving the residual stream and a skip: two outputs."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels, skip_channels, kernel_size, dilation):
        super().__init__()
        self.left = (kernel_size - 1) * dilation
        self.filter = nn.Conv1d(channels, channels, kernel_size, dilation=dilation)
        self.gate = nn.Conv1d(channels, channels, kernel_size, dilation=dilation)
        self.residual = nn.Conv1d(channels, channels, 1)
        self.skip = nn.Conv1d(channels, skip_channels, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        padded = F.pad(x, (self.left, 0))
        gated = torch.tanh(self.filter(padded)) * torch.sigmoid(self.gate(padded))
        return x + self.residual(gated), self.skip(gated)


batch_size = 16
channels = 32
skip_channels = 64
length = 8192
kernel_size = 2
dilation = 4


def get_inputs():
    return [torch.randn(batch_size, channels, length)]


def get_init_inputs():
    return [channels, skip_channels, kernel_size, dilation]
