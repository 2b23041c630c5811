"""Race a ModelNew against what a user would pick instead, on this machine's GPU, in one process.

    python benchmarks/race.py problems/conv_transpose2d.py new/conv_transpose2d.py [REF NEW ...] [--json FILE]

Contenders take turns, sample by sample, each sample on another set of inputs and with a flushed L2 cache; times are
medians of device events. Forward runs without gradients; the training step is forward and backward of ``out.sum()``
with gradients for every floating-point input and parameter. What a contender returned in its last sample is compared
with float64. Ceilings (copy, matrix products) are measured in the same run, and the floor follows from them.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch.utils import flop_counter

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from crucible.problem import Problem, import_file, load_problem  # noqa: E402

CONTENDERS = ("eager", "channels_last", "compile", "max_autotune", "ModelNew")
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
FLUSH_BYTES = 256 << 20  # several times the largest L2 there is


@dataclass
class Lane:
    """One contender: its module, and how it wants its inputs."""

    name: str
    model: torch.nn.Module
    run: Callable[..., Any]
    prepare: Callable[[torch.Tensor], torch.Tensor] = lambda t: t
    times: list[float] = field(default_factory=list)
    error: float | None = None
    said: str | None = None


@dataclass(frozen=True)
class Row:
    """One line of the table; times in milliseconds."""

    problem: str
    what: str
    dtype: str
    contender: str
    median: float | None
    low: float | None  # first and last decile
    high: float | None
    error: float | None  # relative L2 distance from float64
    floor: float
    note: str | None


def ceilings() -> dict[str, float]:
    """What this chip reaches: copy in GB/s (read plus written), matrix products in TFLOP/s."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    found = {"copy": 2 * source.numel() / 1e6 / _median(lambda: target.copy_(source))}
    for name, dtype, tf32 in (
        ("fp32", torch.float32, False),
        ("tf32", torch.float32, True),
        ("fp16", torch.half, False),
    ):
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=dtype) for _ in "ab")
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = tf32
        found[name] = 2 * 8192**3 / 1e9 / _median(functools.partial(torch.matmul, a, b))
        torch.backends.cuda.matmul.allow_tf32 = before
    return found


def _median(run: Callable[[], Any], count: int = 15) -> float:
    for _ in range(3):
        run()
    return statistics.median(_sample(run) for _ in range(count))


