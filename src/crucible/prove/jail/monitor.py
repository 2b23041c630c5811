"""Counts what a child and all its descendants use: processes, threads, memory, disk."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MAX_FILES = 200_000


@dataclass
class Process:
    pid: int
    name: str = "?"
    parent: int = 0
    threads: int = 1
    memory: int = 0  # bytes: anonymous, shared and swapped-out pages; file pages are the kernel's to drop


def read_process(pid: int, proc: int | None = None) -> Process | None:
    """What /proc says of one process; `proc` is an open folder where it is another namespace's /proc."""
    try:
        fd = os.open(f"{pid}/status" if proc is not None else f"/proc/{pid}/status", os.O_RDONLY, dir_fd=proc)
    except OSError:
        return None
    try:
        text = os.read(fd, 8192).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(fd)
    process = Process(pid)
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == "Name":
            process.name = value.strip()
        elif key == "PPid":
            process.parent = int(value)
        elif key == "Threads":
            process.threads = int(value)
        elif key in ("RssAnon", "RssShmem", "VmSwap"):
            process.memory += int(value.split()[0]) * 1024
    return process


def _proportional(pid: int, proc: int | None) -> int | None:
    """Memory with pages shared between processes split among them: dear to compute, so only asked in doubt."""
    try:
        fd = os.open(f"{pid}/smaps_rollup" if proc is not None else f"/proc/{pid}/smaps_rollup",
                     os.O_RDONLY, dir_fd=proc)  # fmt: skip
    except OSError:
        return None
    try:
        text = os.read(fd, 8192).decode("ascii", "replace")
    except OSError:
        return None
    finally:
        os.close(fd)
    total = 0
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key in ("Pss_Anon", "Pss_Shmem", "SwapPss"):
            total += int(value.split()[0]) * 1024
    return total


def all_in(proc: int) -> list[int]:
    """Every process of the namespace whose /proc is open as `proc`, except its init."""
    return [int(name) for name in os.listdir(proc) if name.isdigit() and name != "1"]


def descendants(root: int, at_most: int = 1 << 30) -> list[int]:
    """Every process below `root`, nearest first; stops looking once there are more than `at_most`."""
    found: list[int] = []
    queue = [root]
    while queue and len(found) <= at_most:
        children = _children(queue.pop(0))
        found += children
        queue += children
    return found


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return children
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                children += [int(word) for word in file.read().split()]
        except FileNotFoundError:
            if os.path.exists(f"/proc/{pid}/task/{thread}"):  # a kernel without that file: look at everybody
                return [p.pid for p in _everybody() if p.parent == pid]
        except OSError:
            pass
    return children


def _everybody() -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            process = read_process(int(name))
            if process is not None:
                yield process


def human(size: float) -> str:
    """12345678 -> "11.8 MiB"."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


@dataclass
class Monitor:
    """Compares a tree of processes with its limits; `check` returns (cause, detail) where one is passed."""

    memory_bytes: int
    processes: int
    threads: int
    disk_bytes: int
    folders: Sequence[str]
    peak_memory: int = 0
    _walk: Iterator[None] | None = None
    _next_walk: float = 0.0
    _base: tuple[int, int] | None = None
    _used: tuple[int, int] = (0, 0)

    def check(self, pids: list[int], proc: int | None, thorough: bool = False) -> tuple[str, str] | None:
        # Of a crowd, look at no more than it takes to know that it is one: it grows while we look.
        looked = pids[: 2 * self.processes + 8]
        alive = [p for p in (read_process(pid, proc) for pid in looked) if p is not None]
        if len(alive) > self.processes:
            names = ", ".join(name for name, _ in Counter(p.name for p in alive).most_common(3))
            return "processes", f"{len(pids)} processes at once, limit {self.processes} ({names})"
        threads = sum(p.threads for p in alive)
        if threads > self.threads:
            return "processes", f"{threads} threads at once, limit {self.threads}"
        memory = sum(p.memory for p in alive)
        if memory > self.memory_bytes and len(alive) > 1:
            exact = [_proportional(p.pid, proc) for p in alive]
            memory = sum(p.memory if e is None else e for p, e in zip(alive, exact))
        self.peak_memory = max(self.peak_memory, memory)
        if memory > self.memory_bytes:
            largest = max(alive, key=lambda p: p.memory)
            return "memory", (
                f"used {human(memory)} of memory, limit {human(self.memory_bytes)} "
                f"(the largest of {len(alive)}: {largest.name}, {human(largest.memory)})"
            )
        return self._check_disk(pids, proc, thorough)

    def measure_disk_now(self) -> None:
        """Take what the folders hold now as the start; only growth counts."""
        for _ in self._count([], None):
            pass
        self._base = self._used

    def _check_disk(self, pids: list[int], proc: int | None, thorough: bool) -> tuple[str, str] | None:
        """Walks the folders a little at a time: a huge tree must not keep us from looking at the memory."""
        now = time.monotonic()
        if thorough:
            self._walk = None  # start afresh: the current one may have passed the file that matters
        if self._walk is None:
            if now < self._next_walk and not thorough:
                return None
            self._walk = self._count(pids, proc)
        for _ in self._walk:
            if time.monotonic() - now > (0.2 if thorough else 0.005):
                break
        else:
            self._walk = None
            self._next_walk = time.monotonic() + 0.25
        base_bytes, base_files = self._base or (0, 0)
        if self._used[0] - base_bytes > self.disk_bytes:
            grown = human(self._used[0] - base_bytes)
            return "disk", f"wrote {grown} to disk, limit {human(self.disk_bytes)}"
        if self._used[1] - base_files > MAX_FILES:
            return "disk", f"made {self._used[1] - base_files} files, limit {MAX_FILES}"
        return None

    def _count(self, pids: list[int], proc: int | None) -> Iterator[None]:
        size = files = 0
        stack = [f for f in self.folders if not _inside_another(f, self.folders)]
        while stack:
            path = stack.pop()
            try:
                entries = os.scandir(path)
            except NotADirectoryError:
                size += os.path.getsize(path)
                continue
            except OSError:
                continue
            with entries:
                for entry in entries:
                    files += 1
                    try:
                        if entry.is_dir(follow_symlinks=False):
                            stack.append(entry.path)
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
                    except OSError:
                        continue
                    if files % 64 == 0:
                        yield
            yield
        seen: set[tuple[int, int]] = set()
        for pid in pids:
            size += sum(_unlinked(pid, proc, seen))
            yield
        self._used = (size, files)


def _inside_another(path: str, folders: Sequence[str]) -> bool:
    return any(path != f and path.startswith(f.rstrip("/") + "/") for f in folders)


def _unlinked(pid: int, proc: int | None, seen: set[tuple[int, int]]) -> Iterator[int]:
    """Sizes of files that a process holds open and that have no name any more (memfd among them)."""
    folder = f"{pid}/fd" if proc is not None else f"/proc/{pid}/fd"
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY, dir_fd=proc)
    except OSError:
        return
    try:
        for name in os.listdir(fd):
            try:
                info = os.stat(name, dir_fd=fd)
            except OSError:
                continue
            if info.st_nlink == 0 and info.st_size and (info.st_dev, info.st_ino) not in seen:
                seen.add((info.st_dev, info.st_ino))
                yield info.st_blocks * 512
    except OSError:
        return
    finally:
        os.close(fd)
