"""Seccomp: a system-call filter that forbids some calls and lets the supervisor see, name and refuse others.

Calls that change files or open connections are passed to the supervisor (SECCOMP_RET_USER_NOTIF), which reads the
path or address and refuses what lies outside. That is how an attempt is named in the verdict, also one made by native
code. Where mount namespace and Landlock are in force they are the real wall; the supervisor's look at a path can be
raced by a second thread.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from . import system

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SET_MODE_FILTER = 1
_FLAG_SPEC_ALLOW, _FLAG_NEW_LISTENER = 1 << 2, 1 << 3
_RET_ALLOW, _RET_NOTIFY, _RET_ERRNO = 0x7FFF0000, 0x7FC00000, 0x00050000
_EPERM, _EACCES, _ENOSYS = 1, 13, 38
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

# What no candidate needs. io_uring is here because its requests bypass every filter.
_FORBIDDEN = (
    "unshare", "setns", "mount", "umount2", "pivot_root", "move_mount", "open_tree", "fsopen", "fsmount",
    "mount_setattr", "open_by_handle_at", "bpf", "add_key", "request_key", "keyctl", "init_module", "finit_module",
    "delete_module", "kexec_load", "reboot", "swapon", "swapoff", "settimeofday", "clock_settime",
)  # fmt: skip
_WATCHED = (
    "openat2", "creat", "truncate", "unlink", "unlinkat", "rmdir", "mkdir", "mkdirat", "rename", "renameat",
    "renameat2", "link", "linkat", "symlink", "symlinkat", "mknod", "mknodat", "chmod", "fchmodat", "fchmodat2",
    "chown", "lchown", "fchownat", "connect",
)  # fmt: skip


def _op(code: int, k: int, jt: int = 0, jf: int = 0) -> bytes:
    return struct.pack("=HBBI", code, jt, jf, k & 0xFFFFFFFF)


def _load(offset: int) -> bytes:
    return _op(0x20, offset)  # BPF_LD | BPF_W | BPF_ABS


def _argument(index: int) -> int:
    return 16 + 8 * index  # the low half of seccomp_data.args[index], little endian


def _filter(*, notify: bool, network_namespace: bool) -> bytes:
    """The BPF program. Each rule is 'if the number is N: ... return', falling through to 'allow'."""
    watched = _RET_NOTIFY if notify else _RET_ALLOW
    program = [
        _load(4),
        _op(0x15, _AUDIT_ARCH[system.MACHINE], 1, 0),  # BPF_JMP | BPF_JEQ | BPF_K
        _op(0x06, _RET_ERRNO | _EPERM),  # BPF_RET: 32-bit calls would have other numbers
        _load(0),
        _op(0x35, 0x40000000, 0, 1),  # BPF_JGE: x32 calls likewise
        _op(0x06, _RET_ERRNO | _ENOSYS),
    ]

    def rule(name: str, *body: bytes) -> None:
        nr = system.number(name)
        if nr is not None:
            program.append(_op(0x15, nr, 0, len(body)))
            program.extend(body)

    for name in _FORBIDDEN:
        rule(name, _op(0x06, _RET_ERRNO | _EPERM))
    rule("io_uring_setup", _op(0x06, _RET_ERRNO | _ENOSYS))
    if notify:
        for name, index in (("open", 1), ("openat", 2)):
            rule(name, _load(_argument(index)), _op(0x45, _WRITE_FLAGS, 0, 1),  # BPF_JSET
                 _op(0x06, watched), _op(0x06, _RET_ALLOW))  # fmt: skip
        for name in _WATCHED:
            rule(name, _op(0x06, watched))
        # sendto with an address: a datagram without a connection
        rule("sendto", _load(_argument(4)), _op(0x15, 0, 1, 0), _op(0x06, watched), _op(0x06, _RET_ALLOW))
    if not network_namespace:
        refused = watched if notify else _RET_ERRNO | _EACCES
        rule("socket", _load(_argument(0)), _op(0x15, socket.AF_UNIX, 1, 0), _op(0x06, refused),
             _op(0x06, _RET_ALLOW))  # fmt: skip
    program.append(_op(0x06, _RET_ALLOW))
    return b"".join(program)


def install(*, network_namespace: bool) -> int | None:
    """Filter this process and its descendants; returns the supervisor's listener, None where only plain rules took."""
    if system.MACHINE not in _AUDIT_ARCH:
        raise OSError(_ENOSYS, f"no system-call table for {system.MACHINE}")
    try:
        return _set(_filter(notify=True, network_namespace=network_namespace), _FLAG_NEW_LISTENER)
    except OSError:
        _set(_filter(notify=False, network_namespace=network_namespace), 0)
        return None


