"""The cells of LSTM and GRU that torch has for a CUDA device alone, for the simulated one: in plain operators of torch.

Each keeps its activated gates for the backward pass in a tensor of its own, as torch's kernels do.
"""

from __future__ import annotations

import torch

Given = torch.Tensor | None


def _sum(*terms: Given) -> torch.Tensor:
    first, *others = (t for t in terms if t is not None)
    for t in others:
        first = first + t
    return first


def lstm_cell(
    x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, x_bias: Given = None, h_bias: Given = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    enter, forget, new, out = _sum(x, h, x_bias, h_bias).chunk(4, 1)
    enter, forget, new, out = enter.sigmoid(), forget.sigmoid(), new.tanh(), out.sigmoid()
    after = forget * c + enter * new
    return out * after.tanh(), after, torch.cat([enter, forget, new, out], 1)


def lstm_cell_backward(
    dh: Given, dc: Given, c: torch.Tensor, after: torch.Tensor, gates: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    enter, forget, new, out = gates.chunk(4, 1)
    shown = after.tanh()
    given = torch.zeros_like(after) if dh is None else dh
    along = given * out * (1 - shown * shown)
    along = along if dc is None else along + dc
    found = torch.cat(
        [
            along * new * enter * (1 - enter),
            along * c * forget * (1 - forget),
            along * enter * (1 - new * new),
            given * shown * out * (1 - out),
        ],
        1,
    )
    return found, along * forget, found.sum(0) if has_bias else found.new_empty(0)


def gru_cell(
    x: torch.Tensor, h: torch.Tensor, before: torch.Tensor, x_bias: Given = None, h_bias: Given = None
) -> tuple[torch.Tensor, torch.Tensor]:
    x_reset, x_keep, x_new = _sum(x, x_bias).chunk(3, 1)
    h_reset, h_keep, h_new = _sum(h, h_bias).chunk(3, 1)
    reset, keep = (x_reset + h_reset).sigmoid(), (x_keep + h_keep).sigmoid()
    new = (x_new + reset * h_new).tanh()
    return new + keep * (before - new), torch.cat([reset, keep, new, before, h_new], 1)


def gru_cell_backward(dh: torch.Tensor, gates: torch.Tensor, has_bias: bool) -> tuple[torch.Tensor, ...]:
    reset, keep, new, before, h_new = gates.chunk(5, 1)
    d_new = dh * (1 - keep) * (1 - new * new)
    d_keep = dh * (before - new) * keep * (1 - keep)
    d_reset = d_new * h_new * reset * (1 - reset)
    dx, d_hidden = torch.cat([d_reset, d_keep, d_new], 1), torch.cat([d_reset, d_keep, d_new * reset], 1)
    none = dx.new_empty(0)
    biases = (dx.sum(0), d_hidden.sum(0)) if has_bias else (none, none)
    return dx, d_hidden, dh * keep, *biases


def register() -> torch.library.Library:
    """Make them the device's; they are for as long as the result is kept."""
    library = torch.library.Library("aten", "IMPL")
    for name, cell in (
        ("_thnn_fused_lstm_cell", lstm_cell), ("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward),
        ("_thnn_fused_gru_cell", gru_cell), ("_thnn_fused_gru_cell_backward", gru_cell_backward),
    ):  # fmt: skip
        library.impl(name, cell, "CUDA")
    return library
