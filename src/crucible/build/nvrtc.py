"""Compile CUDA source for any architecture without a driver or a GPU, through NVIDIA's run-time compiler (NVRTC)."""

from __future__ import annotations

import ctypes
import functools
import glob
import importlib.util
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from crucible.build.device_source import DeviceSource, device_source
from crucible.build.errors import BuildError
from crucible.build.instances import instances
from crucible.build.toolchain import cuda_include

ARCHITECTURES = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")
HEADERS = Path(__file__).parent / "nvrtc_headers"

# What torch's own extension builds define: operators on __half and its conversions are switched off there.
TORCH_FLAGS = (
    "-D__CUDA_NO_HALF_OPERATORS__",
    "-D__CUDA_NO_HALF_CONVERSIONS__",
    "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-D__CUDA_NO_HALF2_OPERATORS__",
)


class NotFound(Exception):
    """There is no usable NVRTC on this machine."""


@dataclass(frozen=True)
class ArchResult:
    """How one architecture went. `file` and `line` point into what the user wrote, where the compiler names a place."""

    arch: str
    ok: bool
    message: str = ""
    file: str | None = None
    line: int | None = None
    seconds: float = 0.0
    ptx_bytes: int = 0
    kernels: int = 0  # that were compiled, each instance of a template
    skipped: bool = False  # not tried: the reason is in `message`
    notes: list[str] = field(default_factory=list)

    @property
    def state(self) -> Literal["ok", "failed", "skipped"]:
        return "ok" if self.ok else "skipped" if self.skipped else "failed"


class Nvrtc:
    """The library, with the few calls that we need."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._library = ctypes.CDLL(path)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)

    def _call(self, name: str, *args: object) -> int:
        return int(getattr(self._library, name)(*args))

    def architectures(self) -> list[int]:
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", numbers)
        return sorted(numbers)

    def compile(self, source: str, options: Sequence[str], names: Sequence[str] = ()) -> tuple[bool, str, bytes]:
        """(whether it compiled, the compiler's log, the PTX). `names` are template instances to make."""
        program = ctypes.c_void_p()
        text = source.encode("utf-8", "replace")
        self._call("nvrtcCreateProgram", ctypes.byref(program), text, b"candidate.cu", 0, None, None)
        try:
            for name in names:
                self._call("nvrtcAddNameExpression", program, name.encode())
            flags = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
            ok = self._call("nvrtcCompileProgram", program, len(options), flags) == 0
            log = self._text(program, "nvrtcGetProgramLog").decode("utf-8", "replace")
            ptx = self._text(program, "nvrtcGetPTX") if ok else b""
            return ok, log, ptx
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, name: str) -> bytes:
        size = ctypes.c_size_t()
        if self._call(name + "Size", program, ctypes.byref(size)) != 0 or size.value == 0:
            return b""
        buffer = ctypes.create_string_buffer(size.value)
        self._call(name, program, buffer)
        return buffer.value


