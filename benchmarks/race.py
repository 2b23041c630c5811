"""Race a ModelNew against what a user would pick instead, on this machine's GPU, in one process and without a proof.

    python benchmarks/race.py problems/conv_transpose2d.py new/conv_transpose2d.py [REF NEW ...] [--json FILE]
    python benchmarks/race.py REF NEW --batch 16 --spatial 0.5 --table    # other sizes, rows for the committed table

For those who write kernels: seconds where ``crucible race`` takes minutes, with the same clock, contenders and floors.
Contenders take turns, sample by sample, each sample on another set of inputs and with a flushed L2 cache; times are
medians, with the first and last decile. Forward runs without gradients; the training step is forward and backward of
``out.sum()`` with gradients for every floating-point input and parameter. What a contender returned in its last timed
sample is compared with float64; more than twice eager's error is WRONG. The exit code is 1 if anything is wrong or
ModelNew fails.
Ceilings (copy, matrix products) are measured in the same run, and the floor follows from them (crucible.race.light).
GB/s and TFLOP/s are of the work that nobody can do without. A contender that fails is a row that says why.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import measuring  # noqa: E402

from crucible.exact import wide, widened  # noqa: E402
from crucible.plan import gpus  # noqa: E402
from crucible.problem import Problem, import_file, load_problem  # noqa: E402
from crucible.race import contenders, values  # noqa: E402
from crucible.race.light import Light, light, work_of  # noqa: E402
from crucible.race.names import BASELINES  # noqa: E402
from crucible.race.stats import SLACK, ULPS  # noqa: E402

NEW = "ModelNew"
CONTENDERS = (*BASELINES, NEW)
TABLE = Path(__file__).resolve().parent / "results" / "race.csv"


@dataclass
class Lane:
    """One contender with its times, or why it has none."""

    name: str
    contender: contenders.Contender | None = None
    times: list[float] = field(default_factory=list)
    error: float | None = None
    said: str | None = None  # why it failed


@dataclass(frozen=True)
class Row:
    """One line of the table; times in milliseconds."""

    problem: str
    what: str
    dtype: str
    contender: str
    sizes: str
    median: float | None
    low: float | None  # first and last decile
    high: float | None
    error: float | None  # relative L2 distance from float64
    floor: float
    note: str | None
    ratio: float | None = None  # to the fastest of the others
    tflops: float | None = None
    gbs: float | None = None
    of_floor: float | None = None  # the floor as a part of the time


def lanes(
    model: torch.nn.Module, fused: Callable[[], torch.nn.Module], names: list[str], shapes: list[Any]
) -> list[Lane]:
    """The contenders that make sense here, all with the reference's weights; one that cannot be made says why."""
    made = []
    for name in names:
        if not contenders.makes_sense(name, shapes):
            continue
        try:
            if name == NEW:
                own = fused()
                made.append(Lane(name, contenders.Contender(own, own)))
            else:
                made.append(Lane(name, contenders.baseline(name, model)))
        except Exception as error:  # a contender that fails is a row of the table, not the end of the race
            made.append(Lane(name, said=contenders.why(error)))
    return made


def race(problem: Problem, new: Path, arguments: argparse.Namespace, found: dict[str, float]) -> list[Row]:
    """All rows of one problem."""
    dtype = getattr(torch, arguments.dtype)
    model = problem.build(0).cuda().to(dtype)

    def fused() -> torch.nn.Module:
        module = import_file(new, "model_new_" + new.stem)
        torch.manual_seed(0)
        made: torch.nn.Module = module.ModelNew(*problem.init_inputs).cuda().to(dtype)
        made.load_state_dict(model.state_dict())
        return made

    shapes = values.scaled_shapes(problem, arguments.batch, arguments.spatial)
    sets = [values.make_inputs(problem, shapes, seed, dtype) for seed in range(3)]
    truth = _truth(model, sets[0])
    rows = []
    for what in arguments.what:
        field_of_lanes = lanes(model, fused, arguments.contenders, shapes)
        _run(field_of_lanes, what, sets, truth, arguments.samples)
        work = work_of(model, sets[0], what == "training", sums=True)
        least = light(work, found, gpus.known_as(torch.cuda.get_device_name()))
        first = Row(problem.path.stem, what, arguments.dtype, "", values.sizes_text(shapes), None, None, None, None,
                    least.floor, None)  # fmt: skip
        new_rows = [_row(first, lane, least) for lane in field_of_lanes]
        new_rows = [_beside(r, new_rows) for r in new_rows]
        rows += new_rows
        for r in new_rows:
            print(_line(r), flush=True)
        del field_of_lanes
        torch.cuda.empty_cache()
    return rows


