"""A sweep on a Ray cluster: steps are handed out to nodes, and done again where one is lost."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from crucible.plan.gpus import known_as
from crucible.sweep.find import SweepError
from crucible.sweep.ledger import Ledger, Task
from crucible.sweep.options import SweepOptions
from crucible.sweep.place import expected
from crucible.sweep.ray_cluster import Lost, RayCluster
from crucible.sweep.remote import pack
from crucible.sweep.step import GRACE
from crucible.write import write_atomically

CORES = 2  # for a step on processors: it starts compilers, and two processes that compute
PATIENCE = 300.0  # seconds without a single node that could go on
WORDS = {"fuse": "fusing", "judge": "proving"}


@dataclass(eq=False)
class Step:
    """A step of a task: waiting, or out on the cluster."""

    task: Task
    kind: str  # "fuse" or "judge"
    plan: Any = None
    nodes: dict[str, str] = field(default_factory=dict)  # who did what, by step
    losses: int = 0


def placed_on(cluster: RayCluster, options: SweepOptions) -> SweepOptions:
    """With the device that candidates are judged on: the GPUs of the cluster, or the simulator where it has none."""
    gpus = any(n.gpus >= 1 for n in cluster.nodes())
    if options.device == "cuda" and not gpus:
        raise SweepError("no node of the Ray cluster has a GPU")
    return replace(options, device=("cuda" if gpus else "sim") if options.device == "auto" else options.device)


def ask_machine(cluster: RayCluster, options: SweepOptions) -> dict[str, Any]:
    """What a node with a GPU says of itself; the sweep is of machines like it."""
    why = "no node was there"
    for _ in range(options.ray_retries + 1):
        request = {"step": "machine", "device": options.device}
        stream = cluster.start({"request": request, "files": {}, "limit": options.limit, "gpu": True}, 0, 1)
        try:
            node = cluster.take(stream)["node"]
            answer = cluster.take(stream)
        except Lost as error:
            why = str(error)
            continue
        if answer["status"] == "machine":
            told: dict[str, Any] = answer["told"]
            return told
        why = f"{cluster.name(node)}: {answer['reason']}"
        cluster.avoided.add(node)
    raise SweepError(f"no node of the Ray cluster could say what GPU it has: {why}")


class RayRunner:
    """Fuses on processors anywhere, judges with one task a GPU (or on processors, where there are no GPUs)."""

    def __init__(self, ledger: Ledger, cluster: RayCluster) -> None:
        self.ledger, self.options, self.cluster = ledger, ledger.options, cluster
        self.waiting: deque[Step] = deque()
        self.out: dict[Any, Step] = {}  # by stream
        self.made: dict[str, dict[str, Any]] = {}
        self.wanted = expected(ledger.told)
        self.cores = min(CORES, max((int(n.cpus) for n in cluster.nodes()), default=0))
        self.last_hope = time.monotonic()  # when there was last a node that could do something
        known = known_as(ledger.told["gpu"]) if ledger.told["gpu"] else None
        self.gpu = known.name if known is not None else None  # what is fused is for the GPUs that judge

    def run(self, tasks: list[Task]) -> dict[str, dict[str, Any]]:
        self.waiting.extend(Step(t, "fuse" if t.found.candidate is None else "judge") for t in tasks)
        if tasks and self.cores == 0 and not all(self._wants_gpu(s) for s in self.waiting):
            raise SweepError("no node of the Ray cluster has a processor to give (num_cpus)")
        try:
            while self.waiting or self.out:
                self._hand_out()
                for stream in self.cluster.first_ready(list(self.out), 0.5) if self.out else ():
                    self._take(stream)
            return self.made
        finally:
            self._stop()

    # -- handing out

    def _wants_gpu(self, step: Step) -> bool:
        return self.options.device == "cuda" and (step.kind == "judge" or self.options.tune)

    def _hand_out(self) -> None:
        """As many steps as there is room for: nodes come and go, and a queue here can still be changed."""
        nodes = self.cluster.nodes()
        on_gpu = sum(self._wants_gpu(s) for s in self.out.values())
        cores = sum(int(n.cpus) // self.cores for n in nodes) if self.cores else 0
        room = {True: sum(int(n.gpus) for n in nodes), False: min(cores, self.options.jobs or cores)}
        wanted = {self._wants_gpu(s) for s in (*self.waiting, *self.out.values())}
        if any(room[kind] for kind in wanted):
            self.last_hope = time.monotonic()
        elif time.monotonic() - self.last_hope > PATIENCE:
            what = "GPU" if True in wanted else "processor"
            raise SweepError(f"for {PATIENCE:g} s the Ray cluster has had no node with a {what} that can do this "
                             "sweep; the same command goes on")  # fmt: skip
        room[True] -= on_gpu
        room[False] -= len(self.out) - on_gpu
        for step in list(self.waiting):
            gpu = self._wants_gpu(step)
            if room[gpu] > 0:
                room[gpu] -= 1
                self.waiting.remove(step)
                self._start(step, gpu)
            if max(room.values()) <= 0:
                return

    def _start(self, step: Step, gpu: bool) -> None:
        request = {**self.ledger.request(step.task, step.kind), "expected": self.wanted, "gpu": self.gpu}
        try:
            parcel = pack(request, self.options.limit, gpu)
        except OSError as error:  # somebody took the file away
            answer = {"status": "failed", "reason": str(error), "seconds": 0.0}
            self._finish(step, answer)
            return
        stream = self.cluster.start(parcel, 0 if gpu else self.cores, 1 if gpu else 0)
        self.out[stream] = step

    # -- taking in

    def _take(self, stream: Any) -> None:
        step = self.out[stream]
        try:
            said = self.cluster.take(stream)
        except Lost as error:
            del self.out[stream]
            self._lost(step, str(error))
            return
        if "node" in said:
            step.nodes[step.kind] = said["node"]
            words = "proving and racing" if step.kind == "judge" and self._wants_gpu(step) else WORDS[step.kind]
            self.ledger.started(step.task, words, self.cluster.name(said["node"]))
        else:
            del self.out[stream]
            self._arrived(step, said)

    def _arrived(self, step: Step, answer: dict[str, Any]) -> None:
        made = answer.pop("file", None)
        if answer["status"] == "other place":
            node = step.nodes.pop(step.kind)
            if node not in self.cluster.avoided:
                self.cluster.avoided.add(node)
                self.ledger.note(f"node {self.cluster.name(node)} is left out: {answer['reason']}", step.task)
            self.waiting.appendleft(step)
        elif answer["status"] == "fused":
            write_atomically(self.ledger.fused(step.task), made.decode("utf-8"))
            plan = {"plan": answer["plan"], "seconds": answer["seconds"]}
            # Before what is not fused yet: a row that is there is worth more than two halves.
            self.waiting.appendleft(Step(step.task, "judge", plan, step.nodes))
        else:
            self._finish(step, answer)

    def _lost(self, step: Step, why: str) -> None:
        node = step.nodes.pop(step.kind, None)
        where = f" on {self.cluster.name(node)}" if node is not None else ""
        step.losses += 1
        title = step.task.found.title
        if step.losses > self.options.ray_retries:
            reason = f"{WORDS[step.kind]} it was lost {step.losses} times, last{where} ({why})"
            self._finish(step, {"status": "failed", "reason": reason, "seconds": 0.0})
            return
        again = f"{step.losses} of {self.options.ray_retries}"
        self.ledger.note(f"{title}: lost while {WORDS[step.kind]}{where}, done again ({again}): {why}", step.task)
        self.waiting.appendleft(step)

    def _finish(self, step: Step, answer: dict[str, Any]) -> None:
        nodes = {kind: self.cluster.name(node) for kind, node in step.nodes.items()}
        self.made[step.task.key] = self.ledger.finish(step.task, answer, step.kind, step.plan, nodes)

    def _stop(self) -> None:
        """Nothing is out unless somebody interrupts: keep what has arrived, and end the rest."""
        for _ in range(2):  # that it began, and its answer
            for stream in self.cluster.ready(list(self.out), 0):
                self._take(stream)
        for stream in self.out:
            self.cluster.cancel(stream)
        end = time.monotonic() + GRACE
        while self.out and time.monotonic() < end:
            for stream in self.cluster.first_ready(list(self.out), 0.5):
                try:
                    self.cluster.take(stream)
                except Lost:
                    del self.out[stream]
