"""The parent's side of a contender's process: started in the sandbox, asked in turns, ended whatever it does."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import crucible
from crucible.prove.options import memory_limit
from crucible.prove.sandbox import Child, ChildDied, Limits

BUILD_EXTRA = 240.0  # seconds beyond the limit of a call where something may have to be compiled first
GPU_BYTES = 64 << 30
CAUSES = {
    "time": "took too long", "memory": "used too much memory", "output": "printed too much",
    "processes": "started too many processes", "disk": "wrote too much", "signal": "crashed", "exit": "left",
    "protocol": "broke off",
}  # fmt: skip


class Gone(Exception):
    """A contender that is out of the race; the message says why, in a line."""


class Cheated(Gone):
    """One that tampered with what a race relies on, or handed out what is no result."""


class Lane:
    """One contender in a process of its own. A context manager; leaving it ends the process and all it started."""

    def __init__(self, name: str, kind: str, file: Path | None, root: Path, timeout: float, gpu: bool) -> None:
        self.name, self.kind, self.timeout = name, kind, timeout
        self.build_extra = BUILD_EXTRA if gpu else 0.0
        self.scratch = Path(tempfile.mkdtemp(prefix="lane-", dir=root))
        self.file = None
        if file is not None:
            self.file = self.scratch / (file.name if file.suffix == ".py" else f"{file.name}.py")
            shutil.copyfile(file, self.file)
        self.began, self.spent = time.time(), 0.0
        env = {"PYTHONPATH": _paths(), "TORCH_EXTENSIONS_DIR": str(self.scratch / "extensions")}
        env |= {"TORCHINDUCTOR_CACHE_DIR": str(self.scratch / "inductor"), "TRITON_CACHE_DIR": str(self.scratch / "t")}
        env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])  # ninja
        if gpu:
            env |= {"CUDA_VISIBLE_DEVICES": first_gpu(), "MAX_JOBS": str(os.cpu_count() or 1)}
        else:
            env["OMP_NUM_THREADS"] = "1"
        limits = Limits(
            wall_s=24 * 3600.0, memory_bytes=memory_limit(GPU_BYTES if gpu else 0), disk_bytes=GPU_BYTES, processes=256
        )
        try:
            self.child = Child(
                [sys.executable, "-m", "crucible.race.worker"], scratch=self.scratch, limits=limits, env=env, gpu=gpu
            )
        except ChildDied as death:
            raise Gone(f"its process could not be started: {death.detail}") from None

    def ask(self, op: str, **rest: Any) -> dict[str, Any]:
        """One request; Gone where the contender fails, crashes, hangs or tampers."""
        building = op in ("ready", "open", "build", "first", "ceilings", "truth")
        asked = time.monotonic()
        try:
            reply = self.child.request({"op": op, **rest}, timeout=self.timeout + (self.build_extra if building else 0))
        except ChildDied as death:
            said = [x.strip() for x in death.output_tail.splitlines() if x.strip()]
            tail = f" ({said[-1][:200]})" if said else ""
            raise Gone(f"{CAUSES[death.cause]}: {death.detail.splitlines()[0]}{tail}") from None
        self.spent += time.monotonic() - asked
        if "error" in reply:  # a fault of the worker's own
            raise Gone(f"{reply['error']['type']}: {reply['error']['message']}")
        if not reply.get("ok"):
            raise (Cheated if reply.get("cheat") else Gone)(str(reply.get("failed", "no reason given")))
        if reply.get("replaced"):
            raise Cheated(f"it replaced {', '.join(reply['replaced'][:3])}, which the race relies on")
        return reply

    def ready(self) -> None:
        """Wait until its process can be asked: what it spent is from its start to then, however late that is."""
        try:
            reply = self.ask("ready")
        except Gone:
            self.close()
            raise
        self.spent = max(float(reply["since"]) - self.began, 0.0)

    def seconds(self) -> float:
        """That it spent so far: starting and answering, not waiting for others."""
        return self.spent

    def close(self) -> None:
        self.child.close()
        shutil.rmtree(self.scratch, ignore_errors=True)


def first_gpu() -> str:
    """The GPU to race on: the first of those that may be used."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() or "0"


def _paths() -> str:
    source = str(Path(crucible.__file__).parents[1])
    return os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
