"""A Python audit hook inside the worker: names attempts, and refuses them where the kernel offers no wall.

It sees what Python code does and nothing of what native code does, and it runs in the candidate's own process. Reads of
hidden paths are only named here (the kernel refuses them); the rest matters on machines with neither Landlock nor
namespaces nor seccomp.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_LISTING = {"os.listdir", "os.scandir"}
_CHANGING = {
    "os.remove": "delete", "os.rmdir": "delete", "os.mkdir": "create", "os.truncate": "write", "os.chmod": "change",
    "os.chown": "change", "os.rename": "rename", "os.link": "create", "os.symlink": "create", "shutil.rmtree": "delete",
}  # fmt: skip
_NETWORK = {"socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo"}


def install(
    report: Callable[[str], None],
    *,
    hidden: Sequence[str],
    visible: Sequence[str],
    writable: Sequence[str],
    enforce: Collection[str],
) -> None:
    """Start auditing for good. `visible` are exceptions inside `hidden`.

    `enforce` holds what must be refused here: "files", "hidden", "network".
    """
    busy = threading.local()

    def inside(path: str, folders: Sequence[str]) -> bool:
        return any(path == f or path.startswith(f + "/") for f in folders)

    def resolve(path: Any) -> str | None:
        if isinstance(path, (str, bytes, os.PathLike)):
            return os.path.realpath(os.fsdecode(path))
        return None

    def refuse(text: str, path: str, kind: str) -> None:
        report(text)
        if kind in enforce:
            raise PermissionError(13, "not allowed in the sandbox", path)

    def look(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" or event in _LISTING:
            full = resolve(args[0])
            if full is None:
                return
            if inside(full, hidden) and not inside(full, visible):
                refuse(f"tried to read {full}", full, "hidden")
            if event == "open" and "files" in enforce and isinstance(args[2], int) and args[2] & _WRITE_FLAGS:
                if not inside(full, writable) and not full.startswith(("/dev/", "/proc/")):
                    refuse(f"tried to write {full}", full, "files")
        elif event in _CHANGING and "files" in enforce:
            two = event in ("os.rename", "os.link", "os.symlink")
            for path in args[: 2 if two else 1]:
                full = resolve(path)
                if full is not None and not inside(full, writable):
                    refuse(f"tried to {_CHANGING[event]} {full}", full, "files")
        elif event in _NETWORK and "network" in enforce:
            address = args[1] if event != "socket.getaddrinfo" else (args[0], args[1])
            if isinstance(address, tuple):
                where = ":".join(str(a) for a in address[:2])
                refuse(f"tried to open a network connection to {where}", where, "network")

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if getattr(busy, "now", False):
            return
        busy.now = True
        try:
            look(event, args)
        finally:
            busy.now = False

    sys.addaudithook(hook)
