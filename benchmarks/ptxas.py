"""What ptxas says of a generated file's kernels: registers, spills, static shared memory. Needs nvcc, no GPU."""

from __future__ import annotations

import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from crucible.build.macros import flags_for  # noqa: E402

__all__ = ["NvccError", "Usage", "flags_for", "nvcc", "parse", "short_name", "table", "usage"]
# Tile types of the engines on tensor cores: their kernels must keep everything in registers.
TENSOR_CORES = re.compile(r"\b(?:Mma|Window|Gradient|GradientGroups|Warpgroups|Ready|Strips|Split|WgmmaTile|Holding)<")
_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '(\w+)'")
_PROPERTIES = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


class NvccError(Exception):
    """nvcc is not there, or refused; the message has its last lines."""


@dataclass(frozen=True)
class Usage:
    """Of one kernel."""

    part: str  # "forward" or "backward"
    name: str
    arch: str
    registers: int = 0
    stack: int = 0
    stores: int = 0  # bytes spilled
    loads: int = 0
    shared: int = 0

    @property
    def spills(self) -> bool:
        return self.stores > 0 or self.loads > 0

    @property
    def tensor_cores(self) -> bool:
        return TENSOR_CORES.search(self.name) is not None

    @property
    def short(self) -> str:
        return short_name(self.name)


def nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME")
    own = shutil.which(str(Path(home) / "bin" / "nvcc")) if home else None
    return own or shutil.which("nvcc")


def usage(sources: dict[str, str], arch: str, flags: Sequence[str]) -> list[Usage]:
    """All kernels of a file's parts, compiled for one chip."""
    compiler = nvcc()
    if compiler is None:
        raise NvccError("nvcc was not found; install a CUDA toolkit, or set CUDA_HOME")
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:

        def one(part: str) -> list[Usage]:
            file = Path(folder) / f"{part}.cu"
            file.write_text(sources[part])
            command = [compiler, "-cubin", f"-arch={arch}", "-O3", "-std=c++17", *flags, "-Xptxas", "-v"]
            command += [str(file), "-o", str(file.with_suffix(".cubin"))]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-12:])
                raise NvccError(f"nvcc does not compile the {part} part for {arch}:\n{said}")
            return parse(part, demangled(done.stdout + done.stderr))

        return [u for found in pool.map(one, sources) for u in found]


def demangled(text: str) -> str:
    """Names as people write them, where a tool for that is there."""
    tool = shutil.which("c++filt") or shutil.which("cu++filt")
    if tool is None:
        return text
    return subprocess.run([tool], input=text, capture_output=True, text=True, check=True).stdout


def parse(part: str, said: str) -> list[Usage]:
    """The kernels in what ptxas said with -v."""
    found: list[dict[str, Any]] = []
    for line in said.splitlines():
        entry, properties, used = _ENTRY.search(line), _PROPERTIES.search(line), _USED.search(line)
        if entry:
            found.append({"part": part, "name": entry.group(1), "arch": entry.group(2)})
        elif found and properties:
            # Of functions that are called too: the most counts.
            for key, value in zip(("stack", "stores", "loads"), map(int, properties.groups())):
                found[-1][key] = max(value, found[-1].get(key, 0))
        elif found and used:
            shared = _SHARED.search(line)
            found[-1].update(registers=int(used.group(1)), shared=int(shared.group(1)) if shared else 0)
    return [Usage(**row) for row in found]


def short_name(name: str) -> str:
    """``pair_kernel<Warpgroups<1, 2, 0, 1, 16, 1>, true>`` of ``contract_1``, without namespaces and arguments."""
    text = re.sub(r"\((?:crucible::)?(?:\w+::)*\w+\)(?=\d)", "", name)  # casts of enumerators
    text = re.sub(r"\b(?:crucible|\(anonymous namespace\))::", "", text.removeprefix("void "))
    depth = 0
    for at, c in enumerate(text):
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0:
            text = text[:at]
            break
    stage = re.search(r"(?:^|[<, ])((?:contract|rows|map)_\d+)>$", text)
    if stage is None:
        return text
    inner = text[: stage.start(1)].rstrip(", ")
    inner = inner[:-1] if inner.endswith("<") else f"{inner}>"
    return f"{stage.group(1)}: {inner}"


def table(rows: Sequence[Usage]) -> str:
    """A line a kernel; spills are marked."""
    names = [f"{r.part:8}  {r.short}" for r in rows]
    width = max((len(n) for n in names), default=6)
    lines = [f"{'kernel':{width}}  registers  spilled, bytes  static shared memory, bytes"]
    for name, r in zip(names, rows):
        spilled = f"{r.stores} + {r.loads}" if r.spills else "0"
        mark = "  SPILLS" if r.spills else ""
        lines.append(f"{name:{width}}  {r.registers:9}  {spilled:>14}  {r.shared:27}{mark}")
    return "\n".join(lines)
