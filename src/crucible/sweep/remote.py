"""What a node of a cluster does: unpacks the files of a step, runs it in a process of its own, packs up what it made.

No file system is shared: texts come with the request, and what is fused goes back with the answer.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from crucible.sweep.step import run_step

PATHS = ("problem", "candidate", "output")  # keys of a request that are paths, as the sweep's own machine has them


def pack(request: dict[str, Any], limit: float, gpu: bool) -> dict[str, Any]:
    """A request with the files that it names, as plain values that can travel."""
    files = {key: Path(request[key]).read_bytes() for key in ("problem", "candidate") if key in request}
    return {"request": request, "files": files, "limit": limit, "gpu": gpu}


def work(parcel: dict[str, Any]) -> dict[str, Any]:
    """The answer to a packed request, with the paths of the machine that asked; ``file`` is what was fused."""
    folder = Path(tempfile.mkdtemp(prefix="crucible-node-"))
    try:
        request = dict(parcel["request"])
        names = {}
        for key in PATHS:
            if key in request:
                place = folder / key / Path(request[key]).name
                place.parent.mkdir()
                names[str(place)] = request[key]
                request[key] = str(place)
                if key in parcel["files"]:
                    place.write_bytes(parcel["files"][key])
        answer = run_step(request, folder, parcel["limit"], _environment(parcel["gpu"]))
        made = Path(request["output"]) if "output" in request else None
        text = made.read_bytes() if made is not None and made.is_file() else None
        return {**renamed(answer, names), "file": text}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _environment(gpu: bool) -> dict[str, str]:
    """This worker's own, less what tells of the cluster; the GPU is the one that Ray gave, or none."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return own if gpu else {**own, "CUDA_VISIBLE_DEVICES": ""}


def renamed(value: Any, names: dict[str, str]) -> Any:
    """The same with every path in every text replaced by what it is called elsewhere."""
    if isinstance(value, str):
        for here, there in names.items():
            value = value.replace(here, there)
        return value
    if isinstance(value, dict):
        return {k: renamed(v, names) for k, v in value.items()}
    return [renamed(v, names) for v in value] if isinstance(value, list) else value
