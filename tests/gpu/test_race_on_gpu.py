"""Races on a real GPU: contenders run in the sandbox, clocks agree with plain events, and cheats gain nothing.

``python -m pytest tests/gpu/test_race_on_gpu.py -s`` also prints the tables.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
import torch
from rich.console import Console

from crucible.race import ceilings
from crucible.race.clock import Clock, GpuMarks
from crucible.race.names import AGAIN, EAGER
from crucible.race.run import race
from crucible.report.race_table import show

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

REFERENCE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(1024))

    def forward(self, x):
        return torch.softmax(torch.relu(x) * self.scale, -1)


def get_inputs():
    return [torch.rand(65536, 1024)]


def get_init_inputs():
    return []
"""
HONEST = "torch.softmax(torch.relu(x) * self.scale, -1)"
THREAD = f"""y = torch.zeros_like(x)

        def work():
            with torch.no_grad():
                time.sleep(0.002)
                y.copy_({HONEST})

        threading.Thread(target=work).start()"""
# Name: what its forward returns, what stands before, lines before the return, and how it ends.
CHEATS = {
    "honest": (HONEST, "", "", "unproven"),
    "side_stream": ("y", "", "with torch.cuda.stream(torch.cuda.Stream()):\n            y = " + HONEST, "unproven"),
    "thread": ("y", "import threading, time", THREAD, "unproven"),
    "events": (HONEST, "torch.cuda.Event.elapsed_time = lambda *_: 1e-3", "", "refuted"),
    "late_events": (HONEST, "", "torch.cuda.Event.elapsed_time = lambda *_: 1e-3", "refuted"),
    "no_wait": (HONEST, "", "torch.cuda.synchronize = lambda *_: None", "refuted"),
    "no_flush": (HONEST, "", "torch.Tensor.zero_ = lambda self: self", "unproven"),
    "cached": ("self.y", "", "self.y = self.y if hasattr(self, 'y') else " + HONEST, "refuted"),
    "empty": ("torch.empty_like(x)", "", "", "refuted"),
    "lazy": (HONEST + ".as_subclass(type('Lazy', (torch.Tensor,), {}))", "", "", "refuted"),
    "part": ("torch.cat([torch.softmax(torch.relu(x[:64]) * self.scale, -1), x[64:]])", "", "", "refuted"),
}  # fmt: skip


@pytest.fixture
def reference(tmp_path) -> Path:
    path = tmp_path / "reference.py"
    path.write_text(REFERENCE)
    return path


def candidate(folder: Path, name: str) -> Path:
    result, first, lines, _ = CHEATS[name]
    text = REFERENCE.split("def get_inputs")[0].replace("class Model", f"{first}\n\n\nclass ModelNew")
    body = f"{lines}\n        return {result}" if lines else f"return {result}"
    path = folder / f"{name}.py"
    path.write_text(text.replace(f"return {HONEST}", body))
    return path


def run(reference, *files, **options):
    result = race(reference, files, progress=lambda step, text: None, **{"seed": 5, **options})
    show(result, Console())
    return result


def test_contenders_run_in_the_sandbox(reference, tmp_path):
    everybody = ("eager", "channels_last", "compile", "max_autotune")
    result = run(reference, candidate(tmp_path, "honest"), train=True, unproven=True, against=everybody)
    assert result.exit_code == 0 and result.ceilings_source == "measured"
    assert result.environment["gpu"]["name"] == torch.cuda.get_device_name(0) and result.state[0]["gpu"]["sm_mhz"] > 0
    for done in result.passes:
        assert {r.contender: r.note for r in done.rows if not r.has_times} == {}
        assert {r.contender for r in done.rows} == {EAGER, AGAIN, "compile", "max_autotune", "honest"}
        assert done.noise["part"] < 0.1
        for row in done.rows:
            assert row.checked["right"] and row.peak["call"] > 0 and 0 < row.of_floor < 1.1, row
        assert done.row("honest").against[EAGER]["claim"] == "same", done.row("honest").against
    json.loads(result.to_text())


def test_cheats_gain_nothing(reference, tmp_path):
    result = run(reference, *(candidate(tmp_path, n) for n in CHEATS), unproven=True, against=("eager",))
    (done,) = result.passes
    ends = {name: done.row(name).status for name in CHEATS}
    assert ends == {name: end for name, (*_, end) in CHEATS.items()}, {n: done.row(n).note for n in CHEATS}
    honest = done.row("honest").times
    for name in ("side_stream", "thread", "no_flush"):
        assert done.row(name).times.median > 0.95 * honest.median, (name, done.row(name).times, honest)
    assert done.row("thread").left_threads and done.row("thread").times.median > 2.0
    assert done.row(EAGER).has_times and done.row("honest").against[EAGER]["claim"] == "same"


def test_a_proven_candidate_is_raced(tmp_path):
    """A proof on the GPU, then the race: nothing here is marked unproven."""
    root = Path(__file__).resolve().parents[2]
    result = run(root / "tests" / "problems" / "softmax.py", root / "examples" / "proven" / "softmax_warp.py",
                 quick=True, against=("eager",), timeout=240.0)  # fmt: skip
    assert result.exit_code == 0 and result.candidates[0].verdict == "proven", result.candidates[0].reason
    assert result.passes[0].row("softmax_warp").status == "timed"


def test_the_clock_agrees_with_plain_events():
    x = torch.rand(1 << 28, device="cuda")
    clock = Clock(GpuMarks())
    ours = statistics.median(clock.sample(lambda: x.mul_(1.0)).milliseconds for _ in range(30))
    theirs = []
    for _ in range(30):
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
        start.record()
        x.mul_(1.0)
        end.record()
        end.synchronize()
        theirs.append(start.elapsed_time(end))
    assert abs(ours - statistics.median(theirs)) < 0.02 + 0.02 * ours, (ours, statistics.median(theirs), clock.lag)
    assert clock.lag < 0.2 and clock.sample(lambda: None).milliseconds < 0.05


def test_ceilings_are_below_the_data_sheet():
    from crucible.plan import gpus

    sheet, found = gpus.present(), ceilings.measure(Clock(GpuMarks()))
    if sheet is None:
        pytest.skip("no data sheet for this GPU")
    assert 0.5 * sheet.bandwidth < found["copy"] < sheet.bandwidth and found["fp16"] < 1.05 * (sheet.fp16 or 1e9)
