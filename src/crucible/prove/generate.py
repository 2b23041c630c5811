"""Make the inputs and weights of a case (reference worker only; everything on the CPU and from a seed)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from crucible.problem import Problem, Shape
from crucible.prove.cases import Layout, Spec
from crucible.prove.shapes import tied

State = dict[str, torch.Tensor]


def make_inputs(problem: Problem, shapes: Sequence[Shape | None], spec: Spec, dtype: torch.dtype | None) -> list[Any]:
    """The inputs of a case, in the dtype under test, with the values and layout that the spec names."""
    replaced = spec.values != "declared" and all(
        not isinstance(x, torch.Tensor) or x.is_floating_point() for x in problem.declared
    )
    if replaced:  # get_inputs() need not run: at the declared size it takes seconds
        made = [
            torch.empty(s, dtype=x.dtype) if s is not None else x for x, s in zip(problem.declared, shapes, strict=True)
        ]
    else:
        made = problem.inputs(shapes, spec.seed)
    generator = torch.Generator().manual_seed(spec.seed + 1)
    inputs = []
    for x in made:
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            x = x.to(dtype) if dtype is not None else x
            x = with_values(x, spec.values, generator)
            x = with_layout(x, spec.layout)
        inputs.append(x)
    return inputs


def with_values(x: torch.Tensor, values: str, generator: torch.Generator) -> torch.Tensor:
    """``x`` replaced by, or scaled to, the named kind of values (see ``cases.Values``)."""

    def normal() -> torch.Tensor:
        return standard_normal(x.shape, generator)

    small, large = _extremes(x.dtype)
    if values == "declared" or x.numel() == 0:
        return x
    if values == "normal":
        return normal().to(x.dtype)
    if values == "swapped":
        flat = normal().reshape(-1)
        edge = min(64, flat.numel() // 4)  # a cache may look at a few elements of either end
        inner = flat[edge : flat.numel() - edge].flip(0)
        return torch.cat([flat[:edge], inner, flat[flat.numel() - edge :]]).reshape(x.shape).to(x.dtype)
    if values == "grid":
        return _grid(x.shape, generator).to(x.dtype)
    if values == "grid_offset":
        # 11 bits hold these integers; in bfloat16's 8 bits they would all round to one number.
        base = 1024.0 if torch.finfo(x.dtype).eps < 1e-3 else 64.0
        return (base + torch.randint(-3, 4, x.shape, generator=generator)).to(x.dtype)
    if values == "tiny":
        return (normal() * small).to(x.dtype)
    if values == "huge":
        return (normal() * large).to(x.dtype)
    if values == "mixed":
        decades = torch.rand(x.shape, generator=generator) * 8 - 4
        if x.dtype == torch.float16:
            decades = decades / 2
        return (normal() * 10.0**decades).to(x.dtype)
    if values == "samples":
        count = max(x.shape[0], 1) if x.dim() else 1
        exponents = torch.linspace(-3, 3, count)[torch.randperm(count, generator=generator)]
        return (normal() * (10.0**exponents).reshape(-1, *[1] * (x.dim() - 1))).to(x.dtype)
    if values == "constant":
        return torch.full_like(x, 0.7)
    if values == "zeros":
        return torch.zeros_like(x)
    if values == "offset":
        return (1e4 + normal()).to(x.dtype)
    if values == "special":
        return _with_special(normal().to(x.dtype), generator)
    raise ValueError(f"unknown kind of values {values!r}")


def standard_normal(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Standard normal numbers on the CPU; very many of them are drawn on the GPU, where there is one."""
    if math.prod(shape) < 1 << 26 or not torch.cuda.is_available():
        return torch.randn(tuple(shape), generator=generator)
    seed = int(torch.randint(0, 1 << 60, (1,), generator=generator))
    device = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(tuple(shape), generator=device, device="cuda").cpu()


def _extremes(dtype: torch.dtype) -> tuple[float, float]:
    """Magnitudes near the ends of the range, with room for a contraction's growth."""
    if dtype == torch.float16:
        return 1e-3, 1e2
    return 1e-30, 1e30


