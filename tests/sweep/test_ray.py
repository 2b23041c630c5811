"""Sweeps on a real Ray cluster of several nodes on this machine, some of which are killed, or cannot do the work."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from sweep_texts import GOOD, NEW
from typer.testing import CliRunner

from crucible.cli import app
from crucible.report.sweep_table import LiveBoard, show
from crucible.sweep.run import sweep
from crucible.sweep.store import Store

SRC = Path(__file__).parents[2] / "src"
SMALL = {"object_store_memory": 80 * 1024 * 1024}  # of a node
SIMULATED = {"device": "sim", "quick": True, "seed": 3}


@pytest.fixture(scope="module")
def cluster():
    """A head that does no work; a test adds the nodes that it wants."""
    pytest.importorskip("ray", reason="Ray is not installed")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", str(SRC))
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **SMALL})
        try:
            yield made
        finally:
            made.shutdown()


@pytest.fixture
def node(cluster):
    """node(name, ...) adds one that is taken away after the test."""
    added = []

    def add(name, **options):
        added.append(cluster.add_node(num_cpus=1, node_name=name, **SMALL, **options))
        return added[-1]

    yield add
    for each in added:
        if each in cluster.worker_nodes:
            cluster.remove_node(each, allow_graceful=False)


class Watching(LiveBoard):
    """A board that remembers who did what, and calls somebody when a step begins."""

    def __init__(self, begun=lambda title, where: None):
        self.out = io.StringIO()
        super().__init__(Console(file=self.out, width=200))
        self.begun, self.seen = begun, []

    def started(self, title, step, where=None):
        super().started(title, step, where)
        self.seen.append((title, step, where))
        self.begun(title, where)


def table(result) -> str:
    """What a user sees at the end, less where the rows are."""
    out = io.StringIO()
    show(result, [], Console(file=out, width=200), None)
    return out.getvalue().split("rows:")[0]


def test_a_killed_node_costs_a_retry_and_the_table_is_the_same(cluster, node, folder, write, tmp_path):
    write("new/good.py", NEW.format("torch.relu(x) * 2"))
    write("new/other.py", NEW.format("torch.relu(x) * 4"))
    write("set/none.py", GOOD)
    write("new/none.py", "x = 1\n")
    undisturbed = sweep(folder, tmp_path / "here", candidates=tmp_path / "new", jobs=1, **SIMULATED)

    node("alpha")
    doomed = [node("beta")]

    def kill(title, where):
        if where == "beta" and doomed:
            cluster.remove_node(doomed.pop(), allow_graceful=False)

    with Watching(kill) as board:
        result = sweep(folder, tmp_path / "s", candidates=tmp_path / "new", ray=cluster.address, board=board,
                       **SIMULATED)  # fmt: skip
    lost = [title for title, _, where in board.seen if where == "beta"]
    assert not doomed and len(lost) == 1, board.seen
    assert f"{lost[0]}: lost while proving on beta, done again (1 of 3): NodeDiedError" in board.out.getvalue()
    assert len(board.seen) == len(result.rows) + 1 == 4
    assert table(result) == table(undisturbed) and "1 of 3 proven, 1 refuted" in table(result)
    assert {r["title"]: r["nodes"] for r in result.rows} == {r["title"]: {"judge": "alpha"} for r in result.rows}
    assert len(Store(tmp_path / "s").rows()) == 3 and str(tmp_path / "new" / "other.py") in str(result.rows)
    assert "crucible-node-" not in str(result.rows), "a node's own paths mean nothing here"
    # Rows are the same wherever they were made: nothing is left to do for either.
    assert sweep(folder, tmp_path / "s", candidates=tmp_path / "new", **SIMULATED).kept == 3
    assert [r["key"] for r in result.rows] == [r["key"] for r in undisturbed.rows]


@pytest.mark.exhaustive
def test_fusing_on_nodes_of_which_one_has_other_code(cluster, node, write, tmp_path):
    for name in ("good", "fine"):  # one for each node, so that the other code is met
        write(f"set/{name}.py", GOOD)
    other = tmp_path / "other"
    shutil.copytree(SRC / "crucible", other / "crucible", ignore=shutil.ignore_patterns("__pycache__"))
    with (other / "crucible" / "plan" / "gpus.py").open("a") as file:
        file.write("# another state\n")
    node("different", env_vars={"PYTHONPATH": str(other)})
    node("alike")
    with Watching() as board:
        result = sweep(tmp_path / "set", tmp_path / "s", ray=cluster.address, board=board, forward_only=True,
                       **SIMULATED)  # fmt: skip
    assert [r["nodes"] for r in result.rows] == [{"fuse": "alike", "judge": "alike"}] * 2
    row = next(r for r in result.rows if r["candidate"].endswith("good_new.py"))
    assert row["status"] == "proven", row
    assert board.out.getvalue().count("node different is left out: it has another state of crucible") == 1
    assert row["candidate"] == str(tmp_path / "s" / "files" / "good_new.py") and Path(row["candidate"]).is_file()
    assert row["race"]["candidates"][0]["plan"]["passes"] and row["seconds"]["fuse"] > 0


@pytest.mark.exhaustive
def test_a_file_that_takes_its_worker_along_costs_a_row(cluster, node, write, tmp_path):
    write("set/deadly.py", "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nModel = 1\n")
    node("alpha")
    with Watching() as board:
        result = sweep(tmp_path / "set", tmp_path / "s", ray=cluster.address, ray_retries=1, board=board, **SIMULATED)
    [row] = result.rows
    assert row["status"] == "failed" and "lost 2 times, last on alpha (WorkerCrashedError" in row["reason"], row
    assert len(board.seen) == 2 and "done again (1 of 1)" in board.out.getvalue()


def test_an_interrupted_sweep_keeps_what_has_arrived_and_leaves_nobody(cluster, node, folder, write, tmp_path):
    for name in ("good", "zlast"):
        write(f"new/{name}.py", "x = 1\n")  # judged quickly: there is no ModelNew
    marker = tmp_path / "pid"
    slow = f"import os, time\nopen({str(marker)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n\n\ndef get_inputs"
    write("set/zlast.py", GOOD.replace("def get_inputs", slow))
    node("alpha")
    options = {"device": "cpu", "quick": True, "rounds": 2, "samples": 1, "against": ("eager",), "seed": 3}
    script = (
        f"from crucible.sweep.run import sweep\n"
        f"sweep({str(folder)!r}, {str(tmp_path / 's')!r}, candidates={str(tmp_path / 'new')!r}, "
        f"ray={cluster.address!r}, **{options!r})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(SRC)},
                               stderr=subprocess.DEVNULL)  # fmt: skip
    end = time.monotonic() + 120
    while not marker.exists() and time.monotonic() < end and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    process.wait(60)
    assert [r["title"] for r in Store(tmp_path / "s").rows()] == ["good.py"]
    worker = int(marker.read_text())
    while Path(f"/proc/{worker}").exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert not Path(f"/proc/{worker}").exists()


def _nobody(**options):
    raise ConnectionError("Could not find any running Ray instance.")


@pytest.mark.quick
def test_user_errors_are_sentences(folder, monkeypatch):
    def said(*arguments):
        result = CliRunner().invoke(app, ["sweep", str(folder), "--store", str(folder.parent / "s"), *arguments])
        assert result.exit_code == 2, result.output
        return " ".join(result.output.split())

    assert "--ray-retries must not be negative" in said("--ray", "auto", "--ray-retries", "-1")
    if "ray" in sys.modules or shutil.which("ray", path=str(Path(sys.executable).parent)):
        assert "--ray takes HOST:PORT" in said("--ray", "nowhere")
        assert "no Ray cluster at 127.0.0.1:1: " in said("--ray", "127.0.0.1:1")
        monkeypatch.setattr("ray.init", _nobody)
        assert "this machine is no node of a Ray cluster" in said("--ray", "auto")
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "--ray needs Ray, which is not there" in said("--ray", "auto") and "pip install" in said("--ray", "auto")
