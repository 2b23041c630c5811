"""Plausible mistakes, tried on the reference: if one of them gives what the candidate gave, that is a good hint.

Each variant is the float64 reference with one operator changed below autograd: left out, without its bias, the tanh
form of GELU for the erf form, and so on. Forward only, and only after a candidate has already failed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from crucible.prove.cases import Spec
from crucible.prove.yardstick import Bench

aten = torch.ops.aten
LIMIT = 24
LARGEST = 30_000_000  # elements of weights beyond which trying variants takes too long

_SKIPPABLE = {
    "relu",
    "relu_",
    "gelu",
    "tanh",
    "sigmoid",
    "silu",
    "leaky_relu",
    "elu",
    "hardtanh",
    "hardswish",
    "mish",
    "softplus",
    "clamp",
    "clamp_min",
    "clamp_max",
    "native_group_norm",
    "native_layer_norm",
    "native_batch_norm",
    "exp",
    "abs",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training",
    "_batch_norm_with_update",
    "neg",
    "rsqrt",
    "sqrt",
    "add",
    "mul",
    "div",
    "sub",
    "_softmax",
    "_log_softmax",
    "pow",
}
_FRIENDLY = {
    "native_group_norm": "group norm",
    "native_layer_norm": "layer norm",
    "native_batch_norm": "batch norm",
    "_native_batch_norm_legit": "batch norm",
    "_batch_norm_with_update": "batch norm",
    "_native_batch_norm_legit_no_training": "batch norm",
    "_softmax": "softmax",
    "_log_softmax": "log-softmax",
}

Change = Callable[[Any, list[Any], dict[str, Any]], Any]


def _base(func: Any) -> str:
    return str(func._schema.name).removeprefix("aten::")


class _Edit(TorchDispatchMode):
    """Counts operators in order; the one with the chosen number is run by ``change`` instead."""

    def __init__(self, chosen: int = -1, change: Change | None = None) -> None:
        super().__init__()
        self.chosen, self.change = chosen, change
        self.seen: list[tuple[Any, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        index = len(self.seen)
        self.seen.append((func, list(args)))
        if index == self.chosen and self.change is not None:
            return self.change(func, list(args), dict(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _skip(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    result = func(*args, **kwargs)
    x = args[0]
    if isinstance(result, tuple):
        return (x.clone(), *result[1:])
    return x.clone() if result.shape == x.shape else result


def _tanh_gelu(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return func(args[0], approximate="tanh")


def _without(position: int) -> Change:
    def change(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        args[position] = None
        return func(*args, **kwargs)

    return change


def _zero_first(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return func(torch.zeros_like(args[0]), *args[1:], **kwargs)


def _unbatched_norm(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Group norm with statistics over the whole batch instead of each sample."""
    x, weight, bias, n, c, hw, groups, eps = args
    flat = x.reshape(n, groups, -1)
    mean = flat.mean((0, 2), keepdim=True)
    var = flat.var((0, 2), unbiased=False, keepdim=True)
    y = ((flat - mean) / torch.sqrt(var + eps)).reshape(x.shape)
    shape = [1, -1, *[1] * (x.dim() - 2)]
    if weight is not None:
        y = y * weight.reshape(shape)
    if bias is not None:
        y = y + bias.reshape(shape)
    return (y, *func(*args, **kwargs)[1:])


def _group_gains(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Gamma and beta of the group's first channels: indexed by the group instead of the channel."""
    groups, c = args[6], args[4]
    index = torch.arange(c, device=args[0].device) // (c // groups)
    for i in (1, 2):
        if args[i] is not None:
            args[i] = args[i][index]
    return func(*args, **kwargs)


def _eps_out(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    args[-1] = 0.0
    return func(*args, **kwargs)


def _changes(func: Any, args: list[Any]) -> list[tuple[str, str, Change]]:
    """(words, code, change) for each mistake that makes sense for this operator."""
    base = _base(func)
    name = _FRIENDLY.get(base, base.rstrip("_"))
    found: list[tuple[str, str, Change]] = []
    if base == "gelu":
        found.append(("the tanh approximation of GELU in place of the erf form", "wrong_values", _tanh_gelu))
    if base == "convolution" and args[2] is not None:
        found.append(("the convolution without its bias", "wrong_values", _without(2)))
    if base == "addmm":
        found.append(("the linear layer without its bias", "wrong_values", _zero_first))
    if base == "native_group_norm":
        found.append(
            ("group norm with statistics over the batch instead of each sample", "wrong_values", _unbatched_norm)
        )
        found.append(("gamma and beta indexed by group instead of channel", "wrong_values", _group_gains))
        found.append(("group norm without gamma", "wrong_values", _without(1)))
        found.append(("group norm without beta", "wrong_values", _without(2)))
        found.append(("group norm without its eps", "wrong_values", _eps_out))
    if base in _SKIPPABLE and isinstance(args[0], torch.Tensor):
        found.append((f"the {name} left out", "skipped_layer", _skip))
    return found


def variants(
    bench: Bench, spec: Spec, state: dict[str, torch.Tensor], inputs: list[Any], cotangents: list[Any] | None
) -> list[tuple[str, str, torch.Tensor]]:
    """The first output of the last case under each plausible mistake, in float64."""
    if sum(v.numel() for v in state.values()) > LARGEST:
        return []
    spec = spec.but(grads=False)
    recorder = _Edit()
    bench.run(
        state, inputs, None, spec, wide=True
    )  # loads the weights, so that every later run does the same operators
    with recorder:
        bench.run(state, inputs, None, spec, wide=True)
    found: list[tuple[str, str, torch.Tensor]] = []
    for index, (func, args) in enumerate(recorder.seen):
        for text, code, change in _changes(func, args):
            if len(found) >= LIMIT:
                return found
            try:
                with _Edit(index, change):
                    result = bench.run(state, inputs, None, spec, wide=True)
            except Exception:  # noqa: BLE001  a change that does not fit this operator's arguments
                continue
            _append(found, text, code, result)
    if spec.training:
        result = bench.run(state, inputs, None, spec.but(training=False), wide=True)
        _append(found, "the module treated as in eval mode although it is training", "skipped_layer", result)
    return found


def _append(found: list[tuple[str, str, torch.Tensor]], text: str, code: str, result: Any) -> None:
    if result.error is None:
        first = next((v for k, v in result.tensors.items() if k.startswith("output")), None)
        if first is not None:
            found.append((text, code, first))
