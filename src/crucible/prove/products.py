"""Contractions written out as explicit matrix products, so that a yardstick can choose how a product is summed.

A convolution, its transpose and their gradients are each one gather of windows followed by one batched product
(groups x rows x terms) @ (groups x terms x columns). ``Product`` is the function that does the second half.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def sequential_product(a: torch.Tensor, b: torch.Tensor, *, backwards: bool = False) -> torch.Tensor:
    """Batched product with the terms added one after the other in float32: what one GPU thread per output does."""
    work = torch.promote_types(a.dtype, torch.float32)
    a, b = a.to(work), b.to(work)
    total = torch.zeros(a.shape[0], a.shape[1], b.shape[2], dtype=work, device=a.device)
    # Terms first and contiguous, so that each step reads two short rows.
    left, right = a.permute(2, 0, 1).contiguous(), _terms_first(b)
    steps = range(left.shape[0])
    for k in reversed(steps) if backwards else steps:
        total.addcmul_(left[k].unsqueeze(2), right[k].unsqueeze(1))
    return total


STEP = 8  # terms that a tensor core adds at once


def tensor_core_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Batched product as tensor cores sum it: a few terms at a time, the total cut to float32 and not rounded."""
    if a.is_complex() or b.is_complex():  # torch's own operators, which no candidate is allowed for
        return a @ b
    left, right = a.double(), b.double()
    total = torch.zeros(a.shape[0], a.shape[1], b.shape[2], dtype=torch.float64, device=a.device)
    for k in range(0, a.shape[2], STEP):
        total += left[:, :, k : k + STEP] @ right[:, k : k + STEP]
        total = _cut(total)
    return total.float()


def _cut(x: torch.Tensor) -> torch.Tensor:
    """Towards zero to the numbers that float32 has."""
    near = x.float()
    zero = torch.zeros((), dtype=torch.float32, device=x.device)
    over = near.double().abs() > x.abs()
    return torch.where(over & near.isfinite(), torch.nextafter(near, zero), near).double()


_kept: dict[tuple[int, ...], torch.Tensor] = {}


def _terms_first(b: torch.Tensor) -> torch.Tensor:
    """(terms, groups, columns); the rearranged copy of very large weights is kept: the next case has the same."""
    if b.numel() < 1 << 22:
        return b.permute(1, 0, 2).contiguous()
    key = (b.data_ptr(), b._version, *b.shape, *b.stride())
    if key not in _kept:
        _kept.clear()
        _kept[key] = b.permute(1, 0, 2).contiguous()
    return _kept[key]


def _windows(x: torch.Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> torch.Tensor:
    """(N, C, *out, *kernel): the window under each output position of an already padded image."""
    spatial = len(kernel)
    for i in range(spatial):
        reach = dilation[i] * (kernel[i] - 1) + 1
        x = x.unfold(2 + i, reach, stride[i])
        x = x[..., :: dilation[i]]
    return x


def _pad(x: torch.Tensor, low: Sequence[int], high: Sequence[int]) -> torch.Tensor:
    pads = [p for lo, hi in zip(reversed(low), reversed(high), strict=True) for p in (lo, hi)]
    return F.pad(x, pads)


def _spread(x: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """Zeros between the pixels: a strided transposed convolution is a plain one over this."""
    if all(s == 1 for s in stride):
        return x
    size = [(n - 1) * s + 1 if n else 0 for n, s in zip(x.shape[2:], stride, strict=True)]
    wide = x.new_zeros(*x.shape[:2], *size)
    every: list[slice] = [slice(None), slice(None)]
    wide[tuple(every + [slice(None, None, s) for s in stride])] = x
    return wide


def _rows(windows: torch.Tensor, groups: int, spatial: int) -> torch.Tensor:
    """(G, N*out, C/G*kernel) from (N, C, *out, *kernel)."""
    n, c = windows.shape[:2]
    x = windows.reshape(n, groups, c // groups, *windows.shape[2:])
    out, ker = list(range(3, 3 + spatial)), list(range(3 + spatial, 3 + 2 * spatial))
    x = x.permute(1, 0, *out, 2, *ker)
    terms = (c // groups) * int(torch.tensor(windows.shape[2 + spatial :]).prod())
    return x.reshape(groups, -1, terms)


def _columns(x: torch.Tensor, groups: int) -> torch.Tensor:
    """(G, N*positions, C/G) from (N, C, *positions)."""
    n, c = x.shape[:2]
    return x.reshape(n, groups, c // groups, -1).permute(1, 0, 3, 2).reshape(groups, -1, c // groups)


def _image(flat: torch.Tensor, n: int, size: Sequence[int]) -> torch.Tensor:
    """(N, G*C, *size) from (G, N*positions, C)."""
    groups, _, c = flat.shape
    return flat.reshape(groups, n, -1, c).permute(1, 0, 3, 2).reshape(n, groups * c, *size)


def convolve(
    x: torch.Tensor,
    w: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    product: Product,
) -> torch.Tensor:
    """A plain convolution without bias; ``w`` is (out, in/groups, *kernel)."""
    spatial = w.dim() - 2
    windows = _windows(_pad(x, padding, padding), w.shape[2:], stride, dilation)
    size = windows.shape[2 : 2 + spatial]
    weight = w.reshape(groups, w.shape[0] // groups, -1).transpose(1, 2)
    return _image(product(_rows(windows, groups, spatial), weight), x.shape[0], size)


def convolve_transposed(
    x: torch.Tensor,
    w: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    size: Sequence[int],
    product: Product,
) -> torch.Tensor:
    """A transposed convolution without bias to outputs of ``size``; ``w`` is (in, out/groups, *kernel)."""
    spatial = w.dim() - 2
    reach = [d * (k - 1) for d, k in zip(dilation, w.shape[2:], strict=True)]
    wide = _spread(x, stride)
    low = [r - p for r, p in zip(reach, padding, strict=True)]
    high = [n + r - lo - m for n, r, lo, m in zip(size, reach, low, wide.shape[2:], strict=True)]
    flipped = w.flip(list(range(2, w.dim())))
    mixed = flipped.reshape(groups, w.shape[0] // groups, *w.shape[1:]).transpose(1, 2)
    mixed = mixed.reshape(-1, w.shape[0] // groups, *w.shape[2:])
    ones = [1] * spatial
    return convolve(_pad(wide, low, high), mixed, ones, [0] * spatial, dilation, groups, product)


def weight_gradient(
    image: torch.Tensor,
    positions: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    product: Product,
) -> torch.Tensor:
    """(positions' channels, image's channels / groups, *kernel): windows of ``image`` times ``positions``, summed."""
    spatial = len(kernel)
    windows = _windows(_pad(image, padding, padding), kernel, stride, dilation)
    # Rows and columns that no window of the forward pass starts at are left out.
    kept: list[slice] = [slice(None), slice(None)]
    windows = windows[tuple(kept + [slice(0, n) for n in positions.shape[2:]])]
    terms = product(_columns(positions, groups).transpose(1, 2), _rows(windows, groups, spatial))
    return terms.reshape(positions.shape[1], image.shape[1] // groups, *kernel)
