"""Several generated files as one CUDA source: their kernels in namespaces, the library they share once, one g++ build.

``build(files)`` compiles the kernels of many generated files for the simulator; ``loaded(file, ...)`` is the Python of
one of them with launchers of the batch. Compiling is most of what a small graph costs, and most of compiling is the
same for all of them.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from crucible.emit.library import library
from crucible.sim.kernel import Kernel

_SOURCE = re.compile(r'^_(FORWARD|BACKWARD)_SOURCE = r"""\n(.*?)"""', re.S | re.M)
_LAUNCHER = re.compile(r"^void run_(\w+)\((.*?)\) \{$", re.M)
_BYTES = re.compile(r"^int64_t ((?:packed|pieces)_\w+)\((.*?)\) \{", re.M)  # what a launcher wants beside its arguments
_HEAD = "using namespace crucible;"  # what follows belongs to the file alone
_PREAMBLE = """#include <stdexcept>
#include <string>
#include <cstring>
"""
_ERRORS = """
static char message[512];
extern "C" const char* batch_message() { return message; }
"""


@dataclass(frozen=True)
class File:
    """A generated file, and the parts of the kernel library that it needs."""

    text: str
    templates: list[str]
    functions: list[str]
    structs: list[str]

    def parts(self) -> dict[str, str]:
        """Functors and launchers, forward and backward."""
        return {part.lower(): text.split(_HEAD, 1)[1] for part, text in _SOURCE.findall(self.text)}


def _exported(place: str, text: str) -> list[str]:
    """Functions with C linkage: all arguments in an array of 64-bit words, the error (if any) in ``message``."""
    lines = []
    for name, arguments in _LAUNCHER.findall(text):
        types = [a.split()[0] for a in arguments.split(", ")]
        call = ", ".join(f"static_cast<{t}>(a[{k}])" for k, t in enumerate(types))
        lines.append(
            f'extern "C" int {place}_{name}(const int64_t* a) {{ try {{ {place}::run_{name}({call}); return 0; }} '
            "catch (const std::exception& e) { strncpy(message, e.what(), sizeof(message) - 1); return 1; } }"
        )
    for name, arguments in _BYTES.findall(text):
        types = [a.split()[0] for a in arguments.split(", ") if a]
        call = ", ".join(f"static_cast<{t}>(a[{k}])" for k, t in enumerate(types))
        lines.append(f'extern "C" int64_t {place}_{name}(const int64_t* a) {{ return {place}::{name}({call}); }}')
    return lines


def build(files: Sequence[File], flags: Sequence[str]) -> Kernel:
    """One library with the kernels of all files; ``flags`` are those that the files would compile with."""
    wanted = (set().union(*(getattr(f, name) for f in files)) for name in ("templates", "functions", "structs"))
    spaces, exports = [], []
    for number, file in enumerate(files):
        for part, text in file.parts().items():
            place = f"g{number}_{part}"
            spaces.append(f"namespace {place} {{\n{_HEAD}\n{text}\n}}")
            exports += _exported(place, text)
    text = "\n".join([_PREAMBLE, library(*wanted), *spaces, _ERRORS, *exports])
    # What is drawn is small: compiled with -O1 it runs for seconds less, and compiles for a minute more.
    return Kernel(text, {}, flags=[*flags, "-O0"], timeout=600)


class _Launchers:
    """What a generated file takes for its extension module: launchers by name, and the bytes that some ask for."""

    def __init__(self, kernel: Kernel, place: str) -> None:
        self._kernel = kernel
        self._place = place

    def __getattr__(self, name: str) -> Callable[..., int | None]:
        function = self._kernel._lib[f"{self._place}_{name}"]
        message = self._kernel._lib["batch_message"]
        message.restype = ctypes.c_char_p

        asks = name.startswith(("packed_", "pieces_"))
        function.restype = ctypes.c_int64 if asks else ctypes.c_int

        def launch(*arguments: int) -> int | None:
            words = (ctypes.c_int64 * len(arguments))(*(a if a < 1 << 63 else a - (1 << 64) for a in arguments))
            if asks:
                return function(words)
            if function(words):
                raise RuntimeError(message().decode(errors="replace"))
            return None

        setattr(self, name, launch)
        return launch


def loaded(file: File, number: int, kernel: Kernel) -> dict[str, Any]:
    """The names of a generated file, as if it had been imported and had compiled its kernels."""
    names: dict[str, Any] = {"__name__": f"generated_{number}", "torch": torch}
    exec(compile(file.text, f"<generated {number}>", "exec"), names)
    names["_kernels"] = lambda part, *_: _Launchers(kernel, f"g{number}_{part}")
    return names
