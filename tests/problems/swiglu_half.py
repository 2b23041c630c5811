"""The gate of a SwiGLU block in fp16: silu(gate) * value."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, gate: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return F.silu(gate) * value


def get_inputs():
    return [torch.rand(32, 1023).half(), torch.rand(32, 1023).half()]


def get_init_inputs():
    return []
