"""Scores per token, masked by a comparison, softmax over the tokens, weighted mean: pooling by learnt importance."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features, threshold):
        super().__init__()
        self.score = nn.Linear(features, 1)
        self.threshold = threshold

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        score = self.score(x).squeeze(-1)
        score = torch.where(keep > self.threshold, score, -1e4)
        weight = torch.softmax(score, dim=1)
        return (x * weight[:, :, None]).sum(dim=1)


batch_size = 64
tokens = 640
features = 96
threshold = 0.2


def get_inputs():
    return [torch.randn(batch_size, tokens, features), torch.rand(batch_size, tokens)]


def get_init_inputs():
    return [features, threshold]
