"""Dispatch modes that run the reference with another arithmetic: TF32 operands, tensor cores, sequential float32 sums.

A yardstick asks how far an honest implementation may be from the truth. These modes are such implementations: the same
operators in the same order, with one choice of arithmetic changed below autograd, so that gradients follow too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from crucible.prove import products

aten = torch.ops.aten
LONGEST_CHAIN = 4096  # a kernel that sums more than this in one thread is not what an honest one does

_CONVOLUTIONS = {aten.convolution.default: 2, aten.convolution_backward.default: 3}  # leading tensor operands
_MATMULS = {aten.mm.default: (0, 1), aten.bmm.default: (0, 1), aten.addmm.default: (1, 2), aten.baddbmm.default: (1, 2)}


def round_to_tf32(x: torch.Tensor) -> torch.Tensor:
    """To 11 significant bits, nearest, ties to even; the range of the exponent is left as it is."""
    if not x.is_floating_point():
        return x
    mantissa, exponent = torch.frexp(x)
    rounded = torch.ldexp(torch.round(mantissa * 2048) / 2048, exponent)
    return torch.where(torch.isfinite(x), rounded, x).to(x.dtype)


class TF32Operands(TorchDispatchMode):
    """Operands of contractions rounded to TF32, everything else exact (run it in float64).

    This is the error that torch's switches permit, whatever the accumulation: cuDNN uses TF32 for some shapes and not
    for others, and a CPU never does, so the permission counts and not the pick. The contractions in ``exact``, numbered
    in the order of the forward pass, are left as they are: those of the backward pass decide no branch.
    """

    def __init__(self, *, convolutions: bool, matmuls: bool, exact: frozenset[int] = frozenset()) -> None:
        super().__init__()
        self.convolutions, self.matmuls = convolutions, matmuls
        self.exact = exact
        self.used = False
        self.count = 0  # contractions of the forward pass that TF32 is permitted for

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = list(args)
        if self.convolutions and func in _CONVOLUTIONS:
            which: tuple[int, ...] = tuple(range(_CONVOLUTIONS[func]))
        elif self.matmuls and func in _MATMULS:
            which = _MATMULS[func]
        else:
            which = ()
        if which and torch.is_grad_enabled():  # it is off in a backward pass
            if self.count in self.exact:
                which = ()
            self.count += 1
        self.used = self.used or bool(which)
        exact = list(args)
        for i in which:
            args[i] = round_to_tf32(args[i])
        if func is aten.convolution_backward.default and args[10][2]:
            # The gradient of a bias is a plain sum, which no tensor core computes: it gets no allowance.
            mask = args[10]
            dx, dw, _ = func(*args[:10], [mask[0], mask[1], False])
            return dx, dw, func(*exact[:10], [False, False, True])[2]
        return func(*args, **(kwargs or {}))


WIDEST = 8  # contractions that a choice tells apart; the ninth is chosen with the first


def mixtures(count: int) -> list[frozenset[int]]:
    """Choices among ``count`` contractions, each the ones that stay exact where the others are in TF32.

    Together with all and none they have any three contractions (of eight) in all eight ways: the words of a first-order
    Reed-Muller code are an orthogonal array of strength three. Up to three contractions that is every choice there is.
    """
    width = 1
    while width < min(count, WIDEST):
        width *= 2
    words = dict.fromkeys(
        frozenset(i for i in range(count) if ((mask & i % width).bit_count() + flip) % 2)
        for mask in range(width)
        for flip in (0, 1)
    )
    return [word for word in words if 0 < len(word) < count]


def sequential_sum(x: torch.Tensor, dims: list[int], *, backwards: bool = False) -> torch.Tensor:
    """Sum over ``dims`` (kept with size 1), one term after the other in float32, first to last or last to first."""
    work = torch.promote_types(x.dtype, torch.float32)
    dims = [d % x.dim() for d in dims] if dims else list(range(x.dim()))
    kept = [d for d in range(x.dim()) if d not in dims]
    shape = [1 if d in dims else n for d, n in enumerate(x.shape)]
    terms = x.detach().to(work).permute(*dims, *kept).reshape(-1, *(x.shape[d] for d in kept))
    if terms.shape[0] == 0 or terms.numel() == 0:
        return torch.zeros(shape, dtype=work)
    flat = terms.reshape(terms.shape[0], -1).numpy()
    if backwards:
        flat = flat[::-1]
    while flat.shape[0] > 1:
        chunks = [flat[i : i + LONGEST_CHAIN] for i in range(0, flat.shape[0], LONGEST_CHAIN)]
        with np.errstate(all="ignore"):
            flat = np.stack([np.add.accumulate(c, axis=0)[-1] for c in chunks])
    return torch.from_numpy(np.ascontiguousarray(flat[0])).reshape(shape)


_DECOMPOSED = (
    "native_group_norm",
    "native_group_norm_backward",
    "native_layer_norm",
    "native_layer_norm_backward",
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training",
    "native_batch_norm_backward",
    "_softmax",
    "_log_softmax",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
    "logsumexp",
    "_batch_norm_with_update",
    "batch_norm_backward",
    "_fused_rms_norm",
    "_fused_rms_norm_backward",
)


def _decompositions() -> dict[Any, Any]:
    """torch's own definitions of normalisations and softmax in terms of sums, as far as this torch has them."""
    try:
        from torch._decomp import decomposition_table
    except ImportError:
        return {}
    found = {}
    for name in _DECOMPOSED:
        packet = getattr(aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            op = getattr(packet, overload)
            if op in decomposition_table and not overload.endswith("out"):
                found[op] = decomposition_table[op]
    return found


class SequentialSums(TorchDispatchMode):
    """Contractions and sums with the terms added one after the other in float32 (CPU only).

    That is what a straightforward kernel does: one thread an output element, one running total. A CPU library adds in
    blocks and vectors and is several times more accurate, which would be an unfair yardstick for a GPU kernel. Where
    terms differ much in size the order decides, and nobody owes us one: ``backwards`` adds from the last to the first.
    """

    def __init__(self, *, backwards: bool = False) -> None:
        super().__init__()
        self.backwards = backwards
        self.decompositions = _decompositions()
        self.used = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        handler = _SEQUENTIAL.get(func)
        if handler is not None and isinstance(args[0], torch.Tensor) and args[0].dtype in _NARROW:
            self.used = True
            return handler(_Sums(self.backwards), *args, **kwargs)
        if func in self.decompositions:
            with self:
                return self.decompositions[func](*args, **kwargs)
        return func(*args, **kwargs)


_NARROW = (torch.float32, torch.float16, torch.bfloat16)


class TensorCores(TorchDispatchMode):
    """Contractions as tensor cores compute them where TF32 is permitted (CPU only): operands rounded, totals cut.

    A permission for TF32 is one for the units that have it, and those do not round what they add.
    """

    def __init__(self, *, convolutions: bool, matmuls: bool) -> None:
        super().__init__()
        self.handlers = {f: _SEQUENTIAL[f] for f in _CONVOLUTIONS if convolutions}
        self.handlers |= {f: _SEQUENTIAL[f] for f in _MATMULS if matmuls}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        handler = self.handlers.get(func)
        if handler is not None and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float32:
            return handler(_CoreSums(), *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class _Sums:
    """The two ways of adding that the handlers below need, in the order of the mode."""

    def __init__(self, backwards: bool) -> None:
        self.backwards = backwards

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return products.sequential_product(a, b, backwards=self.backwards)

    def sum(self, x: torch.Tensor, dims: list[int]) -> torch.Tensor:
        return sequential_sum(x, dims, backwards=self.backwards)


class _CoreSums(_Sums):
    """Products on tensor cores; plain sums are not theirs."""

    def __init__(self) -> None:
        super().__init__(False)

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return products.tensor_core_product(round_to_tf32(a), round_to_tf32(b))

    def sum(self, x: torch.Tensor, dims: list[int]) -> torch.Tensor:
        return x.sum(dims, keepdim=True)


def _convolution(
    how: _Sums,
    x: Any,
    w: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> torch.Tensor:
    n = w.dim() - 2
    stride, padding, dilation = _full(stride, n), _full(padding, n), _full(dilation, n)
    if transposed:
        size = [
            (x.shape[2 + i] - 1) * stride[i]
            - 2 * padding[i]
            + dilation[i] * (w.shape[2 + i] - 1)
            + _full(output_padding, n)[i]
            + 1
            for i in range(n)
        ]
        y = products.convolve_transposed(x, w, stride, padding, dilation, groups, size, how.product)
    else:
        y = products.convolve(x, w, stride, padding, dilation, groups, how.product)
    if bias is not None:
        y = y + bias.reshape(1, -1, *[1] * n)
    return y.to(x.dtype)


def _convolution_backward(
    how: _Sums,
    grad: Any,
    x: Any,
    w: Any,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    mask: Any,
) -> Any:
    n = w.dim() - 2
    stride, padding, dilation = _full(stride, n), _full(padding, n), _full(dilation, n)
    product, dx, dw, db = how.product, None, None, None
    if mask[0] and transposed:
        dx = products.convolve(grad, w, stride, padding, dilation, groups, product)
        every: list[slice] = [slice(None), slice(None)]
        dx = dx[tuple(every + [slice(0, m) for m in x.shape[2:]])].to(x.dtype)
    elif mask[0]:
        dx = products.convolve_transposed(grad, w, stride, padding, dilation, groups, x.shape[2:], product).to(x.dtype)
    if mask[1]:
        image, positions = (grad, x) if transposed else (x, grad)
        kernel = w.shape[2:]
        dw = products.weight_gradient(image, positions, kernel, stride, padding, dilation, groups, product).to(w.dtype)
    if mask[2]:
        db = how.sum(grad, [0, *range(2, grad.dim())]).reshape(-1).to(grad.dtype)
    return dx, dw, db


def _full(value: Any, n: int) -> list[int]:
    return list(value) * n if len(value) == 1 else list(value)


def _mm(how: _Sums, a: Any, b: Any) -> torch.Tensor:
    return how.product(a[None], b[None])[0].to(a.dtype)


def _bmm(how: _Sums, a: Any, b: Any) -> torch.Tensor:
    return how.product(a, b).to(a.dtype)


def _addmm(how: _Sums, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> torch.Tensor:
    return (how.product(a[None], b[None])[0] * alpha + beta * c).to(a.dtype)


def _baddbmm(how: _Sums, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> torch.Tensor:
    return (how.product(a, b) * alpha + beta * c).to(a.dtype)


def _shaped(total: torch.Tensor, x: torch.Tensor, dims: Any, keepdim: bool, dtype: Any) -> torch.Tensor:
    if not keepdim:
        dims = [d % x.dim() for d in dims] if dims else list(range(x.dim()))
        total = total.reshape([n for d, n in enumerate(x.shape) if d not in dims])
    return total.to(dtype or x.dtype)


def _sum(how: _Sums, x: Any, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    return _shaped(how.sum(x, list(dims or [])), x, dims, keepdim, dtype)


def _sum_all(how: _Sums, x: Any, *, dtype: Any = None) -> torch.Tensor:
    return _sum(how, x, None, dtype=dtype)


def _count(x: torch.Tensor, dims: Any) -> int:
    count = 1
    for d in dims or range(x.dim()):
        count *= x.shape[d]
    return count


def _mean(how: _Sums, x: Any, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    return _shaped(how.sum(x, list(dims or [])) / _count(x, dims), x, dims, keepdim, dtype)


def _mean_all(how: _Sums, x: Any, *, dtype: Any = None) -> torch.Tensor:
    return _mean(how, x, None, dtype=dtype)


def _var_mean(how: _Sums, x: Any, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    n = _count(x, dims)
    mean = how.sum(x, list(dims or [])) / n
    squares = how.sum((x - mean) ** 2, list(dims or []))
    var = squares / max(n - (1 if correction is None else correction), 0) if n else squares
    return _shaped(var, x, dims, keepdim, None), _shaped(mean, x, dims, keepdim, None)


def _var(how: _Sums, x: Any, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> torch.Tensor:
    result: torch.Tensor = _var_mean(how, x, dims, correction=correction, keepdim=keepdim)[0]
    return result


def _cumsum(how: _Sums, x: Any, dim: int, *, dtype: Any = None) -> torch.Tensor:
    work = torch.promote_types(x.dtype, torch.float32)
    with np.errstate(all="ignore"):
        summed = np.add.accumulate(x.detach().to(work).numpy(), axis=dim)  # a prefix sum has its order
    return torch.from_numpy(summed).to(dtype or x.dtype)


def _vector_norm(
    how: _Sums, x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> torch.Tensor:
    dims = list(dim) if dim is not None else []
    if ord != 2:
        result: torch.Tensor = aten.linalg_vector_norm.default(x, ord, dim, keepdim, dtype=dtype)
        return result
    return _shaped(how.sum(x.float() ** 2, dims).sqrt(), x, dims, keepdim, dtype)


_SEQUENTIAL: dict[Any, Any] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.mm.default: _mm,
    aten.bmm.default: _bmm,
    aten.addmm.default: _addmm,
    aten.baddbmm.default: _baddbmm,
    aten.sum.dim_IntList: _sum,
    aten.sum.default: _sum_all,
    aten.mean.dim: _mean,
    aten.mean.default: _mean_all,
    aten.var_mean.correction: _var_mean,
    aten.var.correction: _var,
    aten.cumsum.default: _cumsum,
    aten.linalg_vector_norm.default: _vector_norm,
}
