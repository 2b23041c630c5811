"""The supervisor: starts one child inside the strongest walls that this machine offers, watches it, ends it.

A process of its own, so that limits hold while the parent is busy and so that the parent never forks.
It reads one JSON line of configuration on its standard input, then commands; the end of that input means "end it all".
It writes JSON lines of events on its standard output: started, violation, output, dead.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

from . import entry, monitor, namespaces, seccomp, system
from .cgroup import Group

TICK = 0.03
TAIL = 64 << 10
MAX_VIOLATIONS = 100


def main() -> None:
    supervisor = Supervisor(json.loads(_first_line()))
    try:
        supervisor.run()
    except BaseException as error:
        supervisor.destroy()
        supervisor.tell(event="dead", cause="protocol", detail=f"the supervisor failed: {error!r}", output="")
    finally:
        supervisor.group.remove()


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1 << 16)  # the parent sends nothing else before it has our answer
        if not piece:
            sys.exit(0)
        line += piece
    return line


class Refused(Exception):
    """The kernel did not let us have this level."""


class Supervisor:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.without = set(config["without"])
        self.group = Group("crucible-" + config["token"], config["cgroup_bytes"], config["tasks"])
        config["cgroup"] = self.group.entrances()
        self.level = namespaces.NOTHING
        self.init = 0
        self.proc: int | None = None
        self.notes: list[str] = []
        self.watcher: seccomp.Watcher | None = None
        self.violations: set[str] = set()
        self.status: int | None = None  # what it exited with
        self.tail = bytearray()
        self.printed = 0
        self.output_read, self.output_write = os.pipe()
        os.set_blocking(self.output_read, False)
        self.monitor = monitor.Monitor(
            config["memory_bytes"], config["processes"], config["tasks"], config["disk_bytes"], config["writable"]
        )
        self.oom_before = _machine_oom_kills()

    # ---- starting ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        system.try_prctl(system.PR_SET_CHILD_SUBREAPER, 1)
        try:
            os.nice(-10)  # stay ahead of a fork bomb; the worker goes back to 0 by itself
        except OSError:
            pass
        self.monitor.measure_disk_now()
        walls = self._start()
        os.close(self.output_write)
        for fd in self.config["protocol_fds"]:
            os.close(fd)
        if walls is None:
            return
        self.tell(event="started", isolation=self._isolation(walls))
        cause, detail = self._watch(self.deadline)
        self.destroy()
        self._drain(final=True)
        if cause:
            self.tell(event="dead", cause=cause, detail=detail, output=self._tail_text(), status=self.status)

    def _start(self) -> dict[str, Any] | None:
        for level in self._levels():
            if level.user is False and level.flags and os.geteuid() != 0:
                continue
            try:
                self._enter(level)
            except Refused as error:
                self.notes.append(f"{_describe(level)}: {error}")
                self.destroy()
                continue
            break
        self.deadline = time.monotonic() + self.config["wall_s"]
        self.sock.send(b"run")
        word, text, fds = self._hear(10.0)
        if word != "walls":
            self.destroy()
            self.tell(event="dead", cause="exit", detail=f"could not be started: {text}", output="")
            return None
        if fds:
            shown = [p for p in self.config["exceptions"] if p.startswith("/dev/")]
            loopback = self.level.network and bool(self.config["loopback"])
            self.watcher = seccomp.Watcher(fds[0], self.config["writable"], shown, loopback)
        return dict(json.loads(text))

    def _levels(self) -> list[namespaces.Level]:
        if "namespaces" in self.without:
            self.notes.append("namespaces: switched off")
            return [namespaces.NOTHING]
        if "pid" in self.without:
            return [level for level in namespaces.LEVELS if not level.processes]
        return list(namespaces.LEVELS)

    def _enter(self, level: namespaces.Level) -> None:
        self.sock, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.level = level
        self.config["nproc"] = self._nproc(level)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            self.sock.close()
            os.setpriority(os.PRIO_PROCESS, 0, self.config["nice"])
            entry.enter(level, self.config, inside, self.output_write)
        inside.close()
        self.init = pid
        self._require("unshared")
        if level.user:
            try:
                namespaces.write_id_maps(pid)
            except OSError as error:
                raise Refused(f"id maps: {error.strerror}") from None
        self.sock.send(b"mapped")
        self.init = int(self._require("init")[0])
        if self.init != pid:
            os.waitpid(pid, 0)
        self.sock.send(b"go")
        _, fds = self._require("ready")
        self.proc = fds[0] if fds else None

    def _require(self, word: str) -> tuple[str, list[int]]:
        heard, text, fds = self._hear(10.0)
        if heard != word:
            raise Refused(text or heard or "no answer")
        return text, fds

    def _hear(self, timeout: float) -> tuple[str, str, list[int]]:
        self.sock.settimeout(timeout)
        try:
            message, fds, _, _ = socket.recv_fds(self.sock, 65536, 4)
        except OSError:
            return "", "", []
        for fd in fds:
            os.set_inheritable(fd, False)
        word, _, text = message.decode("utf-8", "replace").partition(" ")
        return word, text, list(fds)

    def _nproc(self, level: namespaces.Level) -> int:
        """RLIMIT_NPROC counts threads too; in a user namespace of its own the child starts from nought."""
        if os.geteuid() == 0:
            return 0  # does not hold for root
        tasks = int(self.config["tasks"])
        if level.user and _kernel() >= (5, 14):
            return tasks
        mine = sum(p.threads for p in map(monitor.read_process, _own_processes()) if p is not None)
        return tasks + mine

    def _isolation(self, walls: dict[str, Any]) -> dict[str, Any]:
        files = ["mount namespace"] if self.level.files else []
        if "landlock" in walls:
            files.append(walls["landlock"])
        if walls.get("seccomp") == "watched":
            files.append("seccomp")
        if self.level.network:
            network = "namespace"
        elif "seccomp" in walls:
            network = "seccomp"
        else:
            network = "audit hook (Python code only)"
        if self.level.files:
            hidden = "mount namespace"
        else:
            hidden = "landlock" if "landlock" in walls else "audit hook (Python code only)"
        processes = ["pid namespace"] if self.level.processes else ["subreaper"]
        if "pids" in self.group.folders:
            processes.append("cgroup")
        if self.config["nproc"]:
            processes.append("rlimit")
        memory = f"monitor {TICK * 1000:.0f} ms" + (" + cgroup" if "memory" in self.group.folders else "")
        return {
            "filesystem": " + ".join(files) or "audit hook (Python code only)",
            "hidden": hidden,
            "network": network,
            "processes": " + ".join(processes),
            "memory": memory,
            "privileges": walls["privileges"],
            "user": "root" if os.geteuid() == 0 else "ordinary",
            "notes": self.notes + walls["notes"],
        }

    # ---- watching ----------------------------------------------------------------------------------------------

    def _watch(self, deadline: float) -> tuple[str, str]:
        """Until the child is over; ("", "") when the parent asked for the end."""
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(self.output_read, select.POLLIN)
        poll.register(self.sock, select.POLLIN)
        if self.watcher is not None:
            poll.register(self.watcher.listener, select.POLLIN)
        next_check = 0.0
        while True:
            now = time.monotonic()
            if now >= next_check:
                next_check = now + TICK
                found = self._check(now, deadline)
                if found is not None:
                    return found
            for fd, event in poll.poll(max(0.0, next_check - time.monotonic()) * 1000):
                if fd == 0:
                    found = self._obey(deadline)
                    if found is not None:
                        return found
                elif fd == self.output_read:
                    if not self._drain():
                        poll.unregister(fd)
                    if self.printed > self.config["output_bytes"]:
                        return "output", f"printed more than {monitor.human(self.config['output_bytes'])}"
                elif fd == self.sock.fileno():
                    word, text, _ = self._hear(1.0)
                    if word == "exit":
                        return self._ended(int(text))
                    if word == "exec-failed":
                        return "exit", f"could not be started: {text}"
                    if word == "":
                        poll.unregister(fd)  # the init is gone; _check says how
                elif self.watcher is not None:
                    if event & select.POLLIN:
                        self._note(self.watcher.answer())
                    else:
                        poll.unregister(fd)

    def _check(self, now: float, deadline: float, thorough: bool = False) -> tuple[str, str] | None:
        if now > deadline:
            return "time", f"still running after {self.config['wall_s']:g} s"
        pid, status = os.waitpid(self.init, os.WNOHANG)
        if pid:
            self.init = 0
            return self._ended(status)
        try:
            pids = monitor.all_in(self.proc) if self.proc is not None else self._below()
        except OSError:
            return None  # the namespace is being torn down
        found = self.monitor.check(pids, self.proc, thorough)
        if found is None and self.group.oom_kills():
            return "memory", f"was stopped by the kernel at {monitor.human(self.config['cgroup_bytes'])} of memory"
        if found is None and self.group.refused_tasks():
            return "processes", f"was stopped by the kernel at {self.config['tasks']} processes and threads"
        return found

    def _below(self) -> list[int]:
        enough = 2 * int(self.config["processes"]) + 8
        return [pid for pid in monitor.descendants(os.getpid(), enough) if pid != self.init]

    def _ended(self, status: int) -> tuple[str, str]:
        if os.WIFEXITED(status):
            self.status = os.WEXITSTATUS(status)
            return "exit", f"the process exited with status {self.status}"
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
        if number == signal.SIGKILL and (self.group.oom_kills() or _machine_oom_kills() > self.oom_before):
            used = monitor.human(self.monitor.peak_memory)
            return "memory", f"the kernel ran out of memory and killed it (it had used {used} when last seen)"
        if number == signal.SIGXFSZ:
            return "disk", f"wrote a file of more than {monitor.human(self.config['disk_bytes'])}"
        meaning = signal.strsignal(number) or "unknown signal"
        self._drain()
        return "signal", f"the process was killed by {name} ({meaning})" + self._fault()

    def _fault(self) -> str:
        """What Python's faulthandler printed as it died, if it did."""
        text = self._tail_text()
        at = text.rfind("Fatal Python error:")
        if at < 0:
            return ""
        return "\n" + "\n".join(text[at:].splitlines()[:14])

    def _note(self, violation: str | None) -> None:
        if violation and violation not in self.violations and len(self.violations) < MAX_VIOLATIONS:
            self.violations.add(violation)
            self.tell(event="violation", text=violation[:300])

    def _drain(self, final: bool = False) -> bool:
        """Read what the child printed, keep the end of it. False at the end of the pipe."""
        for _ in range(1000 if final else 16):
            try:
                data = os.read(self.output_read, 1 << 16)
            except OSError:
                return True  # nothing more now
            if not data:
                return False
            self.printed += len(data)
            self.tail += data
            if len(self.tail) > 2 * TAIL:
                del self.tail[:-TAIL]
        return True

    def _tail_text(self) -> str:
        return bytes(self.tail[-TAIL:]).decode("utf-8", "replace")

    def _obey(self, deadline: float) -> tuple[str, str] | None:
        """One command of the parent; a result means that the child is over."""
        command = os.read(0, 4096)
        if not command:
            return "", ""
        if b"c" in command:
            # "Is all well?" The parent asks after every answer, so that what happened before it is known with it.
            found = self._check(time.monotonic(), deadline, thorough=True)
            if found is not None:
                return found
            self.tell(event="checked")
        if b"o" in command:
            self._drain()
            self.tell(event="output", text=self._tail_text())
        return None

    def tell(self, **event: Any) -> None:
        data = json.dumps(event).encode() + b"\n"
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:
            pass  # the parent is gone; our own end is near

    # ---- ending ------------------------------------------------------------------------------------------------

    def destroy(self) -> None:
        """End every process inside, whatever it did to get away. Returns when they are gone."""
        if self.level.processes and self.init:
            _kill(self.init, signal.SIGKILL)  # the kernel takes the whole namespace with its init
            _wait(self.init)
        give_up = time.monotonic() + 20
        while time.monotonic() < give_up:
            # Stop first, kill then: a stopped process cannot fork while we are looking elsewhere.
            stopped: set[int] = set()
            while True:
                fresh = [pid for pid in monitor.descendants(os.getpid()) if pid not in stopped]
                if not fresh or time.monotonic() > give_up:
                    break
                for pid in fresh:
                    _kill(pid, signal.SIGSTOP)
                    stopped.add(pid)
            for pid in stopped:
                _kill(pid, signal.SIGKILL)
            _reap()
            if not stopped:
                break
            time.sleep(0.002)
        self.init = 0


def _describe(level: namespaces.Level) -> str:
    parts = [name for name in ("user", "files", "processes", "network") if getattr(level, name)]
    return "namespaces for " + ", ".join(parts)


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


def _wait(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except OSError:
        pass


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except OSError:
        pass


def _machine_oom_kills() -> int:
    try:
        with open("/proc/vmstat") as file:
            for line in file:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0


def _kernel() -> tuple[int, int]:
    first, second = os.uname().release.split(".")[:2]
    return int(first), int("".join(c for c in second if c.isdigit()) or 0)


def _own_processes() -> list[int]:
    uid = os.getuid()
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:
                found.append(int(name))
        except OSError:
            pass
    return found
