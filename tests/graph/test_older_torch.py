"""What older versions of torch do otherwise, brought about with this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch._meta_registrations as shapes
from torch import fx, nn

from crucible import doctor
from crucible.graph import older_torch
from crucible.graph.capture import capture
from crucible.graph.exported import without_assertions
from crucible.graph.joint import trace
from crucible.torch_version import number

pytestmark = pytest.mark.quick
ROOT = Path(__file__).parents[2]


def rounded(x, y):
    """As torch rounded the sizes of pools before 2.13."""
    q, r = x // y, x % y
    if r != 0 and (bool(r < 0) != bool(y < 0)):
        q -= 1
    return q


@pytest.mark.parametrize("version", ["2.12.0", "2.13.0"])
def test_sizes_of_pools_are_rounded_without_a_question(version, monkeypatch):
    """With an old version's rounding there is a condition for each size, unless it is known to be an old version."""
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(shapes, "div_rtn", rounded)
    monkeypatch.setattr(shapes, "calc_conv_nd_return_shape", shapes.calc_conv_nd_return_shape)
    graph = capture(nn.MaxPool2d(2), (torch.empty(3, 4, 10, 12, device="meta"),))
    guards = trace(graph).guards
    assert (guards == []) == (version == "2.12.0"), guards


def test_a_transposed_convolution_pins_its_channels(monkeypatch):
    """Before torch 2.10 nobody asked whether they are as many as the weight has."""
    asked = []

    def silent(x, weight, *others):
        asked.append(x.shape)
        return [x.shape[0], weight.shape[1], x.shape[2] + 4]

    x = torch.empty(2, 5, 7, device="meta")
    checked = older_torch._channels_fit(silent)
    assert checked(x, torch.empty(5, 3, 5), [1], [0], [1], True, 1, [0]) == [2, 3, 11] and len(asked) == 1
    with pytest.raises(RuntimeError):
        checked(x, torch.empty(6, 3, 5), [1], [0], [1], True, 1, [0])
    assert checked(x, torch.empty(6, 3, 5), [1], [0], [1], False, 1, [0]) == [2, 3, 11]


def test_what_is_known_of_sizes_is_not_asserted():
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(2)
    for known in (True, False):
        graph.call_function(torch.ops.aten._assert_scalar.default, (known, "so"))
    graph.output(x)
    module = fx.GraphModule(nn.Module(), graph)
    without_assertions(module)
    left = module.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default)
    assert [n.args[0] for n in left] == [False]


def test_versions_are_numbers():
    assert number("2.13.0+cpu") == (2, 13) and number("2.9.1") < number("2.10.0a0+git1") and number("2.6.0") == (2, 6)


def test_a_torch_that_is_too_old_to_fuse_is_one_line():
    program = (
        "import sys, torch; torch.__version__ = '2.5.1'; from crucible.cli import main; "
        "sys.argv = ['crucible', 'fuse', 'examples/double.py', '-o', '/dev/null', '--no-prove', '--force']; main()"
    )
    known = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=known)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "fusing needs torch 2.7 or later, this is 2.5.1" in done.stderr and "Traceback" not in done.stderr


def test_doctor_says_what_an_older_torch_is_good_for(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.5.1+cu124")
    found = doctor.check_torch()
    assert found.state == "warning" and "crucible fuse needs 2.7" in found.detail and "2.7" in found.fix
    monkeypatch.setattr(torch, "__version__", "1.13.1")
    assert doctor.check_torch().state == "missing"
    monkeypatch.setattr(torch, "__version__", "2.7.0")
    assert doctor.check_torch().state == "ok"
