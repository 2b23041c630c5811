"""Fused files on the host, in a process that has torch and nothing of this program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.quick


def run(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(Path(__file__).with_name("host_alone.py")), str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")


NAMES = ["conv_transpose2d_batch_norm_tanh_max_pool_group_norm", "conv_transpose3d_relu_group_norm"]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_runs_with_torch_alone(name):
    done = run(ROOT / "gallery" / name / "model_new.py")
    assert done.returncode == 0, done.stderr
    assert [line.partition(" runs, ")[2] != "" for line in done.stdout.splitlines()] == [True] * 3, done.stdout


def test_a_name_that_torch_does_not_have_is_noticed(tmp_path):
    """As in a torch that is older than what a file asks of it."""
    text = (ROOT / "gallery" / "conv_transpose3d_relu_group_norm" / "model_new.py").read_text()
    changed = text.replace(".element_size()", ".element_bytes()")
    assert changed != text
    (tmp_path / "model_new.py").write_text(changed)
    done = run(tmp_path / "model_new.py")
    assert done.returncode == 1 and "element_bytes" in done.stderr
