"""Bench and workers from end to end on the simulated device, which runs everything and tells no time."""

from __future__ import annotations

import sys

import torch
from test_search import PROBLEM

from crucible.fuse import FuseOptions, fuse_problem
from crucible.tune.bench import REFERENCE, Candidate
from crucible.tune.gpu_bench import GpuBench
from crucible.tune.worker import _distance

SCRIPT = """
from crucible.sim import device
device.install()
from crucible.tune import worker
worker.FLUSH_BYTES = 1024
worker.main()
"""


def test_files_are_built_checked_and_timed(tmp_path):
    path, script = tmp_path / "model.py", tmp_path / "worker.py"
    path.write_text(PROBLEM + "\nprint('a Model that talks')\n")
    script.write_text(SCRIPT)
    text = fuse_problem(path, FuseOptions(forward_only=True)).text
    wrong = text.replace("class ModelNew", "class Right").replace("def get_inputs", WRONG + "\n\ndef get_inputs")
    files = {"good": text, "wrong": wrong, "raises": text.replace("made = _", "made = missing or _")}
    bench = GpuBench(path, "float32", jobs=2, command=[sys.executable, str(script)])
    try:
        candidates = [Candidate(n, t, 1 << 12) for n, t in files.items()]
        checked = bench.check([*candidates, Candidate(REFERENCE, None)], 300.0)
        assert checked["good"].error is not None and checked["good"].error < 1e-6, checked
        assert checked[REFERENCE].error is not None and checked[REFERENCE].error < 1e-6
        assert checked["wrong"].error is not None and checked["wrong"].error > 0.5
        assert "missing" in checked["raises"].failed
        times = bench.time(["good", REFERENCE], 300.0)
        assert all(t.median is not None and not t.failed for t in times.values())
    finally:
        bench.close()


WRONG = """
class ModelNew(Right):
    def forward(self, x):
        return super().forward(x) * 2
"""


def test_distances():
    one = torch.tensor([3.0, 4.0])
    assert _distance(one, one) == 0.0 and abs(_distance(one * 1.5, one) - 0.5) < 1e-12
    assert _distance(torch.ones(3), torch.ones(2)) == float("inf")
    nan = torch.tensor([3.0, float("nan")])
    assert _distance(nan, one) == float("inf") and _distance(one, nan) == float("inf") and _distance(nan, nan) == 0.0
    assert _distance(torch.tensor([1, 2]), torch.tensor([1, 3])) == float("inf")
