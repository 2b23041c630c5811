"""Linear classifier, softmax, and the index of the likeliest class: two outputs from one value."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.head = nn.Linear(features, classes)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.head(x)
        return torch.softmax(logits, dim=-1), torch.argmax(logits, dim=-1)


batch_size = 16384
features = 128
classes = 150


def get_inputs():
    return [torch.randn(batch_size, features)]


def get_init_inputs():
    return [features, classes]
