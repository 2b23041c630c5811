"""One step of an LSTM written out: the state comes and goes as a tuple of two tensors."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.from_input = nn.Linear(features, 4 * hidden)
        self.from_hidden = nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(
        self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        h, c = state
        i, f, g, o = (self.from_input(x) + self.from_hidden(h)).chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, c)


batch_size = 128
features = 48
hidden = 48


def get_inputs():
    return [
        torch.randn(batch_size, features),
        (torch.randn(batch_size, hidden), torch.randn(batch_size, hidden)),
    ]


def get_init_inputs():
    return [features, hidden]
