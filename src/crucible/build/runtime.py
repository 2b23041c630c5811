"""Build the simulator's runtime library, and the one list of compiler flags for device code.

The library is compiled once per content of its sources and kept in the cache; everything that runs on the simulator
links it.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from crucible.build import cache, prebuilt, toolchain
from crucible.build.errors import BuildError

SIM = Path(__file__).resolve().parent.parent / "sim"


def _processor_flags() -> tuple[str, ...]:
    """nvcc contracts a * b + c into one operation; where the processor can, so do we."""
    if platform.machine() != "x86_64":
        return ("-ffp-contract=fast",)
    try:
        fma = re.search(r"^flags\b.*\bfma\b", Path("/proc/cpuinfo").read_text(), re.M) is not None
    except OSError:
        fma = False
    return ("-fcf-protection=none", *(("-mfma", "-ffp-contract=fast") if fma else ()))


def _sanitizer_flags() -> tuple[str, ...]:
    """Calls into the runtime before every load and store.

    g++ 10 cannot tell volatile accesses apart: a loop that polls volatile memory then ends as ``kernel_time``.
    """
    try:
        major = int(toolchain.gxx_version().split(".")[0] or 0)
    except (BuildError, ValueError):
        major = 0
    finer = ("--param=tsan-distinguish-volatile=1", "--param=tsan-instrument-func-entry-exit=0")
    return ("-fsanitize=thread", *(finer if major != 10 else ()), "-fsanitize=alignment,bounds,signed-integer-overflow")


# Device code is instrumented (libtsan and libubsan are never linked: the runtime supplies the hooks). -O1 compiles
# fastest; -g1 is enough to find the source line of an instruction (DWARF 4, because addr2line loses file names given by
# #line in version 5). Where variables live is left out of -g1, but found first, in a sixth of the time, unless told not
# to. -fwrapv would switch the overflow checks off.
DEVICE_FLAGS: tuple[str, ...] = (
    "-std=gnu++20",
    "-O1",
    "-g1",
    "-gdwarf-4",
    "-fno-var-tracking",
    "-fPIC",
    "-w",
    "-fno-strict-aliasing",
    "-fno-stack-protector",
    "-fno-gnu-unique",  # two files may have templates, and shared arrays in them, of the same name
    "-fno-math-errno",
    toolchain.ROOMY,
    *_processor_flags(),
    *_sanitizer_flags(),
)

# What remains of memcpy and memset after the compiler has expanded the small ones must pass the checks too.
LINK_FLAGS: tuple[str, ...] = ("-Wl,--wrap=memcpy", "-Wl,--wrap=memmove", "-Wl,--wrap=memset")

LIBRARY = "libcrucible_sim.so"

_BUILD_FLAGS = ("-std=gnu++20", "-O2", "-g1", "-fPIC", "-ftls-model=initial-exec", "-pthread", toolchain.ROOMY)


def include_dirs() -> list[Path]:
    """What device code needs on its include path: the simulator's shims first, then NVIDIA's headers."""
    return [SIM / "include", toolchain.cuda_include()]


def _sources() -> list[Path]:
    return sorted(p for p in (SIM / "runtime").iterdir() if p.suffix in (".cpp", ".h"))


def _compile(folder: Path, timeout: float) -> None:
    """One file beside the other, as many at a time as there are processors."""
    includes = [flag for path in include_dirs() for flag in ("-isystem", str(path))]
    sources = [p for p in _sources() if p.suffix == ".cpp"]
    objects = [str(folder / f"{p.stem}.o") for p in sources]

    def run(command: list[str]) -> None:
        code, log = toolchain.run([toolchain.gxx(), *_BUILD_FLAGS, *command], timeout=timeout)
        if code:
            raise BuildError("compile_error", "the simulator's runtime library does not compile here", log=log)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for done in [
            pool.submit(run, [*includes, "-c", str(p), "-o", made]) for p, made in zip(sources, objects, strict=True)
        ]:
            done.result()
    run(["-shared", *objects, "-o", str(folder / LIBRARY), f"-Wl,-soname,{LIBRARY}", "-lrt", "-ldl"])
    for made in objects:
        Path(made).unlink()


@functools.cache
def runtime_library(timeout: float = 600.0) -> Path:
    """The path of ``libcrucible_sim.so``, built first if need be (some 15 s, once)."""
    if (given := prebuilt.find("runtime")) is not None:
        return given
    shared = [SIM / "include" / "csim" / name for name in ("abi.h", "async.h", "hopper.h", "tensor_sum.h")]
    texts = [p.name.encode() + b"\0" + p.read_bytes() for p in (*shared, *_sources())]
    key = cache.content_key(*_BUILD_FLAGS, toolchain.gxx_version(), str(toolchain.cuda_include()), *texts)
    return cache.entry("runtime", key, lambda folder: _compile(folder, timeout)) / LIBRARY


def have_addr2line() -> bool:
    """Whether reports can name source lines."""
    return shutil.which("addr2line") is not None
