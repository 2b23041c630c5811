"""A sweep on this machine: fuses on the processor's cores, judges with one process a GPU."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from crucible.sweep.ledger import Ledger, Task
from crucible.sweep.step import run_step


class LocalRunner:
    """Fuses on the processor's cores and judges with one process a GPU (or on the cores, where there is none)."""

    def __init__(self, ledger: Ledger, gpus: list[str]) -> None:
        self.ledger, self.options = ledger, ledger.options
        cores = self.options.jobs or max(1, (os.cpu_count() or 2) // 2)
        self.cores = concurrent.futures.ThreadPoolExecutor(cores)
        self.judges = concurrent.futures.ThreadPoolExecutor(len(gpus)) if gpus else self.cores
        self.free_gpus = list(gpus)
        self.stopping = False
        self.lock = threading.Lock()
        self.work = Path(tempfile.mkdtemp(prefix="crucible-sweep-"))

    def run(self, tasks: list[Task]) -> dict[str, dict[str, Any]]:
        made: dict[str, dict[str, Any]] = {}
        try:
            pool = self.judges if self.options.tune else self.cores  # tuning measures, and wants a GPU for itself
            begin = self._fuse if self.judges is not self.cores else self._whole
            first = {pool.submit(begin, t): t for t in tasks}
            second = {}
            for future in concurrent.futures.as_completed(first):
                task, (plan, row) = first[future], future.result()
                if row is not None:
                    made[task.key] = row
                else:
                    second[self.judges.submit(self._judge, task, plan)] = task
            for judged in concurrent.futures.as_completed(second):
                made[second[judged].key] = judged.result()
            return made
        finally:
            self._stop()

    def _stop(self) -> None:
        """End what still runs (nothing, unless somebody interrupts), and wait for it."""
        self.stopping = True
        for pool in (self.cores, self.judges):
            pool.shutdown(wait=True, cancel_futures=True)
        shutil.rmtree(self.work, ignore_errors=True)

    def _fuse(self, task: Task) -> tuple[Any, dict[str, Any] | None]:
        """The plan, or the row of a file that could not be fused."""
        if task.found.candidate is not None:
            return None, None
        with self._gpu() if self.options.tune else contextlib.nullcontext() as gpu:
            answer = self._ask(task, "fuse", "fusing", gpu)
        if answer["status"] != "fused":
            return None, self.ledger.finish(task, answer, "fuse", None)
        return {"plan": answer["plan"], "seconds": answer["seconds"]}, None

    def _whole(self, task: Task) -> tuple[Any, dict[str, Any]]:
        """Without GPUs one file after the other: a kill then costs no file that was fused but not judged."""
        plan, row = self._fuse(task)
        return plan, row if row is not None else self._judge(task, plan)

    def _judge(self, task: Task, plan: Any) -> dict[str, Any]:
        with self._gpu() as gpu:
            answer = self._ask(task, "judge", "proving and racing" if gpu else "proving", gpu)
        return self.ledger.finish(task, answer, "judge", plan)

    def _ask(self, task: Task, step: str, words: str, gpu: str | None) -> dict[str, Any]:
        if not self.stopping:
            self.ledger.started(task, words)
        env = {**os.environ, **({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})}
        return run_step(self.ledger.request(task, step), self.work, self.options.limit, env, lambda: self.stopping)

    @contextlib.contextmanager
    def _gpu(self) -> Iterator[str | None]:
        """One of those that nobody uses: there are as many judges as GPUs."""
        with self.lock:
            mine = self.free_gpus.pop(0) if self.free_gpus else None
        try:
            yield mine
        finally:
            if mine is not None:
                with self.lock:
                    self.free_gpus.append(mine)
