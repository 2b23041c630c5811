"""kernels/window_split.cuh: convolutions in float32's own precision with Hopper's instructions."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import crucible
from crucible.fuse import FuseOptions, fuse_problem
from crucible.sim.device import PROCESSORS_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
PROBLEM = '''
import torch
import torch.nn as nn


class Model(nn.Module):
    """Strides, groups with dilation, a length, single taps, windows that come in pieces, statistics of boxes, a pool,
    and an input that is computed."""

    def __init__(self):
        super().__init__()
        self.strided = nn.Conv2d(12, 32, 3, stride=2, padding=1)
        self.grouped = nn.Conv2d(32, 64, 3, padding=2, dilation=2, groups=2, bias=False)
        self.single = nn.Conv2d(64, 70, 1)
        self.long = nn.Conv1d(24, 33, 5, padding=1)
        self.cube = nn.ConvTranspose3d(8, 36, (2, 3, 3))
        self.large = nn.Conv2d(8, 32, 5, bias=False)
        self.norm = nn.GroupNorm(4, 32)

    def forward(self, z, y, w, x):
        first = torch.tanh(self.single(torch.relu(self.grouped(self.strided(x)))))
        return first, self.long(y), self.cube(z).amax(1), self.norm(self.large(w))


def get_inputs():
    return [
        torch.randn(3, 8, 3, 4, 5), torch.randn(2, 24, 210), torch.randn(3, 8, 17, 15), torch.randn(2, 12, 19, 21),
    ]


def get_init_inputs():
    return []
'''
PLAIN = '''
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(20, 40, 3, padding=1)

    def forward(self, x):
        return self.conv(x)


def get_inputs():
    return [torch.randn(2, 20, 64, 64)]


def get_init_inputs():
    return []
'''
# What is done to the input (2, 20, 5, 40) and the weight, by name.
RANGES = '''
{
    "plain": lambda x, w: None,
    "1e-30": lambda x, w: x.mul_(1e-30),
    "1e30": lambda x, w: x.mul_(1e30),
    "weights of 1e-30": lambda x, w: w.mul_(1e-30),
    "weights of 1e15": lambda x, w: w.mul_(1e15),
    "samples of 1e-18 and 1e18": lambda x, w: (x[0].mul_(1e-18), x[1].mul_(1e18)),
    "a channel of 1e6": lambda x, w: x[:, 3].mul_(1e6),
    "a channel of 1e-12": lambda x, w: x[:, 3].mul_(1e-12),
    "a dead filter": lambda x, w: w[5].mul_(1e-35),
    "subnormals": lambda x, w: x.mul_(1e-39),
    "near the top": lambda x, w: (x.clamp_(-3, 3).mul_(1e38), w.mul_(0.1)),
    "inf": lambda x, w: x[0, 3, 4].__setitem__(5, float("inf")),
    "nan": lambda x, w: x[1, 19, 4].__setitem__(39, float("nan")),
    "an inf weight": lambda x, w: w[7, 2, 1].__setitem__(1, float("-inf")),
}
'''
CHILD = """
from crucible.sim import device
device.install()
import copy, json, sys
from pathlib import Path
import torch
from crucible.problem import import_file
torch.backends.cudnn.allow_tf32 = False
new, old = (import_file(Path(p), n) for p, n in zip(sys.argv[1:3], ("new", "old")))
found = {}
for label, change in eval(sys.argv[3]).items():
    torch.manual_seed(7)
    model, x = old.Model(), torch.randn(2, 20, 5, 40)
    with torch.no_grad():
        change(x, model.conv.weight)
        fused = new.ModelNew().cuda()
        fused.load_state_dict(model.state_dict())
        ours, eager = fused(x.cuda()).cpu(), model(x)
        exact = copy.deepcopy(model).double()(x.double())
    # The worst of all samples and channels, each by itself.
    fair = exact.isfinite() & eager.isfinite()
    def error(y):
        off, size = ((torch.where(fair, t, 0) ** 2).sum((2, 3)).sqrt() for t in (y.double() - exact, exact))
        return (off / size.clamp_min(1e-300)).max().item()
    same = bool((ours.isnan() == eager.isnan()).all() and (ours.isinf() == eager.isinf()).all())
    found[label] = [same, error(ours), error(eager)]
print(json.dumps(found))
"""


def test_windows(tmp_path, monkeypatch):
    """Few processors: each block takes many boxes."""
    monkeypatch.setenv(PROCESSORS_VARIABLE, "3")
    reference, new = tmp_path / "windows.py", tmp_path / "windows_new.py"
    reference.write_text(PROBLEM)
    fused = fuse_problem(reference, FuseOptions(strict=True, precision="fp32"))
    assert fused.text.count("(launch_split<") >= 6
    new.write_text(fused.text)
    proof = crucible.prove(reference, new, device="sim", seed=5, quick=True, precision="fp32", timeout=600)
    assert proof.verdict == "proven", f"{proof.reason.code}: {proof.reason.message}" if proof.reason else proof.verdict
    assert "split_kernel" in str(next(c for c in proof.checks if c.name == "honesty").evidence)


@pytest.fixture(scope="module")
def ranges(tmp_path_factory):
    """For each range: whether inf and nan are where eager has them, and the errors of the file and of eager."""
    folder = tmp_path_factory.mktemp("ranges")
    reference, new = folder / "plain.py", folder / "plain_new.py"
    reference.write_text(PLAIN)
    new.write_text(fuse_problem(reference, FuseOptions(strict=True, forward_only=True)).text)
    command = [sys.executable, "-c", CHILD, str(new), str(reference), RANGES]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT / "src", timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("label", list(eval(RANGES)))
def test_ranges(ranges, label):
    same, error, eager = ranges[label]
    assert same
    assert error <= 2 * eager + 1e-7, f"{error:.2e}, eager {eager:.2e}"
