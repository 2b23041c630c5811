"""A sweep from start to end: what is to be done, who does it where, and rows that are kept as they come."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import crucible
from crucible.build.cache import content_key
from crucible.race.names import USUAL
from crucible.race.options import RaceOptions
from crucible.race.record import digest
from crucible.sweep.find import Found, SweepError, problems, with_candidates
from crucible.sweep.store import Store

DONE = ("proven", "refuted", "unjudged", "not fused", "failed", "time limit")
GRACE = 10.0  # seconds for a process that was told to end
# Options that a result depends on: those of another sweep are other rows.
COUNTS = ("train", "against", "rounds", "samples", "dtype", "timeout", "quick", "forward_only", "precision", "tune",
          "tune_budget", "device")  # fmt: skip


@dataclass(frozen=True)
class SweepOptions:
    """What can be asked of a sweep; each is checked here, once."""

    train: bool = False
    against: tuple[str, ...] = USUAL
    rounds: int = 7
    samples: int = 3
    dtype: str | None = None
    seed: int = 0
    timeout: float = 120.0  # seconds for any one step of a candidate
    quick: bool = False
    forward_only: bool = False
    precision: str = "torch"
    tune: bool = False
    tune_budget: float = 120.0
    jobs: int | None = None  # files that are fused (without a GPU also proven) at a time
    limit: float = 1800.0  # seconds for fusing a file, and again for judging it
    retry: bool = False
    device: str = "auto"  # "cuda", "sim", or "cpu" for tests; auto: the GPUs that are there, else the simulator

    def __post_init__(self) -> None:
        RaceOptions(train=self.train, against=self.against, rounds=self.rounds, samples=self.samples, dtype=self.dtype,
                    seed=self.seed, timeout=self.timeout, forward_only=self.forward_only,
                    precision=self.precision)  # fmt: skip
        if not self.limit > 0:
            raise SweepError("--limit must be positive")
        if self.jobs is not None and self.jobs < 1:
            raise SweepError("--jobs must be at least 1")


@dataclass(frozen=True)
class Task:
    """A row to be made."""

    found: Found
    key: str


class Board(Protocol):
    """Who is told how a sweep gets on; calls come from several threads."""

    def begin(self, total: int, kept: list[dict[str, Any]]) -> None: ...

    def started(self, title: str, step: str) -> None: ...

    def finished(self, row: dict[str, Any]) -> None: ...


@dataclass
class Sweep:
    """The rows of all tasks in their order, and what was left out."""

    folder: str
    store: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # Python files without a Model, Problems without a candidate
    kept: int = 0  # rows of an earlier run


def sweep(
    folder: str | Path, store: str | Path, *, candidates: str | Path | None = None, board: Board | None = None,
    **options: Any,
) -> Sweep:  # fmt: skip
    """Fuse, prove and race every Problem of a folder, or prove and race the ``candidates`` beside them.

    Rows that ``store`` has already are not made again. Raises SweepError, StoreError or RaceError for a user's mistake;
    whatever a file does costs its own row.
    """
    settings = SweepOptions(**options)
    found, left_out = problems(Path(folder), without=Path(store))
    if candidates is not None:
        found, without = with_candidates(found, Path(folder), Path(candidates))
        left_out = without
    kept = Store(Path(store))
    settings, gpus = _placed(settings)
    told = _machine(settings)
    tasks = [Task(f, _key(f, settings, told)) for f in found]
    before = kept.latest()
    have = {t.key: before[t.key] for t in tasks if _is_done(before.get(t.key), settings.retry)}
    if board is not None:
        board.begin(len(tasks), list(have.values()))
    runner = _Runner(settings, kept, gpus, told, board)
    made = runner.run([t for t in tasks if t.key not in have])
    rows = {**have, **made}
    return Sweep(str(folder), str(store), [rows[t.key] for t in tasks], left_out, len(have))


def _is_done(row: dict[str, Any] | None, retry: bool) -> bool:
    return row is not None and (row["status"] == "proven" if retry else row["status"] in DONE)


def _placed(options: SweepOptions) -> tuple[SweepOptions, list[str]]:
    """Where candidates are judged, and the GPUs: one process each."""
    import torch

    gpus: list[str] = []
    if options.device in ("auto", "cuda"):
        gpus = [str(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
        listed = [x.strip() for x in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if x.strip()]
        gpus = listed[: len(gpus)] if listed else gpus
        if options.device == "cuda" and not gpus:
            raise SweepError("torch finds no GPU here")
    return replace(options, device=("cuda" if gpus else "sim") if options.device == "auto" else options.device), gpus


def _machine(options: SweepOptions) -> dict[str, Any]:
    """What times depend on beside the files."""
    import torch

    from crucible.race.environment import environment, switches

    gpu = torch.cuda.get_device_name(0) if options.device == "cuda" else None
    return {**environment(), "torch": torch.__version__, "gpu": gpu, "switches": switches()}


def _key(found: Found, options: SweepOptions, told: dict[str, Any]) -> str:
    from crucible.tune.machine import planner_digest

    given = {k: v for k, v in asdict(options).items() if k in COUNTS}
    own = digest(found.candidate) if found.candidate is not None else f"fused {planner_digest()}"
    place = {k: told[k] for k in ("torch", "gpu", "switches")}
    return content_key(found.name, digest(found.problem), own, json.dumps(given), json.dumps(place, sort_keys=True))


class _Runner:
    """Fuses on the processor's cores and judges with one process a GPU (or on the cores, where there is none)."""

    def __init__(
        self, options: SweepOptions, store: Store, gpus: list[str], told: dict[str, Any], board: Board | None
    ) -> None:
        self.options, self.store, self.told, self.board = options, store, told, board
        cores = options.jobs or max(1, (os.cpu_count() or 2) // 2)
        self.cores = concurrent.futures.ThreadPoolExecutor(cores)
        self.judges = concurrent.futures.ThreadPoolExecutor(len(gpus)) if gpus else self.cores
        self.free_gpus = list(gpus)
        self.running: set[subprocess.Popen[bytes]] = set()
        self.stopping = False
        self.lock = threading.Lock()
        self.work = Path(tempfile.mkdtemp(prefix="crucible-sweep-"))

    def run(self, tasks: list[Task]) -> dict[str, dict[str, Any]]:
        made: dict[str, dict[str, Any]] = {}
        try:
            pool = self.judges if self.options.tune else self.cores  # tuning measures, and wants a GPU for itself
            first = {pool.submit(self._fuse, t): t for t in tasks}
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
        with self.lock:
            self.stopping = True
            for process in self.running:
                _ask_to_end(process)
        for pool in (self.cores, self.judges):
            pool.shutdown(wait=True, cancel_futures=True)
        shutil.rmtree(self.work, ignore_errors=True)

    def _fuse(self, task: Task) -> tuple[Any, dict[str, Any] | None]:
        """The plan, or the row of a file that could not be fused."""
        if task.found.candidate is not None:
            return None, None
        self._started(task, "fusing")
        given = asdict(self.options)
        request = {**given, "step": "fuse", "problem": str(task.found.problem), "output": str(self._fused(task))}
        with self._gpu() if self.options.tune else contextlib.nullcontext() as gpu:
            answer = self._ask(request, {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})
        if answer["status"] != "fused":
            return None, self._finish(task, answer, "fuse", None)
        return {"plan": answer["plan"], "seconds": answer["seconds"]}, None

    def _fused(self, task: Task) -> Path:
        return self.store.files / (task.found.name.removesuffix(".py").replace("/", "__") + "_new.py")

    def _judge(self, task: Task, plan: Any) -> dict[str, Any]:
        with self._gpu() as gpu:
            self._started(task, "proving and racing" if gpu else "proving")
            candidate = task.found.candidate or self._fused(task)
            request = {**asdict(self.options), "step": "judge", "problem": str(task.found.problem.resolve()),
                       "candidate": str(candidate.resolve())}  # fmt: skip
            answer = self._ask(request, {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})
        return self._finish(task, answer, "judge", plan)

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

    def _ask(self, request: dict[str, Any], env: dict[str, str]) -> dict[str, Any]:
        """One step in a process of its own, within the limit of time."""
        place = Path(tempfile.mkdtemp(dir=self.work))
        question, answer, log = place / "request.json", place / "answer.json", place / "log.txt"
        question.write_text(json.dumps(request), encoding="utf-8")
        source = str(Path(crucible.__file__).parents[1])
        paths = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
        began = time.monotonic()
        with log.open("wb") as output:
            with self.lock:
                if self.stopping:
                    return {"status": "stopped", "reason": None, "seconds": 0.0}
                process = subprocess.Popen(
                    [sys.executable, "-m", "crucible.sweep.job", str(question), str(answer)], stdin=subprocess.DEVNULL,
                    stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                    env={**os.environ, "PYTHONPATH": paths, **env},
                )  # fmt: skip
                self.running.add(process)
            try:
                while process.poll() is None and not self.stopping and time.monotonic() - began < self.options.limit:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(0.2)
                late = process.poll() is None
            finally:
                _end(process)
                with self.lock:
                    self.running.discard(process)
        seconds = time.monotonic() - began
        if self.stopping:  # what it says when told to end is no answer
            return {"status": "stopped", "reason": None, "seconds": seconds}
        if late:
            return {"status": "time limit", "reason": f"not done after {self.options.limit:g} s", "seconds": seconds}
        if answer.is_file():
            found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
            return found
        return {"status": "failed", "reason": _last_words(log, process.returncode), "seconds": seconds}

    def _finish(self, task: Task, answer: dict[str, Any], step: str, plan: Any) -> dict[str, Any]:
        """The row of a task, kept unless the sweep was interrupted."""
        race = answer.get("race")
        if race is not None and plan is not None:
            race["candidates"][0]["plan"] = plan["plan"]
        seconds = {"fuse": plan["seconds"] if plan else None, "judge": None, step: answer["seconds"]}
        found = task.found
        candidate = found.candidate or self._fused(task)
        row = {
            "key": task.key, "problem": found.name, "title": found.title, "digest": digest(found.problem),
            "candidate": str(candidate) if candidate.is_file() else None, "fused": found.candidate is None,
            "status": answer["status"], "reason": answer.get("reason"), "step": step, "seconds": seconds,
            "options": {k: v for k, v in asdict(self.options).items() if k in (*COUNTS, "seed")},
            "environment": self.told, "race": race,
        }  # fmt: skip
        if row["status"] != "stopped":
            self.store.append(row)
            if self.board is not None:
                self.board.finished(row)
        return row

    def _started(self, task: Task, step: str) -> None:
        if self.board is not None and not self.stopping:
            self.board.started(task.found.title, step)


def _ask_to_end(process: subprocess.Popen[bytes]) -> None:
    """So that it can clean up behind itself."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        process.terminate()


def _end(process: subprocess.Popen[bytes]) -> None:
    """The process and what it started in its group; sandboxes of its own end with it."""
    if process.poll() is None:
        _ask_to_end(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_words(log: Path, code: int) -> str:
    said = [x.strip() for x in log.read_text(errors="replace").splitlines() if x.strip()]
    how = f"ended by signal {-code}" if code < 0 else f"ended with status {code}"
    return f"its process {how}" + (f": {said[-1][:300]}" if said else "")
