"""Build one torch extension for the simulator: rewritten CUDA source -> g++ -> a shared library, cached by content.

The costly part, torch's headers, is precompiled once per set of flags; a fixed glue library (the device behind torch)
is built once. Errors come back as :class:`BuildError` with the line of the user's own file.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from crucible.build import cache, prebuilt, toolchain
from crucible.build.diagnostics import explain
from crucible.build.errors import BuildError
from crucible.build.runtime import DEVICE_FLAGS, LINK_FLAGS, runtime_library

SIM = Path(__file__).resolve().parent.parent / "sim"
TORCH_GLUE = SIM / "torch"
PRECOMPILED_KEPT = 8  # up to half a gigabyte each; one a flavour and version in use


@dataclass(frozen=True)
class Chunk:
    """A piece of source text and where it stands in the user's file (bare name: folders do not matter)."""

    text: str
    file: str
    line: int


@dataclass(frozen=True)
class Extension:
    """What a ``load_inline`` call asked for."""

    name: str
    cpp: tuple[Chunk, ...] = ()
    cuda: tuple[Chunk, ...] = ()
    functions: tuple[tuple[str, str], ...] | None = None
    flags: tuple[str, ...] = ()
    architecture: str = "sm_90"
    timeout: float = 180.0
    folder: str = ""  # where the user's file lies, for messages only

    def key(self) -> str:
        """What the build depends on."""
        return repr((self.name, self.cpp, self.cuda, self.functions, self.flags, self.architecture))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Extension:
        functions = data.get("functions")
        return cls(
            name=data["name"],
            cpp=tuple(Chunk(**c) for c in data["cpp"]),
            cuda=tuple(Chunk(**c) for c in data["cuda"]),
            functions=None if functions is None else tuple((f, d) for f, d in functions),
            flags=tuple(data["flags"]),
            architecture=data["architecture"],
            timeout=float(data["timeout"]),
            folder=data["folder"],
        )


@dataclass(frozen=True)
class Built:
    """A finished library: ``module`` is its Python name; without ``pybind11`` our own loader finds its functions."""

    module: str
    library: Path
    pybind11: bool
    seconds: float
    cached: bool


@dataclass(frozen=True)
class Flavour:
    """How much of torch's C++ an extension is compiled with; each is seconds slower than the one before."""

    name: str
    defines: tuple[str, ...]
    precompiled: bool


# load_inline compiles so on a GPU machine: operators on __half are torch's there, unless a file asks for NVIDIA's.
NO_HALF = tuple(
    f"-D__CUDA_NO_{what}__"
    for what in ("HALF_OPERATORS", "HALF_CONVERSIONS", "BFLOAT16_CONVERSIONS", "HALF2_OPERATORS")
)
BARE = Flavour("bare", (*NO_HALF, "-DCRUCIBLE_BARE"), True)
THIN = Flavour("thin", (*NO_HALF, "-DCRUCIBLE_THIN"), True)
LEAN = Flavour("lean", NO_HALF, True)
PYBIND11 = Flavour("pybind11", (*NO_HALF, "-DCRUCIBLE_PYBIND11"), True)
WHOLE = Flavour("whole", (*NO_HALF, "-DCRUCIBLE_PYBIND11", "-DCRUCIBLE_FULL_TORCH"), False)
OWN_BINDING = (BARE, THIN, LEAN)  # those that offer their functions without pybind11


def _include_flags() -> list[str]:
    flags = [f"-I{TORCH_GLUE / 'include'}", f"-I{SIM / 'include'}"]
    for folder in (*toolchain.torch_includes(), str(toolchain.cuda_include())):
        flags += ["-isystem", folder]
    return flags


def _header_texts() -> list[bytes]:
    files = sorted(p for root in (TORCH_GLUE / "include", SIM / "include") for p in root.rglob("*") if p.is_file())
    return [str(p.relative_to(SIM)).encode() + b"\0" + p.read_bytes() for p in files]