def _grid(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    return torch.randint(-8, 9, tuple(shape), generator=generator) / 8.0


def _with_special(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """One inf, one -inf and one nan, in different samples as far as there are any."""
    flat = x.reshape(-1)
    samples = x.shape[0] if x.dim() > 1 else 1
    per = flat.numel() // samples
    for i, value in enumerate((math.inf, math.nan, -math.inf)):
        at = (i % samples) * per + int(torch.randint(0, per, (1,), generator=generator))
        flat[at] = value
    return flat.reshape(x.shape)


def with_layout(x: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The same elements (except ``expanded``, which repeats the first sample) in other strides."""
    if layout == "contiguous" or x.dim() == 0 or x.numel() == 0:
        return x.contiguous()
    if layout == "transposed":
        if x.dim() == 1:
            return _sliced(x)
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "sliced":
        return _sliced(x)
    if layout == "channels_last":
        if x.dim() == 4:
            return x.contiguous(memory_format=torch.channels_last)
        if x.dim() == 5:
            return x.contiguous(memory_format=torch.channels_last_3d)
        return x.contiguous()
    if layout == "expanded":
        return x[:1].contiguous().expand(x.shape)
    raise ValueError(f"unknown layout {layout!r}")


def _sliced(x: torch.Tensor) -> torch.Tensor:
    wide = torch.full((*x.shape[:-1], x.shape[-1] * 2), float("nan"), dtype=x.dtype)
    view = wide[..., ::2]
    view.copy_(x)
    return view


# --- weights --------------------------------------------------------------------------------------------------------


def make_state(model: torch.nn.Module, spec: Spec) -> State:
    """A state dict for the model: what it was built with, or random in every entry that may be."""
    state = {k: v.detach().clone() for k, v in model.state_dict().items()}
    if spec.weights == "initial":
        return state
    generator = torch.Generator().manual_seed((spec.seed if spec.weights_seed is None else spec.weights_seed) + 2)
    parameters = {k for k, _ in model.named_parameters(remove_duplicate=False)}
    fresh = {k: _fresh(k, v, k in parameters, spec.weights, generator) for k, v in state.items()}
    if spec.weights == "offset":
        for name in fresh:
            # Biases of contractions only: an offset after the last normalisation would drown what is to be seen.
            if name.endswith("bias") and is_contracted(state.get(name[: -len("bias")] + "weight")):
                fresh[name] = fresh[name] + 1e4
    same = tied(model)
    return {k: fresh[same.get(k, k)] for k in fresh}


def is_contracted(value: torch.Tensor | None) -> bool:
    return value is not None and sum(n > 1 for n in value.shape) >= 2


def _fresh(name: str, old: torch.Tensor, is_parameter: bool, weights: str, generator: torch.Generator) -> torch.Tensor:
    leaf = name.rsplit(".", 1)[-1]
    if leaf == "num_batches_tracked":
        return torch.full_like(old, int(torch.randint(3, 500, (1,), generator=generator)))
    if leaf == "running_var":
        return (0.5 + 1.5 * torch.rand(old.shape, generator=generator)).to(old.dtype)
    if leaf == "running_mean":
        return (0.3 * torch.randn(old.shape, generator=generator)).to(old.dtype)
    if not is_parameter or not old.is_floating_point() or old.numel() == 0:
        return old  # a mask or a table: its values mean something
    values = old.float()
    spread = values.std().item() if values.numel() > 1 else 0.0
    spread = spread if math.isfinite(spread) and spread > 0 else 0.0
    if is_contracted(old):
        return _fresh_weight(old, spread or 0.05, weights, generator)
    # One number a channel: around its old mean, wide enough that two channels cannot be mistaken for each other.
    centre = values.mean().item() if math.isfinite(values.mean().item()) else 0.0
    new = centre + max(spread, 0.4) * torch.randn(old.shape, generator=generator)
    return new.to(old.dtype)


def _fresh_weight(old: torch.Tensor, spread: float, weights: str, generator: torch.Generator) -> torch.Tensor:
    if weights == "grid":
        step = 2.0 ** math.floor(math.log2(spread / 4))
        return (torch.randint(-6, 7, old.shape, generator=generator) * step).to(old.dtype)
    if weights == "level":
        step = 2.0 ** math.floor(math.log2(spread))
        return (step * (1 + torch.randint(-2, 3, old.shape, generator=generator) / 64)).to(old.dtype)
    return (spread * torch.randn(old.shape, generator=generator)).to(old.dtype)
