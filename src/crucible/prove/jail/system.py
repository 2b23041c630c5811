"""The few Linux system calls that Python's os module does not offer, through ctypes."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

MACHINE = platform.machine()

# The first column is x86-64, the second the generic table that arm64 uses; -1: does not exist there.
_NUMBERS: dict[str, tuple[int, int]] = {
    "open": (2, -1), "openat": (257, 56), "openat2": (437, 437), "creat": (85, -1), "truncate": (76, 45),
    "unlink": (87, -1), "unlinkat": (263, 35), "rmdir": (84, -1), "mkdir": (83, -1), "mkdirat": (258, 34),
    "rename": (82, -1), "renameat": (264, 38), "renameat2": (316, 276), "link": (86, -1), "linkat": (265, 37),
    "symlink": (88, -1), "symlinkat": (266, 36), "mknod": (133, -1), "mknodat": (259, 33),
    "chmod": (90, -1), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, -1), "lchown": (94, -1),
    "fchownat": (260, 54), "socket": (41, 198), "connect": (42, 203), "sendto": (44, 206),
    "io_uring_setup": (425, 425), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "open_by_handle_at": (304, 265), "ptrace": (101, 117), "bpf": (321, 280),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430), "fsmount": (432, 432),
    "mount_setattr": (442, 442), "landlock_create_ruleset": (444, 444), "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446), "seccomp": (317, 277),
}  # fmt: skip


def number(name: str) -> int | None:
    """The system call's number on this machine, or None where it has none (or the machine is unknown)."""
    column = {"x86_64": 0, "aarch64": 1}.get(MACHINE)
    if column is None:
        return None
    found = _NUMBERS[name][column]
    return None if found < 0 else found


def syscall(name: str, *args: object) -> int:
    """Make the system call; OSError where it fails or does not exist here."""
    nr = number(name)
    if nr is None:
        raise OSError(38, f"{name} is not known for {MACHINE}")
    ctypes.set_errno(0)
    plain = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    result = _libc.syscall(ctypes.c_long(nr), *plain)
    if result < 0:
        _raise(name)
    return int(result)


def _raise(what: str) -> None:
    code = ctypes.get_errno()
    raise OSError(code, f"{what}: {os.strerror(code)}")


def prctl(option: int, value: int = 0) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        _raise(f"prctl({option})")


PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 4, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x00020000, 0x08000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000


def try_prctl(option: int, value: int = 0) -> bool:
    """For what helps where it exists; some container runtimes know only a part of prctl."""
    try:
        prctl(option, value)
    except OSError:
        return False
    return True


def unshare(flags: int) -> None:
    if _libc.unshare(ctypes.c_int(flags)) != 0:
        _raise("unshare")


MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    done = _libc.mount(source.encode(), os.fsencode(target), kind.encode() or None, ctypes.c_ulong(flags),
                       data.encode() or None)  # fmt: skip
    if done != 0:
        _raise(f"mount on {target}")


ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = 1, 2, 4


def mount_setattr(path: str, *, add: int = 0, clear: int = 0, recursive: bool = False) -> None:
    """Change the flags of the mount at `path`, and of all mounts below it when `recursive`."""
    attributes = struct.pack("QQQQ", add, clear, 0, 0)
    at_fdcwd, at_recursive = -100, 0x8000
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    syscall("mount_setattr", at_fdcwd, ctypes.c_char_p(os.fsencode(path)), at_recursive if recursive else 0,
            buffer, len(attributes))  # fmt: skip


CAP_DAC_OVERRIDE = 1


def drop_capabilities(keep: frozenset[int]) -> bool:
    """Give up every capability but `keep`, for this process and whatever it executes. False where that failed.

    The bounding set is what counts: root regains all capabilities in it at the next execve.
    """
    complete = True
    for capability in range(64):
        if capability in keep:
            continue
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno != 22:  # EINVAL: past the last capability that this kernel knows
                complete = os.geteuid() != 0  # an ordinary user has none to drop
            break
    mask = sum(1 << c for c in keep) if os.geteuid() == 0 else 0
    header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0), 8)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    data = ctypes.create_string_buffer(struct.pack("IIIIII", low, low, 0, high, high, 0), 24)
    if _libc.capset(header, data) != 0:
        complete = False
    return complete
