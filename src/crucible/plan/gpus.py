"""GPUs by name, with what each can do at best: the figures behind every speed-of-light time."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from crucible.plan.ways import Choices


@dataclass(frozen=True)
class Gpu:
    """Vendor's peak figures. Tensor-core rates are dense ones with sums in float32; None: the chip has none such."""

    name: str
    title: str  # as torch.cuda.get_device_name() has it, without the memory's size
    bandwidth: float  # GB/s
    fp32: float  # TFLOP/s on ordinary cores
    fp64: float
    tf32: float | None
    fp16: float | None  # float16; the same for bfloat16 where the chip has that
    capability: tuple[int, int]

    @property
    def tensor_cores(self) -> bool:
        """Whether the mma engine runs here; on older chips contractions use ordinary cores."""
        return self.capability >= (8, 0)


# Data sheets and architecture papers of the vendor. Sheets that quote rates "with sparsity" are halved.
TABLE: tuple[Gpu, ...] = (
    Gpu("b200", "NVIDIA B200", 8000, 75, 37, 1125, 2250, (10, 0)),
    Gpu("h200", "NVIDIA H200", 4800, 66.9, 33.5, 494.7, 989.4, (9, 0)),
    Gpu("h100", "NVIDIA H100 SXM", 3350, 66.9, 33.5, 494.7, 989.4, (9, 0)),
    Gpu("h100-pcie", "NVIDIA H100 PCIe", 2039, 51.2, 25.6, 378, 756, (9, 0)),
    Gpu("a100-80", "NVIDIA A100-SXM4-80GB", 2039, 19.5, 9.7, 156, 312, (8, 0)),
    Gpu("a100-40", "NVIDIA A100-SXM4-40GB", 1555, 19.5, 9.7, 156, 312, (8, 0)),
    Gpu("l40s", "NVIDIA L40S", 864, 91.6, 1.43, 183, 362, (8, 9)),
    Gpu("rtx4090", "NVIDIA GeForce RTX 4090", 1008, 82.6, 1.29, 82.6, 165.2, (8, 9)),
    Gpu("rtx3090", "NVIDIA GeForce RTX 3090", 936, 35.6, 0.556, 35.6, 71, (8, 6)),
    Gpu("a10", "NVIDIA A10", 600, 31.2, 0.488, 62.5, 125, (8, 6)),
    Gpu("t4", "Tesla T4", 320, 8.1, 0.253, None, 65, (7, 5)),
    Gpu("v100", "Tesla V100-SXM2", 900, 15.7, 7.8, None, 125, (7, 0)),
)
ALIASES = {"a100": "a100-80", "h100-sxm": "h100", "4090": "rtx4090", "3090": "rtx3090"}
DEFAULT = "h200"


class UnknownGpu(ValueError):
    """No such row in the table; the message lists those there are."""


def names() -> list[str]:
    return [g.name for g in TABLE]


def find(name: str) -> Gpu:
    """A GPU by its short name, in any case, with or without the maker's name."""
    key = name.strip().lower().replace("_", "-").replace(" ", "-")
    for prefix in ("nvidia-", "geforce-", "tesla-"):
        key = key.removeprefix(prefix)
    key = key.replace("rtx-", "rtx")
    key = ALIASES.get(key, key)
    for gpu in TABLE:
        if gpu.name == key:
            return gpu
    raise UnknownGpu(f"no figures for a GPU named {name!r}; choose one of {', '.join(names())}")


def known_as(title: str) -> Gpu | None:
    """The row for a name as the driver gives it, such as "NVIDIA H100 80GB HBM3"."""
    words = title.upper().replace("-", " ").split()
    if "H100" in words:
        return find("h100-pcie" if "PCIE" in words else "h100") if "NVL" not in words else None
    if "A100" in words:
        return find("a100-40" if "40GB" in words else "a100-80")
    if "RTX" in words:
        number = words[words.index("RTX") + 1 :]  # a "4090 D" or a "3090 Ti" is another chip
        return find(f"rtx{number[0]}") if len(number) == 1 and f"rtx{number[0]}" in names() else None
    return next((g for g in TABLE if g.name.upper() in words), None)


def present() -> Gpu | None:
    """The GPU of this machine, where there is one and its figures are known."""
    import torch

    if not torch.cuda.is_available():
        return None
    return known_as(torch.cuda.get_device_name(0))


def chosen(name: str | None) -> Gpu:
    """The GPU that was asked for, else the one present, else the default."""
    return find(name) if name else present() or find(DEFAULT)


@functools.cache
def _shipped() -> tuple[dict[str, str], ...]:
    return tuple(json.loads(Path(__file__).with_name("tuned.json").read_text(encoding="utf-8"))["rows"])


def tuned(gpu: Gpu, element: str, grades: Mapping[str, str]) -> Choices:
    """Ways that were measured to be the fastest on a known GPU, as shipped in tuned.json.

    A row has ``gpu``, ``element``, ``rule``, ``grade``, ``site`` and ``way`` (plan/ways.py).
    """
    kinds = {(gpu.name, element, rule, grade) for rule, grade in grades.items()}
    rows = [r for r in _shipped() if (r["gpu"], r["element"], r["rule"], r["grade"]) in kinds]
    return Choices(tuple(sorted((r["site"], r["way"]) for r in rows)))
