"""Runs untrusted code in a child process with walls and limits around it, and talks to it in JSON lines.

`Child` is the parent's side, `serve` the worker's. The walls themselves are in `jail/`: a supervisor process enters the
strongest combination of namespaces, Landlock and seccomp that this machine offers, watches the limits and ends
everything. What it found is in `Child.isolation`; docs/isolation.md says what that protects against and what not.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import select
import signal
import site
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from crucible.prove.jail.worker import VARIABLE, serve
from crucible.prove.patience import Limit

__all__ = ["Cause", "Child", "ChildDied", "Limits", "serve"]

Cause = Literal["time", "memory", "output", "processes", "disk", "signal", "exit", "protocol"]

_MAX_REPLY = 64 << 20
_START_TIMEOUT = 30.0
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|PRIVATE|^AWS_|^SSH_|_AUTH", re.IGNORECASE)
_BOOT = "import sys; sys.path.append(sys.argv[1]); from jail.supervisor import main; main()"


@dataclass(frozen=True)
class Limits:
    """What one child may use, all its descendants included. Time counts from its start to its end."""

    wall_s: float
    memory_bytes: int
    output_bytes: int = 64 << 20
    processes: int = 64
    disk_bytes: int = 4 << 30


class ChildDied(Exception):
    """The child is over: it passed a limit, crashed, left, or broke the protocol."""

    def __init__(self, cause: Cause, detail: str, output_tail: str = "") -> None:
        super().__init__(f"{cause}: {detail}")
        self.cause: Cause = cause
        self.detail = detail
        self.output_tail = output_tail


class Child:
    """One confined process that answers requests; a context manager. Not for use from several threads at once.

    The whole file system is readable except `hidden`; inside a hidden folder, `readable` and `writable` ones stay
    visible. Nothing can be written but `scratch` (its working folder, with its HOME and TMPDIR) and `writable`.
    `gpu=True` leaves the GPU's device files usable; `loopback=True` lets it talk to itself over 127.0.0.1, in a network
    namespace of its own (some tools do). `without` switches walls off, for tests of the weaker ones:
    "namespaces", "pid", "landlock", "seccomp".
    """

    def __init__(
        self,
        argv: list[str],
        *,
        scratch: Path,
        readable: Sequence[Path] = (),
        writable: Sequence[Path] = (),
        hidden: Sequence[Path] = (),
        limits: Limits,
        env: Mapping[str, str] | None = None,
        gpu: bool = False,
        loopback: bool = False,
        without: Sequence[str] = (),
    ) -> None:
        self.violations: list[str] = []
        self.isolation: dict[str, Any] = {}
        self._death: ChildDied | None = None
        self._closed = False
        self._events = b""
        self._replies = b""
        self._last_output = ""
        self._status_code: int | None = None
        self._awaited = ""
        self._token = secrets.token_hex(8)
        for folder in (scratch, scratch / "home", scratch / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)
        request_read, self._request = os.pipe()
        self._reply, reply_write = os.pipe()
        config = _configuration(argv, scratch, readable, writable, hidden, limits, gpu, without)
        config["token"] = self._token
        config["loopback"] = loopback
        config["protocol_fds"] = [request_read, reply_write]
        config["env"] = _environment(scratch, env)
        config["env"][VARIABLE] = f"{request_read},{reply_write},{self._token}"
        try:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOT, str(Path(__file__).parent)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(request_read, reply_write),
                start_new_session=True,  # Ctrl-C is for the parent, which then ends us
                env={k: v for k, v in os.environ.items() if k in ("PATH", "LD_LIBRARY_PATH")},
            )
        except BaseException:
            os.close(self._request)
            os.close(self._reply)
            raise
        finally:
            os.close(request_read)
            os.close(reply_write)
        assert self._supervisor.stdin is not None and self._supervisor.stdout is not None
        self._control = self._supervisor.stdin.fileno()
        self._status = self._supervisor.stdout.fileno()
        for fd in (self._request, self._reply, self._status):
            os.set_blocking(fd, False)
        self._begin(config)

    def _begin(self, config: dict[str, Any]) -> None:
        data = json.dumps(config).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._control, data) :]
        except OSError:
            pass  # its death is reported below
        deadline = time.monotonic() + _START_TIMEOUT
        while not self.isolation and self._death is None:
            if time.monotonic() > deadline:
                self._die("protocol", "the supervisor did not start")
            self._wait_for([self._status], 0.5)
            self._read_events()
        if self._death is not None and not self.isolation:  # what started and is over already is waited for as ever
            self.close()
            raise self._death
        enforce = [what for what, key in (("files", "filesystem"), ("hidden", "hidden"), ("network", "network"))
                   if self.isolation[key].startswith("audit")]  # fmt: skip
        writable = config["writable"]
        hello = {
            "hidden": config["hidden"],
            "visible": config["exceptions"] + writable,
            "writable": writable,
            "enforce": enforce,
        }
        self._outgoing = json.dumps({"hello": hello}).encode() + b"\n"

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_status"):
            self.close()

    # ---- talking -----------------------------------------------------------------------------------------------

    def request(
        self,
        message: dict[str, Any],
        *,
        timeout: float | None = None,
        tick: Callable[[float], None] | None = None,
    ) -> dict[str, Any]:
        """Send one message and wait for its answer. Raises ChildDied, after which the child is gone.

        `tick(seconds)` is called about ten times a second while waiting. A handler that raised answers
        {"error": {"type", "message", "traceback"}}.
        """
        if self._death is not None:
            raise self._death
        if self._closed:
            raise ChildDied("protocol", "the child was closed", self._last_output)
        ident = secrets.token_hex(8)
        self._outgoing += json.dumps({"id": ident, "message": message}).encode() + b"\n"
        start, limit = time.monotonic(), None if timeout is None else Limit(timeout)
        open_ended = True
        while True:
            fds = [self._status] + ([self._reply] if open_ended else [])
            pause = 0.1 if limit is None else min(0.1, limit.left() + 0.001)
            self._wait_for(fds, pause, write=self._request if self._outgoing else None)
            self._send()
            open_ended = self._read_replies() and open_ended
            answer = self._take_reply(ident)
            if answer is not None:
                self._check()
                return answer
            self._read_events()
            if self._death is not None:
                self._read_replies()
                answer = self._take_reply(ident)  # it answered and then died: the death is the next request's
                if answer is not None:
                    return answer
                self.close()
                raise self._death
            waited = time.monotonic() - start
            if not open_ended:
                self._fail_after_hangup()
            if limit is not None and limit.passed():
                self._fail("time", f"no answer within {limit}")
            if tick is not None:
                tick(waited)

    def _check(self) -> None:
        """Hear from the supervisor that no limit was passed before the answer, and what was tried on the way."""
        self._ask(b"c", "checked")
        if self._death is not None:
            self.close()
            raise self._death

    def _ask(self, command: bytes, event: str) -> None:
        self._awaited = event
        try:
            os.write(self._control, command)
        except OSError:
            pass  # gone: its last words are in the pipe
        deadline = time.monotonic() + 10
        while self._awaited and self._death is None and time.monotonic() < deadline:
            self._wait_for([self._status], 0.1)
            self._read_events()

    def wait(self, timeout: float | None = None) -> int:
        """For a program that answers no requests, a compiler, say: let it run to its end; its exit status.

        What it printed is in output(). Raises ChildDied where it ended otherwise than by exiting.
        """
        limit = None if timeout is None else Limit(timeout)
        while self._death is None:
            self._wait_for([self._status], 0.1)
            self._read_events()
            if limit is not None and self._death is None and limit.passed():
                self._fail("time", f"still running after {limit}")
        self.close()
        if self._status_code is None:
            raise self._death
        return self._status_code

    def output(self) -> str:
        """The last 64 KiB of what it printed, standard output and error together."""
        if self._death is None and not self._closed:
            self._ask(b"o", "output")
        return self._last_output

    def close(self) -> None:
        """End the child and everything it started; returns when they are gone."""
        if self._closed:
            return
        self._closed = True
        self._read_events()
        _close_quietly(self._supervisor.stdin)
        for fd in (self._request, self._reply):
            os.close(fd)
        try:
            self._supervisor.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()
            _sweep(self._token)
        self._read_events()
        _close_quietly(self._supervisor.stdout)
        if self._supervisor.returncode:
            _sweep(self._token)

    # ---- details -----------------------------------------------------------------------------------------------

    @staticmethod
    def _wait_for(read: list[int], timeout: float, write: int | None = None) -> None:
        poll = select.poll()
        for fd in read:
            poll.register(fd, select.POLLIN)
        if write is not None:
            poll.register(write, select.POLLOUT)
        poll.poll(timeout * 1000)

    def _send(self) -> None:
        try:
            while self._outgoing:
                self._outgoing = self._outgoing[os.write(self._request, self._outgoing) :]
        except BlockingIOError:
            pass
        except OSError:
            self._outgoing = b""  # it closed that side; the reply side tells the rest

    def _read_replies(self) -> bool:
        """False once the worker's side of the reply pipe is closed."""
        while True:
            try:
                data = os.read(self._reply, 1 << 20)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._replies += data
            if len(self._replies) > _MAX_REPLY:
                self._fail("protocol", f"sent an answer of more than {_MAX_REPLY >> 20} MiB")

    def _take_reply(self, ident: str) -> dict[str, Any] | None:
        while b"\n" in self._replies:
            line, _, self._replies = self._replies.partition(b"\n")
            try:
                parsed = json.loads(line)
                if "violation" in parsed:
                    self._add_violation(str(parsed["violation"])[:300])
                    continue
                if parsed["id"] != ident or not isinstance(parsed["reply"], dict):
                    raise ValueError("an answer to no question")
            except (ValueError, KeyError, TypeError, RecursionError):
                self._fail("protocol", f"sent something that is no answer: {line[:80]!r}")
            return dict(parsed["reply"])
        return None

    def _read_events(self) -> None:
        ended = False
        while not ended:
            try:
                data = os.read(self._status, 1 << 20)
            except BlockingIOError:
                break
            except OSError:
                return
            ended = not data
            self._events += data
        while b"\n" in self._events:
            line, _, self._events = self._events.partition(b"\n")
            event = json.loads(line)
            kind = event["event"]
            if kind == self._awaited:
                self._awaited = ""
            if kind == "started":
                self.isolation = event["isolation"]
            elif kind == "violation":
                self._add_violation(event["text"])
            elif kind == "output":
                self._last_output = event["text"]
            elif kind == "dead" and self._death is None and not self._closed:
                self._last_output = event["output"]
                self._status_code = event.get("status")
                self._die(event["cause"], event["detail"])
        if ended and self._death is None and not self._closed:
            self._die("protocol", "the supervisor was killed")

    def _add_violation(self, text: str) -> None:
        if text not in self.violations and len(self.violations) < 200:
            self.violations.append(text)

    def _die(self, cause: Cause, detail: str) -> None:
        self._death = ChildDied(cause, detail, self._last_output)

    def _fail(self, cause: Cause, detail: str) -> None:
        """We, not the supervisor, noticed that it is over."""
        tail = self.output()
        if self._death is None:
            self._death = ChildDied(cause, detail, tail)
        self.close()
        raise self._death

    def _fail_after_hangup(self) -> None:
        deadline = time.monotonic() + 0.5
        while self._death is None and time.monotonic() < deadline:
            self._wait_for([self._status], 0.1)
            self._read_events()
        self._fail("protocol", "closed its connection without an answer")


