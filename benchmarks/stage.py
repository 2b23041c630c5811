"""Time each kernel of a generated file alone, or see what ptxas makes of them: for those who write kernels.

    python benchmarks/stage.py problems/conv_transpose2d.py [NEW.py] [--stage contract_1] [--what training]
    python benchmarks/stage.py problems/conv_transpose2d.py --ptxas [--arch sm_90a]     # needs nvcc, no GPU

Without NEW.py the problem is fused here. A stage is timed where the file launches it, on its real operands, between
device events around all its launches; before each the L2 cache is flushed, and work is queued behind the flush, so that
the host's time does not count. Bytes and operations are the plan's own, floors are those at the ceilings measured in
the same run. With --ptxas spills are an error (exit code 1) in kernels of the engines on tensor cores.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import measuring  # noqa: E402
import ptxas  # noqa: E402

from crucible.fuse import Fused, FuseOptions, fuse_problem  # noqa: E402
from crucible.plan import gpus  # noqa: E402
from crucible.plan.cost import Cost, bound, stage_cost  # noqa: E402
from crucible.plan.stages import Call  # noqa: E402
from crucible.problem import Problem, import_file, load_problem  # noqa: E402
from crucible.race import values  # noqa: E402


@dataclass(frozen=True)
class Row:
    """One stage; times in milliseconds."""

    part: str
    stage: str
    absorbs: str
    median: float
    low: float
    high: float
    gbs: float | None = None
    tflops: float | None = None
    floor: float | None = None
    by: str = ""  # what sets the floor


class Timed:
    """A part's kernels, stage by stage, with a timer around each."""

    def __init__(self, kernels: Any, source: str, note: Callable[[str, Any, Any], None], flush: torch.Tensor) -> None:
        self._kernels, self._source, self._note, self._flush = kernels, source, note, flush

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._kernels, name)
        if name.startswith(("packed_", "pieces_")):  # how much memory a launch wants
            return function
        stages = stages_of(self._source, name)

        def launch(wanted: int, *arguments: Any) -> None:
            for bit, stage in stages:
                if not wanted & bit:
                    continue
                self._flush.zero_()
                start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
                start.record()
                function(bit, *arguments)
                end.record()
                self._note(stage, start, end)

        return launch


def stages_of(source: str, name: str) -> list[tuple[int, str]]:
    """The bits of a pass's stages, and what they launch, as its C++ function has them."""
    body = re.search(rf"^void run_{name}\(uint64_t stages.*?^}}", source, re.M | re.S)
    if body is None:
        raise ValueError(f"no pass {name} in this file: it was made by another version; fuse it again")
    found = re.findall(r"if \(stages & (\d+)(?:ull)?\) (?:run_(\w+)|check\(launch_(\w+))", body.group())
    return [(int(bit), stage or other) for bit, stage, other in found]