def _set(program: bytes, flags: int) -> int:
    code = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code)), 16)
    return system.syscall("seccomp", _SET_MODE_FILTER, flags | _FLAG_SPEC_ALLOW, header)


# ---- the supervisor's side -------------------------------------------------------------------------------------


def _ioctl_number(direction: int, number: int, size: int) -> int:
    return (direction << 30) | (size << 16) | (ord("!") << 8) | number


_NOTIFICATION, _RESPONSE = 80, 24  # sizeof(struct seccomp_notif), sizeof(struct seccomp_notif_resp)
_RECV = _ioctl_number(3, 0, _NOTIFICATION)
_SEND = _ioctl_number(3, 1, _RESPONSE)
_ID_VALID = _ioctl_number(1, 2, 8)
_CONTINUE = 1


@dataclass
class Watcher:
    """Answers the calls that the filter passes on, and says which of them broke the rules."""

    listener: int
    writable: Sequence[str]
    shown: Sequence[str]  # paths inside /dev that may only be read
    loopback: bool  # connections to itself, inside a network namespace of its own, are in order

    def answer(self) -> str | None:
        """Handle one waiting call; returns a sentence where it was a violation."""
        buffer = bytearray(_NOTIFICATION)
        try:
            fcntl.ioctl(self.listener, _RECV, buffer)
        except OSError:
            return None  # the caller died meanwhile
        ident, pid, _flags, nr, _arch, _ip, *args = struct.unpack("=QIIiIQ6Q", buffer)
        violation: str | None = None
        error = 0
        try:
            violation = self._judge(pid, nr, args)
            fcntl.ioctl(self.listener, _ID_VALID, struct.pack("=Q", ident))
        except OSError:
            pass  # its memory could not be read: the kernel's own checks decide
        if violation is not None:
            error = -_EACCES
        response = struct.pack("=QqiI", ident, 0, error, 0 if error else _CONTINUE)
        try:
            fcntl.ioctl(self.listener, _SEND, bytearray(response))
        except OSError:
            pass
        return violation

    def _judge(self, pid: int, nr: int, args: list[int]) -> str | None:
        name = _NAMES.get(nr, "")
        if name == "socket":
            return "tried to open a network socket"
        if name in ("connect", "sendto"):
            pointer, length = (args[1], args[2]) if name == "connect" else (args[4], args[5])
            return self._judge_address(pid, _read(pid, pointer, min(length & 0xFFFFFFFF, 128)))
        for verb, path, follow in _targets(pid, name, args):
            reason = self._judge_path(verb, path, follow)
            if reason is not None:
                return reason
        return None

    def _judge_address(self, pid: int, address: bytes) -> str | None:
        if len(address) < 2:
            return None
        family = struct.unpack_from("=H", address)[0]
        if self.loopback and (address[4:5] == b"\x7f" or address[8:24] == b"\0" * 15 + b"\1"):
            return None
        if family == socket.AF_INET and len(address) >= 8:
            port = struct.unpack_from("!H", address, 2)[0]
            return f"tried to open a network connection to {socket.inet_ntoa(address[4:8])}:{port}"
        if family == socket.AF_INET6 and len(address) >= 24:
            port = struct.unpack_from("!H", address, 2)[0]
            host = socket.inet_ntop(socket.AF_INET6, address[8:24])
            return f"tried to open a network connection to [{host}]:{port}"
        if family == socket.AF_UNIX and len(address) > 2 and address[2] != 0:
            path = os.fsdecode(address[2:].split(b"\0")[0])
            full = os.path.realpath(os.path.join(os.readlink(f"/proc/{pid}/cwd"), path))
            if not self._inside(full) and os.path.exists(full):
                return f"tried to talk to another program through {full}"
        return None

    def _judge_path(self, verb: str, path: str, follow: bool) -> str | None:
        folder, last = os.path.split(path.rstrip("/") or "/")
        full = os.path.realpath(path) if follow else os.path.join(os.path.realpath(folder), last)
        if self._inside(full) or full.startswith("/proc/"):
            return None
        if full.startswith("/dev/") and not any(full.startswith(s + "/") or full == s for s in self.shown):
            return None
        exists = os.path.lexists(full)
        # What would have failed anyway is no offence: makedirs(exist_ok=True) asks for folders that are there.
        if verb == "create" and exists or verb in ("delete", "change", "rename") and not exists:
            return None
        if verb == "write" and os.path.isdir(full):
            return None
        return f"tried to {verb} {full}"

    def _inside(self, path: str) -> bool:
        return any(path == w or path.startswith(w + "/") for w in self.writable)


