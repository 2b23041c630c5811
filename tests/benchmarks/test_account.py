"""What is made of ncu's tables, and that it looks at one call that has warmed up."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import account
import pytest
from test_stage import PROBLEM, ROOT

from crucible.fuse import fuse_problem

HEAD = '"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value","Rule Name"'
WALK = "void crucible::<unnamed>::row_kernel<Row>(T1, int)"
LINES = [
    ("0", "held_kernel", "GPU Speed Of Light Throughput", "Duration", "ns", "1,893,664", ""),
    ("0", "held_kernel", "GPU Speed Of Light Throughput", "DRAM Throughput", "%", "47.25", ""),
    ("0", "held_kernel", "Memory Workload Analysis", "DRAM Throughput", "byte/s", "2,260,000,000", ""),
    ("0", "held_kernel", "Launch Statistics", "Function Cache Configuration", "", "CachePreferNone", ""),
    ("0", "held_kernel", "Launch Statistics", "", "", "", "LaunchConfiguration"),
    ("0", "held_kernel", "Command line profiler metrics",
     "lts__ltcfabric2lts.avg.pct_of_peak_sustained_elapsed", "%", "73.4", ""),
    ("0", "held_kernel", "Command line profiler metrics",
     "breakdown:l1tex__data_pipe.avg.pct_of_peak_sustained_active", "%", "88", ""),
    ("1", WALK, "Launch Statistics", "Registers Per Thread", "register/thread", "40", ""),
]  # fmt: skip
CSV = "\n".join(["==PROF== Connected", HEAD, *(",".join(f'"{c}"' for c in (i, "7", *rest)) for i, *rest in LINES)])
SCRIPT = """
import sys
from pathlib import Path

from crucible.sim import device

device.install()
import account
import torch

class Profiler:
    def cudaProfilerStart(self):
        self.begun = len(device.launches())
    def cudaProfilerStop(self):
        print(self.begun, len(device.launches()))

profiler = Profiler()
torch.cuda.cudart = lambda: profiler
account.call(Path("problem.py"), Path("new.py"), None, 1.0)
"""


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with a GPU and an ncu that says what it is given."""
    monkeypatch.setattr(account.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(account.measuring, "environment", lambda: {"gpu": "a chip"})
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def run(program: str, *words: str) -> int:
        ncu = tmp_path / "ncu"
        ncu.write_text(f"#!{sys.executable}\nimport sys\n{program}\n")
        ncu.chmod(ncu.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(sys, "argv", ["account.py", "ref.py", "new.py", *words])
        return account.main()

    return run


@pytest.mark.quick
def test_kernels_and_their_metrics():
    held, walk = account.kernels_of(CSV)
    assert (held.short, walk.short) == ("held_kernel", "row_kernel")
    assert held.metrics["DRAM Throughput"] == 47.25  # not the rate of the same name
    assert held.busiest() == [("l1tex__data_pipe", 88.0), ("lts__ltcfabric2lts", 73.4)]
    text = account.table([held, walk]).splitlines()
    assert text[1].split() == ["held_kernel", "1.894", "47.2", "-", "-", "-", "-", "-"]
    assert "l1tex__data_pipe 88 %, lts__ltcfabric2lts 73 %" in text[2]
    assert text[3].split()[-1] == "40"


@pytest.mark.quick
def test_an_account(machine, capsys, tmp_path):
    log = tmp_path / "log"
    assert machine(f"print({CSV!r}); print(sys.argv[1:])", "--spatial", "2", "--log", str(log)) == 0
    said = capsys.readouterr().out
    assert "gpu a chip" in said and "ref, extents times 2, batch as declared" in said and "1.894" in said
    asked = log.read_text().splitlines()[-1]
    assert "'--profile-from-start', 'off'" in asked and "'ref.py', 'new.py', '--spatial', '2.0', '--called'" in asked


@pytest.mark.quick
@pytest.mark.parametrize(
    ("program", "words", "said"),
    [
        pytest.param("print('==ERROR== ERR_NVGPUCTRPERM')", [], "may not read the GPU's counters", id="rights"),
        pytest.param("print('all is well')", [], "ncu gave no table: all is well", id="no table"),
        pytest.param("sys.exit('no such file')", [], "ncu ended with 1: no such file", id="failed"),
        pytest.param("import time; time.sleep(60)", ["--limit", "0.5"], "still running after 0 s", id="slow"),
    ],
)  # fmt: skip
def test_what_goes_wrong(machine, capsys, program, words, said):
    assert machine(program, *words) == 1
    assert said in capsys.readouterr().err


@pytest.mark.quick
def test_machines_without_ncu_or_gpu(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["account.py", "ref.py", "new.py"])
    monkeypatch.setattr(account.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit):
        account.main()
    assert "this needs ncu" in capsys.readouterr().err
    monkeypatch.setattr(account.shutil, "which", lambda name: name)
    with pytest.raises(SystemExit):
        account.main()
    assert "this needs a GPU" in capsys.readouterr().err


def test_one_call_is_looked_at(tmp_path):
    """The second: the first one builds, and packs what lasts."""
    (tmp_path / "problem.py").write_text(PROBLEM)
    (tmp_path / "new.py").write_text(fuse_problem(tmp_path / "problem.py").text)
    (tmp_path / "script.py").write_text(SCRIPT)
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "benchmarks")])
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, cwd=tmp_path, timeout=300,
                          env={**os.environ, "PYTHONPATH": path})  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    before, after = map(int, done.stdout.split())
    assert 0 < before < after and after == 2 * before
