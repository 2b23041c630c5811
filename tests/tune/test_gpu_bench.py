"""Processes of candidates, with a stand-in for the worker: one that hangs or dies costs one candidate and its time."""

from __future__ import annotations

import sys
import time

import pytest

from crucible.tune import gpu_bench
from crucible.tune.bench import Candidate
from crucible.tune.gpu_bench import GpuBench

pytestmark = pytest.mark.quick

# What a candidate does is the text of its file: "check: hang", "time: die", ...
STAND_IN = """
import json, os, subprocess, sys, time
name = sys.argv[2]
text = open(name).read() if name != "reference" else ""
print("noise of a Model", file=sys.stderr)
for line in sys.stdin:
    request = json.loads(line)
    if text.startswith(request["op"] + ": "):
        what = text.split(": ")[1]
        if what == "hang":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])  # such as a compiler
            time.sleep(60)
        elif what == "die":
            print("CUDA error: an illegal memory access", file=sys.stderr, flush=True)
            os._exit(3)
        elif what == "raise":
            print(json.dumps({"failed": "RuntimeError: no"}), flush=True)
            continue
    answers = {"build": {}, "check": {"error": 1e-6 * len(text)}, "time": {"times": [2.0, 1.0, 3.0, 2.0]}}
    print(json.dumps(answers[request["op"]]), flush=True)
"""


@pytest.fixture
def bench(tmp_path, monkeypatch):
    script = tmp_path / "worker.py"
    script.write_text(STAND_IN)
    monkeypatch.setattr(gpu_bench, "CALL", 1.0)
    made = GpuBench(tmp_path / "problem.py", "float32", jobs=4, command=[sys.executable, str(script)])
    yield made
    made.close()
    assert not made.folder.exists() and all(w.process.poll() is not None for w in made.started)


def test_each_costs_itself_alone(bench):
    texts = {"good": "x", "hangs": "check: hang", "dies": "check: die", "raises": "build: raise"}
    checked = bench.check([Candidate(n, t) for n, t in texts.items()] + [Candidate("reference", None)], 30.0)
    assert checked["good"].error == 1e-6 and checked["reference"].error == 0.0
    assert "does a kernel wait for ever?" in checked["hangs"].failed
    assert "an illegal memory access" in checked["dies"].failed and checked["raises"].failed == "RuntimeError: no"
    times = bench.time(["good", "reference", "dies"], 30.0)
    assert times["good"].median == 2.0 and times["good"].low == 1.0 and times["good"].high == 3.0
    assert times["dies"].median is None
    bench.keep(["good"])
    assert list(bench.workers) == ["good"]


def test_what_fails_only_when_it_is_timed(bench):
    texts = {"hangs": "time: hang", "dies": "time: die", "good": "x"}
    assert all(not c.failed for c in bench.check([Candidate(n, t) for n, t in texts.items()], 30.0).values())
    times = bench.time(list(texts), 30.0)
    assert times["good"].median == 2.0 and "for ever" in times["hangs"].failed and "illegal" in times["dies"].failed
    assert list(bench.workers) == ["good"]


def test_the_time_given_is_kept(bench):
    start = time.monotonic()
    checked = bench.check([Candidate("slow", "build: hang"), Candidate("good", "x")], 2.0)
    assert time.monotonic() - start < 4.0
    assert checked["slow"].failed == "not built after 2 s" and not checked["good"].failed
    assert bench.time(["good"], 0.0)["good"].failed == "not timed: no time was left"
    assert bench.check([Candidate("late", "x")], 0.0)["late"].failed == "not built: no time was left"
