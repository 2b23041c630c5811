"""A control group for one child, where we may make one: hard ceilings under the monitor's soft ones.

The monitor looks every 30 ms; the group holds in between. Both cgroup versions; all of it optional.
"""

from __future__ import annotations

import os
from pathlib import Path


class Group:
    """Folders of a fresh control group, one per controller (version 1) or one in all (version 2)."""

    def __init__(self, name: str, memory_bytes: int, tasks: int) -> None:
        self.folders: dict[str, Path] = {}
        for controller in ("pids", "memory"):
            try:
                folder = _create(controller, name)
            except OSError:
                continue
            if folder is None:
                continue
            self.folders[controller] = folder
            try:
                if controller == "pids":
                    (folder / "pids.max").write_text(str(tasks))
                elif (folder / "memory.max").exists():
                    (folder / "memory.max").write_text(str(memory_bytes))
                    _try_write(folder / "memory.swap.max", "0")
                else:
                    (folder / "memory.limit_in_bytes").write_text(str(memory_bytes))
            except OSError:
                self._remove(controller)

    def entrances(self) -> list[str]:
        """The files that a process writes "0" to in order to join."""
        return sorted({str(folder / "cgroup.procs") for folder in self.folders.values()})

    def oom_kills(self) -> int:
        """How many of its processes the kernel has killed for want of memory."""
        return self._count("memory", ("memory.events", "memory.oom_control"), "oom_kill")

    def refused_tasks(self) -> int:
        """How many times the kernel refused it another process or thread."""
        return self._count("pids", ("pids.events",), "max")

    def _count(self, controller: str, files: tuple[str, ...], key: str) -> int:
        folder = self.folders.get(controller)
        if folder is None:
            return 0
        for name in files:
            try:
                lines = (folder / name).read_text().splitlines()
            except OSError:
                continue
            for line in lines:
                word, _, value = line.partition(" ")
                if word == key:
                    return int(value)
        return 0

    def remove(self) -> None:
        for controller in list(self.folders):
            self._remove(controller)

    def _remove(self, controller: str) -> None:
        folder = self.folders.pop(controller)
        if folder not in self.folders.values():
            try:
                folder.rmdir()
            except OSError:
                pass  # still busy, or gone: an empty group costs nothing


def _try_write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError:
        pass


def _create(controller: str, name: str) -> Path | None:
    """A new group under the nearest place that offers this controller and lets us write."""
    own = _own_paths()
    mounts = _mounts()
    if controller in own and controller in mounts:  # version 1
        # Only from the top: a group that some manager put us into is the manager's, not ours to divide.
        top = mounts[controller]
        return _make(top / name) if own[controller] == "/" and os.access(top, os.W_OK) else None
    if "" not in own or "" not in mounts:
        return None
    root = mounts[""]
    place = root / own[""].lstrip("/")
    while os.geteuid() != 0 or place == root:  # what an ordinary user can write was delegated to that user
        try:
            offered = (place / "cgroup.subtree_control").read_text().split()
        except OSError:
            offered = []
        if controller in offered and os.access(place, os.W_OK) and os.access(place / "cgroup.procs", os.W_OK):
            return _make(place / name)
        if place == root or root not in place.parents:
            return None
        place = place.parent
    return None


def _make(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def _own_paths() -> dict[str, str]:
    """Controller -> this process's group; the key "" is version 2."""
    paths: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _mounts() -> dict[str, Path]:
    """Controller -> where its hierarchy is mounted; the key "" is version 2."""
    mounts: dict[str, Path] = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        fields = line.split()
        if fields[2] == "cgroup2":
            mounts.setdefault("", Path(fields[1]))
        elif fields[2] == "cgroup":
            for option in fields[3].split(","):
                mounts.setdefault(option, Path(fields[1]))
    return mounts
