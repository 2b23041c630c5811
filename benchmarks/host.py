"""What a call costs the host: Python, allocations and launches, in microseconds, for generated files and for eager.

    python benchmarks/host.py problems/conv_transpose2d.py fused/conv_transpose2d.py [REF NEW ...]

Sizes are tiny, and a sample is a few dozen calls between two waits for the GPU: too few for its queue to fill, so that
the clock sees the host alone. Contenders take turns, sample by sample. ``forward`` runs without gradients, in training
mode and, where a Model has buffers that training updates, in evaluation mode; ``step`` is forward and backward of
``out.sum()``. Needs a GPU: launches are part of what is measured.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import measuring  # noqa: E402

from crucible.problem import Problem, import_file, load_problem  # noqa: E402
from crucible.race import values  # noqa: E402

CALLS = 40  # a sample: some hundred launches, and the queue holds a thousand
CONTENDERS = ("eager", "ModelNew")


def microseconds(call: Callable[[], Any], calls: int = CALLS) -> float:
    """Of one call, on the host's clock."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    took = time.perf_counter() - start
    torch.cuda.synchronize()
    return 1e6 * took / calls


def calls_of(model: torch.nn.Module, inputs: list[Any]) -> dict[str, Callable[[], Any]]:
    """What is timed, by its name."""

    def forward(training: bool) -> None:
        if model.training != training:
            model.train(training)
        model(*inputs)

    def step() -> None:
        model.train()
        values.total(model(*inputs)).backward()
        model.zero_grad(set_to_none=True)

    found: dict[str, Callable[[], Any]] = {"forward": functools.partial(forward, True)}
    if any(True for _ in model.buffers()):
        found["forward (evaluation)"] = functools.partial(forward, False)
    return {**found, "step": step}


def measure(problem: Problem, new: Path, arguments: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Samples by what was called and by contender."""
    dtype = getattr(torch, arguments.dtype)
    shapes = values.scaled_shapes(problem, batch=1, spatial=arguments.spatial)
    reference = problem.build(0).cuda().to(dtype)
    fused = import_file(new, f"host_{new.stem}").ModelNew(*problem.init_inputs).cuda().to(dtype)
    fused.load_state_dict(reference.state_dict())
    inputs = values.make_inputs(problem, shapes, 0, dtype)
    calls = {name: calls_of(model, inputs) for name, model in zip(CONTENDERS, (reference, fused))}
    found: dict[str, dict[str, list[float]]] = {}
    for what in calls["eager"]:
        rows = found[what] = {name: [] for name in CONTENDERS}
        with torch.set_grad_enabled(what == "step"):
            for each in calls.values():  # build, choose algorithms, fill the allocator's cache
                microseconds(each[what], 5)
            for _ in range(arguments.samples):
                for name, each in calls.items():
                    rows[name].append(microseconds(each[what]))
    return found


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="REF NEW", help="a problem and its ModelNew, in pairs")
    parser.add_argument("--spatial", type=float, default=0.05, help="of the problem's own heights and widths")
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float32")
    parser.add_argument("--samples", type=int, default=15)
    arguments = parser.parse_args(given)
    if len(arguments.files) % 2:
        parser.error("files come in pairs: REF NEW")
    if not torch.cuda.is_available():
        parser.error("the host's time is launches too: this needs a GPU, and torch finds none")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; microseconds a call, median (10% .. 90%)")
    for path, new in zip(arguments.files[::2], arguments.files[1::2]):
        problem = load_problem(path)
        for what, rows in measure(problem, new, arguments).items():
            texts = []
            for name, samples in rows.items():
                median, low, high = measuring.quantiles(samples)
                texts.append(f"{name} {median:6.1f} ({low:.1f} .. {high:.1f})")
            print(f"{path.stem:52}  {what:20}  {'   '.join(texts)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
