"""What the benchmarks share: device timers, ceilings measured on the spot, counts of work, inputs of other sizes."""

from __future__ import annotations

import copy
import functools
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch.utils import flop_counter

from crucible.problem import Problem, Shape

FLUSH_BYTES = 256 << 20  # several times the largest L2 there is
ROOT = Path(__file__).resolve().parent.parent


# -- times


def sample(run: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds between device events, and what the call returned."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
    start.record()
    out = run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end), out


def quantiles(times: Sequence[float]) -> tuple[float, float, float]:
    """The median, the first decile and the last."""
    t = sorted(times)
    return statistics.median(t), t[len(t) // 10], t[-1 - len(t) // 10]


def _median(run: Callable[[], Any], count: int = 15) -> float:
    for _ in range(3):
        run()
    return statistics.median(sample(run)[0] for _ in range(count))


def ceilings() -> dict[str, float]:
    """What this chip reaches: copy in GB/s (read plus written), matrix products in TFLOP/s."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    found = {"copy": 2 * source.numel() / 1e6 / _median(lambda: target.copy_(source))}
    for name, dtype, tf32 in (
        ("fp32", torch.float32, False),
        ("tf32", torch.float32, True),
        ("fp16", torch.half, False),
    ):
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=dtype) for _ in "ab")
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = tf32
        found[name] = 2 * 8192**3 / 1e9 / _median(functools.partial(torch.matmul, a, b))
        torch.backends.cuda.matmul.allow_tf32 = before
    return found


def ceilings_text(found: dict[str, float]) -> str:
    rates = ", ".join(f"{name} {rate:.0f}" for name, rate in found.items())
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}; GB/s and TFLOP/s: {rates}"


# -- work


@dataclass(frozen=True)
class Work:
    """What no implementation can do without: bytes moved, operations of products, and the least time for them."""

    bytes: int
    operations: int
    milliseconds: float


def least_work(inputs: list[Any], out: Any, model: torch.nn.Module, found: dict[str, float], training: bool) -> Work:
    """Forward: inputs and parameters read once, outputs written once, products at the best rate.

    Training: inputs and parameters read twice, their gradients written too, products of both passes. Products that
    torch may round to TF32 count at the fp16 rate (the same mantissa); others count three times.
    """
    read = [t for t in [*inputs, *model.parameters()] if isinstance(t, torch.Tensor)]
    moved = sum(map(_bytes, read)) * (2 if training else 1) + sum(map(_bytes, tensors(out)))
    if training:
        moved += sum(_bytes(t) for t in read if t.is_floating_point())
    single = any(t.dtype == torch.float32 for t in inputs if isinstance(t, torch.Tensor))
    total, weighted = 0, 0.0
    for operator, count in _operations(model, inputs, training).items():
        convolution = "conv" in str(operator)
        permitted = torch.backends.cudnn.allow_tf32 if convolution else torch.backends.cuda.matmul.allow_tf32
        total += count
        weighted += count * (3 if single and not permitted else 1)
    return Work(moved, total, max(moved / found["copy"] / 1e6, weighted / found["fp16"] / 1e9))


def _operations(model: torch.nn.Module, inputs: list[Any], training: bool) -> dict[Any, int]:
    meta = copy.deepcopy(model).to("meta")
    given = [t.to("meta") if isinstance(t, torch.Tensor) else t for t in inputs]
    if training:
        given = [leaf(t) for t in given]
    counter = flop_counter.FlopCounterMode(display=False)
    with counter, torch.set_grad_enabled(training):
        out = meta(*given)
        if training:
            total(out).backward()
    return dict(counter.get_flop_counts()["Global"])


def _bytes(t: torch.Tensor) -> int:
    return t.numel() * t.element_size()


def tensors(out: Any) -> list[torch.Tensor]:
    if isinstance(out, torch.Tensor):
        return [out]
    return [t for part in out for t in tensors(part)] if isinstance(out, (list, tuple)) else []


def total(out: Any) -> torch.Tensor:
    """One number that depends on every floating-point output."""
    return torch.stack([t.sum() for t in tensors(out) if t.requires_grad]).sum()


def leaf(value: Any) -> Any:
    """A tensor of its own without a gradient yet, where it can have one."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().requires_grad_()
    return value


def distance(got: torch.Tensor, truth: torch.Tensor) -> float:
    """Relative, in the L2 norm."""
    if got.shape != truth.shape:
        return float("inf")
    if not truth.is_floating_point():
        return float((got != truth).any())
    return float((got.double() - truth).norm() / truth.norm().clamp_min(1e-300))


# -- inputs


def scaled_shapes(problem: Problem, batch: int | None = None, spatial: float = 1.0) -> list[Shape | None]:
    """The shapes of get_inputs() with another batch, and with pixels scaled by a factor in each dimension.

    The batch is the first size of the first tensor, wherever a tensor begins with it; pixels are the third and later
    sizes of tensors that have them.
    """
    first = next((s[0] for s in problem.shapes if s), None)

    def change(shape: Shape | None) -> Shape | None:
        if not shape:
            return shape
        sizes = [max(1, round(n * spatial)) if d >= 2 else n for d, n in enumerate(shape)]
        if batch is not None and shape[0] == first:
            sizes[0] = batch
        return tuple(sizes)

    return [change(s) for s in problem.shapes]


def make_inputs(problem: Problem, shapes: list[Shape | None], seed: int, dtype: torch.dtype) -> list[Any]:
    """Inputs on the GPU with the values that the problem's author chose."""
    with torch.device("cuda"):
        made = problem.inputs(shapes, seed)
    return [_placed(t, dtype) for t in made]


def _placed(value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.cuda().to(dtype) if value.is_floating_point() else value.cuda()


def wide(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def sizes_text(shapes: Sequence[Shape | None]) -> str:
    return " ".join("x".join(map(str, s)) for s in shapes if s)


# -- the rest


def why(error: BaseException) -> str:
    """Why a contender failed, in a line."""
    text = next((x.strip() for x in str(error).splitlines() if x.strip()), "no message")[:200]
    name = type(error).__name__
    if isinstance(error, torch.cuda.OutOfMemoryError) or "out of memory" in str(error).lower():
        return f"out of memory: {text}"
    building = "Error building extension" in str(error) or "compil" in f"{name} {text}".lower()
    return f"does not compile: {name}: {text}" if building else f"{name}: {text}"


def environment() -> dict[str, str | None]:
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "commit": commit(),
    }


def commit() -> str | None:
    """The commit of this checkout, with a + where it was changed since."""

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        except OSError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    found = git("rev-parse", "--short", "HEAD")
    return f"{found}+" if found and git("status", "--porcelain", "--untracked-files=no") else found
