"""torch's switches for TF32, as they are read wherever this program asks for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.quick

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from crucible import switches
from crucible.prove import watch
def told():
    watch.switches()  # whatever is set, this can be asked
    return switches.conv_tf32(), switches.matmul_tf32(), switches.matmul_precision()
assert told() == (True, False, "highest")
kept = switches.standing()
torch.backends.cudnn.conv.fp32_precision = "ieee"
assert told() == (False, False, "highest")
torch.backends.cuda.matmul.fp32_precision = "tf32"
assert told() == (False, True, "high")
# torch.export asks by the older names itself.
from crucible.graph.capture import capture
from crucible.graph.joint import trace
trace(capture(torch.nn.Conv2d(2, 3, 3), (torch.empty(4, 2, 8, 9, device="meta"),)))
assert told() == (False, True, "high") and torch.backends.cudnn.rnn.fp32_precision == "tf32"
torch.backends.cuda.matmul.fp32_precision = "ieee"
switches.put(kept)
assert told() == (True, False, "highest")
torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = False, True
assert told() == (False, True, "high")
switches.put({"cudnn_tf32": True, "matmul": "medium"})
assert told() == (True, True, "medium")
torch.backends.fp32_precision = "ieee"
told()
print("right")
"""


def test_old_and_new_names_say_the_same():
    command = [sys.executable, "-c", PROGRAM, str(ROOT / "src")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "right" in done.stdout, done.stderr
