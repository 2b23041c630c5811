"""What is handed out to a cluster when, and what comes of answers and losses: without Ray, on a cluster of paper."""

from __future__ import annotations

import pytest
from sweep_texts import GOOD, NEW

from crucible.sweep import ray_runner
from crucible.sweep.find import Found, SweepError
from crucible.sweep.ledger import Ledger, Task
from crucible.sweep.options import SweepOptions
from crucible.sweep.ray_cluster import Lost, Node
from crucible.sweep.ray_runner import RayRunner, ask_machine, placed_on
from crucible.sweep.remote import pack, renamed
from crucible.sweep.store import Store

pytestmark = pytest.mark.quick
TOLD = {"torch": "2.13.0+cu130", "gpu": "NVIDIA H200", "switches": {}}
PLAN = {"status": "fused", "plan": {}, "seconds": 1.0, "file": b"made"}
JUDGED = {"status": "proven", "seconds": 2.0, "file": None}


class Paper:
    """A cluster whose steps answer as ``reply(step, k)`` says, one after the other; a string there is a loss."""

    def __init__(self, nodes, reply):
        self.all, self.reply, self.avoided = nodes, reply, set()
        self.started, self.most, self.out = [], {}, {}
        self.cancelled = []

    def nodes(self):
        return [n for n in self.all if n.id not in self.avoided]

    def name(self, node):
        return next(n.name for n in self.all if n.id == node)

    def start(self, parcel, cpus, gpus):
        free = [n for n in self.nodes() if n.gpus >= gpus and n.cpus >= cpus]
        stream = object()
        step = parcel["request"]["step"]
        self.out[stream] = [{"node": free[0].id}, self.reply(step, len(self.started), free[0].id)]
        self.started.append((step, cpus, gpus, parcel))
        kind = "gpu" if gpus else "cpu"
        self.most[kind] = max(self.most.get(kind, 0), len(self.out))
        return stream

    def first_ready(self, streams, timeout):
        return streams[:1]

    def ready(self, streams, timeout):
        return []

    def take(self, stream):
        said = self.out[stream].pop(0)
        if not self.out[stream]:
            del self.out[stream]
        if isinstance(said, str):
            raise Lost(said)
        return dict(said)

    def cancel(self, stream):
        self.cancelled.append(stream)


@pytest.fixture
def ledger(tmp_path):
    def make(told=TOLD, **options):
        return Ledger(SweepOptions(**{"device": "cuda", **options}), Store(tmp_path / "s"), told)

    return make


@pytest.fixture
def tasks(write):
    return [Task(Found(f"{n}.py", write(f"set/{n}.py", GOOD)), f"key {n}") for n in "abc"]


def test_building_takes_processors_and_judging_a_gpu(ledger, tasks):
    nodes = [Node("1", "builder", 8, 0), Node("2", "judge", 0, 1)]
    cluster = Paper(nodes, lambda step, k, node: PLAN if step == "fuse" else JUDGED)
    made = RayRunner(ledger(), cluster).run(tasks)
    assert {k: r["status"] for k, r in made.items()} == dict.fromkeys(["key a", "key b", "key c"], "proven")
    assert {(s, c, g) for s, c, g, _ in cluster.started} == {("fuse", 2, 0), ("judge", 0, 1)}
    assert all(r["nodes"] == {"fuse": "builder", "judge": "judge"} for r in made.values())
    requests = [p["request"] for _, _, _, p in cluster.started]
    assert {r["gpu"] for r in requests} == {"h200"}, "it is fused for the GPUs that judge, whoever fuses"
    assert all(p["files"]["candidate"] == b"made" for s, _, _, p in cluster.started if s == "judge")


def test_no_more_is_out_than_there_is_room_for(ledger, tasks):
    cluster = Paper([Node("1", "one", 4, 0)], lambda step, k, node: PLAN if step == "fuse" else JUDGED)
    RayRunner(ledger({**TOLD, "gpu": None}, device="sim"), cluster).run(tasks)
    assert cluster.most == {"cpu": 2}
    assert [s for s, *_ in cluster.started][:3] == ["fuse", "fuse", "judge"], "a file is finished before another begins"
    one = Paper([Node("1", "one", 4, 0)], lambda step, k, node: PLAN if step == "fuse" else JUDGED)
    RayRunner(ledger({**TOLD, "gpu": None}, device="sim", jobs=1), one).run(tasks)
    assert one.most == {"cpu": 1}


