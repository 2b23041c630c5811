"""``crucible.fuse`` on modules of every origin, and ``crucible.fuse_file``."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

import crucible
from crucible.fuse import FuseError
from crucible.graph.capture import CaptureError

ROOT = Path(__file__).resolve().parent.parent
quick = pytest.mark.quick


class Gate(nn.Module):
    """Buffers, keywords and defaults."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x, gate=None, power: float = 1.0):
        return torch.sigmoid(self.linear(x) * self.scale) * power


@quick
def test_what_is_shared():
    net = nn.Sequential(nn.Linear(24, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 8))
    fused = crucible.fuse(net, torch.empty(6, 24))
    assert isinstance(fused, nn.Sequential) and fused is not net and type(net) is nn.Sequential
    assert [n for n, _ in fused.named_parameters()] == [n for n, _ in net.named_parameters()]
    assert all(a is b for a, b in zip(fused.parameters(), net.parameters()))
    assert all(a is b for a, b in zip(fused.buffers(), net.buffers()))
    assert list(fused.state_dict()) == list(net.state_dict())
    fused.load_state_dict({k: torch.ones_like(v) for k, v in net.state_dict().items()})
    assert net[0].weight.min() == 1
    assert net(torch.zeros(6, 24)).shape == (6, 8)  # the original still runs as it did


@quick
def test_a_class_without_source():
    space: dict = {"nn": nn, "torch": torch}
    text = "class Hidden(nn.Module):\n    def forward(self, x, y):\n        return torch.relu(x) + y\n"
    exec(text, space)
    fused = crucible.fuse(space["Hidden"](), [torch.empty(3, 5), torch.empty(3, 5)])
    assert type(fused).__name__ == "FusedHidden" and "relu" in fused.fused.text


@quick
def test_signature_and_fixed_arguments():
    fused = crucible.fuse(Gate(), [torch.empty(2, 8)])
    with pytest.raises(TypeError, match="unexpected keyword"):
        fused(torch.empty(2, 8), speed=3)
    with pytest.raises(ValueError, match="power"):
        fused(torch.empty(2, 8), power=2.0)
    with pytest.raises(RuntimeError, match="x is on cpu|linear_weight is on cpu"):  # no device here, and it says so
        fused(torch.empty(2, 8))


@quick
def test_a_changed_configuration_is_refused():
    net = nn.Sequential(nn.Conv1d(4, 4, 3, padding=1), nn.ReLU())
    fused = crucible.fuse(net, torch.empty(2, 4, 9))
    net[0].padding = (0,)
    with pytest.raises(RuntimeError, match="fuse it again"):
        fused(torch.empty(2, 4, 9))


RUNS = "is on cpu"  # all else was right: there is no device here


def normed():
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.25))
    return net, crucible.fuse(net, torch.empty(4, 8))


def refused(fused, message):
    for _ in range(2):  # what was found in the first call is not remembered as right
        with pytest.raises(RuntimeError, match=message):
            fused(torch.empty(4, 8))


@quick
def test_what_changes_after_the_first_call_is_refused():
    net, fused = normed()
    refused(fused, RUNS)
    net[1].momentum = 0.5
    refused(fused, "fuse it again")
    net[1].momentum = 0.1
    refused(fused, RUNS)
    net[2].p = 0.5
    refused(fused, "fuse it again")
    net[2].p = 0.25
    net[1] = nn.BatchNorm1d(8, momentum=0.3)
    refused(fused, "fuse it again")
    net[1] = nn.BatchNorm1d(8)
    refused(fused, RUNS)


@quick
def test_a_layer_in_another_mode_than_the_rest_is_refused():
    net, fused = normed()
    refused(fused, RUNS)
    net[1].eval()
    refused(fused, "1 is in eval mode, and these kernels were made for it in training mode")
    fused.eval()
    refused(fused, RUNS)
    net[2].train()
    refused(fused, "2 is in training mode")
    fused.train()
    refused(fused, RUNS)
    twin = copy.deepcopy(fused)  # knows nothing of what was found in the first
    twin[1].eval()
    refused(twin, "1 is in eval mode")
    refused(fused, RUNS)


@quick
def test_a_layer_that_train_leaves_alone_may_stay_so():
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(8)

        def train(self, mode=True):
            super().train(mode)
            self.norm.eval()
            return self

        def forward(self, x):
            return self.norm(x)

    fused = crucible.fuse(Frozen().train(), torch.empty(4, 8))
    for mode in (True, False):
        refused(fused.train(mode), RUNS)
    fused.norm.train()
    refused(fused, "norm is in training mode")


@quick
def test_hooks_of_the_module_are_not_baked_in():
    net = nn.ReLU()
    net.register_forward_hook(lambda module, args, out: out * 100)
    assert "100" not in crucible.fuse(net, torch.empty(3)).fused.text.split("class ModelNew")[1]


@quick
def test_copies_and_names():
    fused = crucible.fuse(Gate(), torch.empty(2, 8))
    assert repr(fused).startswith("FusedGate(")
    twin = copy.deepcopy(fused)
    assert type(twin) is type(fused) and twin.linear.weight is not fused.linear.weight


@quick
@pytest.mark.parametrize(
    "module, inputs, error, message",
    [
        (3, torch.empty(2), FuseError, "torch.nn.Module"),
        (Gate(), [], FuseError, "needs x"),
        (nn.Linear(3, 4), torch.empty(2, 5), CaptureError, "could not be captured"),
    ],
)
def test_mistakes(module, inputs, error, message):
    with pytest.raises(error, match=message):
        crucible.fuse(module, inputs)


@quick
def test_fuse_file(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(
        "import torch\nimport torch.nn as nn\n\n"
        "class Model(nn.Module):\n    def forward(self, x):\n        return x.exp()\n\n"
        "def get_inputs():\n    return [torch.rand(4, 4)]\n\ndef get_init_inputs():\n    return []\n"
    )
    made = crucible.fuse_file(path, tmp_path / "fast.py", prove=False, gpu="t4")
    assert made.path.read_text() == made.text and made.proof is None and made.exit_code == 0
    assert "Tesla T4" in made.explanation and "exp" in made.explanation
    assert callable(crucible.fuse) and callable(crucible.fuse_file) and callable(crucible.prove)


def test_it_runs_where_the_module_is(tmp_path):
    """On the simulated device: forward, gradients and buffer updates as the original has them."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            from crucible.sim import device
            device.install()
            import torch, crucible
            from torch import nn

            class Scaled(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.weight = nn.Parameter(torch.linspace(-1, 2, 12))
                    self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

                def forward(self, x):
                    self.calls += 1
                    return torch.tanh(x * self.weight)

            one, two = Scaled().cuda(), Scaled().cuda()
            fused = crucible.fuse(one, torch.empty(5, 12))
            torch.manual_seed(1)
            x = torch.randn(7, 12, device="cuda", requires_grad=True)
            z = x.detach().clone().requires_grad_()
            device.reset()
            y = fused(x)
            assert not [o for o in device.ops() if "mul" in o or "tanh" in o], device.ops()
            assert device.launches() and not device.reports()
            w = two(z)
            torch.testing.assert_close(y, w)
            y.square().sum().backward(); w.square().sum().backward()
            torch.testing.assert_close(x.grad, z.grad, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(one.weight.grad, two.weight.grad, rtol=1e-4, atol=1e-5)
            assert one.calls.item() == 1 and fused.calls is one.calls
            print("right")
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, env=environment,
                          timeout=240)  # fmt: skip
    assert done.returncode == 0 and "right" in done.stdout, done.stdout + done.stderr
