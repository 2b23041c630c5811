"""Small problems as files, and scripts on the simulated device, which must exist before torch is imported."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from small_problems import LINEAR

ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--on-gpu", action="store_true", help="proofs and scripts on the GPU at hand, not the simulator")


@pytest.fixture(autouse=True)
def _on_gpu(request, monkeypatch):
    """Tests that prove in the simulator prove on a chip."""
    if not request.config.getoption("--on-gpu"):
        return
    from crucible.prove import run

    simulated = run.prove

    def prove(*files, **options):
        device = options.get("device")
        return simulated(*files, **{**options, "device": "cuda" if device == "sim" else device})

    monkeypatch.setattr(run, "prove", prove)


@pytest.fixture
def write(tmp_path):
    """write(name, text) -> path of a dedented file."""

    def make(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    return make


@pytest.fixture
def linear(write) -> Path:
    return write("reference.py", LINEAR)


@pytest.fixture
def run_on_device(tmp_path, request):
    """Run a script with the simulated device installed; its standard output, or an assertion with all it said."""
    real = request.config.getoption("--on-gpu")

    def run(script: str, *, install: bool = True, expect: int = 0, timeout: float = 240) -> str:
        head = (
            "from crucible.prove.imports import nothing_is_garbage\nfrom crucible.sim import device\n"
            "with nothing_is_garbage(): device.install(); import torch\n"
        ) if install and not real else "import torch\n" if install else ""  # fmt: skip
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
