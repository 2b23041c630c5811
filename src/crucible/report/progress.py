"""Progress on standard error: one line that changes on a terminal, one line a check elsewhere."""

from __future__ import annotations

import contextlib
import time

from rich.console import Console
from rich.status import Status


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