def _nvidia_roots() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    return [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []


def _toolkits() -> list[Path]:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    homes += sorted(glob.glob("/usr/local/cuda-*"), reverse=True) + [sys.prefix]
    return [Path(h) for h in dict.fromkeys(h for h in homes if h)]


def _libraries() -> Iterator[str]:
    for root in _nvidia_roots():
        yield from sorted(glob.glob(str(root / "cuda_nvrtc/lib/libnvrtc.so.*")))
        yield from sorted(glob.glob(str(root / "cu[0-9]*/lib/libnvrtc.so.*")))
    for home in _toolkits():
        for folder in ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"):
            yield from sorted(glob.glob(str(home / folder / "libnvrtc.so.1[0-9]")))
    yield from ("libnvrtc.so.12", "libnvrtc.so.13")


@functools.cache
def load() -> Nvrtc:
    """The NVRTC that reaches furthest back (12.x still compiles for sm_70)."""
    best: Nvrtc | None = None
    for path in dict.fromkeys(_libraries()):
        try:
            library = Nvrtc(path)
            archs = library.architectures()
        except (OSError, AttributeError):
            continue
        if archs and (best is None or (-archs[0], library.version) > (-best.architectures()[0], best.version)):
            best = library
    if best is None:
        raise NotFound("NVRTC was not found")
    return best


@functools.cache
def include_folders() -> tuple[str, ...]:
    """Where NVRTC looks for headers: ours first (they stand in for what it lacks), then NVIDIA's."""
    folders = [HEADERS]
    try:
        folders.append(cuda_include())
    except BuildError:
        pass
    for root in _nvidia_roots():
        folders += [root / "curand" / "include"]
    folders += [home / "include" for home in _toolkits() if (home / "include" / "curand_kernel.h").is_file()][:1]
    return tuple(str(f) for f in dict.fromkeys(folders) if f.is_dir())


def compile_all(
    cuda_source: str,
    archs: Sequence[str] = ARCHITECTURES,
    *,
    file: str = "candidate.cu",
    first_line: int = 1,
    flags: Sequence[str] = (),
) -> list[ArchResult]:
    """Compile the kernels of a torch extension's CUDA source for every architecture.

    `file` and `first_line` say where the source stands in what the user wrote; `flags` are the extension's
    extra_cuda_cflags, of which those that matter here are used. Raises NotFound where there is no NVRTC.
    """
    library = load()
    view = device_source(cuda_source)
    if view.not_instantiated:  # by what the text says; the host compiler knows all
        templates = {k.name for k in view.kernels if k.parameters}
        found = instances(cuda_source, templates, flags, "sm_90a" if "sm_90a" in archs else "sm_90")
        if found:
            launched = [k for k in view.kernels if not k.parameters or any(_names(name, k.name) for name in found)]
            view.kernels, view.instances, view.guesses, view.not_instantiated = launched, found, [], []
    missing = _missing_headers(view)
    supported = library.architectures()
    job = _Job(library, view, _options(flags), file, first_line)

    def one(arch: str) -> ArchResult:
        if not view.kernels:
            return ArchResult(arch, False, "no kernel was found in the source", skipped=True)
        if len(view.not_instantiated) == len({k.name for k in view.kernels}):
            reason = "it is not known with which template arguments its kernels are launched"
            return ArchResult(arch, False, reason, skipped=True)
        if missing:
            reason = f"needs <{missing[0]}>, which was not found" + _remedy(missing[0])
            return ArchResult(arch, False, reason, skipped=True)
        if int(re.sub(r"\D", "", arch)) not in supported:
            version = ".".join(map(str, library.version))
            return ArchResult(arch, False, f"NVRTC {version} does not compile for {arch}", skipped=True)
        return job.run(arch)

    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        return list(pool.map(one, archs))


def _missing_headers(view: DeviceSource) -> list[str]:
    return [h for h in view.headers if not any((Path(f) / h).is_file() for f in include_folders())]


def _remedy(header: str) -> str:
    return " (pip install nvidia-curand-cu12)" if header.startswith("curand") else ""


def _options(flags: Sequence[str]) -> list[str]:
    options = ["-default-device", "-lineinfo", "--pre-include=prelude.h", "-D_CG_LIMIT_INCLUDED_DEPENDENCIES"]
    options += [f"--include-path={folder}" for folder in include_folders()]
    options += TORCH_FLAGS
    standard = "--std=c++17"
    for flag in flags:
        if re.match(r"-[DU]\w", flag):
            if flag.startswith("-U") and "-D" + flag[2:] in options:
                options.remove("-D" + flag[2:])  # NVRTC takes definitions before undefinitions, whatever their order
            else:
                options.append(flag)
        elif flag.lstrip("-") in ("use_fast_math", "ftz=true", "fmad=false", "extra-device-vectorization"):
            options.append("--" + flag.lstrip("-"))
        elif re.fullmatch(r"--?std=c\+\+(?:17|20)", flag):
            standard = "--std=" + flag.split("=")[1]
    return [*options, standard]


_ERROR = re.compile(r"^(?P<file>[^\n(]*)\((?P<line>\d+)\): (?:catastrophic )?error[^:\n]*: (?P<text>[^\n]*)", re.M)
_PTXAS = re.compile(r"ptxas application ptx input, line (\d+); error\s*: ([^\n]*)")
_PTXAS_PLAIN = re.compile(r"ptxas (?:error|fatal)\s*: ([^\n]*)")


class _Job:
    """One source, several architectures."""

    def __init__(self, library: Nvrtc, view: DeviceSource, options: list[str], file: str, first_line: int) -> None:
        self.library = library
        self.view = view
        self.options = options
        self.file = file
        self.first_line = first_line
        quoted = file.replace("\\", "\\\\").replace('"', '\\"')
        self.text = f'#line {first_line} "{quoted}"\n' + view.text
        self._guesses: list[str] | None = None
        self._guessing = threading.Lock()

    def run(self, arch: str) -> ArchResult:
        begin = time.perf_counter()
        names = self.view.instances + self._usable_guesses(arch)
        ok, log, ptx = self._compile(arch, names)
        if not ok and names and self._nobodys_fault(log) and self._compile(arch, [])[0]:
            # The complaint is about an instance that we asked for, not about a line of the source: leave such out.
            names = [name for name in names if self._compile(arch, [name])[0]]
            ok, log, ptx = self._compile(arch, names)
        plain = sum(not k.parameters for k in self.view.kernels)
        left_out = [k.name for k in self.view.kernels if k.parameters and not any(_names(n, k.name) for n in names)]
        left_out = [name for name in dict.fromkeys(left_out) if not self._explicit(name)]
        notes = ["parsed, not instantiated: " + ", ".join(left_out)] if left_out else []
        seconds = time.perf_counter() - begin
        if ok:
            count = plain + len(names)
            return ArchResult(arch, True, seconds=seconds, ptx_bytes=len(ptx), kernels=count, notes=notes)
        message, line = self._explain(arch, names, log)
        # An error inside a header, or for want of a part of our stand-ins, says nothing about the candidate.
        skipped = self._nobodys_fault(log) or 'namespace "cub" has no member' in log
        if skipped:
            message = "could not be tried: " + message
        file = self.file if line else None
        return ArchResult(arch, False, message, file, line, seconds, skipped=skipped, notes=notes)

    def _nobodys_fault(self, log: str) -> bool:
        """Whether the compiler, not the assembler, complains, and about no line of the user's file."""
        return "ptxas" not in log and self._place(log)[1] is None and self._instantiated_from(log) is None

    def _compile(self, arch: str, names: Sequence[str]) -> tuple[bool, str, bytes]:
        return self.library.compile(self.text, [f"--gpu-architecture={arch}", *self.options], names)

    def _explicit(self, name: str) -> bool:
        return bool(re.search(rf"\btemplate\s+__global__[^;{{]*\b{name}\b", self.view.text))

    def _usable_guesses(self, arch: str) -> list[str]:
        """Guessed instances that compile; a guess that does not is ours to drop, not the source's fault."""
        if not self.view.guesses:
            return []
        with self._guessing:
            if self._guesses is None:
                usable = [g for g in self.view.guesses if self._compile(arch, [g])[0]]
                if not usable and not self._compile(arch, [])[0]:
                    return []  # nothing compiles for this architecture: ask again at the next
                self._guesses = usable
        return self._guesses

    def _place(self, log: str) -> tuple[str, int | None]:
        """The first error, at the first place in the user's own file."""
        first = ""
        for match in _ERROR.finditer(log):
            first = first or match["text"].strip()
            if self._is_ours(match["file"].strip()):
                return match["text"].strip(), int(match["line"])
        return first, None

    def _is_ours(self, file: str) -> bool:
        return file == self.file or os.path.basename(file) == os.path.basename(self.file)

    def _explain(self, arch: str, names: Sequence[str], log: str) -> tuple[str, int | None]:
        text, line = self._place(log)
        if text:
            if line is None:
                line = self._instantiated_from(log)
            return text, line
        asm = _PTXAS.search(log)
        if asm:
            return asm[2].strip(), self._line_of_ptx(arch, names, int(asm[1]))
        plain = _PTXAS_PLAIN.search(log)
        if plain:
            kernels = self.view.kernels
            named = next((k for k in kernels if re.search(rf"\d{k.name}(?![a-z_0-9])", plain[1])), None)
            message = re.sub(r"'_Z\w+'", f"'{named.name}'" if named else "", plain[1]).strip()
            return message, named.line + self.first_line - 1 if named else None
        lines = [x for x in log.splitlines() if x.strip() and "warning" not in x]
        return (lines[0].strip() if lines else "the compiler failed without a message"), None

    def _instantiated_from(self, log: str) -> int | None:
        found = re.search(r'at line (\d+)(?: of "?([^"\n]*)"?)?', log)
        return int(found[1]) if found and self._is_ours((found[2] or self.file).strip()) else None

    def _line_of_ptx(self, arch: str, names: Sequence[str], ptx_line: int) -> int | None:
        """The source line of a line of PTX: the last .loc before it that lies in the user's file."""
        virtual = arch.replace("sm_", "compute_")
        ok, _, ptx = self._compile(virtual, names)
        if not ok:
            return None
        lines = ptx.decode("utf-8", "replace").splitlines()
        files = [re.match(r'\s*\.file\s+(\d+)\s+"([^"]*)"', text) for text in lines]
        ours = {m[1] for m in files if m and self._is_ours(m[2])}
        for text in reversed(lines[:ptx_line]):
            location = re.match(r"\s*\.loc\s+(\d+)\s+(\d+)", text)
            if location and location[1] in ours:
                return int(location[2])
            inlined = re.search(r"inlined_at\s+(\d+)\s+(\d+)", text)
            if inlined and inlined[1] in ours:
                return int(inlined[2])
            if re.match(r"\.(?:visible|weak)?\s*\.?(?:entry|func)\b", text):
                break
        return None


def _names(expression: str, kernel: str) -> bool:
    return expression.split("<", 1)[0].strip().rpartition("::")[2] == kernel
