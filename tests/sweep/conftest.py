"""A folder of small problems, some of them bad."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from sweep_texts import GOOD


@pytest.fixture(scope="module", autouse=True)
def interrupts():
    """Sweeps and nodes can be interrupted here: shells have what they run in the background ignore it, and so its
    children do."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def folder(write, tmp_path) -> Path:
    write("set/good.py", GOOD)
    write("set/deep/other.py", GOOD.replace("* 2", "* 3"))
    write("set/helper.py", "x = 1\n")
    return tmp_path / "set"
