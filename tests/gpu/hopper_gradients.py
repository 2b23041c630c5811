"""Gradients of weights in fused files on a real GPU: right, the same each time, and how long each kernel takes.

    python tests/gpu/hopper_gradients.py fused/*.py [--jobs 6] [--no-full]

Files are named like their problem. All are built first, at the same time, each in a folder of its own. Errors are
relative L2 distances from float64 of the worst weight, of the file and of eager, with random incoming gradients: at the
problem's own size, at an odd one, and there over ranges that half cannot hold. Exit code 1 if one is over 1.1 times
eager's, where that is finite, or if two runs differ. Kernels are timed in a step of out.sum(), and eager's whole step.
A file that makes no progress for 60 s is given up, and one that takes 150 s to build and run once.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import copy
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "src"))

from crucible.problem import import_file  # noqa: E402

LIMIT, PATIENCE, BUILDING = 1.1, 60, 150  # times eager's error, and seconds
BUILD = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import torch
from crucible.problem import import_file
m = import_file(Path(sys.argv[2]), "fused")
model = m.ModelNew(*m.get_init_inputs()).cuda()
with torch.device("cuda"):
    inputs = [x[:2].cuda() for x in m.get_inputs()]
model(*inputs).sum().backward()
torch.cuda.synchronize()
"""


class Watch:
    """Ends the process where nothing was said for a while: a kernel may wait for ever."""

    def __init__(self) -> None:
        self.doing, self.since = "starting", time.monotonic()
        threading.Thread(target=self._watch, daemon=True).start()

    def say(self, doing: str) -> None:
        self.doing, self.since = doing, time.monotonic()

    def _watch(self) -> None:
        while True:
            time.sleep(1)
            if time.monotonic() - self.since > PATIENCE:
                said = f"GIVEN UP: {PATIENCE} s without progress while {self.doing}: does a kernel wait for ever?"
                print(said, flush=True)
                os._exit(2)


def cache(base: Path, file: Path) -> dict[str, str]:
    folder = base / file.stem
    folder.mkdir(exist_ok=True)
    return {**os.environ, "TORCH_EXTENSIONS_DIR": str(folder)}


def build(base: Path, file: Path) -> str:
    command = [sys.executable, "-c", BUILD, str(ROOT / "src"), str(file)]
    try:
        done = subprocess.run(
            command, env=cache(base, file), capture_output=True, text=True, timeout=BUILDING, check=False
        )
    except subprocess.TimeoutExpired:
        return f"neither built nor run after {BUILDING} s: does a kernel wait for ever?"
    return done.stderr[-800:] if done.returncode else ""


def gradients(model: Any, x: torch.Tensor, seed: int | None) -> list[torch.Tensor]:
    """Of the weights of convolutions; without a seed, of a sum."""
    weights = [w for w in model.parameters() if w.dim() > 2]
    out = model(x)
    if seed is None:
        return list(torch.autograd.grad(out.sum(), weights))
    generator = torch.Generator("cuda").manual_seed(seed)
    given = torch.randn(out.shape, generator=generator, device="cuda")
    return list(torch.autograd.grad(out, weights, given.to(out.dtype)))


def distance(found: list[torch.Tensor], truth: list[torch.Tensor]) -> float:
    return max(((a.double() - b).norm() / b.norm()).item() for a, b in zip(found, truth))


def odd(x: torch.Tensor) -> torch.Tensor:
    """Two samples with sides that no box divides."""
    cut = x[:2]
    for d, less in zip(range(2, x.dim()), (3, 5, 1)):
        cut = cut.narrow(d, 0, x.shape[d] - less)
    return cut.contiguous()


def ranged(x: torch.Tensor) -> dict[str, torch.Tensor]:
    small = odd(x)
    channel, samples = small.clone(), small.clone()
    channel[:, :1] *= 1e6
    samples[0] *= 1e-12
    samples[1] *= 1e12
    return {"odd": small, "1e-30": small * 1e-30, "a channel 1e6": channel, "samples 1e-12 and 1e12": samples}


