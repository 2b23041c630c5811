"""What this GPU reaches at best, measured in the run whose times it is held against."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

import torch

from crucible.plan.gpus import Gpu
from crucible.race.clock import Clock

COPY_BYTES = 1 << 30
SIDE = 8192  # of the square matrices
KINDS = (("fp32", torch.float32, False), ("tf32", torch.float32, True), ("fp16", torch.float16, False))


def measure(clock: Clock) -> dict[str, float]:
    """Copy in GB/s (read plus written), matrix products in TFLOP/s."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    found = {"copy": 2 * source.numel() / 1e6 / _median(clock, functools.partial(target.copy_, source))}
    for name, dtype, tf32 in KINDS:
        a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=dtype) for _ in "ab")
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = tf32
        try:
            found[name] = 2 * SIDE**3 / 1e9 / _median(clock, functools.partial(torch.matmul, a, b))
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before
    return found


def _median(clock: Clock, run: Callable[[], Any], count: int = 15) -> float:
    for _ in range(3):
        run()
    return statistics.median(clock.sample(run).milliseconds for _ in range(count))


def of_data_sheet(gpu: Gpu) -> dict[str, float]:
    """The vendor's figures under the same names, for where nothing can be measured."""
    return {"copy": gpu.bandwidth, "fp32": gpu.fp32, "tf32": gpu.tf32 or gpu.fp32, "fp16": gpu.fp16 or gpu.fp32}


def text(found: dict[str, float]) -> str:
    rates = ", ".join(f"{name} {rate:.0f}" for name, rate in found.items())
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}; GB/s and TFLOP/s: {rates}"