def _truth(model: torch.nn.Module, inputs: list[Any]) -> list[torch.Tensor] | None:
    """What float64 gives; None where it takes more memory than there is."""
    try:
        with torch.no_grad():
            return [wide(t) for t in values.tensors(widened(copy.deepcopy(model))(*map(wide, inputs)))]
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        print("  float64 runs out of memory: results are not compared", flush=True)
        return None


def _run(
    field_of_lanes: list[Lane], what: str, sets: list[list[Any]], truth: list[torch.Tensor] | None, samples: int
) -> None:
    """Warm up, then take turns; the last turn is on the inputs whose truth is known."""
    for lane in field_of_lanes:
        _warm_up(lane, sets[0], what)
    flush = torch.empty(measuring.FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    clock = measuring.clock()
    for number in range(samples):
        last = number == samples - 1
        for lane in field_of_lanes:
            if lane.contender is None:
                continue
            try:
                step = functools.partial(contenders.STEPS[what], lane.contender)
                # A call that does not count: the processor's caches have the others' code.
                step(lane.contender.inputs(sets[number % len(sets)], what == "training"))
                lane.contender.model.zero_grad(set_to_none=True)
                clock.settle()
                inputs = lane.contender.inputs(sets[0 if last else (number + 1) % len(sets)], what == "training")
                flush.zero_()
                taken = clock.sample(functools.partial(step, inputs))
                lane.times.append(taken.milliseconds)
                if last and truth is not None:
                    got = [t.detach() for t in values.tensors(taken.result)]
                    lane.error = max(values.distance(g, t) for g, t in zip(got, truth, strict=True))
            except Exception as error:  # noqa: BLE001
                _failed(lane, error)
            taken = got = inputs = None
            if lane.contender is not None:
                lane.contender.model.zero_grad(set_to_none=True)


def _warm_up(lane: Lane, inputs: list[Any], what: str) -> None:
    start = time.perf_counter()
    if lane.contender is not None:
        try:
            for _ in range(3):
                contenders.STEPS[what](lane.contender, lane.contender.inputs(inputs, what == "training"))
                lane.contender.model.zero_grad(set_to_none=True)
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001
            _failed(lane, error)
    if lane.said is not None:
        print(f"  {lane.name} FAILED, {what}: {lane.said}", flush=True)
    else:
        print(f"  {lane.name} ready after {time.perf_counter() - start:.1f} s", flush=True)


def _failed(lane: Lane, error: Exception) -> None:
    """Say why, and let go of what it holds."""
    lane.said, lane.times = contenders.why(error), []
    lane.contender = None
    error.__traceback__ = None
    torch.cuda.empty_cache()


# -- rows


def _row(first: Row, lane: Lane, least: Light) -> Row:
    row = replace(first, contender=lane.name, error=lane.error, note=lane.said)
    if not lane.times:
        return replace(row, note=lane.said or "not timed")
    median, low, high = measuring.quantiles(lane.times)
    return replace(
        row, median=median, low=low, high=high, tflops=least.operations / median / 1e9, gbs=least.bytes / median / 1e6,
        of_floor=least.floor / median,
    )  # fmt: skip


def _beside(row: Row, rows: list[Row]) -> Row:
    """With what can be said only beside the others: the ratio to the fastest of them, and whether it is right."""
    others = [r.median for r in rows if r.median is not None and r.contender != row.contender]
    ratio = row.median / min(others) if row.median is not None and others else None
    eager = next((r.error for r in rows if r.contender == "eager"), None)
    note = row.note
    if row.error is not None and eager is not None and not row.error <= max(SLACK * eager, ULPS[row.dtype]):
        note = f"WRONG: error {row.error:.2e}, eager's {eager:.2e}"
    return replace(row, ratio=ratio, note=note)


def _line(row: Row) -> str:
    head = f"{row.problem[:52]:52} {row.sizes} {row.what:8} {row.dtype:8} {row.contender:13}"
    if row.median is None:
        return f"{head} FAILED: {row.note}"
    parts = [f"{head} {row.median:8.3f} ms ({row.low:.3f} .. {row.high:.3f})"]
    if row.ratio is not None:
        parts.append(f"{row.ratio:.2f} of the best other")
    parts.append(f"{row.tflops:.1f} TFLOP/s, {row.gbs:.0f} GB/s, floor {row.floor:.3f} ms, {row.of_floor:.0%} reached")
    parts.append(f"error {row.error:.2e}" if row.error is not None else "not compared")
    return "  ".join([*parts, *([row.note] if row.note else [])])


def append(path: Path, rows: list[Row], told: dict[str, Any]) -> None:
    """Rows for a table that is kept, each with where and when it was measured."""
    measuring.append(path, [{**told, **asdict(r)} for r in rows])


def positive(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text} is not positive")
        return value

    return parse


def arguments_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="REF NEW [REF NEW ...]")
    usual = [n for n in CONTENDERS if n != "max_autotune"]
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=usual)
    parser.add_argument("--what", nargs="+", choices=["forward", "training"], default=["forward", "training"])
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float32")
    parser.add_argument("--no-tf32", action="store_true", help="convolutions in float32's own precision, for all")
    parser.add_argument("--samples", type=positive(int), default=20)
    parser.add_argument("--batch", type=positive(int), help="another batch size [default: as get_inputs() has it]")
    parser.add_argument("--spatial", type=positive(float), default=1.0, help="factor for the sizes of images")
    parser.add_argument("--json", type=Path, help="also write the rows, the ceilings and the environment here")
    parser.add_argument("--table", type=Path, nargs="?", const=TABLE, help=f"append rows here [{TABLE.name}]")
    return parser


