"""One call of a module, forward and backward, with everything that came out of it by name (both workers)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch

from crucible.exact import is_number, wide
from crucible.prove.tensors import leaves
from crucible.prove.uncompiled import backward


@dataclass
class Result:
    """What a call left behind. Tensor names: ``output``, ``output[1]``, ``grad:input 0``, ``grad:conv.weight``,
    ``buffer:bn.running_mean``, ``input:0`` (what it wrote into an input)."""

    outputs: list[tuple[str, Any]] = field(default_factory=list)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)  # gradients that are None
    differentiable: list[bool] = field(default_factory=list)  # one an output leaf
    drew_random: bool = False
    aliases: list[list[int]] = field(default_factory=list)  # inputs that share memory with each output
    error: str | None = None
    stage: str = "forward"


def output_name(path: str) -> str:
    return f"output{path}"


def buffers_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Buffers that a state dict holds, the ones that a caller can see and save, and parameters that nobody trains."""
    saved = model.state_dict()
    found = {k: b for k, b in model.named_buffers(remove_duplicate=False) if k in saved}
    frozen = {k: p for k, p in model.named_parameters(remove_duplicate=False) if k in saved and not p.requires_grad}
    return {**found, **frozen}


class Unsaved:
    """Buffers outside of the state dict as a model is built with them: a call may change what nothing brings back."""

    def __init__(self, model: torch.nn.Module) -> None:
        saved = model.state_dict()
        self.values = {k: b.clone() for k, b in model.named_buffers() if k not in saved}

    def restore(self, model: torch.nn.Module) -> None:
        for name, value in self.values.items():
            owner, _, own = name.rpartition(".")
            buffers = model.get_submodule(owner)._buffers
            held = buffers.get(own)
            if held is None or not same_bits(held, value):
                buffers[own] = value.clone()


def random_state(device: torch.device) -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


def modes(model: torch.nn.Module) -> dict[str, bool]:
    """Whether eval() and train() reach all layers; some Models keep a few of theirs in eval mode."""
    before = {m: m.training for m in model.modules()}
    model.eval()
    found = {"eval": not any(m.training for m in before)}
    model.train()
    found["train"] = all(m.training for m in before)
    for module, training in before.items():
        module.training = training
    return found


def shares_memory(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    if a.numel() == 0 or b.numel() == 0 or a.device != b.device:
        return False
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equality that takes nan for what it is: the same bits."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if torch.equal(a, b):
        return True
    flat = (t.contiguous().as_strided((t.numel(),), (1,)) for t in (a, b))  # one element may have any stride
    return torch.equal(*(t.view(torch.uint8) for t in flat))


def sample_sums(gradient: torch.Tensor) -> torch.Tensor:
    """The sum of a gradient over each sample, in float64.

    Where several elements tie for a maximum, any of them may get the gradient, and a comparison element by element is
    blind. Their sum is the same whichever was chosen (and not if all of them were).
    """
    flat = wide(gradient)
    return flat.flatten(1).sum(1) if flat.dim() > 1 else flat.sum().reshape(1)


def given(inputs: list[Any], leaves: Collection[int], *, written: bool) -> list[Any]:
    """What forward() gets. A leaf that wants a gradient may not be written into: in its stead a copy is."""
    return [x.clone() if written and i in leaves else x for i, x in enumerate(inputs)]


def onward(inputs: list[Any], outputs: list[Any], writes: Collection[int]) -> list[tuple[Any, torch.Tensor]]:
    """Inputs that were written into and have a gradient, and what a caller who goes on with them sends back."""
    pairs = []
    for i in writes:
        x = inputs[i]
        if x.requires_grad and x.grad_fn is not None and not any(x is v for v in outputs):
            # Numbers that every type holds: random ones would be others in float64.
            sent = ((torch.arange(x.numel()) * 7919 + 31 * i) % 257 - 128) / 64
            pairs.append((x, sent.reshape(x.shape).to(x.device, x.dtype)))
    return pairs


def call(
    model: torch.nn.Module,
    inputs: list[Any],
    cotangents: list[Any] | None,
    *,
    seed: int,
    differentiate: bool,
    written: bool = False,
    arguments: Callable[[list[Any]], list[Any]] = list,
) -> Result:
    """Run the reference once. Exceptions end up in ``error``: a reference may refuse a size, and that is an answer.

    ``arguments`` puts inputs into the containers that forward() expects them in; ``written``: it writes into some.
    """
    result = Result()
    device = next((x.device for x in inputs if isinstance(x, torch.Tensor)), torch.device("cpu"))
    torch.manual_seed(seed)
    model.zero_grad(set_to_none=True)
    tracked = []
    if differentiate:
        tracked = [(i, x) for i, x in enumerate(inputs) if is_number(x)]
        for _, x in tracked:
            x.requires_grad_()
    before = random_state(device)
    inputs = given(inputs, [i for i, _ in tracked], written=written)
    versions = [x._version if isinstance(x, torch.Tensor) else 0 for x in inputs]
    try:
        with torch.set_grad_enabled(differentiate):
            raw = model(*arguments(inputs))
        result.outputs = leaves(raw)
        values = [v for _, v in result.outputs]
        result.differentiable = [isinstance(v, torch.Tensor) and v.requires_grad for v in values]
        result.drew_random = any(not torch.equal(a, b) for a, b in zip(before, random_state(device), strict=True))
        result.aliases = [[i for i, x in enumerate(inputs) if shares_memory(v, x)] for v in values]
        held = [*model.parameters(), *model.buffers(), *inputs]  # what has other values in the next run
        for path, value in result.outputs:
            if isinstance(value, torch.Tensor):
                lent = any(shares_memory(value, x) for x in held)
                result.tensors[output_name(path)] = value.detach().clone() if lent else value.detach()
        for name, buffer in buffers_of(model).items():
            result.tensors[f"buffer:{name}"] = buffer.detach().clone()
        writes = [
            i for i, (x, v) in enumerate(zip(inputs, versions, strict=True))
            if isinstance(x, torch.Tensor) and x._version != v
        ]  # fmt: skip
        for i in writes:
            result.tensors[f"input:{i}"] = inputs[i].detach().clone()
        if differentiate and cotangents is not None and any(result.differentiable):
            result.stage = "backward"
            pairs = [(v, c) for v, c, d in zip(values, cotangents, result.differentiable, strict=True) if d]
            pairs += onward(inputs, values, writes)
            backward([v for v, _ in pairs], [c for _, c in pairs])
            grads = [(f"input {i}", x) for i, x in tracked]
            grads += [(n, p) for n, p in model.named_parameters() if p.requires_grad]
            for name, leaf in grads:
                if leaf.grad is None:
                    result.missing.append(name)
                else:
                    result.tensors[f"grad:{name}"] = leaf.grad.detach()
                    if name.startswith("input"):
                        result.tensors[f"sum:{name}"] = sample_sums(leaf.grad.detach())
    except Exception as error:  # noqa: BLE001
        result.error = f"{type(error).__name__}: {error}"
    return result
