"""A reference problem to try crucible on: twice the input."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x * 2


def get_inputs():
    return [torch.rand(64, 100)]


def get_init_inputs():
    return []
