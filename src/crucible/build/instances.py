"""Which instances of its kernel templates CUDA source launches: the host compiler knows, whoever deduces the arguments.

The source is compiled as for the simulator, without its checks and without optimisation, and the symbols of the object
are read. That takes a second or two where the source does without torch's headers.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

from crucible.build import toolchain
from crucible.build.errors import BuildError
from crucible.build.extension import Chunk, Extension, without_checks

LIMIT = 180.0


def instances(source: str, kernels: Collection[str], flags: Sequence[str], architecture: str) -> list[str]:
    """Such as ``space::k<float, 256>``; none where the source does not compile on its own."""
    defined = tuple(f for f in flags if re.match(r"-[DU]\w", f))
    chunk = Chunk(source, "source.cu", 1)
    extension = Extension("instances", cuda=(chunk,), flags=defined, architecture=architecture)
    with tempfile.TemporaryDirectory() as folder:
        made = f"{folder}/source.o"
        try:
            (unit,), options = without_checks(extension)
            (Path(folder) / "source.cpp").write_text(unit)
            command = [toolchain.gxx(), *options, "-O0", "-c", f"{folder}/source.cpp", "-o", made]
            code, _ = toolchain.run(command, timeout=LIMIT, cwd=folder)
            listed = ["nm", "-C", "--defined-only", made]
            symbols = "" if code else subprocess.run(listed, capture_output=True, text=True, check=False).stdout
        except (BuildError, OSError):
            return []
    return among(symbols, kernels)


def among(symbols: str, kernels: Collection[str]) -> list[str]:
    """Instances of these kernels in what ``nm -C`` lists; not of what is defined inside of them."""
    found: dict[str, None] = {}
    for line in symbols.splitlines():
        name = re.sub(r"^[0-9a-f]*\s+\w\s+", "", line).removeprefix("void ").replace("(anonymous namespace)::", "")
        end = _parameters(name)
        if end < 0 or not name.endswith(")") or "::{lambda" in name[end:]:
            continue
        name = name[:end]
        if "<" in name and name.partition("<")[0].rpartition("::")[2] in kernels:
            found[name] = None
    return sorted(found)


def _parameters(name: str) -> int:
    """Where a function's parameters begin: the first ( outside of its template's arguments."""
    depth = 0
    for at, sign in enumerate(name):
        if sign == "(" and depth == 0:
            return at
        depth += (sign in "<(") - (sign in ">)")
    return -1
