"""Do medians of a race agree with plain CUDA events? Races beside a loop that shares no code with them.

    python tests/gpu/race_agrees.py FOLDER NAME ... [--against eager,compile]

Each reference problem is raced as tools/make_gallery.py --race does, which leaves its record in FOLDER. Before the race
and after it a process of its own times eager and the candidate in a loop: new inputs in the same memory, room for a
result, a flushed cache, an event before and one after the call. Before and after, because what a GPU gives differs by a
few percent from one minute to the next. In the same memory, as in the race, because a kernel's time can depend on where
its tensors lie: cuDNN's for conv_transpose3d_relu_group_norm takes 2.10 or 2.30 ms on an H200.
Exit code 1 where a median of a race differs from the loops' mean by more than 3 %.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import torch

ROOT = Path(__file__).resolve().parents[2]
AGREE = 0.03
ROUNDS, SAMPLES, WARM = 5, 3, 2
CANDIDATE = "model_new"


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.parent.name + "_" + path.stem, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def fresh(space: ModuleType, seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    with torch.device("cuda"):
        return [t.cuda() for t in space.get_inputs()]


def median(model: torch.nn.Module, space: ModuleType, flush: torch.Tensor) -> float:
    """Milliseconds of a call without gradients."""
    inputs = fresh(space, 1)
    room = torch.empty_like(model(*inputs))
    taken = []
    for turn in range(ROUNDS):
        for k in range(WARM + SAMPLES):
            for held, new in zip(inputs, fresh(space, 100 * turn + k)):
                held.copy_(new)
            flush.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            model(*inputs)
            end.record()
            torch.cuda.synchronize()
            taken += [start.elapsed_time(end)] * (k >= WARM)
    del room, inputs
    torch.cuda.empty_cache()
    return statistics.median(taken)


def loop(name: str) -> dict[str, float]:
    """Milliseconds of a call of eager and of the candidate."""
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    reference = module(ROOT / "problems" / f"{name}.py")
    candidate = module(ROOT / "gallery" / name / f"{CANDIDATE}.py")
    arguments = reference.get_init_inputs()
    found = {}
    with torch.no_grad():
        for contender, kind in (("eager", reference.Model), (CANDIDATE, candidate.ModelNew)):
            torch.manual_seed(0)
            found[contender] = median(kind(*arguments).cuda(), reference, flush)
    return found


def apart(name: str) -> dict[str, float]:
    """The loop in a process of its own, which gives its memory back."""
    done = subprocess.run([sys.executable, __file__, "--loop", name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: the loop failed: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(name: str, folder: Path, against: str) -> bool:
    before = apart(name)
    tool = [sys.executable, str(ROOT / "tools" / "make_gallery.py"), "--simulated", "--rounds", "5"]
    subprocess.run([*tool, "--race", str(folder), name, "--against", against], check=True)
    after = apart(name)
    record = json.loads((folder / f"{name}.json").read_text())
    (forward,) = (p for p in record["passes"] if p["what"] == "forward")
    rows = {r["contender"]: r for r in forward["rows"] if r.get("times")}
    right = True
    for contender in before:
        raced, plain = rows[contender]["times"]["median"], (before[contender] + after[contender]) / 2
        off = raced / plain - 1
        right = right and abs(off) < AGREE
        loops = f"{before[contender]:.4f} ms before it, {after[contender]:.4f} ms after"
        print(f"{name} {contender}: race {raced:.4f} ms, events {loops}, {off:+.2%}", flush=True)
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="for the records")
    parser.add_argument("names", nargs="+", help="reference problems")
    parser.add_argument("--against", default="eager", help="who else takes part in the races")
    if sys.argv[1:2] == ["--loop"]:
        print(json.dumps(loop(sys.argv[2])))
        return 0
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    right = [compare(name, args.folder, args.against) for name in args.names]
    print(f"{sum(right)} of {len(right)} agree within {AGREE:.0%}")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
