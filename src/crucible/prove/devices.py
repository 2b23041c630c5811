"""The three kinds of device a candidate runs on, behind one face: simulated, a real GPU, or plain CPU (tests only).

Facts that only one of them can give (who wrote which element, which launch went to which stream) come back empty from
the others.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import torch

KEPT_LAUNCHES = 400


class CpuDevice:
    """No device at all: for tests of the checks with candidates in plain torch."""

    name = "cpu"

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def describe(self) -> dict[str, Any]:
        return {"name": "cpu"}

    @contextlib.contextmanager
    def recording(self, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Run a block and collect what happened on the device into the yielded dictionary."""
        yield {"launches": [], "reports": [], "ops": {}, "builds": [], "streams": []}

    def poison(self, elements: int) -> None:
        """Make fresh allocations contain NaN, so that unwritten elements show."""

    def unwritten(self, tensor: torch.Tensor) -> tuple[int, int | None]:
        return 0, None

    def label(self, tensor: torch.Tensor, name: str) -> None:
        """Give a tensor the name that reports will use."""

    def synchronize(self) -> None:
        """Wait for everything."""

    def builds(self) -> list[dict[str, Any]]:
        return []

    def lazy(self, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor whose memory is reserved, counts as written, and is committed only where somebody touches it."""
        raise NotImplementedError

    def delay_side_streams(self) -> None:
        """Make work on any stream but the current one late."""


class SimDevice(CpuDevice):
    """The simulator: every launch and access is known."""

    name = "sim"

    def __init__(self) -> None:
        from crucible.sim import device

        self.sim = device
        self.device = torch.device("cuda:0")

    def describe(self) -> dict[str, Any]:
        return {"name": "simulator", "capability": list(torch.cuda.get_device_capability())}

    @contextlib.contextmanager
    def recording(self, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
        facts: dict[str, Any] = {}
        self.sim.reset()
        if options:
            self.sim.configure(**options)
        try:
            yield facts
        finally:
            launches = self.sim.launches()
            facts["launches"] = launches[:KEPT_LAUNCHES]
            facts["launch_count"] = len(launches)
            facts["reports"] = self.sim.reports()[:20]
            facts["ops"] = self.sim.ops()
            facts["builds"] = self.builds()
            if options:
                self.sim.configure(**{k: _DEFAULTS[k] for k in options})

    def builds(self) -> list[dict[str, Any]]:
        return self.sim.builds()

    def lazy(self, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
        make = getattr(self.sim, "lazy_tensor", None)
        if make is not None:
            made: torch.Tensor = make(tuple(shape), dtype)
            return made
        tensor = torch.empty(shape, dtype=dtype, device=self.device)  # the arena commits large allocations page by page
        mark = self.sim._installed()[0].csim_mark_written
        mark(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.numel() * tensor.element_size()))
        return tensor

    def unwritten(self, tensor: torch.Tensor) -> tuple[int, int | None]:
        return self.sim.uninitialised(tensor)

    def label(self, tensor: torch.Tensor, name: str) -> None:
        self.sim.name(tensor, name)

    def synchronize(self) -> None:
        torch.cuda.synchronize()


_DEFAULTS: dict[str, Any] = {
    "schedule": 0,
    "seed": 0,
    "checked": True,
    "sample_blocks": 0,
    "block_accesses": 0,
    "drop_launches": False,
}


class GpuDevice(CpuDevice):
    """A real GPU: launches come from the profiler, everything else is seen only by its effect."""

    name = "cuda"
    KINDS = ("memcpy", "memset")

    def __init__(self) -> None:
        self.device = torch.device("cuda:0")
        torch.cuda.init()

    def describe(self) -> dict[str, Any]:
        properties = torch.cuda.get_device_properties(0)
        return {
            "name": properties.name,
            "capability": [properties.major, properties.minor],
            "memory_bytes": properties.total_memory,
            "cuda": torch.version.cuda,
        }

    @contextlib.contextmanager
    def recording(self, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
        facts: dict[str, Any] = {"launches": [], "reports": [], "ops": {}, "builds": [], "streams": []}
        if options.get("profile") is False:
            yield facts
            return
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
            yield facts
            torch.cuda.synchronize()
        try:
            self._collect(recorded, facts)
        except (AttributeError, RuntimeError) as error:  # CUPTI is missing or this torch names things differently
            facts["profiler_error"] = f"{type(error).__name__}: {error}"

    def _collect(self, recorded: Any, facts: dict[str, Any]) -> None:
        ops: dict[str, int] = {}
        for event in recorded.events():
            on_gpu = "CUDA" in str(getattr(event, "device_type", ""))
            if on_gpu and not event.name.lower().startswith(self.KINDS):
                facts["launches"].append({"kernel": event.name, "stream": getattr(event, "device_resource_id", None)})
            elif event.name.startswith("aten::"):
                ops[event.name] = ops.get(event.name, 0) + 1
        facts["launch_count"] = len(facts["launches"])
        facts["launches"] = facts["launches"][:KEPT_LAUNCHES]
        facts["ops"] = ops

    def poison(self, elements: int) -> None:
        # Blocks of several sizes go back to the caching allocator full of NaN; torch.empty hands them out again.
        blocks = []
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            for n in (128, 1 << 14, 1 << 18, elements // 4, elements, elements, 2 * elements):
                blocks.append(torch.full((max(n, 1),), float("nan"), device=self.device))
        torch.cuda.synchronize()
        del blocks

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def delay_side_streams(self) -> None:
        # torch hands out side streams from a pool, round robin: occupy each of them for some milliseconds.
        for priority in (0, -1):
            for _ in range(32):
                with torch.cuda.stream(torch.cuda.Stream(priority=priority)):
                    torch.cuda._sleep(40_000_000)


def open_device(name: str) -> CpuDevice:
    return {"cpu": CpuDevice, "sim": SimDevice, "cuda": GpuDevice}[name]()