def _versions() -> list[str]:
    import importlib.metadata

    return [
        importlib.metadata.version("torch"),
        toolchain.gxx_version(),
        str(toolchain.cuda_include()),
        sys.version.split()[0],
    ]


def precompiled_header(flavour: Flavour = LEAN, timeout: float = 600.0) -> Path:
    """The folder that holds the precompiled prefix header (about 20 s and half a gigabyte, once a flavour)."""

    def build(folder: Path) -> None:
        source = TORCH_GLUE / "include" / "crucible_torch.h"
        (folder / "crucible_torch.h").write_bytes(source.read_bytes())
        command = [
            toolchain.gxx(), *DEVICE_FLAGS, *flavour.defines, *_include_flags(),
            "-x", "c++-header", str(folder / "crucible_torch.h"), "-o", str(folder / "crucible_torch.h.gch"),
        ]  # fmt: skip
        code, log = toolchain.run(command, timeout=timeout)
        if code:
            raise BuildError("compile_error", "the simulator's own headers do not compile here", log=log)

    key = cache.content_key(*DEVICE_FLAGS, *flavour.defines, *_versions(), *_header_texts())
    known = cache.entry_path("pch", key).is_dir()
    place = cache.entry("pch", key, build)
    if not known:
        cache.keep_newest("pch", PRECOMPILED_KEPT)
    return place


def glue_library(timeout: float = 600.0) -> Path:
    """The library that gives a CPU build of torch a simulated CUDA device (about 13 s, once)."""
    if (given := prebuilt.find("glue")) is not None:
        return given
    sources = sorted(TORCH_GLUE.glob("*.cpp"))

    def build(folder: Path) -> None:
        runtime = runtime_library()
        includes = [flag for p in toolchain.torch_includes() for flag in ("-isystem", p)]
        command = [
            toolchain.gxx(), "-std=gnu++20", "-O1", "-fPIC", "-shared", "-w", toolchain.ROOMY, *includes,
            *map(str, sources), "-o", str(folder / "libcrucible_torch.so"), "-Wl,-soname,libcrucible_torch.so",
            str(runtime), f"-Wl,-rpath,{runtime.parent}",
            f"-L{toolchain.torch_lib()}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{toolchain.torch_lib()}",
        ]  # fmt: skip
        code, log = toolchain.run(command, timeout=timeout)
        if code:
            raise BuildError("compile_error", "the simulated device does not compile against this torch", log=log)

    texts = [p.read_bytes() for p in (*sources, *sorted(TORCH_GLUE.glob("*.h")))]
    key = cache.content_key(*_versions(), str(runtime_library()), *texts)
    return cache.entry("glue", key, build) / "libcrucible_torch.so"


def binding_library(timeout: float = 600.0) -> Path:
    """The Python module that loads lean extensions (about 16 s, once); needs torch's Python library."""
    if (given := prebuilt.find("binding")) is not None:
        return given
    source = TORCH_GLUE / "binding" / "binding.cpp"
    headers = [TORCH_GLUE / "include" / name for name in ("crucible_bind.h", "crucible_bind_bare.h")]

    def build(folder: Path) -> None:
        includes = [flag for p in toolchain.torch_includes() for flag in ("-isystem", p)]
        command = [
            toolchain.gxx(), "-std=gnu++20", "-O1", "-fPIC", "-shared", "-w", toolchain.ROOMY, f"-I{headers[0].parent}",
            *includes, str(source),
            "-o", str(folder / "crucible_binding.so"), f"-L{toolchain.torch_lib()}", "-lc10", "-ltorch_cpu",
            "-ltorch_python", f"-Wl,-rpath,{toolchain.torch_lib()}",
        ]  # fmt: skip
        code, log = toolchain.run(command, timeout=timeout)
        if code:
            raise BuildError("compile_error", "the extension loader does not compile against this torch", log=log)

    key = cache.content_key(*_versions(), source.read_bytes(), *(h.read_bytes() for h in headers))
    return cache.entry("binding", key, build) / "crucible_binding.so"


