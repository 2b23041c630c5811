"""A Problem and a candidate as text, for tests that change a line of them."""

GOOD = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2


def get_inputs():
    return [torch.rand(16, 24)]


def get_init_inputs():
    return []
"""
NEW = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return {}\n"
