"""One prove run's processes and folders: starts both workers, makes cases, runs trials, and reads what they wrote."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import crucible
from crucible.prove import outcome as outcomes
from crucible.prove import tensors
from crucible.prove.cases import Spec
from crucible.prove.compare import Error, Judgement, judge
from crucible.prove.execute import sample_sums
from crucible.prove.options import Options, memory_limit
from crucible.prove.proof import Finding, Refutation
from crucible.prove.sandbox import Child, ChildDied, Limits
from crucible.prove.scan import Scan

HEAVY_WORK = 50_000_000  # multiply-adds of one small forward from which on every run is thought about twice
HEAVY_WEIGHTS = 16_000_000
SHARED_MEMORY = Path("/dev/shm")
DEATHS = {
    "time": "time_limit",
    "memory": "memory_limit",
    "output": "output_limit",
    "processes": "process_limit",
    "disk": "disk_limit",
    "signal": "crashed",
    "exit": "exited",
    "protocol": "protocol",
}

Tick = Callable[[str], None]


@dataclass
class Trial:
    """One case with its truth and what the candidate made of it."""

    spec: Spec
    case: dict[str, Any]
    truth: dict[str, Any]
    reply: dict[str, Any]
    truths: Path
    scratch: Path
    device_type: str = "cuda"  # where the outputs must be
    kept: dict[str, torch.Tensor | None] = field(default_factory=dict)  # outputs whose files are gone
    _judged: dict[str, Judgement] = field(default_factory=dict)

    @property
    def error(self) -> dict[str, Any] | None:
        found = self.reply.get("error")
        return found if isinstance(found, dict) else None

    @property
    def output_names(self) -> list[str]:
        return [name for name in self.truth["tensors"] if name.startswith("output")]

    @property
    def forward_names(self) -> list[str]:
        """Outputs, and what forward() writes into its inputs."""
        return [name for name in self.truth["tensors"] if name.startswith(("output", "input:"))]

    @property
    def result_names(self) -> list[str]:
        """These, and gradients where the case has any."""
        return [name for name in self.truth["tensors"] if name.startswith(("output", "input:", "grad:"))]

    def row(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.truth["tensors"][name]
        return found

    def ulps(self, name: str) -> torch.dtype:
        """The type whose ulps count."""
        return tensors.DTYPES[self.row(name)["ulps"]]

    def exact(self, name: str) -> torch.Tensor:
        """The truth of a tensor, in float64."""
        return tensors.load(self.row(name)["truth"], self.truths / self.truth["folder"])

    def mask(self, name: str) -> torch.Tensor | None:
        info = self.row(name)["mask"]
        return None if info is None else tensors.load(info, self.truths / self.truth["folder"])

    def info(self, name: str) -> dict[str, Any] | None:
        """The description of the candidate's tensor of this name, if it made one."""
        if name.startswith("output"):
            row = next((r for r in self.reply.get("outputs", []) if f"output{r['path']}" == name), None)
            return None if row is None else row.get("tensor")
        if name.startswith("grad:"):
            grad = (self.reply.get("grads") or {}).get(name.removeprefix("grad:"))
            return None if grad is None else grad.get("tensor")
        kind, _, short = name.partition(":")
        found = (self.reply.get("written" if kind == "input" else "buffers") or {}).get(short)
        return found if isinstance(found, dict) else None

    def got(self, name: str) -> torch.Tensor | None:
        """The candidate's tensor of this name."""
        if name in self.kept:
            return self.kept[name]
        if name.startswith("sum:"):
            gradient = self.got(f"grad:{name.removeprefix('sum:')}")
            return None if gradient is None else sample_sums(gradient)
        info = self.info(name)
        if info is None:
            return None
        try:
            return tensors.load_untrusted(info, self.scratch / str(self.reply["folder"]))
        except (tensors.BadTensor, KeyError) as error:
            raise Refutation(Finding("protocol", f"the candidate's process sent a broken tensor: {error}")) from None

    def judge(self, name: str) -> Judgement | None:
        """Hold the candidate's tensor against its gate; None where it has none of that name and shape."""
        if name not in self._judged:
            got, exact = self.got(name), self.exact(name)
            if got is None or got.shape != exact.shape:
                return None
            yard = Error.from_json(self.row(name)["yard"])
            place = (
                torch.device("cuda") if exact.numel() > 1 << 23 and torch.cuda.is_available() else torch.device("cpu")
            )
            mask = self.mask(name)
            self._judged[name] = judge(
                exact.to(place), got.to(place), yard, self.ulps(name), None if mask is None else mask.to(place)
            )
        return self._judged[name]


