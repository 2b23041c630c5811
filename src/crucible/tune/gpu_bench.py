"""The bench on a real GPU: a process for each candidate, built side by side, called one at a time and in turns.

A kernel that never ends, or one that breaks its CUDA context, costs the process it runs in and nothing else.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from crucible.tune.bench import REFERENCE, Candidate, Checked, Timing, timing_of

CALL = 60.0  # seconds for the first call with its check, or for one turn of samples
ROUNDS, SAMPLES = 6, 4
SOURCES = Path(__file__).resolve().parent.parent.parent


class Gone(Exception):
    """A worker that failed, was too slow, or died; the message says which."""


class Worker:
    """The parent's end of one candidate's process."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], errors: Path) -> None:
        self.errors = errors
        with errors.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment,
                start_new_session=True,  # so that it is stopped with the compilers it started
            )  # fmt: skip
        self.rest = b""

    def ask(self, seconds: float, doing: str, **request: Any) -> dict[str, Any]:
        """The answer to a request, or Gone."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise Gone(self._died(doing)) from None
        answer: dict[str, Any] = json.loads(self._line(seconds, doing))
        if "failed" in answer:
            raise Gone(answer["failed"])
        return answer

    def _line(self, seconds: float, doing: str) -> bytes:
        assert self.process.stdout is not None
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self.rest:
                left = end - time.monotonic()
                if left <= 0 or not selector.select(left):
                    self.stop()
                    why = ": does a kernel wait for ever?" if doing != "built" else ""
                    raise Gone(f"not {doing} after {seconds:.0f} s{why}")
                got = os.read(self.process.stdout.fileno(), 1 << 16)
                if not got:
                    raise Gone(self._died(doing))
                self.rest += got
        line, self.rest = self.rest.split(b"\n", 1)
        return line

    def _died(self, doing: str) -> str:
        self.stop()
        said = [x for x in self.errors.read_text(errors="replace").splitlines() if x.strip()]
        return f"its process ended before it was {doing}: {said[-1].strip()[:200] if said else 'it said nothing'}"

    def kill(self) -> None:
        """End the process and what it started."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """The same, and wait for the end of it."""
        self.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class GpuBench:
    """See ``crucible.tune.bench.Bench``. ``said`` is called when a candidate is ready; tests have another command."""

    def __init__(
        self, problem: Path, element: str, said: Callable[[str], None] = lambda text: None, jobs: int | None = None,
        command: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        self.problem, self.element, self.said = problem, element, said
        self.jobs = jobs or max(1, min(8, (os.cpu_count() or 2) // 2))
        self.command = list(command or [sys.executable, "-m", "crucible.tune.worker"])
        self.folder = Path(tempfile.mkdtemp(prefix="crucible_tune_"))
        self.workers: dict[str, Worker] = {}
        self.started: list[Worker] = []
        self.seeds = 0
        self._turn = threading.Lock()  # of the GPU

    def check(self, candidates: Sequence[Candidate], seconds: float) -> dict[str, Checked]:
        end = time.monotonic() + seconds
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            waiting = {c.name: pool.submit(self._check, c, end) for c in candidates}
            try:
                return {name: future.result() for name, future in waiting.items()}
            except BaseException:  # such as an interrupt: the threads wait for their workers
                for future in waiting.values():
                    future.cancel()
                for worker in self.started:
                    worker.kill()
                raise

    def _check(self, candidate: Candidate, end: float) -> Checked:
        from crucible.switches import standing  # torch is not loaded before it is needed

        if end - time.monotonic() <= 0:
            return Checked(None, "not built: no time was left")
        worker = self._start(candidate)
        try:
            now = standing()
            worker.ask(end - time.monotonic(), "built", op="build", elements=candidate.elements, **now)
            with self._turn:
                left = min(CALL, end - time.monotonic())
                if left <= 0:
                    raise Gone("not called: no time was left")
                error = float(worker.ask(left, "called", op="check")["error"])
        except Gone as gone:
            worker.stop()
            return Checked(None, str(gone))
        except BaseException:
            worker.stop()
            raise
        self.workers[candidate.name] = worker
        self.said(candidate.name)
        return Checked(error)

    def _start(self, candidate: Candidate) -> Worker:
        place = Path(tempfile.mkdtemp(dir=self.folder))
        file = REFERENCE
        if candidate.text is not None:
            (place / "candidate.py").write_text(candidate.text, encoding="utf-8")
            file = str(place / "candidate.py")
        paths = [str(SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])]
        programs = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]  # ninja lies beside Python
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join(paths), "PATH": os.pathsep.join(programs),
            "TORCH_EXTENSIONS_DIR": str(place / "build"),
        }  # fmt: skip
        command = [*self.command, str(self.problem), file, self.element]
        worker = Worker(command, environment, place / "errors.txt")
        self.started.append(worker)
        return worker

    def time(self, names: Sequence[str], seconds: float) -> dict[str, Timing]:
        end = time.monotonic() + seconds
        times: dict[str, list[float]] = {n: [] for n in names}
        failed: dict[str, str] = {}
        longest = 0.0
        for _ in range(ROUNDS):
            began = time.monotonic()
            if end - began < 1.2 * longest:  # a round that is cut short compares nothing
                break
            self.seeds += 1  # the same fresh inputs for all
            for name in names:
                if name not in failed:
                    try:
                        times[name] += self._turn_of(name, end - time.monotonic())
                    except Gone as gone:
                        failed[name] = str(gone)
            longest = max(longest, time.monotonic() - began)
        found = {n: timing_of(t) for n, t in times.items() if t and n not in failed}
        late = {n: Timing(None, failed=failed.get(n, "not timed: no time was left")) for n in names if n not in found}
        return {**found, **late}

    def _turn_of(self, name: str, left: float) -> list[float]:
        worker = self.workers.get(name)
        if worker is None or left <= 0:
            raise Gone("it did not pass the check" if worker is None else "not timed: no time was left")
        try:
            answer = worker.ask(min(CALL, left), "timed", op="time", seed=self.seeds, samples=SAMPLES)
        except Gone:
            worker.stop()
            del self.workers[name]
            raise
        return [float(t) for t in answer["times"]]

    def keep(self, names: Sequence[str]) -> None:
        for name in set(self.workers) - set(names):
            self.workers.pop(name).stop()

    def close(self) -> None:
        self.keep(())
        shutil.rmtree(self.folder, ignore_errors=True)