# A module that only lists plain functions needs nothing of pybind11, and its headers would triple the compile.
_PYBIND11_HEADER = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<pybind11/pybind11\.h>", re.M)


def _unit(module: str, chunks: tuple[Chunk, ...], binding: str, flavour: Flavour, architecture: str) -> str:
    from crucible.sim.architecture import macros
    from crucible.sim.source import rewrite

    parts = [
        '#include "crucible_torch.h"',
        macros(architecture),
        "#undef TORCH_EXTENSION_NAME",
        f"#define TORCH_EXTENSION_NAME {module}",
    ]
    for chunk in chunks:
        parts.append(f'#line {chunk.line} "{chunk.file}"')
        text = _PYBIND11_HEADER.sub("", chunk.text) if flavour in OWN_BINDING else chunk.text
        parts.append(rewrite(text, chunk.file, chunk.line))
    if binding:
        parts.append('#line 1 "functions= list of load_inline"')
        parts.append(binding)
    return "\n".join(parts) + "\n"


def _binding(functions: tuple[tuple[str, str], ...]) -> str:
    lines = [f'  m.def("{name}", &{name}, {_quoted(doc)});' for name, doc in functions]
    return "\n".join(["PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {", *lines, "}"])


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _masked(chunks: tuple[Chunk, ...]) -> str:
    from crucible.sim.source import mask

    return "\n".join(mask(c.text) for c in chunks)


def _only_declares(chunks: tuple[Chunk, ...]) -> bool:
    """Whether the C++ side holds nothing but declarations, so that it can share a unit with the CUDA side.

    Across two units static helpers may be defined twice and default arguments repeated; in one unit they clash.
    """
    text = re.sub(r"\bPYBIND11_MODULE\s*\([^)]*\)\s*\{[^{}]*\}", "", _masked(chunks))
    return "{" not in text and "=" not in text and "#" not in re.sub(r"#\s*(include|pragma)\b", "", text)


def _units(spec: Extension, module: str, flavour: Flavour) -> list[tuple[str, str]]:
    """Translation units as (name, text): two as in load_inline itself, one where that makes no difference."""
    binding = _binding(spec.functions) if spec.functions else ""
    if spec.cuda and _only_declares(spec.cpp):
        return [("extension.cpp", _unit(module, spec.cpp + spec.cuda, binding, flavour, spec.architecture))]
    units = []
    if spec.cpp or binding:
        units.append(("main.cpp", _unit(module, spec.cpp, binding, flavour, spec.architecture)))
    if spec.cuda:
        units.append(("cuda.cpp", _unit(module, spec.cuda, "", flavour, spec.architecture)))
    return units


def without_checks(spec: Extension) -> tuple[list[str], list[str]]:
    """The texts of the units, and flags to compile them with where nothing is run: without the simulator's checks."""
    flavour = _first_flavour(spec)
    checks = re.compile(r"-fsanitize|-g|--param|-O")
    flags = [*(f for f in DEVICE_FLAGS if not checks.match(f)), *flavour.defines, *_include_flags(), *spec.flags]
    return [text for _, text in _units(spec, spec.name, flavour)], flags