class Refused(Exception):
    """The reference itself does not accept a case; ``memory`` says that it merely did not fit."""

    def __init__(self, message: str, memory: bool) -> None:
        self.memory = memory
        super().__init__(message)


class Session:
    """Owns the two workers of a run. A context manager: leaving it ends them and removes every file."""

    def __init__(self, reference: Path, candidate: Path, options: Options, tick: Tick | None = None) -> None:
        self.reference_path, self.candidate_path, self.options = reference, candidate, options
        self.tick = tick or (lambda text: None)
        self.root = _make_root()
        self.cases, self.truths = self.root / "cases", self.root / "truths"
        self.extensions = self.root / "extensions"
        self.scratch = self.root / "candidate"
        for folder in (self.cases, self.truths, self.scratch, self.root / "reference"):
            folder.mkdir()
        self.file = _safe_name(candidate)
        self.problem: dict[str, Any] = {}
        self.signatures: dict[str, Any] = {}
        self.environment: dict[str, Any] = {}
        self.trials: list[Trial] = []
        self.limits: list[str] = []
        self.warnings: list[Finding] = []
        self.scan = Scan()
        self.fixed_size = False  # on a GPU: the candidate refuses the small sizes
        self.training = True  # the mode of the main checks; False where the reference draws random numbers in training
        self.seconds_a_call = 0.0
        self._ids = itertools.count(1)
        self._reference_thread = ThreadPoolExecutor(1)
        self._stack = contextlib.ExitStack()
        self._closing = False
        self._reference: Child | None = None
        self._candidate: Child | None = None
        self._prefetched: dict[Spec, Future[tuple[dict[str, Any], dict[str, Any]]]] = {}

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        # The reference's thread must have let go of its child before that is closed.
        self._closing = True
        self._reference_thread.shutdown(wait=True, cancel_futures=True)
        self._stack.close()
        shutil.rmtree(self.root, ignore_errors=True)

    # --- starting ---------------------------------------------------------------------------------------------------

    def start_reference(self) -> Future[dict[str, Any]]:
        """Start the reference worker and open the problem, in the background."""
        return self._reference_thread.submit(self._open_reference)

    def _open_reference(self) -> dict[str, Any]:
        limits = Limits(wall_s=24 * 3600.0, memory_bytes=_machine_memory(), disk_bytes=1 << 40, processes=256)
        self._reference = self._stack.enter_context(
            Child(
                [sys.executable, "-m", "crucible.prove.reference_worker"],
                scratch=self.root / "reference",
                writable=[self.cases, self.truths],
                limits=limits,
                env=_environment(),
                gpu=self.options.device == "cuda",
            )
        )
        return self.ask_reference(
            {
                "op": "open",
                "path": str(self.reference_path),
                "device": self.options.device,
                "dtype": self.options.dtype,
                "precision": self.options.precision,
                "cases": str(self.cases),
                "truths": str(self.truths),
            }
        )

    def ask_reference(self, message: dict[str, Any]) -> dict[str, Any]:
        """One request to the reference worker (only from its own thread, or while that thread is idle)."""
        assert self._reference is not None
        try:
            limit = max(600.0, 4 * self.options.timeout)
            reply = self._reference.request(message, timeout=limit, tick=self._stop_if_closing)
        except ChildDied as death:
            tail = death.output_tail.strip()[-500:]
            raise Refutation(
                Finding(
                    "reference_error",
                    f"the reference's process ended: {death.detail}" + (f"\n  {tail}" if tail else ""),
                )
            ) from None
        if isinstance(reply.get("error"), dict):  # a fault of ours, not of the reference
            error = reply["error"]
            raise Refutation(
                Finding(
                    "infrastructure",
                    f"the reference worker failed: {error['type']}: {error['message']}",
                    {"traceback": error.get("traceback")},
                )
            )
        if not reply.get("ok"):
            raise Refutation(Finding("reference_error", str(reply.get("problem", "the reference cannot be used"))))
        return reply

    def _stop_if_closing(self, waited: float) -> None:
        if self._closing:
            raise Refutation(Finding("infrastructure", "the run is over"))

    def reference(self, message: dict[str, Any]) -> dict[str, Any]:
        """A request to the reference worker, in its thread, waited for."""
        return self._reference_thread.submit(self.ask_reference, message).result()

    def start_candidate(self) -> dict[str, Any]:
        """Copy the candidate into its scratch folder, start its worker, prepare the device."""
        shutil.copyfile(self.candidate_path, self.scratch / self.file)
        self._candidate, reply = self.spawn(self.scratch, self.file)
        self.environment.update(
            torch=reply.get("torch"),
            python=reply.get("python"),
            device=reply.get("device"),
            isolation=self._candidate.isolation,
        )
        return reply

    def spawn(self, scratch: Path, file: str, **extra: Any) -> tuple[Child, dict[str, Any]]:
        """A candidate worker with its device ready and nothing loaded."""
        options = self.options
        needed = _file_bytes(self.problem, declared=options.device == "cuda")
        on_gpu = options.device == "cuda"  # tensors of the declared size then pass through memory and files
        limits = Limits(
            wall_s=max(1800.0, 30 * options.timeout),
            memory_bytes=options.memory_bytes or memory_limit((64 << 30) if on_gpu else needed),
            disk_bytes=(64 << 30) if on_gpu else (4 << 30) + 8 * needed,
        )
        env = _environment()
        if options.device != "cuda":
            env["OMP_NUM_THREADS"] = "1"  # torch's operators on small tensors; the simulator has threads of its own
        if options.device == "sim":
            env.update(self._build_server(scratch))
        elif options.device == "cuda":
            # One folder for all processes of this proof: the same candidate need not compile a minute more than once.
            self.extensions.mkdir(exist_ok=True)
            env["TORCH_EXTENSIONS_DIR"] = str(self.extensions)
            env["MAX_JOBS"] = str(os.cpu_count() or 1)
        try:
            child = self._stack.enter_context(
                Child(
                    [sys.executable, "-m", "crucible.prove.candidate"],
                    scratch=scratch,
                    readable=[self.cases],
                    writable=[self.extensions] if options.device == "cuda" else [],
                    hidden=[self.truths, self.reference_path, self.root / "reference"],
                    limits=limits,
                    env=env,
                    gpu=options.device == "cuda",
                )
            )
            reply = self._request(
                child,
                {
                    "op": "start",
                    "device": options.device,
                    "scratch": str(scratch),
                    "cases": str(self.cases),
                    "file": file,
                    **extra,
                },
            )
        except ChildDied as death:
            raise Refutation(
                Finding(
                    "infrastructure",
                    f"the candidate's process could not be started: {death.detail}\n{death.output_tail[-800:]}",
                )
            ) from None
        if not reply.get("ok"):
            build = reply.get("build_error") or reply.get("error") or {}
            raise Refutation(
                Finding(
                    "infrastructure",
                    f"the device could not be prepared: {build.get('message', reply)}"
                    + (f"\n  hint: {build['hint']}" if build.get("hint") else ""),
                )
            )
        return child, reply

    def _build_server(self, scratch: Path) -> dict[str, str]:
        """The candidate cannot write to the build cache: it sends its sources to a socket of ours."""
        from crucible.build import prebuilt
        from crucible.build.cache import cache_dir
        from crucible.build.server import SOCKET_VARIABLE, BuildServer
        from crucible.prove.confined import compiler

        path = scratch / "build.sock"
        run = compiler([self.truths, self.reference_path, self.root / "reference"])
        self._stack.enter_context(BuildServer(path, timeout=self.options.timeout, run=run))
        return {
            SOCKET_VARIABLE: str(path),
            "CRUCIBLE_CACHE": str(cache_dir()),
            "CRUCIBLE_BUILD_TIMEOUT": str(self.options.timeout),
            **prebuilt.environment(),
        }

    # --- asking -----------------------------------------------------------------------------------------------------

    def _request(self, child: Child, message: dict[str, Any]) -> dict[str, Any]:
        # A little more than the build may take: a build that is too slow should be named as one. nvcc takes a minute
        # for a module with torch's headers, and a file may have several.
        building = message["op"] in ("load", "construct")
        extra = (240 if self.options.device == "cuda" else 5) if building else 0
        return child.request(message, timeout=self.options.timeout + extra)

    def candidate(self, message: dict[str, Any], child: Child | None = None, *, examine: bool = True) -> dict[str, Any]:
        """One request to the candidate's worker; its death, its violations and its tampering end the run."""
        worker = child or self._candidate
        assert worker is not None
        try:
            reply = self._request(worker, message)
        except ChildDied as death:
            violated = violation_finding(worker.violations, self.reference_path)
            raise Refutation(violated or death_finding(death, message)) from None
        if isinstance(reply.get("error"), dict) and "traceback" in reply["error"] and "facts" not in reply:
            error = reply["error"]
            raise Refutation(
                Finding(
                    "protocol",
                    f"the candidate's worker failed: {error['type']}: {error['message']}",
                    {"traceback": error["traceback"]},
                )
            )
        if examine:
            found = violation_finding(worker.violations, self.reference_path)
            found = found or outcomes.search_fault(reply, self.reference_path, self.root)
            found = found or outcomes.process_fault(reply, self.file)
            if found is not None:
                raise Refutation(found)
        return reply

    # --- trials -----------------------------------------------------------------------------------------------------

    def make(self, spec: Spec) -> tuple[dict[str, Any], dict[str, Any]]:
        """Have the reference worker make a case; returns (what the candidate gets, the truth)."""
        reply = self.ask_reference({"op": "case", "spec": spec.to_json(), "id": f"case{next(self._ids)}"})
        if "refused" in reply:
            raise Refused(str(reply["refused"]), bool(reply.get("memory")))
        return reply["case"], reply["truth"]

    def prefetch(self, spec: Spec) -> None:
        """Have a case made while something else is going on; ``run`` and ``run_all`` will find it."""
        self._prefetched[spec] = self._reference_thread.submit(self.make, spec)

    def _submit(self, spec: Spec) -> Future[tuple[dict[str, Any], dict[str, Any]]]:
        return self._prefetched.pop(spec, None) or self._reference_thread.submit(self.make, spec)

    def prepare(self, spec: Spec) -> tuple[dict[str, Any], dict[str, Any]]:
        """``make``, in the reference worker's thread, waited for."""
        return self._submit(spec).result()

    def run(self, spec: Spec, **mode: Any) -> Trial:
        """One trial. Raises Refused where the reference does not accept it."""
        case, truth = self.prepare(spec)
        return self.execute(spec, case, truth, **mode)

    def run_all(self, specs: Iterable[Spec], **mode: Any) -> Iterator[tuple[Spec, Trial | Refused]]:
        """Trials in order, the next case being prepared while the candidate is busy with this one."""
        pending: list[tuple[Spec, Future[Any]]] = []
        queue = iter(specs)

        def more() -> None:
            spec = next(queue, None)
            if spec is not None:
                pending.append((spec, self._submit(spec)))

        more()
        while pending:
            spec, future = pending.pop(0)
            try:
                case, truth = future.result()
            except Refused as refused:
                more()
                yield spec, refused
                continue
            more()
            yield spec, self.execute(spec, case, truth, **mode)

    def execute(
        self,
        spec: Spec,
        case: dict[str, Any],
        truth: dict[str, Any],
        *,
        child: Child | None = None,
        scratch: Path | None = None,
        tolerate: bool = False,
        **mode: Any,
    ) -> Trial:
        """Run a case in the candidate's worker. With ``tolerate`` only faults of the process end the run."""
        self.tick(spec.name)
        mode.setdefault("check_parameters", self.weights <= HEAVY_WEIGHTS or not self.trials)
        reply = self.candidate({"op": "run", "case": case, "mode": mode}, child)
        device_type = "cpu" if self.options.device == "cpu" else "cuda"
        trial = Trial(spec, case, truth, reply, self.truths, scratch or self.scratch, device_type)
        if not tolerate:
            fault = self.fault(reply)
            if fault is not None:
                fault.evidence.setdefault("case", spec.name)
                raise Refutation(fault)
        return trial

    def fault(self, reply: dict[str, Any]) -> Finding | None:
        """The first fault that can be read off a run without arithmetic: forward before backward, causes first."""
        error = reply.get("error") or {}
        found = outcomes.fallback_fault(reply, self.file) or outcomes.device_fault(reply, "forward")
        if found is None and (error.get("build") or error.get("exited")):
            found = outcomes.error_finding(error, self.file, "raises", "forward() raises")
        if found is None and error.get("stage", "backward") == "backward":
            found = outcomes.result_fault(reply) or outcomes.device_fault(reply, "backward")
        if found is None and not error:
            found = outcomes.gradient_fault(reply)
        return found

    def forget(self, trial: Trial) -> None:
        """Remove a trial's files: cases may be gigabytes."""
        shutil.rmtree(self.cases / trial.case["folder"], ignore_errors=True)
        shutil.rmtree(self.truths / trial.truth["folder"], ignore_errors=True)
        if trial.reply.get("folder"):
            shutil.rmtree(trial.scratch / str(trial.reply["folder"]), ignore_errors=True)

    def forget_reply(self, trial: Trial) -> None:
        """Remove what the candidate wrote for a trial, and keep its case and truth."""
        if trial.reply.get("folder"):
            shutil.rmtree(trial.scratch / str(trial.reply["folder"]), ignore_errors=True)

    # --- what the problem is ----------------------------------------------------------------------------------------

    @property
    def small(self) -> tuple[int, ...]:
        return self.declared if self.fixed_size else tuple(f["small"] for f in self.problem["free"])

    @property
    def light_trial(self) -> Trial:
        """A main trial at the small sizes, where there is one: for runs that need not be large."""
        return next((t for t in self.trials if t.spec.sizes == self.small), self.trials[0])

    @property
    def declared(self) -> tuple[int, ...]:
        return tuple(f["declared"] for f in self.problem["free"])

    @property
    def main_sizes(self) -> tuple[int, ...]:
        """Where the main checks run: as declared on a GPU, small otherwise."""
        return self.declared if self.options.device == "cuda" else self.small

    @property
    def weights(self) -> int:
        return sum(_count(shape) for _, shape, _, _ in self.problem["state"])

    @property
    def heavy(self) -> bool:
        return bool(self.problem["multiply_adds"] > HEAVY_WORK or self.weights > HEAVY_WEIGHTS)

    def seed(self, *words: object) -> int:
        """A seed for a purpose, derived from the run's seed."""
        value = self.options.seed
        for word in words:
            for byte in str(word).encode():
                value = (value * 1_000_003 + byte + 1) % (1 << 31)
        return value

    @contextlib.contextmanager
    def second_worker(self, file: str, **extra: Any) -> Iterator[tuple[Child, Path]]:
        """Another worker for the same candidate, under another file name and in another folder."""
        scratch = self.root / f"other{next(self._ids)}"
        scratch.mkdir()
        shutil.copyfile(self.candidate_path, scratch / file)
        child, _ = self.spawn(scratch, file, **extra)
        try:
            yield child, scratch
        finally:
            child.close()
            shutil.rmtree(scratch, ignore_errors=True)


