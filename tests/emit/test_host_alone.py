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


SWITCHED = """
import sys
sys.path.insert(0, sys.argv[1])
import host_alone, torch
from pathlib import Path
calls = []
module = host_alone.load(Path(sys.argv[2]), (9, 0), calls)
kept = torch.utils.cpp_extension.load_inline
flags = []
def load_inline(extra_cuda_cflags, **options):
    flags.append([f for f in extra_cuda_cflags if f.startswith(("-DCRUCIBLE_CONV", "-DCRUCIBLE_MATMUL"))])
    return kept(**options)
module.load_inline = load_inline
def grades():
    module._kernels("forward", torch.float32, host_alone.GPU, 1)
    return "".join(f[-1] for f in flags[-1]) if flags else ""
said = []
def told(what):
    module._compiled.cache_clear(), module._chosen.cache_clear()
    said.append(f"{what}:{grades()}")
told("usual")
torch.backends.cudnn.allow_tf32 = False
told("old conv")
torch.backends.cudnn.allow_tf32 = True
torch.set_float32_matmul_precision("high")
told("old matmul")
torch.set_float32_matmul_precision("highest")
if hasattr(torch.backends.cudnn, "conv"):
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    told("new conv")
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    told("new matmul")
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    told("new exact")
print(said)
"""


def test_precision_follows_torchs_switches_old_and_new():
    """1 is TF32, 2 as good as float32: of convolutions, then of matrix products."""
    path = ROOT / "gallery" / "conv_transpose3d_relu_group_norm" / "model_new.py"
    command = [sys.executable, "-c", SWITCHED, str(Path(__file__).parent), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    wanted = ["usual:12", "old conv:22", "old matmul:11", "new conv:22", "new matmul:11", "new exact:12"]
    assert done.stdout.strip() == str(wanted)
