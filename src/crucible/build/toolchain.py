"""Find the compilers and headers a simulator build needs, and run a compiler under a time and memory limit."""

from __future__ import annotations

import functools
import importlib.util
import os
import resource
import shutil
import signal
import subprocess
import sysconfig
from pathlib import Path
from typing import Protocol

from crucible.build.errors import BuildError

# g++ marks all that it holds, precompiled headers too, whenever its heap has doubled since it last did; below half a
# gigabyte, where nearly every file ends, it need not. An eighth of the time of a large file.
ROOMY = "--param=ggc-min-heapsize=500000"


@functools.cache
def gxx() -> str:
    """The path of g++ (``$CXX`` if that names one)."""
    found = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("g++")
    if not found:
        raise BuildError("unsupported_feature", "g++ was not found", hint="install g++ 10 or later (Debian: g++)")
    return found


@functools.cache
def gxx_version() -> str:
    return subprocess.run([gxx(), "-dumpfullversion"], capture_output=True, text=True, check=False).stdout.strip()


@functools.cache
def cuda_include() -> Path:
    """NVIDIA's headers (cuda_runtime.h, cuda_fp16.h): from the wheel, else from a CUDA toolkit."""
    candidates: list[Path] = []
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or []) if spec else []:
        candidates.append(Path(root) / "cuda_runtime" / "include")
        candidates += sorted(Path(root).glob("cu[0-9]*/include"))
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if home:
            candidates.append(Path(home) / "include")
    candidates += sorted(Path("/usr/local").glob("cuda-*/include"), reverse=True)
    for folder in candidates:
        if (folder / "cuda_runtime.h").is_file() and (folder / "cuda_fp16.h").is_file():
            return folder
    raise BuildError(
        "unsupported_feature",
        "NVIDIA's CUDA headers were not found",
        hint="pip install nvidia-cuda-runtime-cu12, or set CUDA_HOME to a CUDA toolkit",
    )


@functools.cache
def torch_root() -> Path:
    """The folder of the torch package, found without importing it (the simulated device must be there first)."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise BuildError("unsupported_feature", "PyTorch is not installed", hint="pip install torch")
    return Path(next(iter(spec.submodule_search_locations)))


@functools.cache
def torch_includes() -> tuple[str, ...]:
    """torch's own C++ include folders and Python's."""
    include = torch_root() / "include"
    return (str(include), str(include / "torch" / "csrc" / "api" / "include"), sysconfig.get_paths()["include"])


@functools.cache
def torch_lib() -> str:
    return str(torch_root() / "lib")


def torch_has_cuda() -> bool:
    """Whether this torch is a CUDA build (the simulated device needs the CPU build)."""
    return any((torch_root() / "lib").glob("libtorch_cuda*"))


class Runner(Protocol):
    """Something that runs a compiler in a folder that it may write to: :func:`run`, or a confined form of it."""

    def __call__(self, command: list[str], *, timeout: float, cwd: str | None = None) -> tuple[int, str]: ...


def _limit_memory(limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(command: list[str], *, timeout: float, cwd: str | None = None, memory: int = 12 << 30) -> tuple[int, str]:
    """Run a compiler; its exit code and all it said. One past its time limit is a BuildError of kind build_time."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=cwd,
        env={**os.environ, "LC_ALL": "C"},
        preexec_fn=lambda: _limit_memory(memory),
        start_new_session=True,  # so that the driver and the compiler proper are stopped together
    )
    try:
        said, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as expired:
        raise BuildError(
            "build_time",
            f"the compiler was still running after {timeout:.0f} s and was stopped",
            hint="look for unbounded template recursion or very large unrolled loops",
        ) from expired
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return process.returncode, said