def _close_quietly(file: Any) -> None:
    try:
        file.close()
    except OSError:
        pass


def _configuration(
    argv: list[str],
    scratch: Path,
    readable: Sequence[Path],
    writable: Sequence[Path],
    hidden: Sequence[Path],
    limits: Limits,
    gpu: bool,
    without: Sequence[str],
) -> dict[str, Any]:
    def real(paths: Sequence[Path | str]) -> list[str]:
        return list(dict.fromkeys(os.path.realpath(p) for p in paths))

    may_write = real([scratch, *writable])
    for path in may_write:
        if not os.path.exists(path):
            raise FileNotFoundError(f"the sandbox's writable folder {path} does not exist")
    away = [p for p in real(hidden) if os.path.exists(p)]
    # The interpreter and this package must be found even where a hidden folder contains them.
    needed = real([*readable, *may_write, sys.prefix, sys.base_prefix, Path(__file__).parents[1]])
    covered = [*away, "/dev"]  # a child gets a /dev of its own, and /dev/shm with it
    inside = [p for p in needed if os.path.exists(p) and any(p.startswith(h.rstrip("/") + "/") for h in covered)]
    tasks = limits.processes + 32 * (os.cpu_count() or 1) + 256  # threads count too
    return {
        "argv": [str(a) for a in argv],
        "scratch": os.path.realpath(scratch),
        "writable": may_write,
        "hidden": away,
        "exceptions": [p for p in inside if p not in away],
        "gpu": gpu,
        "without": list(without),
        "wall_s": limits.wall_s,
        "memory_bytes": limits.memory_bytes,
        "cgroup_bytes": limits.memory_bytes + limits.memory_bytes // 8 + (256 << 20),
        "output_bytes": limits.output_bytes,
        "processes": limits.processes,
        "tasks": tasks,
        "disk_bytes": limits.disk_bytes,
        "shm_bytes": min(1 << 30, limits.memory_bytes // 2),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
    }


def _environment(scratch: Path, extra: Mapping[str, str] | None) -> dict[str, str]:
    """Ours, without what looks like a secret; what programs write for themselves goes to the scratch folder."""
    env = {k: v for k, v in os.environ.items() if not _SECRET.search(k)}
    base = os.path.realpath(scratch)
    env.update(
        HOME=f"{base}/home",
        TMPDIR=f"{base}/tmp",
        XDG_CACHE_HOME=f"{base}/home/.cache",
        PYTHONDONTWRITEBYTECODE="1",
        PYTHONUNBUFFERED="1",
        PYTHONUSERBASE=site.getuserbase(),  # packages installed for the user stay importable under another HOME
    )
    env.update(extra or {})
    return env


def _sweep(token: str) -> None:
    """Kill what still carries our mark. Only needed when a supervisor was killed outside a pid namespace."""
    mark = f"{VARIABLE}=".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            environ = Path(f"/proc/{name}/environ").read_bytes()
            if any(v.startswith(mark) and v.endswith(token.encode()) for v in environ.split(b"\0")):
                os.kill(int(name), signal.SIGKILL)
        except OSError:
            continue
