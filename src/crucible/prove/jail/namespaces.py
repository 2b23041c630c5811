"""Namespaces: a private view of processes, network and files for one child.

`LEVELS` is tried from the top; the supervisor keeps the first that works. With a mount namespace the child sees
the whole file system read-only, except its writable folders, a small /dev, a private /dev/shm and its own /proc;
hidden paths are covered by something that cannot be opened.
"""

from __future__ import annotations

import fcntl
import glob
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from . import system


@dataclass(frozen=True)
class Level:
    """One combination of namespaces to try."""

    user: bool
    files: bool
    processes: bool
    network: bool

    @property
    def flags(self) -> int:
        flags = system.CLONE_NEWUSER if self.user else 0
        if self.files:
            flags |= system.CLONE_NEWNS | system.CLONE_NEWIPC
        if self.processes:
            flags |= system.CLONE_NEWPID
        if self.network:
            flags |= system.CLONE_NEWNET
        return flags


NOTHING = Level(False, False, False, False)
LEVELS = (
    Level(user=True, files=True, processes=True, network=True),
    Level(user=False, files=True, processes=True, network=True),  # root where user namespaces are switched off
    Level(user=True, files=True, processes=False, network=True),  # a container that will not let us mount /proc
    Level(user=False, files=True, processes=False, network=True),
    Level(user=True, files=False, processes=False, network=True),
    Level(user=False, files=False, processes=False, network=True),
    NOTHING,
)


def write_id_maps(pid: int) -> None:
    """Map ids one to one into the user namespace that process `pid` has just made (called from outside it)."""
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        try:
            everyone = "0 0 4294967295"
            _write(f"/proc/{pid}/uid_map", everyone)
            _write(f"/proc/{pid}/gid_map", everyone)
            return
        except OSError:
            pass  # inside a container the range is smaller: map ourselves alone
    _write(f"/proc/{pid}/setgroups", "deny")
    _write(f"/proc/{pid}/uid_map", f"{uid} {uid} 1")
    _write(f"/proc/{pid}/gid_map", f"{gid} {gid} 1")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def raise_loopback() -> None:
    """Switch on the loopback interface of a fresh network namespace: a program may talk to itself."""
    request = struct.pack("16sH14x", b"lo", 0x1)  # struct ifreq: name, IFF_UP
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, 0x8914, request)  # SIOCSIFFLAGS
    except OSError:
        pass


DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
GPU_DEVICES = ("nvidia*", "nvidia-caps/*", "dri/*", "dxg", "gdrdrv")


def device_nodes(gpu: bool) -> list[str]:
    """The device files that a child may use."""
    found = [f"/dev/{name}" for name in DEVICES]
    if gpu:
        for pattern in GPU_DEVICES:
            found += sorted(glob.glob(f"/dev/{pattern}"))
    return [path for path in found if os.path.exists(path) and not os.path.isdir(path)]


def build_view(
    level: Level,
    *,
    writable: Sequence[str],
    hidden: Sequence[str],
    exceptions: Sequence[str],
    gpu: bool,
    shm_bytes: int,
) -> None:
    """Arrange the mounts of a fresh mount namespace (we are inside it). OSError where the kernel refuses."""
    system.mount("none", "/", flags=system.MS_REC | system.MS_PRIVATE)  # nothing below shows outside
    if level.processes:
        # First, because /proc/self must work again for the bind mounts below.
        system.mount("proc", "/proc", "proc", system.MS_NOSUID | system.MS_NODEV | system.MS_NOEXEC)
    if level.user:
        try:  # no further user namespaces from in here: they are how an unprivileged process gets to mount things
            _write("/proc/sys/user/max_user_namespaces", "0")
        except OSError:
            pass
    nodes = {path: os.open(path, os.O_PATH) for path in device_nodes(gpu)}
    kept = {path: os.open(path, os.O_PATH) for path in exceptions}
    nothing = os.open("/dev/null", os.O_PATH)
    for path in writable:
        if path not in kept:
            system.mount(path, path, flags=system.MS_BIND | system.MS_REC)
    system.mount_setattr("/", add=system.ATTR_RDONLY | system.ATTR_NOSUID, recursive=True)
    if gpu:
        _own_processes_writable()
    for path in writable:
        if path not in kept:
            system.mount_setattr(path, clear=system.ATTR_RDONLY)
    _small_dev(nodes, shm_bytes)
    _put_back({p: fd for p, fd in kept.items() if p.startswith("/dev/")}, writable)
    system.mount_setattr("/dev", add=system.ATTR_RDONLY)
    for path in sorted(hidden, key=len):
        inside = {e: fd for e, fd in kept.items() if nearest(e, hidden) == path}
        _hide(path, nothing, inside, writable)
    for fd in (*nodes.values(), *kept.values(), nothing):
        os.close(fd)


def _own_processes_writable() -> None:
    """Make /proc writable again, but for what in it belongs to the whole machine.

    NVIDIA's driver library names its threads by writing to /proc/self/task, and gives up if it cannot.
    """
    machine = [f"/proc/{name}" for name in os.listdir("/proc") if not name.isdigit()]
    for path in machine:
        if os.path.islink(path) or not os.path.exists(path):
            continue  # self, thread-self, mounts: links into one's own process
        system.mount(path, path, flags=system.MS_BIND)
        system.mount_setattr(path, add=system.ATTR_RDONLY)
    system.mount_setattr("/proc", clear=system.ATTR_RDONLY)


def nearest(path: str, folders: Sequence[str]) -> str | None:
    """The innermost of `folders` that contains `path`."""
    containing = [f for f in folders if path == f or path.startswith(f.rstrip("/") + "/")]
    return max(containing, key=len, default=None)


def _hide(path: str, nothing: int, kept: dict[str, int], writable: Sequence[str]) -> None:
    if not os.path.isdir(path):
        if os.path.exists(path):
            # A device file on a mount without devices: opening it fails, even for root.
            _bind(nothing, path)
            system.mount_setattr(path, add=system.ATTR_NODEV | system.ATTR_RDONLY)
        return
    system.mount("none", path, "tmpfs", system.MS_NOSUID | system.MS_NODEV, "size=1m,mode=755")
    _put_back(kept, writable)
    system.mount_setattr(path, add=system.ATTR_RDONLY)


def _put_back(kept: dict[str, int], writable: Sequence[str]) -> None:
    """Show again, in their old places, paths that a new mount has covered."""
    for path, fd in sorted(kept.items()):
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            os.makedirs(path, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if not os.path.exists(path):
                _write(path, "")
        _bind(fd, path)
        if path in writable:
            system.mount_setattr(path, clear=system.ATTR_RDONLY)
        else:
            system.mount_setattr(path, add=system.ATTR_RDONLY)


def _bind(fd: int, target: str) -> None:
    system.mount(f"/proc/self/fd/{fd}", target, flags=system.MS_BIND | system.MS_REC)


def _small_dev(nodes: dict[str, int], shm_bytes: int) -> None:
    """A /dev with a handful of nodes: as root, the machine's disks would otherwise be within reach."""
    system.mount("none", "/dev", "tmpfs", system.MS_NOSUID, "size=1m,mode=755")
    for path, fd in nodes.items():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        _write(path, "")
        _bind(fd, path)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(target, f"/dev/{name}")
    os.mkdir("/dev/shm")
    system.mount("none", "/dev/shm", "tmpfs", system.MS_NOSUID | system.MS_NODEV, f"size={shm_bytes},mode=1777")
