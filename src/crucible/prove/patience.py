"""Time limits that leave out how long processes waited for a processor: a busy machine is no fault of theirs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

# Short waits are not looked into: that takes milliseconds.
SHORT = 1.0
# What is left out at most, in lengths of the limit: a process can keep itself waiting with threads of its own.
MOST = 3.0


def descendants(root: int) -> Iterator[int]:
    """All processes that a process has started, those of theirs too."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                # The name of the program stands in parentheses and may have any characters in it.
                parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            children.setdefault(parent, []).append(int(name))
    at = [root]
    while at:
        found = children.get(at.pop(), [])
        at += found
        yield from found


def delays(root: int) -> dict[str, float]:
    """Seconds that each thread of a process's descendants has waited for a processor, as far as the kernel tells."""
    found = {}
    for pid in descendants(root):
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                waited = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[1]
                found[f"{pid}/{thread}"] = int(waited) / 1e9
        except (OSError, ValueError, IndexError):
            continue
    return found


class Limit:
    """So many seconds from now on, and those in which a thread of some descendant waited for a processor."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.left_out = 0.0
        self._start = monotonic()
        self._before: dict[str, float] | None = None

    def passed(self) -> bool:
        """To be asked every now and then."""
        waited = monotonic() - self._start
        if self._before is None and waited > min(SHORT, self.seconds / 2):
            self._before = delays(os.getpid())
        if waited <= self.seconds + self.left_out:
            return False
        before = self._before or {}
        longest = max((d - before.get(name, 0.0) for name, d in delays(os.getpid()).items()), default=0.0)
        self.left_out = min(longest, MOST * self.seconds)
        return waited > self.seconds + self.left_out

    def left(self) -> float:
        """Seconds until it is worth asking again."""
        return max(0.0, self.seconds + self.left_out - (monotonic() - self._start))

    def __str__(self) -> str:
        beside = f" (and {self.left_out:.0f} s of waiting for a processor)" if self.left_out >= 1 else ""
        return f"{self.seconds:g} s{beside}"
