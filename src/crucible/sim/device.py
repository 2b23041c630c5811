"""A CUDA device without a GPU: makes ``torch.device("cuda")`` of this process the simulated one.

``install()`` must run before torch is imported. From then on tensors on ``cuda`` live in the simulator's arena, every
ATen operator on them runs its CPU kernel there, and ``load_inline`` compiles CUDA C++ for the simulator. The rest of
this module is how the process asks what happened: launches, reports, builds, operators.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from crucible.build import toolchain
from crucible.build.errors import BuildError
from crucible.build.extension import glue_library
from crucible.build.runtime import runtime_library
from crucible.sim.architecture import PLAIN

if TYPE_CHECKING:
    import torch

_runtime: ctypes.CDLL | None = None
_glue: ctypes.CDLL | None = None
_cells: torch.library.Library | None = None  # operators are there for as long as it is
_builds: list[dict[str, Any]] = []  # that of sim/extension.py, which imports torch

# Operators that move or make memory but compute nothing: using them is not "letting torch do the work".
_BOOKKEEPING = (
    "copy_", "fill_", "zero_", "empty", "set_", "resize", "clone", "contiguous", "_to_copy", "cat", "stack",
    "is_pinned", "_pin_memory", "equal", "detach", "view", "alias", "eye", "arange", "index_put",
    "_local_scalar_dense", "item",
)  # fmt: skip

# Processors of the simulated chip: with few of them, blocks that stay on theirs take more turns.
PROCESSORS_VARIABLE = "CRUCIBLE_SIM_PROCESSORS"


def install(*, capability: tuple[int, int] = (9, 0), architecture: str = PLAIN) -> None:
    """Make the simulated device this process's CUDA device. Call once, before ``import torch``.

    ``architecture`` is what extensions are compiled for unless their nvcc flags or ``TORCH_CUDA_ARCH_LIST`` say it:
    ``sm_90``, or ``sm_90a`` for wgmma, which needs a capability of (9, 0).
    """
    global _runtime, _glue, _builds, _cells
    if _runtime is not None:
        return
    if "torch" in sys.modules:
        raise RuntimeError("crucible.sim.device.install() must run before torch is imported in this process")
    if toolchain.torch_has_cuda():
        raise BuildError(
            "unsupported_feature",
            "the simulated device needs a CPU build of PyTorch; this one is built for CUDA",
            hint="use --device cuda here, or install the CPU build in another environment",
        )
    _runtime = ctypes.CDLL(str(runtime_library()), mode=ctypes.RTLD_GLOBAL)
    _declare(_runtime)
    _glue = ctypes.CDLL(str(glue_library()), mode=ctypes.RTLD_GLOBAL)
    _glue.crucible_device_ops.restype = ctypes.c_char_p
    _glue.crucible_current_stream.restype = ctypes.c_void_p
    _glue.crucible_device_install()
    _runtime.csim_source_folder(os.getcwd().encode())  # reports quote lines of files that are named without a folder
    few = int(os.environ.get(PROCESSORS_VARIABLE) or 0)
    configure(compute_capability=capability[0] * 10 + capability[1], processors=few)

    from crucible.sim import recurrent_cells, torch_cuda

    torch_cuda.patch(_runtime, _glue, capability)
    torch_cuda.extension.build_for(capability, architecture)
    _cells = recurrent_cells.register()
    _builds = torch_cuda.extension.BUILDS
    # torch's backward thread for the device still drops its last task when backward() has returned; if the interpreter
    # ends in that instant, the thread needs the lock of an interpreter that is gone, and the process aborts.
    atexit.register(time.sleep, 0.1)


def _declare(runtime: ctypes.CDLL) -> None:
    runtime.csim_reports.restype = ctypes.c_char_p
    runtime.csim_launches.restype = ctypes.c_char_p
    runtime.csim_pending_streams.restype = ctypes.c_char_p
    runtime.csim_pending_streams.argtypes = [ctypes.c_void_p]
    runtime.csim_configure.argtypes = [ctypes.c_char_p]
    for name in ("csim_first_uninitialised", "csim_count_uninitialised"):
        getattr(runtime, name).restype = ctypes.c_long
        getattr(runtime, name).argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    runtime.csim_name.argtypes = [ctypes.c_void_p, ctypes.c_char_p]


def _installed() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    if _runtime is None or _glue is None:
        raise RuntimeError("the simulated device is not installed in this process")
    return _runtime, _glue


def configure(**options: Any) -> None:
    """Set simulator options by name, such as schedule, seed, sample_blocks, drop_launches (see runtime/config.h)."""
    _installed()[0].csim_configure(json.dumps(options).encode())


def reports() -> list[dict[str, Any]]:
    """Everything the checks found since the last reset, whether or not the candidate swallowed the error."""
    found: list[dict[str, Any]] = json.loads(_installed()[0].csim_reports())
    return found


def launches() -> list[dict[str, Any]]:
    """Every kernel launch since the last reset; ``pending`` marks those on a side stream that nobody has waited for."""
    runtime, glue = _installed()
    found: list[dict[str, Any]] = json.loads(runtime.csim_launches())
    pending = {row["stream"] for row in json.loads(runtime.csim_pending_streams(glue.crucible_current_stream()))}
    for launch in found:
        launch["pending"] = launch["stream"] in pending
    return found


def ops(*, compute_only: bool = True) -> dict[str, int]:
    """ATen operators that ran on the device since the last reset, with how often."""
    counts: dict[str, int] = {}
    for line in _installed()[1].crucible_device_ops().decode().splitlines():
        name, _, count = line.rpartition(" ")
        base = name.removeprefix("aten::").split(".")[0]
        if not compute_only or not base.startswith(_BOOKKEEPING):
            counts[name] = counts.get(name, 0) + int(count)
    return counts


def builds() -> list[dict[str, Any]]:
    """Every ``load_inline`` call of this process: name, ok, seconds, error, kernels defined and launched."""
    return list(_builds)


def reset() -> None:
    """Forget reports, launches and operators (not builds)."""
    runtime, glue = _installed()
    runtime.csim_reset()
    glue.crucible_device_reset_ops()


def uninitialised(tensor: torch.Tensor) -> tuple[int, int | None]:
    """How many elements of a device tensor were never written, and the flat index of the first in memory order."""
    runtime = _installed()[0]
    if not tensor.is_cuda or not tensor.numel():
        return 0, None
    start, size = tensor.data_ptr(), tensor.element_size()
    if tensor.is_contiguous() or tensor.numel() * size == tensor.untyped_storage().nbytes():
        length = tensor.numel() * size
        first = runtime.csim_first_uninitialised(start, length)
        if first < 0:
            return 0, None
        return -(-runtime.csim_count_uninitialised(start, length) // size), first // size
    count, where = 0, None
    for flat, offset in enumerate(_offsets(tensor)):
        if runtime.csim_first_uninitialised(start + offset * size, size) >= 0:
            count += 1
            where = flat if where is None else where
    return count, where


def _offsets(tensor: torch.Tensor) -> list[int]:
    import torch

    grid = torch.zeros(tensor.shape, dtype=torch.int64)
    for dim, (length, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        shape = [1] * tensor.dim()
        shape[dim] = length
        grid += (torch.arange(length) * stride).reshape(shape)
    offsets: list[int] = grid.reshape(-1).tolist()
    return offsets


def name(tensor: torch.Tensor, label: str) -> None:
    """Give a tensor's memory a name that reports will use."""
    if tensor.is_cuda and tensor.numel():
        _installed()[0].csim_name(tensor.untyped_storage().data_ptr(), label.encode())
