"""``load_inline`` and ``load`` for the simulator: same arguments, same complaints, another compiler."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import inspect
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from crucible.build.errors import BuildError
from crucible.build.extension import Built, Chunk, Extension, binding_library
from crucible.build.server import request
from crucible.sim.architecture import HOPPER, PLAIN, requested
from crucible.sim.source import mask, scan

Sources = str | Sequence[str] | None

BUILDS: list[dict[str, Any]] = []  # one record a call, in order: what was asked, and what came of it
TIMEOUT_VARIABLE = "CRUCIBLE_BUILD_TIMEOUT"
_failed: dict[str, BuildError] = {}
_capability, _architecture = (9, 0), PLAIN


def build_for(capability: tuple[int, int], architecture: str) -> None:
    """What the simulated device is, and the architecture of builds whose flags and environment name none."""
    global _capability, _architecture
    _capability, _architecture = capability, architecture


def load_inline(
    name: str,
    cpp_sources: Sources,
    cuda_sources: Sources = None,
    functions: str | Sequence[str] | Mapping[str, str] | None = None,
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str] | None = None,
    is_python_module: bool = True,
    **_: Any,
) -> ModuleType:
    """What ``torch.utils.cpp_extension.load_inline`` does, for the simulated device."""
    cpp, cuda = _texts(cpp_sources), _texts(cuda_sources)
    if isinstance(functions, str):
        functions = [functions]
    named = None if functions is None else tuple(functions.items() if isinstance(functions, Mapping) else
                                                 ((f, f) for f in functions))  # fmt: skip
    flags = [*(extra_cflags or ()), *(extra_cuda_cflags or ()), *(f"-I{p}" for p in extra_include_paths or ())]
    return _load(name, cpp, cuda, named, flags, _callers_file(), requested(extra_cuda_cflags or (), _architecture))


def load(
    name: str,
    sources: str | Sequence[str],
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str] | None = None,
    **_: Any,
) -> ModuleType:
    """What ``torch.utils.cpp_extension.load`` does: the sources are files."""
    paths = [Path(p) for p in ([sources] if isinstance(sources, (str, Path)) else sources)]
    flags = [*(extra_cflags or ()), *(extra_cuda_cflags or ()), *(f"-I{p}" for p in extra_include_paths or ())]
    cpp = [p.read_text() for p in paths if p.suffix not in (".cu", ".cuh")]
    cuda = [p.read_text() for p in paths if p.suffix in (".cu", ".cuh")]
    architecture = requested(extra_cuda_cflags or (), _architecture)
    return _load(name, cpp, cuda, None, flags, paths[0] if len(paths) == 1 else None, architecture)


def _texts(sources: Sources) -> list[str]:
    return [sources] if isinstance(sources, str) else list(sources or ())


def _callers_file() -> Path | None:
    """The file that called load_inline: reports should speak of its lines."""
    for frame in inspect.stack()[2:]:
        path = Path(frame.filename)
        if path.suffix == ".py" and "torch" not in path.parts and path.is_file():
            return path
    return None


def locate(text: str, file: Path | None, label: str) -> Chunk:
    """Where ``text`` stands in ``file``: by the whole text, else by its first telling line; else a name of its own."""
    if file is not None:
        try:
            whole = file.read_text(errors="replace")
        except OSError:
            whole = ""
        at = whole.find(text)
        if at >= 0 and text.strip():
            return Chunk(text, file.name, whole.count("\n", 0, at) + 1)
        for offset, line in enumerate(text.split("\n")):
            if len(line.strip()) > 24 and whole.count(line) == 1:  # built with a format or escapes: one line will do
                number = whole.count("\n", 0, whole.find(line)) + 1
                return Chunk(text, file.name, max(1, number - offset))
    return Chunk(text, label, 1)


def _load(
    name: str,
    cpp: list[str],
    cuda: list[str],
    functions: tuple[tuple[str, str], ...] | None,
    flags: list[str],
    file: Path | None,
    architecture: str,
) -> ModuleType:
    record: dict[str, Any] = {"name": name, "ok": False, "seconds": 0.0, "error": None, "kernels": [], "launched": []}
    BUILDS.append(record)
    start = time.perf_counter()
    try:
        facts = scan("\n".join(cuda))
        record["kernels"] = sorted(facts.kernels)
        record["launched"] = sorted(facts.launched)
        spec = Extension(
            name=name,
            cpp=tuple(locate(t, file, "cpp_sources") for t in cpp if t.strip()),
            cuda=tuple(locate(t, file, "cuda_sources") for t in cuda if t.strip()),
            functions=functions,
            flags=tuple(f for f in flags if re.match(r"-[DIU]", f)),
            architecture=architecture,
            timeout=float(os.environ.get(TIMEOUT_VARIABLE, "180")),
            folder=str(file.parent) if file else "",
        )
        if spec.key() in _failed:  # some files build in forward(), or once a layer: they ask again and again
            raise _failed[spec.key()]
        try:
            refuse_misuse(spec)
            built = request(spec)
        except BuildError as error:
            _failed[spec.key()] = error
            raise
        record["seconds_building"] = built.seconds
        module = _import(built)
        record["ok"] = True
        return module
    except BuildError as error:
        record["error"] = error.to_json()
        raise
    finally:
        record["seconds"] = time.perf_counter() - start


def refuse_misuse(spec: Extension) -> None:
    """What load_inline (or nvcc behind it) would reject on a GPU machine, said in one line with a remedy."""
    if spec.architecture == HOPPER and _capability != (9, 0):
        raise BuildError(
            "load_inline_misuse",
            f"the extension is compiled for {HOPPER}, which runs on chips of compute capability 9.0 only; this device "
            f"has {_capability[0]}.{_capability[1]}",
        )
    cuda = "\n".join(mask(c.text) for c in spec.cuda)
    cpp = "\n".join(mask(c.text) for c in spec.cpp)
    modules = len(re.findall(r"\bPYBIND11_MODULE\s*\(", cuda + cpp))
    if modules > 1 or (modules == 1 and spec.functions):
        raise _misuse(
            spec,
            r"\bPYBIND11_MODULE\s*\(",
            "two modules in one extension: load_inline writes a PYBIND11_MODULE for functions=, the source has its own"
            if modules == 1
            else f"{modules} PYBIND11_MODULE blocks in one extension",
            "keep one PYBIND11_MODULE and no functions=, or functions= and no PYBIND11_MODULE",
        )
    if modules == 0 and not spec.functions:
        raise BuildError(
            "load_inline_misuse",
            "the extension binds no function: there is neither functions= nor a PYBIND11_MODULE",
            hint="pass functions=[...] with the names of the host functions to call",
        )
    for name, _ in spec.functions or ():
        if re.search(rf"__global__[^;{{}}()]*\b{re.escape(name)}\s*\(", cuda):
            raise _misuse(
                spec,
                rf"\b{re.escape(name)}\s*\(",
                f"functions= names `{name}`, which is a __global__ kernel; Python can only call host functions",
                "name the host function that launches it",
            )
        if not re.search(rf"\b{re.escape(name)}\s*\(", cpp):
            raise _misuse(
                spec,
                rf"\b{re.escape(name)}\s*\(",
                f"functions= names `{name}`, which cpp_sources does not declare",
                f"add its declaration to cpp_sources, e.g. `torch::Tensor {name}(...);`",
            )


def _misuse(spec: Extension, pattern: str, message: str, hint: str) -> BuildError:
    """A misuse error at the last place where ``pattern`` occurs."""
    for chunk in (*reversed(spec.cuda), *reversed(spec.cpp)):
        hits = list(re.finditer(pattern, mask(chunk.text)))
        if hits:
            offset = chunk.text.count("\n", 0, hits[-1].start())
            return BuildError(
                "load_inline_misuse",
                message,
                file=chunk.file,
                line=chunk.line + offset,
                source_line=chunk.text.split("\n")[offset],
                hint=hint,
            )
    return BuildError("load_inline_misuse", message, hint=hint)


def _import(built: Built) -> ModuleType:
    from crucible.sim.kernel import register_module

    register_module(str(built.library))
    try:
        if not built.pybind11:
            loader_module = _extension_module("crucible_binding", binding_library())
            return cast(ModuleType, loader_module.load(str(built.library), built.module))
        return _extension_module(built.module, built.library)
    except ImportError as error:
        symbol = re.search(r"undefined symbol: (\S+)", str(error))
        what = f"`{_demangle(symbol.group(1))}` is declared and used but defined nowhere" if symbol else str(error)
        raise BuildError("link_error", what, hint="define it, or remove its declaration and calls") from error


def _extension_module(name: str, library: Path) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    loader = importlib.machinery.ExtensionFileLoader(name, str(library))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[name] = module
    return module


def _demangle(symbol: str) -> str:
    import shutil
    import subprocess

    tool = shutil.which("c++filt")
    if not tool:
        return symbol
    return subprocess.run([tool, symbol], capture_output=True, text=True, check=False).stdout.strip() or symbol
