"""The machine that times are of, and the switches they depend on."""

from __future__ import annotations

import functools
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from crucible.build.cache import content_key

PACKAGE = Path(__file__).resolve().parent.parent
PLANNER = ("kernels/*.cuh", "plan/*.py", "emit/*.py")


@dataclass(frozen=True)
class Machine:
    """A GPU with its driver and the torch that runs on it."""

    gpu: str
    capability: tuple[int, int]
    driver: str
    torch: str
    cuda: str

    @property
    def hopper(self) -> bool:
        """Whether a file that may use Hopper's own instructions does so here."""
        return self.capability == (9, 0) and int(self.cuda.split(".")[0] or 0) >= 12

    def key(self) -> str:
        return content_key(*map(str, asdict(self).values()), planner_digest())


def have_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def here() -> Machine:
    """The GPU of this machine."""
    import torch

    return Machine(
        torch.cuda.get_device_name(0), torch.cuda.get_device_capability(0), _driver(), torch.__version__,
        torch.version.cuda or "",
    )  # fmt: skip


def _driver() -> str:
    try:
        found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        found = None
    if found:
        return found.group(1)
    import torch

    version = getattr(torch._C, "_cuda_getDriverVersion", None)  # the newest CUDA that it knows
    return str(version()) if version is not None else ""


@functools.cache
def planner_digest() -> str:
    """Of the kernels and of all that decides which are used and how."""
    files = sorted(p for pattern in PLANNER for p in PACKAGE.glob(pattern))
    return content_key(*(part for p in files for part in (p.name, p.read_bytes())))


def grades(element: str, precision: str) -> dict[str, str]:
    """How contractions of each rule are computed, as torch's switches stand now."""
    from crucible.switches import conv_tf32, matmul_precision

    if element != "float32":
        grade = "double" if element == "float64" else "native"
        return {"conv": grade, "matmul": grade}
    switches = {
        "conv": conv_tf32(),
        "matmul": matmul_precision() != "highest",
    }
    permitted = {"torch": switches, "tf32": dict.fromkeys(switches, True), "fp32": dict.fromkeys(switches, False)}
    return {rule: "tf32" if may else "fp32" for rule, may in permitted[precision].items()}
