"""Fused files on a real GPU: right over the range of float32, and how long each kernel takes.

    python tests/gpu/hopper_windows.py fused/*.py [--samples 8] [--backward] [--jobs 6] [--no-tf32]

Files are named like their problem, with anything after an @ in the name: several versions of one can be compared. All
are built first, at the same time, each in a folder of its own. Errors are relative L2 distances from float64, the worst
of two samples, of the file and of eager; exit code 1 if the file's is over 1.1 times eager's, where that is finite.
With --no-tf32 torch's switch forbids TF32: float32's own precision, at most twice eager's error. Eager is timed too.
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
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "src"))

from crucible.problem import import_file  # noqa: E402

LIMITS = {True: 1.1, False: 2.0}  # by whether TF32 is permitted
RANGES = {
    "plain": lambda x: x,
    "1e-30": lambda x: x * 1e-30,
    "1e30": lambda x: x * 1e30,
    "samples 1e-18 and 1e18": lambda x: torch.cat([x[:1] * 1e-18, x[1:2] * 1e18]),
    "a channel 1e6": lambda x: torch.cat([x[:, :1] * 1e6, x[:, 1:]], 1),
    "a channel 1e-8": lambda x: torch.cat([x[:, :1] * 1e-8, x[:, 1:]], 1),
    "subnormals": lambda x: x * 1e-40,
}
BUILD = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import torch
from crucible.problem import import_file
torch.backends.cudnn.allow_tf32 = sys.argv[4] == "True"
m = import_file(Path(sys.argv[2]), "fused")
model = m.ModelNew(*m.get_init_inputs()).cuda()
with torch.device("cuda"):
    inputs = [x[:2].cuda().requires_grad_() for x in m.get_inputs()]
out = model(*inputs)
if sys.argv[3] == "True":
    out.sum().backward()
torch.cuda.synchronize()
"""


def cache(base: Path, file: Path) -> dict[str, str]:
    folder = base / file.stem
    folder.mkdir(exist_ok=True)
    return {**os.environ, "TORCH_EXTENSIONS_DIR": str(folder)}


def build(base: Path, file: Path, arguments: argparse.Namespace) -> str:
    flags = [str(arguments.backward), str(not arguments.no_tf32)]
    command = [sys.executable, "-c", BUILD, str(ROOT / "src"), str(file), *flags]
    try:
        done = subprocess.run(command, env=cache(base, file), capture_output=True, text=True, timeout=150, check=False)
    except subprocess.TimeoutExpired:
        return "neither built nor run after 150 s: does a kernel wait for ever?"
    return done.stderr[-600:] if done.returncode else ""


def distance(x: torch.Tensor, truth: torch.Tensor) -> float:
    return max(((a.double() - b).norm() / b.norm()).item() for a, b in zip(x, truth))


def compare(new: Any, reference: Any, x: torch.Tensor, backward: bool) -> tuple[list[str], bool]:
    """Errors in words, and whether all are small enough."""
    exact = copy.deepcopy(reference).double()
    said, right = [], True
    for label, change in RANGES.items():
        given = change(x[:2].clone()).requires_grad_(backward)
        results = [m(given) for m in (new, reference)] + [exact(given.double())]
        pairs = [(label, *results)]
        if backward and label == "plain":
            g = torch.randn_like(results[0])
            grads = [torch.autograd.grad(y, given, g.to(y.dtype))[0] for y in results]
            pairs.append(("gradient", *grads))
        for name, ours, theirs, truth in pairs:
            error, eager = distance(ours, truth), distance(theirs, truth)
            said.append(f"{name} {error:.2e}/{eager:.2e}")
            right &= not eager < 0.5 or error <= LIMITS[torch.backends.cudnn.allow_tf32] * eager
    for number in (float("inf"), float("nan")):
        given = x[:2].clone()
        given[1, 0].view(-1)[given[1, 0].numel() // 2] = number
        same = bool((new(given).isfinite() == exact(given.double()).isfinite()).all())
        said.append(f"{number} {'where float64 has it' if same else 'ELSEWHERE'}")
        right &= same
    return said, right


def kernels(run: Any) -> list[str]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    device = torch.autograd.DeviceType.CUDA
    events = sorted((e for e in seen.events() if e.device_type == device), key=lambda e: e.time_range.start)
    short = [(e.name.split("<")[0].split("::")[-1], e.device_time / 1000) for e in events]
    return [f"{name} {ms:.3f}" for name, ms in short if ms >= 0.004]


def milliseconds(run: Any, samples: int) -> float:
    """The median, with caches that hold something else."""
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    times = []
    for _ in range(samples + 2):
        flush.zero_()
        first, last = torch.cuda.Event(True), torch.cuda.Event(True)
        first.record()
        run()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last))
    return statistics.median(times[2:])


def measure_apart(base: Path, file: Path, arguments: argparse.Namespace) -> bool:
    """In a process of its own, so that a kernel that waits for ever costs one file."""
    command = [sys.executable, str(Path(__file__)), "--built", str(file), "--samples", str(arguments.samples)]
    command += ["--backward"] * arguments.backward + ["--no-tf32"] * arguments.no_tf32
    try:
        return subprocess.run(command, env=cache(base, file), timeout=60, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"{file.stem}: not measured after 60 s: does a kernel wait for ever?", flush=True)
        return False


def measure(file: Path, samples: int, backward: bool) -> bool:
    name = file.stem.split("@")[0]
    module = import_file(file, f"new_{file.stem}")
    problem = import_file(ROOT / "problems" / f"{name}.py", f"old_{name}")
    torch.manual_seed(0)
    new, old = module.ModelNew(*module.get_init_inputs()).cuda(), problem.Model(*problem.get_init_inputs()).cuda()
    old.load_state_dict(new.state_dict())
    with torch.device("cuda"):
        inputs = [x.cuda() for x in problem.get_inputs()]
    said, right = compare(new, old, inputs[0], backward)
    with torch.no_grad():
        took, eager = (milliseconds(lambda m=m: m(*inputs), samples) for m in (new, old))
        each = kernels(lambda: new(*inputs))
    verdict = "right" if right else "WRONG"
    print(f"{file.stem}: {took:.3f} ms, eager {eager:.3f}, {verdict}", flush=True)
    print(f"    {', '.join(each)}\n    errors (file/eager): {', '.join(said)}", flush=True)
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--backward", action="store_true", help="the gradient by the first input too")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--no-tf32", action="store_true", help="float32's own precision")
    parser.add_argument("--built", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = not arguments.no_tf32
    if arguments.built:
        wrong = [f for f in arguments.files if not measure(f, arguments.samples, arguments.backward)]
        return 1 if wrong else 0
    bad = 0
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        base = Path(folder)
        waiting = [(f, pool.submit(build, base, f, arguments)) for f in arguments.files]
        for file, future in waiting:
            problem = future.result()
            if problem:
                print(f"{file.stem}: FAILED {problem}", flush=True)
                bad += 1
                continue
            bad += not measure_apart(base, file, arguments)
    print(f"{len(arguments.files) - bad} of {len(arguments.files)} right")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
