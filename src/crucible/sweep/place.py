"""What results depend on beside the files and the options: torch, the GPU, and on a cluster crucible itself."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from crucible.build.cache import content_key

PACKAGE = Path(__file__).resolve().parents[1]
CODE = {".py", ".h", ".hpp", ".cuh", ".cpp", ".json"}


def machine(device: str) -> dict[str, Any]:
    """This machine, as it stands in rows."""
    import torch

    from crucible.race.environment import environment, switches

    gpu = torch.cuda.get_device_name(0) if device == "cuda" else None
    return {**environment(), "torch": torch.__version__, "gpu": gpu, "switches": switches()}


def expected(told: dict[str, Any]) -> dict[str, Any]:
    """What a machine must have for its results to belong to those of a sweep on ``told``."""
    return {**{k: told[k] for k in ("torch", "gpu", "switches")}, "code": code_digest()}


def differs(wanted: dict[str, Any], step: str, device: str) -> str | None:
    """Why this machine cannot do a step of a sweep, in words; None where it can.

    Fusing needs no GPU, and any build of the same torch will do.
    """
    here = machine(device if step == "judge" else "cpu")
    if wanted["code"] != code_digest():
        return f"it has another state of crucible (calls itself {here['crucible']})"
    pairs = {"torch": (wanted["torch"], here["torch"]), "GPU": (wanted["gpu"], here["gpu"]),
             "TF32 switches": (wanted["switches"], here["switches"])}  # fmt: skip
    if step != "judge":
        pairs["torch"] = (wanted["torch"].split("+")[0], here["torch"].split("+")[0])
        del pairs["GPU"]
    return next((f"{what}: it has {b}, the sweep {a}" for what, (a, b) in pairs.items() if a != b), None)


@functools.cache
def code_digest() -> str:
    """Of all of crucible's own code."""
    files = sorted(p for p in PACKAGE.rglob("*") if p.suffix in CODE and p.is_file())
    return content_key(*(part for p in files for part in (p.relative_to(PACKAGE).as_posix(), p.read_bytes())))
