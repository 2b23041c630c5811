"""`crucible doctor`: what this machine has, what is missing, and what to do about it.

`examine` looks and returns findings; `show` prints them. The program is usable when its basis is sound and at least one
device, the simulator or a GPU, is ready.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from crucible.torch_version import OLDEST, OLDEST_TO_FUSE, number

SCHEMA = 1  # of the JSON; counts up when a key changes its meaning
GIB = 1 << 30
Area = Literal["basis", "simulator", "gpu", "extra"]
State = Literal["ok", "warning", "missing"]


@dataclass(frozen=True)
class Finding:
    """One line: what was looked for, how it stands, and the remedy where it is not well."""

    name: str
    state: State
    detail: str
    fix: str = ""
    area: Area = "basis"


def examine() -> list[Finding]:
    """Look at everything; never raises."""
    checks: tuple[Callable[[], Finding], ...] = (
        check_python,
        check_torch,
        check_cache,
        check_disk,
        check_memory,
        check_sandbox,
        check_compiler,
        check_headers,
        check_simulator_torch,
        check_gpu,
        check_driver,
        check_nvcc,
        check_ninja,
        check_nvrtc,
    )
    findings: list[Finding] = []
    for check in checks:
        try:
            findings.append(check())
        except Exception as error:  # a doctor that falls ill is of no use
            name = check.__name__.removeprefix("check_").replace("_", " ")
            findings.append(Finding(name, "missing", f"the check itself failed: {error!r}", "please report this"))
    return findings


def devices(findings: list[Finding]) -> list[str]:
    """The devices that are ready, by the names that `--device` takes."""

    def sound(area: Area) -> bool:
        return all(f.state != "missing" for f in findings if f.area == area)

    if not sound("basis"):
        return []
    return [name for name, area in (("sim", "simulator"), ("cuda", "gpu")) if sound(area)]  # type: ignore[arg-type]


# ---- the basis ----------------------------------------------------------------------------------------------------


def check_python() -> Finding:
    version = platform.python_version()
    if sys.version_info < (3, 10):  # noqa: UP036 - run from a checkout, by whatever Python there is
        return Finding("Python", "missing", version, "use Python 3.10 or later")
    if sys.platform != "linux":
        return Finding("Python", "missing", f"{version} on {sys.platform}", "only Linux is supported")
    return Finding("Python", "ok", f"{version}, {platform.machine()}")


def check_torch() -> Finding:
    try:
        import torch
    except Exception as error:
        last = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        return Finding("PyTorch", "missing", f"cannot be imported: {last[0]}", "pip install 'torch>=2.0'")
    version = str(torch.__version__)
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    if number(version) < OLDEST:
        return Finding("PyTorch", "missing", f"{version}, {build}", "pip install 'torch>=2.0'")
    if number(version) < OLDEST_TO_FUSE:
        oldest = ".".join(map(str, OLDEST_TO_FUSE))
        told = f"{version}, {build}: proves and races, but crucible fuse needs {oldest}"
        return Finding("PyTorch", "warning", told, f"pip install 'torch>={oldest}' to fuse")
    return Finding("PyTorch", "ok", f"{version}, {build}")


def check_cache() -> Finding:
    from crucible.build.cache import cache_dir

    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding(
            "cache folder", "missing", f"{folder}: {error.strerror}", "set CRUCIBLE_CACHE to a writable folder"
        )
    return Finding("cache folder", "ok", str(folder))


def check_disk() -> Finding:
    from crucible.build.cache import cache_dir

    folder = cache_dir()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    detail = f"{free / GIB:.1f} GiB free at {folder}"
    if free < 2 * GIB:
        fix = "free some space, or set CRUCIBLE_CACHE to a folder with 2 GiB or more"
        return Finding("disk", "missing", detail, fix)
    return Finding("disk", "ok", detail)


def check_memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0))
    detail = f"{total / GIB:.1f} GiB, {cores} cores"
    if total < 4 * GIB:
        fix = "compiling against torch's headers takes about 2 GiB; large problems may not fit"
        return Finding("memory", "warning", detail, fix)
    return Finding("memory", "ok", detail)


def check_sandbox() -> Finding:
    from crucible.prove.sandbox import Child, ChildDied, Limits

    with tempfile.TemporaryDirectory(prefix="crucible-doctor-") as folder:
        limits = Limits(wall_s=20, memory_bytes=GIB)
        sleeper = [sys.executable, "-c", "import time; time.sleep(20)"]
        try:
            with Child(sleeper, scratch=Path(folder), limits=limits) as child:
                walls = child.isolation
        except (ChildDied, OSError) as error:
            return Finding("sandbox", "missing", f"a child process could not be started: {error}", "please report this")
    detail = f"files: {walls['filesystem']}; network: {walls['network']}; processes: {walls['processes']}"
    weak = [what for what in ("filesystem", "hidden", "network") if walls[what].startswith("audit")]
    if weak:
        fix = "weak walls: run only candidates that you trust, or use a kernel with Landlock or user namespaces"
        return Finding("sandbox", "warning", detail, fix)
    if "namespace" not in walls["processes"]:
        fix = "allow user namespaces for the strongest walls (in a container: its seccomp profile forbids them)"
        return Finding("sandbox", "warning", detail, fix)
    return Finding("sandbox", "ok", detail)


# ---- the simulator ------------------------------------------------------------------------------------------------

_PROGRAM = """#include <vector>
template <class T> concept Any = true;
int f(Any auto x) { return std::vector<int>(x).size(); }
"""


def check_compiler() -> Finding:
    from crucible.build.errors import BuildError
    from crucible.build.toolchain import gxx, gxx_version

    area: Area = "simulator"
    fix = "install g++ 10 or later (Debian and Ubuntu: apt install g++), or set CXX"
    try:
        path, version = gxx(), gxx_version()
    except BuildError as error:
        return Finding("g++", "missing", error.args[0] if error.args else "not found", fix, area)
    major = re.match(r"\d+", version)
    if major is None or int(major[0]) < 10:
        return Finding("g++", "missing", f"{version or 'unknown version'} at {path}", fix, area)
    with tempfile.TemporaryDirectory(prefix="crucible-doctor-") as folder:
        source = Path(folder) / "a.cpp"
        source.write_text(_PROGRAM)
        command = [path, "-std=gnu++20", "-fsanitize=thread", "-fPIC", "-c", str(source), "-o", str(source) + ".o"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no message"])[0]
        return Finding("g++", "missing", f"{version} at {path} does not compile: {said}", fix, area)
    return Finding("g++", "ok", f"{version} at {path}", area=area)


def check_headers() -> Finding:
    from crucible.build.errors import BuildError
    from crucible.build.toolchain import cuda_include

    try:
        folder = cuda_include()
    except BuildError:
        fix = "pip install nvidia-cuda-runtime-cu12, or set CUDA_HOME to a CUDA toolkit"
        return Finding("CUDA headers", "missing", "cuda_runtime.h not found", fix, "simulator")
    found = re.search(r"#define CUDART_VERSION\s+(\d+)", (folder / "cuda_runtime_api.h").read_text(errors="replace"))
    version = f"{int(found[1]) // 1000}.{int(found[1]) % 1000 // 10}" if found else "unknown version"
    return Finding("CUDA headers", "ok", f"{version} in {folder}", area="simulator")


def check_simulator_torch() -> Finding:
    from crucible.build.errors import BuildError
    from crucible.build.toolchain import torch_has_cuda

    try:
        cuda = torch_has_cuda()
    except BuildError:
        return Finding("simulator", "missing", "needs PyTorch", "pip install 'torch>=2.0'", "simulator")
    if cuda:
        fix = "for --device sim use an environment with the CPU build of torch"
        return Finding("simulator", "missing", "the simulated device needs the CPU build of torch", fix, "simulator")
    return Finding("simulator", "ok", "the CPU build of torch can carry the simulated device", area="simulator")


# ---- the GPU ------------------------------------------------------------------------------------------------------


def check_gpu() -> Finding:
    area: Area = "gpu"
    present = bool(list(Path("/dev").glob("nvidia[0-9]*"))) or Path("/dev/dxg").exists()
    try:
        import torch
    except Exception:
        return Finding("GPU", "missing", "needs PyTorch", "pip install 'torch>=2.0'", area)
    if torch.cuda.is_available():
        p = torch.cuda.get_device_properties(0)
        more = f" and {torch.cuda.device_count() - 1} more" if torch.cuda.device_count() > 1 else ""
        detail = f"{p.name}, {p.total_memory / GIB:.0f} GiB, compute capability {p.major}.{p.minor}{more}"
        return Finding("GPU", "ok", detail, area=area)
    if present and torch.version.cuda is None:
        fix = "install a CUDA build of torch"
        return Finding("GPU", "missing", "there is one, but torch is a CPU build", fix, area)
    if present:
        return Finding("GPU", "missing", "there is one, but torch cannot use it", "see the driver below", area)
    return Finding("GPU", "missing", "none found", "--device sim needs none", area)


def check_driver() -> Finding:
    area: Area = "gpu"
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return Finding("driver", "missing", "no NVIDIA driver is loaded", "install one to use a GPU", area)
    found = re.search(r"(?:Kernel Module|Kernel Module for \S+)\s+([\d.]+)", text)
    return Finding("driver", "ok", found[1] if found else "loaded", area=area)


def check_nvcc() -> Finding:
    area: Area = "gpu"
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    places = [str(Path(home) / "bin" / "nvcc") for home in homes if home]
    nvcc = next((p for p in places if os.access(p, os.X_OK)), None) or shutil.which("nvcc")
    if nvcc is None:
        return Finding("nvcc", "missing", "not found", "install the CUDA toolkit and set CUDA_HOME", area)
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=60).stdout
    found = re.search(r"release ([\d.]+)", said)
    return Finding("nvcc", "ok", f"{found[1] if found else 'unknown version'} at {nvcc}", area=area)


def check_ninja() -> Finding:
    found = shutil.which("ninja") or shutil.which("ninja", path=str(Path(sys.executable).parent))
    if found is None:
        try:
            import ninja

            found = shutil.which("ninja", path=ninja.BIN_DIR)
        except ImportError:
            pass
    if found is None:
        return Finding("ninja", "missing", "not found", "pip install ninja", "gpu")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=60).stdout.strip()
    return Finding("ninja", "ok", f"{said} at {found}", area="gpu")


def check_nvrtc() -> Finding:
    from crucible.build.nvrtc import NotFound, load

    try:
        library = load()
    except NotFound as error:
        return Finding("NVRTC", "warning", str(error), "pip install nvidia-cuda-nvrtc-cu12 (for --arch all)", "extra")
    archs = library.architectures()
    detail = f"{library.version[0]}.{library.version[1]}, sm_{archs[0]} to sm_{archs[-1]}, {library.path}"
    if archs[0] > 70:
        fix = "pip install nvidia-cuda-nvrtc-cu12 to compile for sm_70 as well"
        return Finding("NVRTC", "warning", detail, fix, "extra")
    return Finding("NVRTC", "ok", detail, area="extra")


# ---- showing ------------------------------------------------------------------------------------------------------

_MARKS = {"ok": "[green]ok[/]", "warning": "[yellow]weak[/]", "missing": "[red]missing[/]"}
_TITLES = {"basis": "Basis", "simulator": "For --device sim", "gpu": "For --device cuda", "extra": "For --arch all"}


def show(findings: list[Finding], console: Console) -> None:
    """One line each, grouped by what it is needed for, with the fix under what is not well."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    area = ""
    for finding in sorted(findings, key=lambda f: list(_TITLES).index(f.area)):
        if finding.area != area:
            area = finding.area
            table.add_row(f"[bold]{_TITLES[area]}[/]")
        # What is missing for a device that nobody asked for is no alarm.
        mark = "[dim]none[/]" if finding.area == "gpu" and finding.state == "missing" else _MARKS[finding.state]
        table.add_row(f"  {finding.name}", mark, finding.detail)
        if finding.fix and finding.state != "ok":
            table.add_row("", "", f"[dim]-> {finding.fix}[/]")
    console.print(table)
    ready = devices(findings)
    if ready:
        console.print(f"Usable: --device {' and --device '.join(ready)}.")
    else:
        console.print("[red]Not usable yet[/]: mend what is missing above.")


def run(*, as_json: bool = False, console: Console | None = None) -> int:
    """The command: examine, show, and the exit code (0 usable, 1 not)."""
    findings = examine()
    ready = devices(findings)
    if as_json:
        document = {
            "schema": SCHEMA, "kind": "doctor", "usable": bool(ready), "devices": ready,
            "findings": [asdict(f) for f in findings],
        }  # fmt: skip
        print(json.dumps(document, indent=2))
    else:
        show(findings, console or Console())
    return 0 if ready else 1
