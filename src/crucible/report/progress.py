"""Progress on standard error: one line that changes on a terminal, one line a check elsewhere."""

from __future__ import annotations

import contextlib
import time

from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.status import Status
from rich.table import Table


class Progress:
    """A context manager; ``say(step, text)`` is what ``prove`` and ``fuse`` call."""

    def __init__(self, console: Console, title: str = "crucible prove") -> None:
        self.console = console
        self.title = title
        self.start = time.monotonic()
        self.last = ""
        self._stack = contextlib.ExitStack()
        self._status: Status | None = None

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self._status = self._stack.enter_context(self.console.status(self.title))
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def say(self, check: str, text: str) -> None:
        if self._status is not None:
            self._status.update(f"{check}: {text}" if text else check)
        elif check != self.last:
            self.console.print(
                f"[{time.monotonic() - self.start:5.1f} s] {check}" + (f": {text}" if text else ""),
                markup=False,
                highlight=False,
            )
        self.last = check

    def gauge(self, check: str, spent: float, total: float, text: str) -> None:
        """The same for a step with a budget of seconds, with a bar on a terminal."""
        spent = min(spent, total)
        if self._status is None:
            self.say(f"{check}, {text}", f"{spent:.0f} of {total:.0f} s")
            return
        row = Table.grid(padding=(0, 1))
        row.add_row(check, ProgressBar(total=total, completed=spent, width=30), f"{spent:.0f} of {total:.0f} s", text)
        self._status.update(row)
        self.last = check
