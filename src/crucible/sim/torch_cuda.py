"""Stand-ins for ``torch.cuda``: one simulated device; streams run at once but remember who waited for whom."""

from __future__ import annotations

import ctypes
import types
from typing import Any

import torch
import torch.cuda
from torch.cuda._utils import _get_device_index
from torch.utils import cpp_extension

from crucible.sim import extension

DEVICE_NAME = "crucible simulator"


def patch(runtime: ctypes.CDLL, glue: ctypes.CDLL, capability: tuple[int, int]) -> None:
    """Replace what ``torch.cuda`` and ``torch.utils.cpp_extension`` would ask a driver or nvcc for."""
    cuda0 = torch.device("cuda", 0)
    torch.cuda.crucible_simulated = True  # type: ignore[attr-defined]  # files then ask for each buffer alone
    glue.crucible_current_stream.restype = ctypes.c_void_p
    glue.crucible_pool_stream.restype = ctypes.c_void_p
    glue.crucible_set_current_stream.argtypes = [ctypes.c_void_p]
    for function in ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaEventDestroy"):
        getattr(runtime, function).argtypes = [ctypes.c_void_p]
    runtime.cudaEventRecord.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    runtime.cudaStreamWaitEvent.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint]

    class Event:
        def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
            handle = ctypes.c_void_p()
            runtime.cudaEventCreateWithFlags(ctypes.byref(handle), 0)
            self.cuda_event = handle.value

        def record(self, stream: Any = None) -> None:
            runtime.cudaEventRecord(self.cuda_event, (stream or current_stream()).cuda_stream)

        def wait(self, stream: Any = None) -> None:
            runtime.cudaStreamWaitEvent((stream or current_stream()).cuda_stream, self.cuda_event, 0)

        def synchronize(self) -> None:
            runtime.cudaEventSynchronize(self.cuda_event)

        def query(self) -> bool:
            return True

        def elapsed_time(self, other: Any) -> float:
            return 0.0  # the simulator has no clock: timings are never simulated

    class Stream:
        device, device_index, device_type = cuda0, 0, 1

        def __init__(self, device: Any = None, priority: int = 0, *, handle: int | None = None, **_: Any) -> None:
            self.cuda_stream = glue.crucible_pool_stream() if handle is None else handle
            self.stream_id = self.cuda_stream

        def __enter__(self) -> Stream:
            self._before = glue.crucible_current_stream()
            glue.crucible_set_current_stream(self.cuda_stream)
            return self

        def __exit__(self, *_: object) -> None:
            glue.crucible_set_current_stream(self._before)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Stream) and self.cuda_stream == other.cuda_stream

        def __hash__(self) -> int:
            return hash(self.cuda_stream)

        def synchronize(self) -> None:
            runtime.cudaStreamSynchronize(self.cuda_stream)

        def record_event(self, event: Any = None) -> Any:
            event = event or Event()
            event.record(self)
            return event

        def wait_event(self, event: Any) -> None:
            event.wait(self)

        def wait_stream(self, other: Any) -> None:
            self.wait_event(other.record_event())

        def query(self) -> bool:
            return True

    class StreamContext:
        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def __enter__(self) -> None:
            if self.stream is not None:
                self.stream.__enter__()

        def __exit__(self, *exc: object) -> None:
            if self.stream is not None:
                self.stream.__exit__(*exc)

    def known(device: Any = None, answer: Any = None) -> Any:
        """The answer, but to what is no device, which torch refuses, and to another than the simulated one."""
        if (index := _get_device_index(device, optional=True)) > 0:
            raise RuntimeError(f"CUDA error: invalid device ordinal (the simulator has cuda:0 alone, not cuda:{index})")
        return answer

    def current_stream(device: Any = None) -> Stream:
        known(device)
        return Stream(handle=glue.crucible_current_stream() or 0)

    def raw_stream(index: int) -> int:
        if not isinstance(index, int):
            raise RuntimeError("invalid argument to getCurrentStream")
        return current_stream(index).cuda_stream or 0

    def default_stream(device: Any = None) -> Stream:
        known(device)
        return Stream(handle=0)

    def set_stream(stream: Any) -> None:
        glue.crucible_set_current_stream(stream.cuda_stream)

    def synchronize(device: Any = None) -> None:
        known(device)
        runtime.cudaDeviceSynchronize()

    properties = types.SimpleNamespace(
        name=DEVICE_NAME, major=capability[0], minor=capability[1], multi_processor_count=132, total_memory=80 << 30,
        warp_size=32, max_threads_per_multi_processor=2048, max_threads_per_block=1024, regs_per_multiprocessor=65536,
        shared_memory_per_block=48 << 10, shared_memory_per_block_optin=227 << 10,
        shared_memory_per_multiprocessor=228 << 10, L2_cache_size=50 << 20,
    )  # fmt: skip

    def nothing(*_: Any, **__: Any) -> None:
        return None

    def zero(*_: Any, **__: Any) -> int:
        return 0

    replacements: dict[str, Any] = {
        "_lazy_init": nothing, "init": nothing, "is_available": lambda: True, "is_initialized": lambda: True,
        "device_count": lambda: 1, "current_device": lambda: 0, "set_device": known, "empty_cache": nothing,
        "_is_in_bad_fork": lambda: False, "ipc_collect": nothing,
        "get_device_name": lambda device=None: known(device, DEVICE_NAME),
        "get_device_capability": lambda device=None: known(device, capability),
        "get_device_properties": lambda device=None: known(device, properties),
        "get_arch_list": lambda: [f"sm_{capability[0]}{capability[1]}"],
        "is_bf16_supported": lambda *_, **__: True, "can_device_access_peer": lambda *_: False,
        "manual_seed": nothing, "manual_seed_all": nothing, "seed": nothing, "seed_all": nothing,
        "initial_seed": lambda: torch.initial_seed(), "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": nothing, "get_rng_state_all": lambda: [torch.get_rng_state()], "set_rng_state_all": nothing,
        "current_stream": current_stream, "default_stream": default_stream, "set_stream": set_stream,
        "synchronize": synchronize, "Stream": Stream, "Event": Event, "StreamContext": StreamContext,
        "stream": StreamContext, "memory_allocated": zero, "max_memory_allocated": zero, "memory_reserved": zero,
        "max_memory_reserved": zero, "reset_peak_memory_stats": nothing, "memory_stats": lambda *_: {},
        "_exchange_device": lambda *_: 0, "_maybe_exchange_device": lambda *_: 0,  # with torch.cuda.device(...)
        "mem_get_info": lambda *_: (80 << 30, 80 << 30),
    }  # fmt: skip
    for key, value in replacements.items():
        if value in (nothing, zero):  # torch.export wants every function under one name only
            value = types.FunctionType(value.__code__, value.__globals__, key)
        setattr(torch.cuda, key, value)
    torch.cuda.random.manual_seed_all = torch.cuda.manual_seed_all
    torch.cuda.streams.Stream, torch.cuda.streams.Event = Stream, Event  # type: ignore[misc, assignment]
    torch._C._cuda_getCurrentRawStream = raw_stream  # type: ignore[assignment]
    torch.version.cuda = "12.9"
    cpp_extension.load_inline = extension.load_inline  # type: ignore[assignment]
    cpp_extension.load = extension.load  # type: ignore[assignment]
    cpp_extension.CUDA_HOME = cpp_extension.CUDA_HOME or "/usr/local/cuda"
