"""Landlock: the kernel's own file-system sandbox for unprivileged processes (Linux 5.13 and later).

Rules can only allow, and a rule on a folder holds for everything below it. Hiding a path therefore means allowing
everything around it, one sibling at a time; `around` computes that list.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable, Sequence

from . import system

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_FIRST_VERSION = (1 << 13) - 1
_FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE | _IOCTL_DEV
_READ = EXECUTE | READ_FILE | READ_DIR
_RULE_PATH_BENEATH = 1


def version() -> int:
    """The kernel's Landlock version; 0 where there is none."""
    try:
        return max(0, system.syscall("landlock_create_ruleset", None, 0, 1))
    except OSError:
        return 0


def _below(path: str, folder: str) -> bool:
    return path == folder or folder == "/" or path.startswith(folder + "/")


def around(hidden: Sequence[str], exceptions: Iterable[str] = ()) -> list[str]:
    """The fewest paths that together cover the whole file system except `hidden`; `exceptions` lie inside `hidden`."""
    allowed: list[str] = []

    def cover(path: str) -> None:
        if any(_below(path, h) for h in hidden):
            return
        if not any(_below(h, path) for h in hidden):
            allowed.append(path)
            return
        try:
            names = os.listdir(path)
        except OSError:
            return
        for name in names:
            entry = os.path.join(path, name)
            if not os.path.islink(entry):  # a link gives no access of its own; its target has its own place
                cover(entry)

    cover("/")
    return allowed + [e for e in exceptions if any(_below(e, h) for h in hidden)]


def restrict(
    *,
    readable: Sequence[str],
    writable: Sequence[str],
    devices: Sequence[str],
    rewritable: Sequence[str] = (),
    tcp: bool = False,
) -> str:
    """Confine this process and its descendants for good; returns what is in force, e.g. "landlock 7".

    `readable` may be read and executed, `writable` also changed in every way, `devices` read, written and controlled;
    below `rewritable`, files that are there may be written. `tcp`: leave TCP to others (a network namespace).
    Needs no_new_privs. Raises OSError where the kernel refuses.
    """
    abi = version()
    if abi == 0:
        raise OSError(38, "the kernel has no Landlock")
    handled = _FIRST_VERSION
    if abi >= 2:
        handled |= _REFER
    if abi >= 3:
        handled |= _TRUNCATE
    if abi >= 5:
        handled |= _IOCTL_DEV
    attributes = struct.pack("Q", handled)
    if abi >= 4:
        attributes += struct.pack("Q", 0 if tcp else 3)  # no TCP bind, no TCP connect
    if abi >= 6:
        attributes += struct.pack("Q", 3)  # no abstract unix sockets and no signals to processes outside
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    ruleset = system.syscall("landlock_create_ruleset", buffer, len(attributes), 0)
    try:
        granted = (
            (readable, _READ),
            (writable, handled & ~_IOCTL_DEV),
            (devices, handled),
            (rewritable, READ_FILE | READ_DIR | WRITE_FILE | _TRUNCATE),
        )
        for paths, rights in granted:
            for path in paths:
                _allow(ruleset, path, rights & handled)
        system.syscall("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)
    return f"landlock {abi}"


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # gone meanwhile: nothing to allow
    try:
        if not os.path.isdir(path):
            rights &= _FILE_RIGHTS
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, fd), 12)
        system.syscall("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(fd)
