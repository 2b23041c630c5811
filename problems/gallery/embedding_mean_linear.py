"""Embeddings of token numbers, masked mean over a sentence, linear, tanh."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, vocabulary, features, out_features):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, features)
        self.linear = nn.Linear(features, out_features)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = (tokens > 0).to(self.linear.weight.dtype)[:, :, None]
        mean = (self.embedding(tokens) * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        return torch.tanh(self.linear(mean))


batch_size = 512
sentence = 48
vocabulary = 1000
features = 64
out_features = 32


def get_inputs():
    return [torch.randint(0, vocabulary, (batch_size, sentence))]


def get_init_inputs():
    return [vocabulary, features, out_features]
