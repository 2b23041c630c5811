"""Who takes part: the Model as users run it today, and how each wants its inputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

from crucible.exact import copied
from crucible.race import values
from crucible.race.names import AGAIN, EAGER

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass
class Contender:
    """A module, what is called in its place, and how it wants its inputs."""

    model: torch.nn.Module
    run: Callable[..., Any]
    prepare: Callable[[torch.Tensor], torch.Tensor] = lambda t: t

    def inputs(self, given: Sequence[Any], training: bool) -> list[Any]:
        """Inputs as this contender wants them; for training as leaves of their own, without gradients yet."""
        made = pytree.tree_map_only(torch.Tensor, self.prepare, list(given))
        return list(pytree.tree_map(values.leaf, made) if training else made)


def baseline(name: str, model: torch.nn.Module) -> Contender:
    """A copy of the reference, run as ``name`` says."""
    own = copied(model)
    if name in (EAGER, AGAIN):
        return Contender(own, own)
    if name == "channels_last":
        for p in own.parameters():
            p.data = channels_last(p.data)
        return Contender(own, own, channels_last)
    mode = "max-autotune-no-cudagraphs" if name == "max_autotune" else None
    return Contender(own, torch.compile(own, mode=mode))


def compiler_process_failed(error: BaseException) -> bool:
    """Whether torch.compile failed in a process of its own, as some do that cannot find the GPU that this one sees."""
    return "SubprocException" in f"{type(error).__name__} {error}"


def compile_in_this_process() -> None:
    """What torch.compile does from now on, it does without processes of its own; what failed is forgotten."""
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1
    torch._dynamo.reset()


def channels_last(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous(memory_format=FORMATS[t.dim()]) if t.dim() in FORMATS else t


def makes_sense(name: str, shapes: Iterable[Sequence[int] | None]) -> bool:
    """Channels last is another layout only for images."""
    return name != "channels_last" or any(s is not None and len(s) in FORMATS for s in shapes)


def forward(contender: Contender, inputs: Sequence[Any], cotangents: Sequence[torch.Tensor] | None = None) -> Any:
    with torch.no_grad():
        return contender.run(*inputs)


def training(contender: Contender, inputs: Sequence[Any], cotangents: Sequence[torch.Tensor] | None = None) -> Any:
    """Forward and backward, from given gradients of the outputs or else from their sum."""
    out = contender.run(*inputs)
    if cotangents is None:
        values.total(out).backward()
        return out
    wanted = [t for t in values.tensors(out) if t.requires_grad]
    torch.autograd.backward(wanted, list(cotangents))
    return out


STEPS: dict[str, Callable[..., Any]] = {"forward": forward, "training": training}


_REASON = re.compile(r"[\w.]*(?:Error|Exception|Exit|Interrupt)\b:")


def why(error: BaseException) -> str:
    """Why a contender failed, in a line."""
    lines = [x.strip() for x in str(error).splitlines() if x.strip()] or ["no message"]
    # What failed in a process of the contender's own comes with its traceback, and that with its reason at the end.
    within = [x for x in lines if _REASON.match(x)] if any(x.startswith("Traceback (") for x in lines) else []
    text = (f"{lines[0]} {within[-1]}" if within else lines[0])[:300]
    name = type(error).__name__
    if isinstance(error, torch.cuda.OutOfMemoryError) or "out of memory" in str(error).lower():
        return f"out of memory: {text}"
    building = "Error building extension" in str(error) or "compil" in f"{name} {text}".lower()
    return f"does not compile: {name}: {text}" if building else f"{name}: {text}"
