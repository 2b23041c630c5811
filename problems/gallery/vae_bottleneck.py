"""Mean and log-variance heads, a sample from given noise, and the divergence from a standard normal: three outputs."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features, latent):
        super().__init__()
        self.mean = nn.Linear(features, latent)
        self.log_variance = nn.Linear(features, latent)

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean = self.mean(x)
        log_variance = torch.clamp(self.log_variance(x), -8.0, 8.0)
        sample = mean + torch.exp(0.5 * log_variance) * noise
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(dim=1)
        return sample, mean, divergence


batch_size = 16384
features = 128
latent = 64


def get_inputs():
    return [torch.randn(batch_size, features), torch.randn(batch_size, latent)]


def get_init_inputs():
    return [features, latent]