def main() -> int:
    parser = arguments_parser()
    arguments = parser.parse_args()
    if len(arguments.files) % 2:
        parser.error("files come in pairs: REF NEW [REF NEW ...]")
    if not torch.cuda.is_available():
        parser.error("a race needs a GPU, and torch finds none")
    if arguments.no_tf32:
        torch.backends.cudnn.allow_tf32 = False
    found = measuring.ceilings()
    print(measuring.ceilings_text(found), flush=True)
    told = measuring.environment()
    rows: list[Row] = []
    for reference, new in zip(arguments.files[::2], arguments.files[1::2], strict=True):
        new_rows = race(load_problem(reference), new, arguments, found)
        rows += new_rows
        torch.cuda.empty_cache()
        torch.compiler.reset()
        if arguments.json:
            document = {**told, "ceilings": found, "rows": [asdict(r) for r in rows]}
            arguments.json.write_text(json.dumps(document, indent=1))
        if arguments.table:
            append(arguments.table, new_rows, told)
    bad = [r for r in rows if r.note]
    if bad:
        print("failed or wrong:")
    for r in bad:
        print(f"  {r.problem} {r.sizes} {r.what} {r.contender}: {r.note}")
    return 1 if any("WRONG" in (r.note or "") or r.contender == "ModelNew" for r in bad) else 0


if __name__ == "__main__":
    sys.exit(main())