def _sample(run: Callable[[], Any]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def floor(inputs: list[Any], out: Any, model: torch.nn.Module, found: dict[str, float]) -> float:
    """The least time for a forward: inputs and parameters read once, outputs written once, products at the best rate.

    Products that torch may round to TF32 count at the fp16 rate (the same mantissa); others count three times.
    """
    tensors = [t for t in [*inputs, *_tensors(out), *model.parameters()] if isinstance(t, torch.Tensor)]
    memory = sum(t.numel() * t.element_size() for t in tensors) / found["copy"] / 1e6
    counter = flop_counter.FlopCounterMode(display=False)
    meta = copy.deepcopy(model).to("meta")
    with counter, torch.no_grad():
        meta(*[t.to("meta") if isinstance(t, torch.Tensor) else t for t in inputs])
    single = any(t.dtype == torch.float32 for t in inputs if isinstance(t, torch.Tensor))
    work = 0.0
    for operator, count in counter.get_flop_counts()["Global"].items():
        convolution = "conv" in str(operator)
        permitted = torch.backends.cudnn.allow_tf32 if convolution else torch.backends.cuda.matmul.allow_tf32
        work += count * (3 if single and not permitted else 1)
    return max(memory, work / found["fp16"] / 1e9)


def _tensors(out: Any) -> list[torch.Tensor]:
    if isinstance(out, torch.Tensor):
        return [out]
    return [t for part in out for t in _tensors(part)] if isinstance(out, (list, tuple)) else []


def _channels_last(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous(memory_format=FORMATS[t.dim()]) if t.dim() in FORMATS else t


def lanes(model: torch.nn.Module, new: torch.nn.Module, names: list[str], inputs: list[Any]) -> list[Lane]:
    """The contenders that make sense here, all with the reference's weights."""
    shapes = [t.dim() for t in inputs if isinstance(t, torch.Tensor)]
    layout = next((FORMATS[n] for n in shapes if n in FORMATS), None)
    made = []
    for name in names:
        if name == "ModelNew":
            made.append(Lane(name, new, new))
            continue
        own = copy.deepcopy(model)
        if name == "eager":
            made.append(Lane(name, own, own))
        elif name == "channels_last" and layout is not None:
            for p in own.parameters():
                p.data = _channels_last(p.data)
            made.append(
                Lane(
                    name, own, own, lambda t: t.contiguous(memory_format=FORMATS[t.dim()]) if t.dim() in FORMATS else t
                )
            )
        elif name == "compile":
            made.append(Lane(name, own, torch.compile(own)))
        elif name == "max_autotune":
            made.append(Lane(name, own, torch.compile(own, mode="max-autotune-no-cudagraphs")))
    return made


def forward(lane: Lane, inputs: list[Any]) -> Any:
    with torch.no_grad():
        return lane.run(*inputs)


def training(lane: Lane, inputs: list[Any]) -> Any:
    out = lane.run(*inputs)
    torch.stack([t.sum() for t in _tensors(out) if t.requires_grad]).sum().backward()
    return out


def race(problem: Problem, new: Path, arguments: argparse.Namespace, found: dict[str, float]) -> list[Row]:
    """All rows of one problem."""
    dtype = getattr(torch, arguments.dtype)
    model = problem.build(0).cuda().to(dtype)
    module = import_file(new, "model_new_" + new.stem)
    torch.manual_seed(0)
    fused = module.ModelNew(*problem.init_inputs).cuda().to(dtype)
    fused.load_state_dict(model.state_dict())
    sets = []
    for seed in range(3):
        torch.manual_seed(seed)
        with torch.device("cuda"):
            sets.append([_placed(t, dtype) for t in problem.module.get_inputs()])
    truth_model = copy.deepcopy(model).double()
    with torch.no_grad():
        truth = [t.double() for t in _tensors(truth_model(*[_wide(t) for t in sets[0]]))]
        least = floor(sets[0], truth[0].to(dtype) if len(truth) == 1 else truth, model, found)
    del truth_model
    rows = []
    for what in arguments.what:
        step = forward if what == "forward" else training
        field_of_lanes = lanes(model, fused, arguments.contenders, sets[0])
        for lane in field_of_lanes:
            _warm_up(lane, step, sets)
        flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        for sample in range(arguments.samples):
            for lane in field_of_lanes:
                if lane.said is not None:
                    continue
                inputs = _fresh(lane, sets[(sample + 1) % len(sets)], what)
                flush.zero_()
                torch.cuda.synchronize()
                lane.times.append(_sample(functools.partial(step, lane, inputs)))
                lane.model.zero_grad(set_to_none=True)
        for lane in field_of_lanes:
            if lane.said is None:
                with torch.no_grad():
                    got = _tensors(lane.run(*_fresh(lane, sets[0], "forward")))
                    lane.error = max(_distance(g, t) for g, t in zip(got, truth, strict=True))
                del got
            rows.append(_row(problem, what, dtype, lane, least))
            print(_line(rows[-1]), flush=True)
        del field_of_lanes, flush
        torch.cuda.empty_cache()
    return rows


def _placed(value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.cuda().to(dtype) if value.is_floating_point() else value.cuda()


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _fresh(lane: Lane, inputs: list[Any], what: str) -> list[Any]:
    """The inputs as this contender wants them; for training as leaves of their own, without gradients yet."""
    made = [lane.prepare(t) if isinstance(t, torch.Tensor) else t for t in inputs]
    if what == "forward":
        return made
    return [t.detach().requires_grad_() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in made]


def _warm_up(lane: Lane, step: Callable[[Lane, list[Any]], Any], sets: list[list[Any]]) -> None:
    start = time.perf_counter()
    try:
        for _ in range(3):
            step(lane, _fresh(lane, sets[0], "forward" if step is forward else "training"))
            lane.model.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
    except Exception as error:  # a contender that fails is a row of the table, not the end of the race
        lane.said = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
    print(f"  {lane.name} ready after {time.perf_counter() - start:.1f} s {lane.said or ''}", flush=True)


def _distance(got: torch.Tensor, truth: torch.Tensor) -> float:
    if not truth.is_floating_point():
        return float((got != truth).any())
    return float((got.double() - truth).norm() / truth.norm().clamp_min(1e-300))


def _row(problem: Problem, what: str, dtype: torch.dtype, lane: Lane, least: float) -> Row:
    t = sorted(lane.times)
    median, low, high = (statistics.median(t), t[len(t) // 10], t[-1 - len(t) // 10]) if t else (None, None, None)
    name = str(dtype).removeprefix("torch.")
    return Row(problem.path.stem, what, name, lane.name, median, low, high, lane.error, least, lane.said)


def _line(row: Row) -> str:
    if row.median is None:
        return f"{row.problem[:52]:52} {row.what:8} {row.dtype:8} {row.contender:13} {row.note}"
    return (
        f"{row.problem[:52]:52} {row.what:8} {row.dtype:8} {row.contender:13} {row.median:8.3f} "
        f"({row.low:.3f} .. {row.high:.3f}) error {row.error:.2e}  floor {row.floor:.3f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="REF NEW [REF NEW ...]")
    usual = [n for n in CONTENDERS if n != "max_autotune"]
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=usual)
    parser.add_argument("--what", nargs="+", choices=["forward", "training"], default=["forward", "training"])
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float32")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--json", type=Path, help="also write the rows, the ceilings and the environment here")
    arguments = parser.parse_args()
    if len(arguments.files) % 2:
        parser.error("files come in pairs: REF NEW [REF NEW ...]")
    if not torch.cuda.is_available():
        parser.error("a race needs a GPU, and torch finds none")
    found = ceilings()
    rates = ", ".join(f"{name} {rate:.0f}" for name, rate in found.items())
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; GB/s and TFLOP/s: {rates}", flush=True)
    rows: list[Row] = []
    for reference, new in zip(arguments.files[::2], arguments.files[1::2], strict=True):
        problem = load_problem(reference)
        rows += race(problem, new, arguments, found)
        torch.cuda.empty_cache()
        torch.compiler.reset()
        if arguments.json:
            told = {**environment(), "ceilings": found, "rows": [asdict(r) for r in rows]}
            arguments.json.write_text(json.dumps(told, indent=1))
    return 0


def environment() -> dict[str, str | None]:
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    }


if __name__ == "__main__":
    sys.exit(main())