def _compile(
    spec: Extension, units: list[tuple[str, str]], folder: Path, flavour: Flavour, run: toolchain.Runner
) -> list[str]:
    """Compile every unit (side by side); the object files, or the first error explained."""
    undefined = {f[2:] for f in spec.flags if f.startswith("-U")}
    flavour = replace(flavour, defines=tuple(d for d in flavour.defines if d[2:] not in undefined))
    prefix = list(flavour.defines)
    if flavour.precompiled:
        prefix.append(f"-I{precompiled_header(flavour)}")
    failures: dict[int, BuildError | tuple[int, str]] = {}
    objects = []

    def one(index: int, path: Path) -> None:
        command = [
            toolchain.gxx(), *DEVICE_FLAGS, *prefix, *_include_flags(), *spec.flags, "-c", str(path), "-o", f"{path}.o",
            f"-fdebug-prefix-map={folder}=.",  # a line is known by the user's file, wherever it was compiled
        ]  # fmt: skip
        try:
            code, log = run(command, timeout=spec.timeout, cwd=str(folder))
            if code:
                failures[index] = (code, log)
        except BuildError as error:
            failures[index] = error

    threads = []
    for index, (name, text) in enumerate(units):
        path = folder / name
        path.write_text(text)
        objects.append(f"{path}.o")
        threads.append(threading.Thread(target=one, args=(index, path)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    for index in sorted(failures):
        failure = failures[index]
        if isinstance(failure, BuildError):
            raise failure
        raise explain(*failure, folder=spec.folder)
    return objects


# Names and headers of torch. A source without them (fused files hand over pointers and sizes) compiles in a third of
# the time without torch; one that speaks of nothing but THIN_NAMES, as most do, in half of it with crucible_thin.h.
# Where that fails because the source had relied on something else of torch's all the same, there is more of it to try.
_MACRO = r"\b(?:AT_(?:ASSERT|CHECK|CUDA|DISPATCH|ERROR|EXPAND|FORALL|WARN)|TORCH_|C10_)(?!EXTENSION_NAME\b)\w*"
_SPEAKS_TORCH = re.compile(rf"\b(?:torch|at|c10|py|pybind11)\s*::|[<\"](?:torch|ATen|c10|pybind11)/|{_MACRO}")
_NAME = re.compile(rf"\b(torch|at|c10)\s*::\s*(\w+)|({_MACRO})")
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]((?:torch|ATen|c10)/[^>\"]*)", re.M)
_THIN_INCLUDES = {
    "ATen/AccumulateType.h", "ATen/Dispatch.h", "ATen/OpMathType.h", "ATen/ceil_div.h", "ATen/core/Tensor.h",
    "c10/util/BFloat16.h", "c10/util/Exception.h", "c10/util/Half.h",
}  # fmt: skip
_THIN_MACROS = re.compile(r"AT_DISPATCH_\w+|AT_CUDA_CHECK|TORCH_(?:CHECK\w*|CUDA_CHECK|WARN)|C10_CUDA_\w+")
_THIN_MAKERS = {
    "empty", "empty_like", "empty_strided", "full", "full_like", "ones", "ones_like", "zeros", "zeros_like",
}  # fmt: skip
_THIN_NAMES = {
    "ArrayRef", "BFloat16", "CppTypeToScalarType", "DefaultPtrTraits", "Device", "DeviceType", "Dtype", "Half",
    "IntArrayRef", "MemoryFormat", "PackedTensorAccessor32", "PackedTensorAccessor64", "RestrictPtrTraits", "Scalar",
    "ScalarType", "Tensor", "TensorAccessor", "TensorOptions", "acc_type", "ceil_div", "cuda", "device", "device_of",
    "dtype", "elementSize", "nullopt", "opmath_type", "optional", "toAccumulateType", "toString",
}  # fmt: skip
_CONSTANT = re.compile(r"k[A-Z]\w*")


def _thin_enough(text: str) -> bool:
    """Whether crucible_thin.h has all that a source names of torch."""
    for header in _INCLUDE.findall(text):
        if header not in _THIN_INCLUDES and not (TORCH_GLUE / "include" / header).is_file():
            return False
    if re.search(r"\busing\s+namespace\s+(?:torch|at|c10)\b", text):
        return False
    for space, name, macro in _NAME.findall(text):
        if macro:
            known = _THIN_MACROS.fullmatch(macro) is not None
        else:
            known = name in _THIN_NAMES or _CONSTANT.fullmatch(name) is not None
            known = known or (space == "torch" and name in _THIN_MAKERS)
        if not known:
            return False
    return True


def _first_flavour(spec: Extension) -> Flavour:
    text = _PYBIND11_HEADER.sub("", _masked(spec.cpp + spec.cuda))
    if re.search(r"\bpy::|\bpybind11::|<pybind11/|\btorch/python\.h", text):
        return PYBIND11
    if not _SPEAKS_TORCH.search(text):
        return BARE
    return THIN if _thin_enough(text) else LEAN


# What a compiler says of something that it does not know; anything else is wrong with more of torch's headers too.
_UNKNOWN = re.compile(
    r"not (?:a member|been declared|declared)|does not name|no (?:match|member|type|known)|incomplete|undefined"
    r"|convert|conversion|crucible|the simulator's own headers|No such file"
)


def _needs_more(error: BuildError, flavour: Flavour) -> Flavour | None:
    """The next flavour to try, where the error says that something outside this one is missing."""
    if error.kind != "compile_error":
        return None
    if flavour is BARE:
        return THIN
    if flavour is THIN:
        return LEAN if _UNKNOWN.search(f"{error}\n{error.log}") else None
    if re.search(r"torch::(nn|autograd|jit|optim|data)\b|not a member of .torch.", error.log) and flavour is not WHOLE:
        return WHOLE
    if flavour is LEAN and re.search(r"crucible::bind|crucible_fill|pybind", error.log):
        return PYBIND11
    return None


def build(spec: Extension, run: toolchain.Runner = toolchain.run) -> Built:
    """Build ``spec`` or find it in the cache, compiling through ``run``. Raises :class:`BuildError`."""
    start = time.perf_counter()
    # Not the runtime's and the glue's code: an extension knows their headers and finds them by name, already loaded.
    key = cache.content_key(spec.key(), *DEVICE_FLAGS, *LINK_FLAGS, *_versions(), cache.content_key(*_header_texts()))
    module = f"{re.sub(r'[^0-9A-Za-z_]', '_', spec.name)[:40]}_{key[:10]}"
    cached = cache.entry_path("extensions", key).is_dir()

    def make(folder: Path) -> None:
        flavour: Flavour = _first_flavour(spec)
        while True:
            try:
                objects = _compile(spec, _units(spec, module, flavour), folder, flavour, run)
                break
            except BuildError as error:
                more = _needs_more(error, flavour)
                if more is None:
                    raise
                flavour = more
        runtime = runtime_library()
        command = [
            toolchain.gxx(), "-shared", *LINK_FLAGS, *objects, "-o", str(folder / f"{module}.so"),
            str(runtime), *([] if flavour is BARE else [str(glue_library()), *_torch_libraries(flavour)]),
        ]  # fmt: skip
        code, log = run(command, timeout=spec.timeout, cwd=str(folder))
        if code:
            raise BuildError("link_error", _link_message(log), log=log)
        for made in objects:
            Path(made).unlink()
        (folder / "flavour").write_text(flavour.name)

    place = cache.entry("extensions", key, make)
    pybind11 = (place / "flavour").read_text() not in {flavour.name for flavour in OWN_BINDING}
    return Built(module, place / f"{module}.so", pybind11, time.perf_counter() - start, cached)


def _torch_libraries(flavour: Flavour) -> list[str]:
    names = ["-lc10", "-ltorch_cpu", "-ltorch", *([] if flavour in OWN_BINDING else ["-ltorch_python"])]
    return [f"-L{toolchain.torch_lib()}", *names, f"-Wl,-rpath,{toolchain.torch_lib()}"]


def _link_message(log: str) -> str:
    twice = re.search(r"multiple definition of `([^']+)'", log)
    if twice:
        return f"`{twice.group(1)}` is defined twice"
    missing = re.search(r"undefined reference to `([^']+)'", log)
    return f"`{missing.group(1)}` is used but defined nowhere" if missing else "the extension does not link"
