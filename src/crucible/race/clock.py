"""How a call is timed: from an idle device to an idle device, with whatever the call left running.

A call is over when every stream of the device is idle and every thread that it started is gone, so that work on a side
stream or in a background thread gains nothing. A result is copied at the very moment at which its time ends: what a
thread that stays alive writes into it later is not in the copy. All functions used here are taken when the clock is
made, which is before a candidate is imported: replacing them in torch afterwards changes nothing.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

THREAD_WAIT = 2.0  # seconds for threads that a call left behind; those that stay longer are there to stay
LAG_SAMPLES = 30
LAG_BYTES = 64 << 20


class Marks(Protocol):
    """A device's own clock, and how to wait for the device."""

    def wait(self) -> None:
        """Until nothing runs on any stream."""
        ...

    def mark(self, place: int) -> None:
        """Note the present moment of the device as the start (0) or the end (1, 2)."""
        ...

    def milliseconds(self, start: int, end: int) -> float: ...

    def busy(self) -> None:
        """Give the device something to do, for a moment."""
        ...


class GpuMarks:
    """CUDA events on the stream that was current when this was made."""

    def __init__(self) -> None:
        made = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        base = torch._C._CudaEventBase
        kind: Any = base if isinstance(made[0], base) else torch.cuda.Event
        self._record, self._elapsed = kind.record, kind.elapsed_time
        self._events, self._stream = made, torch.cuda.current_stream()
        self._wait = getattr(torch._C, "_cuda_synchronize", None) or torch.cuda.synchronize
        self._buffer: torch.Tensor | None = None

    def wait(self) -> None:
        self._wait()

    def mark(self, place: int) -> None:
        self._record(self._events[place], self._stream)

    def milliseconds(self, start: int, end: int) -> float:
        return float(self._elapsed(self._events[start], self._events[end]))

    def busy(self) -> None:
        if self._buffer is None:
            self._buffer = torch.empty(LAG_BYTES, dtype=torch.uint8, device="cuda")
        self._buffer.zero_()

    def release(self) -> None:
        self._buffer = None


class CpuMarks:
    """The processor's clock: for tests of everything around it. No time of a race comes from here."""

    def __init__(self) -> None:
        self._now = time.perf_counter
        self._times = [0.0, 0.0, 0.0]

    def wait(self) -> None:
        pass

    def mark(self, place: int) -> None:
        self._times[place] = self._now()

    def milliseconds(self, start: int, end: int) -> float:
        return 1e3 * (self._times[end] - self._times[start])

    def busy(self) -> None:
        pass


def native_threads(listing: Callable[[str], list[str]] = os.listdir) -> int:
    """Threads of this process as the kernel counts them; 0 where it does not say."""
    try:
        return len(listing("/proc/self/task"))
    except OSError:
        return 0


@dataclass
class Sample:
    """One timed call: milliseconds, what it returned, whether threads outlived it, and what was kept of the result."""

    milliseconds: float
    result: Any
    left_threads: bool = False
    kept: Any = None


class Clock:
    """Times calls. ``lag`` is what waiting for an idle device adds, found beforehand and taken off."""

    def __init__(self, marks: Marks, threads: Callable[[], int] = native_threads, lag: float | None = None) -> None:
        self.marks, self.threads = marks, threads
        self._sleep, self._now = time.sleep, time.monotonic
        self.idle = threads()  # as many are there when nothing is going on
        self.lag = self._find_lag() if lag is None else lag

    def _find_lag(self) -> float:
        """Milliseconds between the end of work on one stream and the mark that follows the wait for all of them."""
        found = []
        for _ in range(LAG_SAMPLES):
            self.marks.wait()
            self.marks.busy()
            self.marks.mark(1)
            self.marks.wait()
            self.marks.mark(2)
            self.marks.wait()
            found.append(self.marks.milliseconds(1, 2))
        release = getattr(self.marks, "release", None)
        if release is not None:
            release()
        return statistics.median(found)

    def settle(self) -> None:
        """What an earlier call left behind is not the next one's.

        Before the next call's inputs are made: to look for threads takes so long that a call right behind it would find
        the processor's caches without its own code.
        """
        self._join()

    def sample(self, call: Callable[[], Any], keep: Callable[[Any], Any] | None = None) -> Sample:
        """Time a call. ``keep`` is given its result when the time is over, before anything else can happen to it."""
        self.marks.wait()
        self.marks.mark(0)
        result = call()
        kept = self._finish(result, keep)
        left = self.threads() > self.idle
        if left and self._join():
            kept = self._finish(result, keep)
        return Sample(max(self.marks.milliseconds(0, 1) - self.lag, 0.0), result, left, kept)

    def _finish(self, result: Any, keep: Callable[[Any], Any] | None) -> Any:
        self.marks.wait()
        self.marks.mark(1)
        kept = keep(result) if keep is not None else None
        self.marks.wait()
        return kept

    def _join(self) -> bool:
        """Wait for threads that a call left behind; False where they stay, as those of a pool do."""
        end = self._now() + THREAD_WAIT
        while self.threads() > self.idle:
            if self._now() > end:
                self.idle = self.threads()
                return False
            self._sleep(0.0005)
        self.idle = self.threads()
        return True
