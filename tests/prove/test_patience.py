"""Time limits on a busy machine: what a process waits for a processor is not held against it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from crucible.prove import patience
from crucible.prove.sandbox import Child, ChildDied, Limits

pytestmark = pytest.mark.quick
MIB = 1 << 20
SPIN = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nprint(flush=True)\nwhile True: pass"


@pytest.fixture
def spinning():
    """Several processes that want the same processor; their grandchildren's delays are found from here."""
    processor = str(min(os.sched_getaffinity(0)))
    several = [subprocess.Popen([sys.executable, "-c", SPIN, processor], stdout=subprocess.PIPE) for _ in range(3)]
    for each in several:
        each.stdout.readline()
    yield several
    for each in several:
        each.kill()
        each.wait()


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel does not tell")
def test_the_kernel_says_who_waited(spinning):
    before = patience.delays(os.getpid())
    time.sleep(1.0)
    after = patience.delays(os.getpid())
    waited = [after[f"{p.pid}/{p.pid}"] - before[f"{p.pid}/{p.pid}"] for p in spinning]
    assert max(waited) > 0.3, waited  # three on one processor: each waits for two thirds of the time


def test_nobody_waits_where_nothing_was_started():
    with subprocess.Popen(["sleep", "30"]) as process:
        found = patience.delays(os.getpid())
        assert f"{process.pid}/{process.pid}" in found or not Path("/proc/self/schedstat").exists()
        assert patience.delays(process.pid) == {}
        process.kill()


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is told otherwise."""
    now = [100.0]
    monkeypatch.setattr(patience, "monotonic", lambda: now[0])

    def later(seconds):
        now[0] += seconds

    return later


def waiting(monkeypatch, *lost):
    """Let the kernel say that a thread has waited so long, one figure for each look."""
    figures = iter(lost)
    monkeypatch.setattr(patience, "delays", lambda root: {"1/1": next(figures, lost[-1])})


def test_waiting_is_left_out(monkeypatch, clock):
    waiting(monkeypatch, 5.0, 5.0, 5.3)
    limit = patience.Limit(0.2)
    clock(0.15)
    assert not limit.passed()
    clock(0.1)
    assert limit.passed() and str(limit) == "0.2 s"  # nothing was added since the first look
    assert not limit.passed() and limit.left_out == pytest.approx(0.3)
    clock(0.3)
    assert limit.passed()


def test_not_without_end(monkeypatch, clock):
    waiting(monkeypatch, 0.0, 1e9)
    limit, steps = patience.Limit(10), 0
    while not limit.passed():
        clock(0.5)
        steps += 1
    assert 10 * (1 + patience.MOST) < steps * 0.5 <= 10 * (1 + patience.MOST) + 0.5
    assert str(limit) == "10 s (and 30 s of waiting for a processor)"


def test_a_child_that_was_kept_waiting(monkeypatch, tmp_path):
    limits = Limits(60, 256 * MIB)
    with Child(["sleep", "40"], scratch=tmp_path / "a", limits=limits) as child:
        with pytest.raises(ChildDied, match=r"still running after 0\.3 s"):
            child.wait(0.3)
    waiting(monkeypatch, 0.0, 30.0)
    with Child(["sleep", "2"], scratch=tmp_path / "b", limits=limits) as child:
        assert child.wait(1.5) == 0
