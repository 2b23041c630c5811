"""Helpers for tests that need the simulated device: it must exist before torch is imported, so each runs in a child."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def run_on_device(tmp_path):
    """Run a script with the simulated device installed; its standard output, or an assertion with all it said."""

    def run(script: str, *, install: bool = True, expect: int = 0, timeout: float = 240) -> str:
        head = "from crucible.sim import device\ndevice.install()\nimport torch\n" if install else ""
        path = tmp_path / "script.py"
        path.write_text(head + textwrap.dedent(script))
        done = subprocess.run(
            [sys.executable, str(path)],
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
        assert done.returncode == expect, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    return run
