"""The clock on a made-up device: what a call leaves running belongs to its time, and nothing can be replaced."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from crucible.race.clock import Clock, CpuMarks, native_threads

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def quiet():
    """The clock counts threads: those of the test before are to be gone, for the kernel too, before this one counts."""
    end, seen = time.monotonic() + 5.0, []
    while time.monotonic() < end and (threading.active_count() > 1 or seen[-5:] != [native_threads()] * 5):
        seen.append(native_threads())
        time.sleep(0.005)


class Streams:
    """A device whose streams are busy until given moments; waiting moves its clock to the last of them."""

    def __init__(self, lag: float = 0.0) -> None:
        self.now, self.lag = 0.0, lag
        self.until = {"main": 0.0, "side": 0.0}
        self.marks = {}

    def launch(self, stream: str, milliseconds: float) -> None:
        self.until[stream] = max(self.now, self.until[stream]) + milliseconds

    def wait(self) -> None:
        last = max(self.until.values())
        if last > self.now:
            self.now = last + self.lag

    def mark(self, place: int) -> None:
        self.marks[place] = max(self.now, self.until["main"])  # an event of the main stream

    def milliseconds(self, start: int, end: int) -> float:
        return self.marks[end] - self.marks[start]

    def busy(self) -> None:
        self.launch("main", 1.0)


@pytest.mark.parametrize("stream", ["main", "side"])
def test_every_stream_counts(stream):
    device = Streams()
    assert Clock(device).sample(lambda: device.launch(stream, 3.0)).milliseconds == pytest.approx(3.0)


def test_the_lag_of_waiting_is_taken_off():
    device = Streams(lag=0.25)
    clock = Clock(device)
    assert clock.lag == pytest.approx(0.25)
    assert clock.sample(lambda: device.launch("main", 3.0)).milliseconds == pytest.approx(3.0)
    assert clock.sample(lambda: None).milliseconds == 0.0  # never below nothing


def test_what_ran_before_does_not_count():
    device = Streams()
    device.launch("side", 50.0)
    assert Clock(device).sample(lambda: device.launch("main", 2.0)).milliseconds == pytest.approx(2.0)


def test_the_result_comes_back():
    assert Clock(Streams()).sample(lambda: "out").result == "out"


def test_threads_are_waited_for():
    done = []

    def call() -> None:
        threading.Thread(target=lambda: (time.sleep(0.05), done.append(1))).start()

    sample = Clock(CpuMarks(), lag=0.0).sample(call)
    assert done and sample.left_threads and sample.milliseconds >= 50.0


def test_a_result_is_kept_as_it_was_when_its_time_ended():
    out = []
    device = Streams()

    def threads() -> int:  # is asked right after the end: somebody writes the result only then
        out.append("late")
        return 1

    sample = Clock(device, threads).sample(lambda: out.clear(), lambda result: list(out))
    assert sample.kept == [] and out


def test_a_thread_that_computes_late_and_stays_has_computed_nothing(monkeypatch):
    """It is still there after the longest wait, so that its work is in no time: its result may not count either."""
    from crucible.race import clock as module

    monkeypatch.setattr(module, "THREAD_WAIT", 0.05)
    out, end = [], threading.Event()

    def work() -> None:
        time.sleep(0.01)
        out.append("late")
        end.wait()

    try:
        clock = Clock(CpuMarks(), lag=0.0)
        sample = clock.sample(lambda: threading.Thread(target=work).start(), lambda result: list(out))
        assert out == ["late"] and sample.kept == [] and sample.left_threads
    finally:
        end.set()


def test_what_a_thread_has_done_in_time_is_kept():
    out = []
    work = threading.Thread(target=lambda: (time.sleep(0.02), out.append("done")))
    clock = Clock(CpuMarks(), lambda: int(work.is_alive()), lag=0.0)  # threads of other tests may end meanwhile
    sample = clock.sample(work.start, lambda result: list(out))
    assert sample.kept == ["done"] and sample.milliseconds >= 20.0


def test_threads_that_stay_are_said_and_do_not_stop_the_race(monkeypatch):
    from crucible.race import clock as module

    monkeypatch.setattr(module, "THREAD_WAIT", 0.05)
    end = threading.Event()
    try:
        sample = Clock(CpuMarks(), lag=0.0).sample(lambda: threading.Thread(target=end.wait).start())
        assert sample.left_threads and sample.milliseconds < 40.0
    finally:
        end.set()


def test_threads_of_an_earlier_call_are_not_this_ones():
    clock = Clock(CpuMarks(), lag=0.0)

    def call() -> None:
        threading.Thread(target=lambda: time.sleep(0.05)).start()

    call()
    clock.settle()
    first, second = clock.sample(lambda: None), clock.sample(call)
    assert first.milliseconds < 40.0 and not first.left_threads
    assert second.milliseconds >= 50.0 and second.left_threads


def test_patched_timers_change_nothing(monkeypatch):
    clock = Clock(CpuMarks(), lag=0.0)
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    gate = threading.Event()
    assert clock.sample(lambda: gate.wait(0.02)).milliseconds >= 19.0


def test_native_threads_are_counted():
    before, gate = native_threads(), threading.Event()
    thread = threading.Thread(target=gate.wait)
    thread.start()
    try:
        assert native_threads() == before + 1
    finally:
        gate.set()
        thread.join()

    def refused(path):
        raise OSError

    assert native_threads(refused) == 0
