"""Build a torch-free CUDA kernel for the simulator and call it on numpy arrays or torch CPU tensors.

    kernel = Kernel(Path("scale.cu"), {"scale": "scale<float>"})
    kernel("scale", grid=4, block=256, args=[x, y, 1000, 2.0])

Arrays are copied to simulated device memory and back; ``DeviceArray`` keeps one there. Anything the checks find raises
``SimulatorError``.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crucible.build import cache, toolchain
from crucible.build.diagnostics import explain
from crucible.build.runtime import DEVICE_FLAGS, LINK_FLAGS, SIM, include_dirs, runtime_library
from crucible.sim.architecture import PLAIN, macros
from crucible.sim.source import kernel_list, rewrite_with_includes, scan

# Kernels of our own that need no checks: the same code, uninstrumented, a few times faster.
PLAIN_FLAGS = tuple(f for f in DEVICE_FLAGS if "sanitize" not in f and "tsan" not in f)


class SimulatorError(RuntimeError):
    """A launch was stopped by the checks, or refused. ``report`` is the finding (see ``reports``), None if refused."""

    def __init__(self, message: str, report: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.report = report

    @property
    def code(self) -> str | None:
        """The finding's code, such as ``out_of_bounds``."""
        return self.report["code"] if self.report else None


@functools.cache
def runtime() -> ctypes.CDLL:
    """The runtime library, loaded for all modules to come."""
    lib = ctypes.CDLL(str(runtime_library()), mode=ctypes.RTLD_GLOBAL)
    pointer, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "csim_malloc": (pointer, [size, text]),
        "csim_free": (None, [pointer]),
        "csim_is_device": (ctypes.c_int, [pointer]),
        "csim_is_live": (ctypes.c_int, [pointer]),
        "csim_mark_written": (None, [pointer, size]),
        "csim_mark_uninitialised": (None, [pointer, size]),
        "csim_first_uninitialised": (ctypes.c_long, [pointer, size]),
        "csim_count_uninitialised": (size, [pointer, size]),
        "csim_name": (None, [pointer, text]),
        "csim_bytes_in_use": (size, []),
        "csim_module_loaded": (None, [text, text]),
        "csim_source_folder": (None, [text]),
        "csim_configure": (None, [text]),
        "csim_reports": (text, []),
        "csim_suspects": (text, []),
        "csim_launches": (text, []),
        "csim_statistics": (text, []),
        "csim_last_message": (text, []),
        "csim_reset": (None, []),
        "cudaGetLastError": (ctypes.c_int, []),
        "cudaGetErrorString": (text, [ctypes.c_int]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def configure(**settings: Any) -> None:
    """Change settings of the simulator: schedule, seed, checked, kernel_seconds, sample_blocks, block_accesses, ..."""
    runtime().csim_configure(json.dumps(settings).encode())


def reports() -> list[dict[str, Any]]:
    """Everything the checks have found since ``reset``."""
    return json.loads(runtime().csim_reports().decode(errors="replace"))


def suspects() -> list[dict[str, Any]]:
    """Reads of unwritten shared memory whose value was not seen to reach a result."""
    return json.loads(runtime().csim_suspects().decode(errors="replace"))


def launches() -> list[dict[str, Any]]:
    """The launch log since ``reset``."""
    return json.loads(runtime().csim_launches().decode(errors="replace"))


def statistics() -> dict[str, int]:
    """Counters since the process began."""
    return json.loads(runtime().csim_statistics().decode())


def reset() -> None:
    """Clear the logs and any sticky error."""
    runtime().csim_reset()


def register_module(path: str | os.PathLike[str]) -> None:
    """Announce a module before it is used. Its ``__shared__`` variables are found at the first launch anyway."""
    runtime().csim_module_loaded(os.fspath(path).encode(), None)


class DeviceArray:
    """A numpy array in simulated device memory; unwritten (and poisoned) unless made from an array."""

    def __init__(self, shape: Any, dtype: Any, name: str = "") -> None:
        import numpy as np

        self.shape = tuple(shape) if isinstance(shape, Sequence) else (int(shape),)
        self.dtype = np.dtype(dtype)
        self.nbytes = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        self.pointer: int = runtime().csim_malloc(self.nbytes, name.encode())
        if name:
            runtime().csim_name(self.pointer, name.encode())

    @classmethod
    def of(cls, array: Any, name: str = "") -> DeviceArray:
        import numpy as np

        array = np.ascontiguousarray(array)
        made = cls(array.shape, array.dtype, name)
        made.fill(array)
        return made

    def fill(self, array: Any) -> None:
        """Copy ``array`` in; from now on every byte counts as written."""
        import numpy as np

        data = np.ascontiguousarray(array, dtype=self.dtype)
        if data.nbytes != self.nbytes:
            raise ValueError(f"{data.nbytes} bytes do not fit a device array of {self.nbytes}")
        ctypes.memmove(self.pointer, data.ctypes.data, self.nbytes)
        runtime().csim_mark_written(self.pointer, self.nbytes)

    def numpy(self) -> Any:
        """A copy of the contents."""
        import numpy as np

        out = np.empty(self.shape, self.dtype)
        ctypes.memmove(out.ctypes.data, self.pointer, self.nbytes)
        return out

    def unwritten(self) -> int:
        """How many bytes nobody has written."""
        return runtime().csim_count_uninitialised(self.pointer, self.nbytes)

    def free(self) -> None:
        if self.pointer:
            runtime().csim_free(self.pointer)
        self.pointer = 0

    def __del__(self) -> None:
        if getattr(self, "pointer", 0):
            self.free()


def _headers_key() -> str:
    files = sorted(p for p in (SIM / "include").rglob("*") if p.is_file())
    return cache.content_key(*(str(p.relative_to(SIM)).encode() + b"\0" + p.read_bytes() for p in files))


def _include_flags() -> list[str]:
    shims, cuda = include_dirs()
    return [f"-I{shims}", "-isystem", str(cuda)]


def _prefix(flags: tuple[str, ...]) -> Path:
    """The folder with the precompiled prefix header for these flags (about 4 s, once)."""

    def build(folder: Path) -> None:
        (folder / "csim_prefix.h").write_text('#include "crucible_sim.h"\n#include "csim/export.h"\n')
        command = [
            toolchain.gxx(), *flags, *_include_flags(), "-x", "c++-header", str(folder / "csim_prefix.h"),
            "-o", str(folder / "csim_prefix.h.gch"),
        ]  # fmt: skip
        code, log = toolchain.run(command, timeout=300)
        if code:
            raise explain(code, log, folder="")

    key = cache.content_key(*flags, toolchain.gxx_version(), str(toolchain.cuda_include()), _headers_key())
    return cache.entry("pch-kernel", key, build)


class Kernel:
    """Kernels of one source file (or text), compiled for the simulator.

    ``exports`` names what can be called: a mapping of name to kernel expression (``{"gemm": "gemm<32>"}``), or plain
    kernel names. ``architecture`` is ``sm_90`` or, for wgmma, ``sm_90a``.
    """

    def __init__(
        self,
        source: str | Path,
        exports: str | Sequence[str] | Mapping[str, str],
        *,
        checked: bool = True,
        flags: Sequence[str] = (),
        include: Sequence[str | Path] = (),
        filename: str | None = None,
        architecture: str = PLAIN,
        timeout: float = 120.0,
    ) -> None:
        if isinstance(source, Path):
            text, filename = source.read_text(), str(source.resolve())
            include = [source.resolve().parent, *include]
        else:
            text, filename = source, filename or "kernel.cu"
        if isinstance(exports, str):
            exports = [exports]
        self.exports = dict(exports) if isinstance(exports, Mapping) else {name: name for name in exports}
        unit = self._unit(text, filename, [Path(p) for p in include], macros(architecture))
        base = DEVICE_FLAGS if checked else PLAIN_FLAGS
        extra = [*flags, *(f"-I{p}" for p in include)]
        library = runtime_library()
        key = cache.content_key(unit, *base, *extra, str(library), _headers_key())
        folder = cache.entry("kernel", key, lambda place: self._compile(place, unit, base, extra, timeout))
        self.path = folder / "kernel.so"
        runtime()
        self._lib = ctypes.CDLL(str(self.path))
        register_module(self.path)
        self._functions = {name: self._function(name) for name in self.exports}

    def _unit(self, text: str, filename: str, folders: list[Path], defined: str) -> str:
        lines = ['#include "csim_prefix.h"', defined + rewrite_with_includes(text, filename, folders)]
        lines.append(f'#define CSIM_KERNELS "{kernel_list(scan(text).kernels)}"')
        lines.append(f'#line 1 "exports of {Path(filename).name}"')
        for name, expression in self.exports.items():
            lines.append(f'CSIM_EXPORT({name}, "{expression}", {expression})')
        return "\n".join(lines) + "\n"

    @staticmethod
    def _compile(folder: Path, unit: str, base: tuple[str, ...], extra: list[str], timeout: float) -> None:
        source = folder / "kernel.cpp"
        source.write_text(unit)
        library = runtime_library()
        compile_it = [
            toolchain.gxx(), *base, f"-I{_prefix(base)}", *_include_flags(), *extra, "-c", str(source),
            "-o", str(folder / "kernel.o"),
        ]  # fmt: skip
        link_it = [  # without -fsanitize: that would pull in libtsan
            toolchain.gxx(), "-shared", str(folder / "kernel.o"), "-o", str(folder / "kernel.so"), *LINK_FLAGS,
            str(library), f"-Wl,-rpath,{library.parent}",
        ]  # fmt: skip
        for command in (compile_it, link_it):
            code, log = toolchain.run(command, timeout=timeout)
            if code:
                raise explain(code, log, folder="")
        (folder / "kernel.o").unlink()

    def _function(self, name: str) -> tuple[Any, list[tuple[str, int]]]:
        run = self._lib[f"csim_run_{name}"]
        run.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
        describe = self._lib[f"csim_signature_{name}"]
        describe.restype = ctypes.c_char_p
        signature = [(item[0], int(item[1:])) for item in describe().decode().split()]
        return run, signature

    def __call__(
        self,
        name: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[Any] | Mapping[str, Any],
        *,
        smem: int = 0,
        cooperative: bool = False,
        opt_in: bool = False,
    ) -> None:
        """Launch. ``args`` may be a mapping, whose keys then name the arguments in reports.

        ``opt_in`` asks for more than 48 KiB of dynamic shared memory, as ``cudaFuncSetAttribute`` would.
        """
        run, signature = self._functions[name]
        names = list(args) if isinstance(args, Mapping) else [f"argument {i + 1}" for i in range(len(args))]
        values = list(args.values()) if isinstance(args, Mapping) else list(args)
        if len(values) != len(signature):
            raise TypeError(f"kernel {name} takes {len(signature)} arguments, not {len(values)}")
        slots: list[Any] = []
        copies: list[tuple[DeviceArray, Any]] = []
        for value, (kind, size) in zip(values, signature, strict=True):
            slots.append(_slot(value, kind, size, copies))
        pointers = (ctypes.c_void_p * (len(slots) + 1))(*[ctypes.addressof(s) for s in slots], None)
        shape = (ctypes.c_uint * 6)(*_triple(grid), *_triple(block))
        before = len(reports())
        try:
            failed = run(shape, smem, pointers, "\x1f".join(names).encode(), int(cooperative) | 2 * opt_in)
            if failed:
                found = reports()
                raise SimulatorError(runtime().csim_last_message().decode(), found[-1] if len(found) > before else None)
            error = runtime().cudaGetLastError()
            if error:
                detail = launches()[-1]
                raise SimulatorError(f"{detail['error']}: {detail['detail']}", detail if detail.get("code") else None)
        finally:
            for device, host in copies:
                _copy_back(device, host)


def _triple(size: int | Sequence[int]) -> tuple[int, int, int]:
    values = (size,) if isinstance(size, int) else tuple(size)
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z


def _numpy_of(value: Any) -> Any:
    """A numpy view of a torch CPU tensor or array; None for anything else."""
    import numpy as np

    if isinstance(value, np.ndarray):
        return value
    if type(value).__module__.startswith("torch") and hasattr(value, "detach"):
        tensor = value.detach()
        if str(tensor.dtype) == "torch.bfloat16":
            import torch

            tensor = tensor.view(torch.int16)
        return tensor.numpy()
    return None


def _slot(value: Any, kind: str, size: int, copies: list[tuple[DeviceArray, Any]]) -> Any:
    """Argument storage of the right C type. Arrays are moved to the device and remembered for the way back."""
    if kind == "p":
        if value is None:
            return ctypes.c_void_p(None)
        if isinstance(value, DeviceArray):
            return ctypes.c_void_p(value.pointer)
        if isinstance(value, int):
            return ctypes.c_void_p(value)
        array = _numpy_of(value)
        if array is None:
            raise TypeError(f"a pointer argument takes an array, an address or None, not {type(value).__name__}")
        if not array.flags.c_contiguous:
            raise ValueError("array arguments must be contiguous")
        for device, host in copies:
            if host is array or (host.ctypes.data == array.ctypes.data and host.nbytes == array.nbytes):
                return ctypes.c_void_p(device.pointer)
        device = DeviceArray.of(array)
        copies.append((device, array))
        return ctypes.c_void_p(device.pointer)
    if kind == "b":
        return ctypes.c_bool(value)
    if kind == "f":
        return ctypes.c_float(value) if size == 4 else ctypes.c_double(value)
    if kind in "iu":
        types: dict[tuple[str, int], Any] = {
            ("i", 1): ctypes.c_int8, ("i", 2): ctypes.c_int16, ("i", 4): ctypes.c_int32, ("i", 8): ctypes.c_int64,
            ("u", 1): ctypes.c_uint8, ("u", 2): ctypes.c_uint16, ("u", 4): ctypes.c_uint32, ("u", 8): ctypes.c_uint64,
        }  # fmt: skip
        return types[kind, size](int(value))
    data = bytes(value)
    if len(data) != size:
        raise TypeError(f"a struct argument of {size} bytes was given {len(data)}")
    return (ctypes.c_char * size).from_buffer_copy(data)


def _copy_back(device: DeviceArray, host: Any) -> None:
    if host.flags.writeable:
        ctypes.memmove(host.ctypes.data, device.pointer, device.nbytes)
    device.free()


def source_errors(log: str) -> list[str]:
    """The error lines of a compiler log."""
    return [line for line in log.splitlines() if re.search(r": (?:fatal )?error: ", line)]
