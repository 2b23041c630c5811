"""The worker with a fused file on the simulated device: every request of a GPU race, but for the times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

from crucible.fuse import FuseOptions, fuse_problem
from crucible.race import stats, worker
from crucible.race.lanes import Lane

SRC = Path(__file__).parents[2] / "src"
SCRIPT = """
import json, sys
from crucible.sim import device
device.install()
from crucible.race import clock, worker
worker.FLUSH_BYTES = clock.LAG_BYTES = 1024
reference, new = sys.argv[1:3]
common = {"problem": reference, "device": "cuda", "dtype": None, "shapes": [[32, 24]], "seed": 3,
          "switches": {"cudnn_tf32": True, "matmul": "highest"}}
replies = {}
for kind, file in (("eager", None), ("candidate", new)):
    one = worker.Worker()
    ask = lambda op, **rest: replies.setdefault(f"{kind} {op} {rest.get('what', '')}".strip(),
                                                one.handle({"op": op, **rest}))
    ask("open", kind=kind, file=file, **common)
    ask("build", evaluating=False)
    for what in ("forward", "training"):
        ask("first", what=what, seed=4)
        ask("turn", what=what, seeds=[1, 2], warm=1, check=1)
    if kind == "eager":
        eager = one
for what in ("forward", "training"):
    places = [replies[f"{kind} turn {what}"]["check"]["places"] for kind in ("eager", "candidate")]
    replies[f"truth {what}"] = eager.handle({"op": "truth", "what": what, "seed": 2, "places": places})
print("\\n" + json.dumps(replies))
"""


def test_a_fused_file(linear, tmp_path):
    new = tmp_path / "new.py"
    new.write_text(fuse_problem(linear, FuseOptions()).text)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(linear), str(new)], capture_output=True, text=True, timeout=400,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    replies = json.loads(done.stdout.splitlines()[-1])
    assert all(r["ok"] for r in replies.values()), {k: r.get("failed") for k, r in replies.items()}
    assert replies["eager open"]["gpu"]["name"] == "crucible simulator"
    for what, names in (("forward", 1), ("training", 1 + 1 + 4)):
        truth = replies[f"truth {what}"]
        assert truth["source"] == "float64"
        for k, kind in enumerate(("eager", "candidate")):
            turn = replies[f"{kind} turn {what}"]
            assert turn["times"] == [0.0, 0.0] and turn["replaced"] == [] and turn["check"]["seed"] == 2
            got = turn["check"]["values"]
            assert len(got) == names
            held = [truth[key][k] for key in ("truth", "eager", "other")]
            found = stats.check(got, *held, "float64", "float32")
            assert found.right and found.error < 1e-5, (what, kind, found)
            assert not stats.check(held[2], *held, "float64", "float32").right  # of other inputs


def test_a_compiler_whose_processes_fail_compiles_in_this_one(linear, monkeypatch):
    """As torch.compile's do that cannot find the GPU; any other failure is the contender's own."""
    with torch.no_grad():
        one = worker.Worker()
        common = {"device": "cpu", "dtype": None, "shapes": [[32, 24]], "seed": 1}
        switches = {"cudnn_tf32": True, "matmul": "highest"}
        one.open({"kind": "eager", "file": None, "problem": str(linear), "switches": switches, **common})
        one.build({"evaluating": False})
        honest, errors, here = one.contender.run, [], []
        monkeypatch.setattr(worker, "compile_in_this_process", lambda: here.append(True))

        def run(*inputs):
            if errors:
                raise RuntimeError(errors.pop())
            return honest(*inputs)

        monkeypatch.setattr(one.contender, "run", run)
        errors[:] = ["SubprocException: An exception occurred in a subprocess"]
        assert one.handle({"op": "first", "what": "forward", "seed": 3})["ok"] and here == [True]
        errors[:] = ["no kernel image"]
        assert not one.handle({"op": "first", "what": "forward", "seed": 3})["ok"] and here == [True]


def test_what_a_contender_spent_leaves_out_waiting_for_others(tmp_path):
    lane = Lane("eager", "eager", None, tmp_path, 60.0, gpu=False)
    try:
        began = time.monotonic()
        lane.ready()
        alone = time.monotonic() - began
        time.sleep(1.0)
        lane.ready()
        assert 0.0 < lane.seconds() < alone + 0.5
    finally:
        lane.close()