def _count(shape: Iterable[int]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total


def _file_bytes(problem: dict[str, Any], *, declared: bool = False) -> int:
    """Roughly what one case of the problem weighs, in bytes: at its small sizes, or as declared."""
    if not problem:  # not known yet: both processes start at once
        return 2 << 30 if declared else 0
    shapes = [d["shape"] if d else None for d in problem["declared"]] if declared else problem["small_shapes"]
    weights = sum(_count(shape) for _, shape, _, _ in problem["state"])
    inputs = sum(_count(s) for s in shapes if s)
    outputs = 2 * inputs if declared else sum(_count(s) for s in problem["outputs"])
    return 4 * (weights + inputs + outputs)


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _make_root() -> Path:
    """A private folder for tensors: in shared memory where there is room, so that they never touch a disk."""
    base = None
    if SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK) and shutil.disk_usage(SHARED_MEMORY).free > 4 << 30:
        base = str(SHARED_MEMORY)
    return Path(tempfile.mkdtemp(prefix="crucible-", dir=base))


def _safe_name(candidate: Path) -> str:
    """The candidate's own file name, so that messages name it; made a Python file where it is none."""
    name = candidate.name if candidate.suffix == ".py" else f"{candidate.name}.py"
    return name if not name.startswith(("out", "home", "tmp")) else f"candidate_{name}"


