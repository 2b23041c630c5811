"""The option by which tests of fused Models use a chip."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
TESTS = (
    "tests/fuse/test_updated_buffers.py::test_proven[center]",
    "tests/fuse/test_sizes_that_vary.py::test_sizes_that_would_give_other_shapes_are_refused",
)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, on which they pass")
def test_proofs_and_scripts_ask_for_the_gpu() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--on-gpu", "-p", "no:cacheprovider", "--show-capture=no", *TESTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "2 failed" in done.stdout, done.stdout[-3000:]
    assert "Torch not compiled with CUDA enabled" in done.stdout  # the script's .cuda(), on no simulated device
    assert "simulator" not in done.stdout.split("short test summary")[0].lower(), done.stdout[-3000:]
