"""The way into the jail: from the supervisor's fork to the candidate's execve.

Three processes, each the parent of the next: the supervisor (outside), the init (inside; it only reaps), the worker.
All three talk over one socket pair; every step inside waits for the supervisor's word, so that a refusal by the
kernel is reported and the supervisor can try a lower level.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
from typing import Any, NoReturn

from . import landlock, namespaces, seccomp, system


def enter(level: namespaces.Level, config: dict[str, Any], sock: socket.socket, output: int) -> NoReturn:
    """Runs in the supervisor's fork; never returns."""
    try:
        _enter(level, config, sock, output)
    except BaseException as error:  # whatever it is, the supervisor must hear of it
        _say(sock, "failed", f"{error}")
    os._exit(70)


def _enter(level: namespaces.Level, config: dict[str, Any], sock: socket.socket, output: int) -> None:
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    _quietly("/proc/self/oom_score_adj", "1000")  # if the machine runs out of memory, this is what should go
    if level.flags:
        system.unshare(level.flags)
    _say(sock, "unshared")
    _expect(sock, "mapped")
    if level.processes:
        inner = os.fork()
        if inner:
            _say(sock, "init", str(inner))
            os._exit(0)
    else:
        _say(sock, "init", str(os.getpid()))
    _expect(sock, "go")
    system.try_prctl(system.PR_SET_PDEATHSIG, signal.SIGKILL)
    system.try_prctl(system.PR_SET_CHILD_SUBREAPER, 1)
    if level.network and config["loopback"]:
        namespaces.raise_loopback()
    for entrance in config["cgroup"]:
        _quietly(entrance, "0")
    fds: list[int] = []
    if level.files:
        namespaces.build_view(
            level,
            writable=config["writable"],
            hidden=config["hidden"],
            exceptions=config["exceptions"],
            gpu=config["gpu"],
            shm_bytes=config["shm_bytes"],
        )
        if level.processes:
            fds.append(os.open("/proc", os.O_RDONLY | os.O_DIRECTORY))
    os.chdir(config["scratch"])  # again, through the new mounts: the old folder would still be writable
    _say(sock, "ready", fds=fds)
    _expect(sock, "run")
    worker = os.fork()
    if worker == 0:
        _become_worker(level, config, sock, output)
    _reap_forever(worker, sock)


def _reap_forever(worker: int, sock: socket.socket) -> NoReturn:
    """The init's whole life: hold nothing open, reap everything, say how the worker ended."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    kept = sock.detach()
    os.dup2(kept, 3, inheritable=False)
    os.closerange(4, 4096)
    sock = socket.socket(fileno=3)
    system.try_prctl(system.PR_SET_DUMPABLE, 0)
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            signal.pause()
            continue
        if pid == worker:
            _say(sock, "exit", str(status))


def _become_worker(level: namespaces.Level, config: dict[str, Any], sock: socket.socket, output: int) -> NoReturn:
    try:
        os.setsid()
        null = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((null, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        _set_limits(level, config)
        walls, fds = _raise_walls(level, config)
        _say(sock, "walls", json.dumps(walls), fds=fds)
        for fd in fds:
            os.close(fd)
        for fd in config["protocol_fds"]:
            os.set_inheritable(fd, True)
        os.execvpe(config["argv"][0], config["argv"], config["env"])
    except BaseException as error:
        _say(sock, "exec-failed", str(error))
    os._exit(71)


def _set_limits(level: namespaces.Level, config: dict[str, Any]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A little more than the monitor allows: the monitor names the cause, this only bounds the damage until it looks.
    _lower(resource.RLIMIT_FSIZE, config["disk_bytes"] + (64 << 20))
    if config["nproc"]:
        _lower(resource.RLIMIT_NPROC, config["nproc"])


def _lower(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(which, (value, value))


def _raise_walls(level: namespaces.Level, config: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """No privileges, Landlock, seccomp, in that order. Returns what took, and the listener in a list."""
    walls: dict[str, Any] = {"notes": []}
    without = set(config["without"])
    keep = frozenset({system.CAP_DAC_OVERRIDE}) if os.geteuid() == 0 else frozenset()
    dropped = system.drop_capabilities(keep)
    sealed = system.try_prctl(system.PR_SET_NO_NEW_PRIVS, 1)
    # Root keeps the right to pass file permissions, or it could not read what belongs to others as it always could.
    walls["privileges"] = ("no new privileges" if sealed else "set-user-id programs work") + (
        "" if not dropped else ", only CAP_DAC_OVERRIDE" if keep else ", no capabilities"
    )
    if "landlock" in without:
        walls["notes"].append("landlock: switched off")
    else:
        try:
            walls["landlock"] = landlock.restrict(
                readable=["/"] if level.files else landlock.around(config["hidden"], config["exceptions"]),
                writable=config["writable"] + (["/dev/shm"] if level.files else []),  # ours alone, then
                devices=namespaces.device_nodes(config["gpu"]),
                # NVIDIA's driver library names its threads through /proc/self/task, and gives up if it cannot.
                rewritable=["/proc/self"] if config["gpu"] else [],
                tcp=level.network and config["loopback"],
            )
        except OSError as error:
            walls["notes"].append(f"landlock: {error.strerror}")
    fds: list[int] = []
    if "seccomp" in without:
        walls["notes"].append("seccomp: switched off")
    else:
        try:
            listener = seccomp.install(network_namespace=level.network)
            walls["seccomp"] = "watched" if listener is not None else "rules"
            if listener is not None:
                fds.append(listener)
        except OSError as error:
            walls["notes"].append(f"seccomp: {error.strerror}")
    return walls, fds


def _quietly(path: str, text: str) -> None:
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError:
        pass


def _say(sock: socket.socket, word: str, text: str = "", fds: list[int] | None = None) -> None:
    message = f"{word} {text}".encode("utf-8", "replace")[:60000]
    socket.send_fds(sock, [message], fds or [])


def _expect(sock: socket.socket, word: str) -> None:
    if sock.recv(65536).decode() != word:
        os._exit(72)  # the supervisor has given up on this level, or is gone