def _environment() -> dict[str, str]:
    source = str(Path(crucible.__file__).parents[1])
    known = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{source}{os.pathsep}{known}" if known else source}


def violation_finding(violations: list[str], reference: Path) -> Finding | None:
    """What the sandbox saw the candidate try, as a finding."""
    for text in violations:
        if "network" in text:
            return Finding("network_use", f"the candidate {text}", {"violations": violations[:10]})
        if text.startswith("tried to read"):
            return Finding(
                "reads_reference",
                f"the candidate {text}: it must not see the reference or its results",
                {"violations": violations[:10]},
            )
        return Finding(
            "writes_outside", f"the candidate {text}, outside its own folder", {"violations": violations[:10]}
        )
    return None


def death_finding(death: ChildDied, message: dict[str, Any]) -> Finding:
    """The end of a candidate's process, named."""
    stage = {"load": "while it was loaded", "construct": "while ModelNew was built", "run": "while it ran"}
    code = DEATHS.get(death.cause, "crashed")
    text = f"the candidate's process ended {stage.get(message['op'], 'while it was tested')}: {death.detail}"
    tail = "\n".join(death.output_tail.strip().splitlines()[-6:])[-800:]
    return Finding(code, text, {"output": tail} if tail else {})


def fresh_seed() -> int:
    return secrets.randbelow(1 << 31)


def now() -> float:
    return time.perf_counter()