_NAMES = {number: name for name in system._NUMBERS if (number := system.number(name)) is not None}


def _read(pid: int, address: int, size: int) -> bytes:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        return os.pread(memory.fileno(), size, address)


def _text(pid: int, address: int) -> str:
    """A C string in another process; read in pieces because the next page may not exist."""
    found = b""
    while len(found) < 4096:
        piece = 256 - (address + len(found)) % 256
        data = _read(pid, address + len(found), piece)
        end = data.find(b"\0")
        if end >= 0:
            found += data[:end]
            break
        if not data:
            break
        found += data
    return os.fsdecode(found)


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _path(pid: int, address: int, folder: int | None = None) -> str:
    path = _text(pid, address)
    if path.startswith("/"):
        return path
    at = None if folder is None else _signed(folder)
    base = f"/proc/{pid}/cwd" if at is None or at == -100 else f"/proc/{pid}/fd/{at}"
    return os.path.join(os.readlink(base), path)


def _targets(pid: int, name: str, a: list[int]) -> list[tuple[str, str, bool]]:
    """(verb, path, whether a final link is followed) for every path that this call would change."""
    if name in ("open", "openat", "openat2"):
        path = _path(pid, a[0]) if name == "open" else _path(pid, a[1], a[0])
        flags = a[1] if name == "open" else a[2]
        if name == "openat2":
            flags = struct.unpack("=Q", _read(pid, a[2], 8))[0]
            if not flags & _WRITE_FLAGS:
                return []
        follow = not flags & os.O_NOFOLLOW
        if not flags & os.O_CREAT and not os.path.exists(path):
            return []
        return [("write", path, follow)]
    at = name.endswith("at") or name in ("renameat2", "fchmodat2")
    first = _path(pid, a[1], a[0]) if at and name != "symlinkat" else ""
    if name in ("creat", "truncate"):
        return [("write", _path(pid, a[0]), True)]
    if name in ("unlink", "rmdir"):
        return [("delete", _path(pid, a[0]), False)]
    if name == "unlinkat":
        return [("delete", first, False)]
    if name in ("mkdir", "mknod"):
        return [("create", _path(pid, a[0]), False)]
    if name in ("mkdirat", "mknodat"):
        return [("create", first, False)]
    if name == "rename":
        return [("rename", _path(pid, a[0]), False), ("write", _path(pid, a[1]), False)]
    if name in ("renameat", "renameat2"):
        return [("rename", first, False), ("write", _path(pid, a[3], a[2]), False)]
    if name in ("link", "symlink"):
        return [("create", _path(pid, a[1]), False)]
    if name == "linkat":
        return [("create", _path(pid, a[3], a[2]), False)]
    if name == "symlinkat":
        return [("create", _path(pid, a[2], a[1]), False)]
    if name in ("chmod", "chown"):
        return [("change", _path(pid, a[0]), True)]
    if name == "lchown":
        return [("change", _path(pid, a[0]), False)]
    if name in ("fchmodat", "fchmodat2", "fchownat"):
        return [("change", first, True)]
    return []