def test_losses_are_counted_and_nodes_that_differ_are_not_losses(ledger, tasks):
    def reply(step, k, node):
        if node == "1":
            return {"status": "other place", "reason": "torch: it has 1, the sweep 2", "seconds": 0.1}
        return "NodeDiedError: gone" if k < 3 else (PLAN if step == "fuse" else JUDGED)

    cluster = Paper([Node("1", "odd", 2, 1), Node("2", "even", 2, 1)], reply)
    made = RayRunner(ledger(ray_retries=2), cluster).run(tasks[:1])
    assert cluster.avoided == {"1"} and len(cluster.started) == 5  # one elsewhere, two lost, fused, judged
    assert made["key a"]["status"] == "proven"
    hopeless = Paper([Node("2", "even", 2, 1)], lambda *_: "NodeDiedError: gone")
    row = RayRunner(ledger(ray_retries=1), hopeless).run(tasks[:1])["key a"]
    assert row["status"] == "failed"
    assert row["reason"] == "fusing it was lost 2 times, last on even (NodeDiedError: gone)"


def test_a_cluster_that_has_died_out_ends_the_sweep(ledger, tasks, monkeypatch):
    cluster = Paper([Node("1", "one", 2, 0)], lambda *_: "NodeDiedError: gone")
    runner = RayRunner(ledger({**TOLD, "gpu": None}, device="sim", ray_retries=9), cluster)
    monkeypatch.setattr(ray_runner, "PATIENCE", 0.2)
    cluster.all = []
    with pytest.raises(SweepError, match="no node with a processor .* the same command goes on"):
        runner.run(tasks)
    with pytest.raises(SweepError, match="no node of the Ray cluster has a processor"):
        RayRunner(ledger(), Paper([Node("2", "judge", 0, 1)], None)).run(tasks)


def test_an_interrupt_cancels_what_is_out(ledger, tasks):
    def interrupt(*_):
        raise KeyboardInterrupt

    cluster = Paper([Node("1", "one", 4, 0)], lambda step, k, node: PLAN)
    cluster.first_ready = lambda streams, timeout: interrupt() if not cluster.cancelled else streams[:1]
    cluster.cancel = lambda stream: (cluster.cancelled.append(stream), cluster.out.__setitem__(stream, ["cancelled"]))
    runner = RayRunner(ledger({**TOLD, "gpu": None}, device="sim"), cluster)
    with pytest.raises(KeyboardInterrupt):
        runner.run(tasks)
    assert len(cluster.cancelled) == 2 and runner.out == {} and runner.ledger.store.rows() == []


def test_where_candidates_are_judged():
    gpu, none = Paper([Node("1", "a", 1, 2)], None), Paper([Node("1", "a", 1, 0)], None)
    assert placed_on(gpu, SweepOptions()).device == "cuda" and placed_on(none, SweepOptions()).device == "sim"
    assert placed_on(gpu, SweepOptions(device="sim")).device == "sim"
    with pytest.raises(SweepError, match="has a GPU"):
        placed_on(none, SweepOptions(device="cuda"))
    answers = {"1": {"status": "failed", "reason": "no driver"}, "2": {"status": "machine", "told": TOLD}}
    two = Paper([Node("1", "mute", 1, 1), Node("2", "fine", 1, 1)], lambda step, k, node: answers[node])
    assert ask_machine(two, SweepOptions(device="cuda")) == TOLD and two.avoided == {"1"}
    mute = Paper([Node("1", "mute", 1, 1)], lambda *_: "WorkerCrashedError: gone")
    with pytest.raises(SweepError, match="could say what GPU it has: WorkerCrashedError"):
        ask_machine(mute, SweepOptions(device="cuda"))


def test_files_travel_and_paths_come_back(write):
    problem, candidate = write("set/a.py", GOOD), write("new/a.py", NEW)
    request = {"step": "judge", "problem": str(problem), "candidate": str(candidate)}
    assert pack(request, 5.0, True)["files"] == {"problem": problem.read_bytes(), "candidate": candidate.read_bytes()}
    said = {"reason": "/x/problem/a.py is bad", "race": {"rows": [{"file": "/x/candidate/a.py", "n": 1, "m": None}]}}
    names = {"/x/problem/a.py": str(problem), "/x/candidate/a.py": str(candidate)}
    assert renamed(said, names) == {
        "reason": f"{problem} is bad", "race": {"rows": [{"file": str(candidate), "n": 1, "m": None}]}
    }  # fmt: skip
