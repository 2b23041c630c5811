"""Transposed convolution with everything switched on: groups, stride, padding, output_padding, dilation, bias."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, bias, dilation):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose2d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, output_padding=output_padding,
            groups=groups, bias=bias, dilation=dilation,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv_transpose(x)


def get_inputs():
    return [torch.rand(4, 12, 20, 17)]


def get_init_inputs():
    return [12, 18, (3, 4), (2, 3), (1, 2), (1, 2), 3, True, (2, 1)]