def compare(new: Any, reference: Any, inputs: dict[str, torch.Tensor], watch: Watch) -> tuple[list[str], bool]:
    exact = copy.deepcopy(reference).double()
    said, right = [], True
    for label, x in inputs.items():
        watch.say(f"comparing {label}")
        ours, again = gradients(new, x, 1), gradients(new, x, 1)
        torch.cuda.synchronize()
        watch.say(f"comparing {label} with eager and float64")
        same = all(torch.equal(a, b) or bool(a.isnan().any()) for a, b in zip(ours, again))
        eager = gradients(reference, x, 1)
        try:
            truth = gradients(exact, x.double(), 1)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            truth = [w.double() for w in eager]
            label += " (from eager: no memory for float64)"
        error, theirs = distance(ours, truth), distance(eager, truth)
        fine = same and (not theirs < 0.5 or theirs == 0 or error <= LIMIT * theirs)
        said.append(f"{label} {error:.2e}/{theirs:.2e}" + ("" if same else " DIFFERS") + ("" if fine else " WRONG"))
        right &= fine
        del ours, again, eager, truth
        torch.cuda.empty_cache()
    return said, right


def kernels(run: Any) -> list[str]:
    """Kernels of a step, the weight's gradient first, and their sum."""
    from torch.profiler import ProfilerActivity, profile

    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    device = torch.autograd.DeviceType.CUDA
    events = [e for e in seen.events() if e.device_type == device]
    short = [(e.name.split("<")[0].split("::")[-1], e.device_time / 1000) for e in events]
    own = [(n, ms) for n, ms in short if n.startswith("gradient_")]
    rest = sorted((s for s in short if not s[0].startswith("gradient_")), key=lambda s: -s[1])[:6]
    listed = [f"{name} {ms:.3f}" for name, ms in (*own, *rest)]
    return [*listed, f"weight's gradient {sum(ms for _, ms in own):.3f} of {sum(ms for _, ms in short):.3f} ms"]


def milliseconds(run: Any, samples: int = 5) -> float:
    times = []
    for _ in range(samples + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[2:])


def measure(file: Path, full: bool) -> bool:
    watch = Watch()
    watch.say(f"loading {file.stem}")
    problem = import_file(ROOT / "problems" / f"{file.stem.split('@')[0]}.py", "problem")
    fused = import_file(file, "fused")
    torch.manual_seed(7)
    reference = problem.Model(*problem.get_init_inputs()).cuda()
    new = fused.ModelNew(*problem.get_init_inputs()).cuda()
    new.load_state_dict(reference.state_dict())
    with torch.device("cuda"):
        x = problem.get_inputs()[0].cuda()
    watch.say(f"timing {file.stem}")
    taken = kernels(lambda: gradients(new, x, None))
    ours, theirs = (milliseconds(lambda m=m: gradients(m, x, None)) for m in (new, reference))  # type: ignore[misc]
    torch.cuda.empty_cache()
    print(f"{file.stem}: {', '.join(taken)}; steps {ours:.2f}, eager {theirs:.2f} ms", flush=True)
    said, right = compare(new, reference, ({"full": x} if full else {}) | ranged(x), watch)
    print(f"{file.stem}: errors (file/eager): {', '.join(said)}", flush=True)
    return right


def measure_apart(base: Path, file: Path, full: bool) -> bool:
    """In a process of its own, so that a kernel that waits for ever costs one file."""
    command = [sys.executable, str(Path(__file__)), "--built", str(file), *([] if full else ["--no-full"])]
    return subprocess.run(command, env=cache(base, file), check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--no-full", action="store_true", help="compare at odd sizes alone")
    parser.add_argument("--built", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    full = not arguments.no_full
    if arguments.built:
        wrong = [f for f in arguments.files if not measure(f, full)]
        return 1 if wrong else 0
    bad = 0
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        waiting = [(f, pool.submit(build, Path(folder), f)) for f in arguments.files]
        for file, future in waiting:
            problem = future.result()
            if problem:
                print(f"{file.stem}: FAILED {problem}", flush=True)
                bad += 1
                continue
            bad += not measure_apart(Path(folder), file, full)
    print(f"{len(arguments.files) - bad} of {len(arguments.files)} right")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
