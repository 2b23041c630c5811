"""How the time of a ModelNew grows with the batch and the extents of images, and a call's memory beside eager's.

    python benchmarks/scaling.py problems/conv_transpose2d.py new/conv_transpose2d.py [REF NEW ...] [--table [FILE]]
    python benchmarks/scaling.py REF NEW --extents 0.125 0.25 0.5 1    # other extents

Four batches, each twice the one before, up to the declared one, then extents of a quarter, half, once and twice the
declared unless others are given. For each series the straight line ``t = a + b * n`` (n is the number of elements of
the inputs) whose relative distances from the measured medians are least in squares, and the largest of those distances.
Peaks of memory are of a call at the declared sizes, without what is there before it. Times are of forward without
gradients, with a flushed L2.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import measuring  # noqa: E402

from crucible.problem import Problem, import_file, load_problem  # noqa: E402
from crucible.race import values  # noqa: E402

TABLE = Path(__file__).resolve().parent / "results" / "scaling.csv"
EXTENTS = (0.25, 0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Point:
    """One size of a series."""

    problem: str
    series: str
    sizes: str
    elements: int
    milliseconds: float
    line: float = 0.0  # what the straight line says
    off: float = 0.0  # the time's relative distance from it


def straight(points: Sequence[Point]) -> list[Point]:
    """With the line through them: relative distances count, so that small sizes count as much as large ones."""
    n = np.array([p.elements for p in points], dtype=float)
    t = np.array([p.milliseconds for p in points])
    terms = np.stack([np.ones_like(n), n / n.max()], 1)
    found, *_ = np.linalg.lstsq(terms / t[:, None], np.ones_like(t), rcond=None)
    lines = terms @ found
    return [replace(p, line=float(at), off=p.milliseconds / float(at) - 1) for p, at in zip(points, lines)]


def median(call: Callable[[], Any], samples: int) -> float:
    flush = torch.empty(measuring.FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    clock, times = measuring.clock(), []
    for number in range(samples + 3):
        flush.zero_()
        taken = clock.sample(call)
        times += [taken.milliseconds] * (number >= 3)
        del taken
    return measuring.quantiles(times)[0]


def peak(call: Callable[[], Any]) -> int:
    """Bytes that a call takes beyond what is there, its result included."""
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def series_of(problem: Problem, declared: int, extents: Sequence[float]) -> list[tuple[str, int | None, float]]:
    """Names, batches and factors of extents; images have more than two dimensions."""
    batches: list[tuple[str, int | None, float]] = [("batch", max(1, declared // 2**k), 1.0) for k in (3, 2, 1, 0)]
    images = any(len(s) > 2 for s in values.scaled_shapes(problem, None, 1.0) if isinstance(s, (tuple, list)))
    return batches + [("extents", None, f) for f in extents] * images


def measure(path: Path, new: Path, samples: int, extents: Sequence[float]) -> list[Point]:
    problem = load_problem(path)
    model = problem.build(0).cuda()
    torch.manual_seed(0)
    fused = import_file(new, "scaling_" + path.stem).ModelNew(*problem.init_inputs).cuda()
    fused.load_state_dict(model.state_dict())
    found: list[Point] = []
    with torch.no_grad():
        inputs = values.make_inputs(problem, values.scaled_shapes(problem, None, 1.0), 0, torch.float32)
        declared = next(t.shape[0] for t in inputs if isinstance(t, torch.Tensor))
        own, eager = (peak(functools.partial(m, *inputs)) for m in (fused, model))
        print(f"{path.stem}: a call takes {own / 1e6:.1f} MB, eager's {eager / 1e6:.1f} MB", flush=True)
        for name, batch, factor in series_of(problem, declared, extents):
            inputs = None
            torch.cuda.empty_cache()
            shapes = values.scaled_shapes(problem, batch, factor)
            inputs = values.make_inputs(problem, shapes, 0, torch.float32)
            elements = sum(prod(t.shape) for t in inputs if isinstance(t, torch.Tensor))
            taken = median(functools.partial(fused, *inputs), samples)
            found.append(Point(path.stem, name, values.sizes_text(shapes), elements, taken))
    names = list(dict.fromkeys(p.series for p in found))
    found = [p for name in names for p in straight([p for p in found if p.series == name])]
    for p in found:
        print(f"  {p.series:8} {p.sizes:24} {p.milliseconds:9.4f} ms, line {p.line:9.4f} ms, {p.off:+.1%}", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="REF NEW [REF NEW ...]")
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--extents", type=float, nargs="+", default=EXTENTS, help="factors [default: %(default)s]")
    parser.add_argument("--table", type=Path, nargs="?", const=TABLE, help=f"append rows here [{TABLE.name}]")
    arguments = parser.parse_args()
    if len(arguments.files) % 2:
        parser.error("files come in pairs: REF NEW")
    if len(arguments.extents) < 3 or min(arguments.extents) <= 0:
        parser.error("--extents takes three factors or more, all above zero: two points are always a straight line")
    if not torch.cuda.is_available():
        parser.error("this needs a GPU")
    told, worst = measuring.environment(), 0.0
    for ref, new in zip(arguments.files[::2], arguments.files[1::2]):
        points = measure(ref, new, arguments.samples, arguments.extents)
        worst = max([worst, *(abs(p.off) for p in points)])
        if arguments.table:
            measuring.append(arguments.table, [{**told, **asdict(p)} for p in points])
        torch.cuda.empty_cache()
    print(f"farthest from a straight line: {worst:.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