def times(module: ModuleType, call: Callable[[], Any], samples: int) -> dict[tuple[str, str], list[float]]:
    """Milliseconds of every launch of a call, by part and stage."""
    flush = torch.empty(measuring.FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    seen: list[tuple[str, str, Any, Any]] = []
    real = module._kernels

    def kernels(part: str, *rest: Any) -> Timed:
        made, source = real(part, *rest), module._SOURCES[part][1]
        return Timed(made, source, lambda name, start, end: seen.append((part, name, start, end)), flush)

    def forget() -> None:
        """Plans, which hold the kernels."""
        module._PLANS.clear()
        module._LAST.clear()

    call()  # builds, and warms up
    found: dict[tuple[str, str], list[float]] = {}
    module._kernels = kernels  # type: ignore[attr-defined]
    forget()
    try:
        for number in range(samples + 1):
            seen.clear()
            call()
            torch.cuda.synchronize()
            if number == 0:
                continue
            once: dict[tuple[str, str], float] = {}
            for part, name, start, end in seen:  # one that is launched several times takes their sum
                once[part, name] = once.get((part, name), 0.0) + start.elapsed_time(end)
            for key, took in once.items():
                found.setdefault(key, []).append(took)
    finally:
        module._kernels = real  # type: ignore[attr-defined]
        forget()
    return found


def costs(fused: Fused, training: bool) -> dict[tuple[str, str], tuple[Cost, str]]:
    """What the plan counts for each stage of a call, by part and label, and what it absorbs."""
    mode = fused.modes[0]
    if not training:
        mode = mode.inference or mode
    listed = [("forward", s) for s in mode.plan.forward_stages]
    if training:
        listed += [("backward", s) for s in mode.plan.backward_stages]
    found: dict[tuple[str, str], tuple[Cost, str]] = {}
    for part, stage in listed:
        if isinstance(stage, Call):
            continue
        key = part, mode.labels[stage.name]
        cost, nodes = stage_cost(stage, mode.plan.program, fused.element), ", ".join(dict.fromkeys(stage.nodes))
        if key in found:  # two stages with the same text share a launcher
            old, names = found[key]
            cost = Cost(
                {"": old.bytes + cost.bytes}, {}, old.contraction + cost.contraction, cost.rule,
                old.pointwise + cost.pointwise,
            )  # fmt: skip
            nodes = f"{names}; {nodes}"
        found[key] = cost, nodes
    return found


def measured_gpu(found: dict[str, float]) -> gpus.Gpu:
    """The GPU at hand with what it reaches in place of the vendor's figures."""
    base = gpus.present() or gpus.find(gpus.DEFAULT)
    capability = torch.cuda.get_device_capability()
    return replace(base, title=torch.cuda.get_device_name(), bandwidth=found["copy"], fp32=found["fp32"],
                   tf32=found["tf32"], fp16=found["fp16"], capability=capability)  # fmt: skip


def rows_of(
    taken: dict[tuple[str, str], list[float]], counted: dict[tuple[str, str], tuple[Cost, str]], gpu: gpus.Gpu,
    fused: Fused,
) -> list[Row]:  # fmt: skip
    made = []
    for (part, name), ms in taken.items():
        row = Row(part, name, "", *measuring.quantiles(ms))
        if (part, name) in counted:
            cost, absorbs = counted[part, name]
            least = bound(cost, gpu, fused.options.engine, fused.options.precision, fused.element)
            operations = cost.contraction or cost.pointwise
            row = replace(
                row, absorbs=absorbs, gbs=cost.bytes / row.median / 1e6, tflops=operations / row.median / 1e9,
                floor=1e3 * least.seconds, by=least.by,
            )  # fmt: skip
        made.append(row)
    return made


def table(rows: list[Row]) -> str:
    head = f"{'part':8}  {'stage':12}  {'ms':>8}  {'10% .. 90%':>18}  {'GB/s':>6}  {'TFLOP/s':>8}"
    lines = [f"{head}  reached of the floor, and what sets it"]
    for r in rows:
        spread = f"{r.low:.4f} .. {r.high:.4f}"
        line = f"{r.part:8}  {r.stage:12}  {r.median:8.4f}  {spread:>18}"
        if r.floor is None:
            line += "  not in the plan: was the file fused with other options?"
        else:
            line += f"  {r.gbs:6.0f}  {r.tflops:8.1f}  {r.floor / r.median:5.0%} ({r.floor:.4f} ms, {r.by})"
            line += f"  {r.absorbs}"
        lines.append(line)
    return "\n".join(lines)


def time_stages(problem: Problem, module: ModuleType, fused: Fused, arguments: argparse.Namespace) -> int:
    found = measuring.ceilings()
    print(measuring.ceilings_text(found), flush=True)
    dtype = getattr(torch, arguments.dtype)
    torch.manual_seed(0)
    model = module.ModelNew(*problem.init_inputs).cuda().to(dtype)
    inputs = values.make_inputs(problem, problem.shapes, 0, dtype)
    training = arguments.what == "training"

    def call() -> None:
        if not training:
            with torch.no_grad():
                model(*inputs)
            return
        values.total(model(*map(values.leaf, inputs))).backward()
        model.zero_grad(set_to_none=True)

    taken = times(module, call, arguments.samples)
    if not taken:
        print("no stage was launched: is this a file of another version of crucible fuse?", file=sys.stderr)
        return 2
    names = sorted({name for _, name in taken})
    if arguments.stage:
        taken = {key: ms for key, ms in taken.items() if key[1] == arguments.stage}
        if not taken:
            print(f"no stage {arguments.stage}; there are {', '.join(names) or 'none'}", file=sys.stderr)
            return 2
    print(table(rows_of(taken, costs(fused, training), measured_gpu(found), fused)))
    return 0


def show_ptxas(text: str, module: ModuleType, arguments: argparse.Namespace) -> int:
    arch = arguments.arch or present_arch()
    if arch is None:
        print("no GPU here: say which chip with --arch, such as --arch sm_90a", file=sys.stderr)
        return 2
    sources = {part: source for part, (_, source) in module._SOURCES.items()}
    flags = ptxas.flags_for(text, arch, arguments.dtype, arguments.precision)
    try:
        rows = ptxas.usage(sources, arch, flags)
    except ptxas.NvccError as error:
        print(error, file=sys.stderr)
        return 2
    if arguments.stage:
        rows = [r for r in rows if r.short.split(":")[0] == arguments.stage]
    print(f"{arch}, {' '.join(flags)}")
    print(ptxas.table(rows))
    bad = [r for r in rows if r.spills and r.tensor_cores]
    if bad:
        print(f"spills on tensor cores: {', '.join(r.short for r in bad)}", file=sys.stderr)
    return 1 if bad else 0


def present_arch() -> str | None:
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}" + ("a" if major == 9 else "")


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", type=Path)
    parser.add_argument("new", type=Path, nargs="?", help="a file of `crucible fuse` [default: made here]")
    parser.add_argument("--stage", metavar="NAME", help="this one alone, as the plan names it: contract_1")
    parser.add_argument("--what", choices=["forward", "training"], default="forward")
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float32")
    parser.add_argument("--engine", choices=["auto", "mma", "simt"], default="auto", help="where the file is made here")
    parser.add_argument("--precision", choices=["torch", "fp32", "tf32"], default="torch")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--ptxas", action="store_true", help="registers, spills and static shared memory, no times")
    parser.add_argument("--arch", help="for --ptxas [default: the GPU's]")
    arguments = parser.parse_args(given)
    if not arguments.ptxas and not torch.cuda.is_available():
        parser.error("times need a GPU, and torch finds none; --ptxas --arch sm_90a needs none")
    problem = load_problem(arguments.problem)
    fused = fuse_problem(arguments.problem, FuseOptions(engine=arguments.engine, precision=arguments.precision))
    fused = replace(fused, element=arguments.dtype)
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.new
        if path is None:
            path = Path(folder) / f"{arguments.problem.stem}_new.py"
            path.write_text(fused.text)
        module = import_file(path, "staged")
        if arguments.ptxas:
            return show_ptxas(path.read_text(), module, arguments)
        return time_stages(problem, module, fused, arguments)


if __name__ == "__main__":
    sys.exit(main())
