"""What a plan is and why: kernels with what they absorb, read, write and cost, and what stayed torch's."""

from __future__ import annotations

import operator
import re
import textwrap
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from crucible.emit.engines import window_words
from crucible.emit.host import Mode
from crucible.fuse import Fused
from crucible.graph.origins import origin_of
from crucible.graph.recurrent import shown
from crucible.plan.boxes import WindowTile
from crucible.plan.cost import Cost, bound, item_bytes, stage_cost
from crucible.plan.gpus import Gpu
from crucible.plan.gradients import GradientTile
from crucible.plan.program import Program
from crucible.plan.schedule import Plan
from crucible.plan.stages import Call, Contraction, Map, Row, Stage
from crucible.report import tuning
from crucible.report.numbers import amount, gflop, least
from crucible.tune.result import Tuning

SCHEMA = 1
KINDS = {Contraction: "contraction", Row: "walk", Map: "map", Call: "torch"}
PLURALS = {"contraction": "contractions", "walk": "walks", "map": "maps", "torch": "torch operators"}
# A walk or map with less than this part of the traffic and work of its pass, and no more bytes than a cache holds,
# starts or finishes another kernel's work.
SMALL = 0.02
SMALL_BYTES = 16_000_000
WIDTH = 118


@dataclass(frozen=True)
class Tensor:
    """A buffer that a kernel touches, at the declared sizes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass(frozen=True)
class Operator:
    """One operator of the Model, after rewrites, and the line of its file that it comes from."""

    mode: str
    name: str
    target: str
    shape: tuple[int, ...] | None  # of its result, at the declared sizes
    line: int | None
    code: str


@dataclass(frozen=True)
class Kernel:
    """One kernel, or one operator of torch's, of a pass."""

    name: str
    mode: str
    direction: str  # "forward" or "backward"
    kind: str  # "contraction", "walk", "map" or "torch"
    absorbs: tuple[str, ...]
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    operations: int
    bytes: int
    seconds: float  # at the speed of light; zero for torch's own, whose operations are not counted
    bound: str
    launches: int
    beside: str  # what the other launch is for, where there are two
    small: bool
    operator: str = ""  # of torch's
    reason: str = ""  # why it is left to torch
    operators: tuple[str, ...] = ()  # of the Model, that it computes a part of
    gradients: tuple[str, ...] = ()  # those whose derivatives it computes a part of

    @property
    def ours(self) -> bool:
        return self.kind != "torch"


@dataclass(frozen=True)
class Pass:
    """Forward, backward, or forward without anything kept for a backward, of one mode."""

    mode: str
    direction: str  # "forward", "backward" or "inference"
    kernels: tuple[Kernel, ...]

    @property
    def seconds(self) -> float:
        return sum(k.seconds for k in self.kernels)

    @property
    def bytes(self) -> int:
        return sum(k.bytes for k in self.kernels)

    @property
    def operations(self) -> int:
        return sum(k.operations for k in self.kernels)

    @property
    def counts(self) -> dict[str, int]:
        """How many of each kind, the small ones apart."""
        found: dict[str, int] = {}
        for kind in PLURALS:
            number = sum(1 for k in self.kernels if k.kind == kind and not k.small)
            if number:
                found[kind] = number
        return found

    @property
    def small(self) -> list[Kernel]:
        return [k for k in self.kernels if k.small]


@dataclass(frozen=True)
class Explanation:
    """Everything there is to say about what was fused, for one GPU."""

    model: str
    element: str
    engine: str
    precision: str
    gpu: Gpu
    inputs: tuple[Tensor, ...]
    passes: tuple[Pass, ...]
    unfused: tuple[tuple[str, str], ...]
    rewrites: tuple[str, ...]
    modes: tuple[str, ...] = field(default_factory=tuple)
    tuning: Tuning | None = None  # what was measured, where anything was
    operators: tuple[Operator, ...] = ()
    fixed: tuple[str, ...] = ()  # arguments that are no tensors, with the values that the file is made for

    def to_json(self) -> dict[str, Any]:
        """A document with plain types only; ``schema`` counts up when a key changes its meaning."""
        return {
            "schema": SCHEMA,
            "kind": "plan",
            "model": self.model,
            "element": self.element,
            "engine": self.engine,
            "precision": self.precision,
            "gpu": asdict(self.gpu),
            "inputs": [asdict(t) for t in self.inputs],
            "operators": [asdict(o) for o in self.operators],
            "passes": [
                {
                    "mode": p.mode,
                    "direction": p.direction,
                    "counts": p.counts,
                    "small": [k.name for k in p.small],
                    "bytes": p.bytes,
                    "operations": p.operations,
                    "seconds": p.seconds,
                    "kernels": [asdict(k) for k in p.kernels],
                }
                for p in self.passes
            ],
            "unfused": [{"operator": name, "reason": reason} for name, reason in self.unfused],
            "rewrites": list(self.rewrites),
            "tuning": self.tuning.to_json() if self.tuning is not None else None,
        }


def explain(fused: Fused, gpu: Gpu) -> Explanation:
    """The explanation of what was fused, with times for one GPU."""
    passes: list[Pass] = []
    for mode in fused.modes:
        passes.append(_pass(fused, mode, mode.plan, "forward", gpu))
        if mode.plan.backward_stages:
            passes.append(_pass(fused, mode, mode.plan, "backward", gpu))
        if mode.inference is not None:
            passes.append(_pass(fused, mode.inference, mode.inference.plan, "inference", gpu))
    program = fused.modes[0].plan.program
    inputs = [_tensor(program, b.name, fused.element) for b in program.buffers.values() if b.role == "input"]
    return Explanation(
        fused.name, fused.element, fused.options.chosen_engine, fused.options.precision, gpu, tuple(inputs),
        tuple(passes), tuple(fused.unfused), tuple(fused.rewrites), tuple(m.name for m in fused.modes),
        fused.tuning, tuple(o for m in fused.modes for o in operators_of(m, fused.name)),
        tuple(f"{name}={value!r}" for name, value in fused.request.fixed) if fused.request is not None else (),
    )  # fmt: skip


def _pass(fused: Fused, mode: Mode, plan: Plan, direction: str, gpu: Gpu) -> Pass:
    stages = plan.backward_stages if direction == "backward" else plan.forward_stages
    costs = [stage_cost(s, plan.program, fused.element) for s in stages]
    whole = Cost({"": sum(c.bytes for c in costs)}, pointwise=sum(c.operations for c in costs))
    kernels = [_kernel(fused, mode, s, c, whole, direction, gpu) for s, c in zip(stages, costs)]
    return Pass(mode.name, direction, tuple(kernels))


def _kernel(fused: Fused, mode: Mode, stage: Stage, cost: Cost, whole: Cost, direction: str, gpu: Gpu) -> Kernel:
    program = mode.plan.program
    call = isinstance(stage, Call)
    least = bound(cost, gpu, fused.options.engine, fused.options.precision, fused.element)
    small = isinstance(stage, (Row, Map)) and cost.bytes < min(SMALL * whole.bytes, SMALL_BYTES)
    small = small and cost.operations < SMALL * max(whole.operations, 1)
    beside = ""
    if isinstance(stage, Row) and stage.split:
        beside = "a second launch joins the parts of long rows"
    elif isinstance(stage, Row) and stage.sliced:
        beside = "a first launch joins the partial results of each row"
    elif isinstance(stage, Contraction) and isinstance(stage.tile, WindowTile):
        beside = f"a first launch packs {amount(4 * window_words(stage, stage.tile))} of weights"
        if stage.tile.pair is not None and stage.tile.pair.ready:
            beside += "; on Hopper a second one rounds the input"
        if stage.tile.pair is not None:
            beside += "; on Hopper a last one does again what half could not hold"
        if stage.held is not None:
            label = mode.labels[stage.held.name]
            beside += f"; where a sample fits on the chip, {label} is part of the same kernel there"
    elif isinstance(stage, Contraction) and isinstance(stage.tile, GradientTile) and stage.tile.groups is not None:
        beside = "on Hopper two launches round both tensors, a last one does again what half could not hold"
    elif isinstance(stage, Contraction) and stage.site is not None and stage.site.few:
        beside = "of few lines: a second launch adds up parts of the depth"
    elif isinstance(stage, Contraction) and stage.packed:
        beside = "on Hopper a first launch packs operands, a last one does again what half could not hold"
    return Kernel(
        name="torch" if isinstance(stage, Call) else mode.labels[stage.name],
        mode=mode.name,
        direction=direction,
        kind=KINDS[type(stage)],
        absorbs=tuple(dict.fromkeys(stage.nodes)),
        reads=tuple(_tensor(program, n, fused.element, b) for n, b in cost.reads.items()),
        writes=tuple(_tensor(program, n, fused.element, b) for n, b in cost.writes.items()),
        operations=cost.operations,
        bytes=cost.bytes,
        seconds=0.0 if call else least.seconds,
        bound="" if call else least.by,
        launches=0 if call else 2 if beside else 1,
        beside=beside,
        small=small,
        operator=shown(stage.extern.node.target) if isinstance(stage, Call) else "",
        reason=stage.extern.reason if isinstance(stage, Call) else "",
        operators=_origins(mode, stage, False),
        gradients=_origins(mode, stage, True),
    )


def _tensor(program: Program, name: str, element: str, moved: int | None = None) -> Tensor:
    buffer = program.buffers[name]
    shape = tuple(program.hint(s) for s in buffer.shape)
    sums = "float64" if element == "float64" else "float32"
    dtype = {"scalar": element, "accum": sums}.get(buffer.dtype, buffer.dtype)
    if moved is None:
        moved = program.hint(buffer.numel) * item_bytes(buffer.dtype, element)
    return Tensor(name, shape, dtype, moved)


# -- the Model's own operators


def operators_of(mode: Mode, file: str) -> list[Operator]:
    """The operators that the Model calls, in order, with where in its file."""
    found = []
    for node in mode.graph.module.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        value = node.meta.get("val")
        value = value[0] if isinstance(value, (tuple, list)) and value else value
        shape = tuple(_declared(s) for s in value.shape) if isinstance(value, torch.Tensor) else None
        line, code = _place(str(node.meta.get("stack_trace") or ""), file)
        found.append(Operator(mode.name, node.name, shown(node.target), shape, line, code))
    return found


def _declared(size: Any) -> int:
    """A size as the Problem declares it."""
    return int(size.node.hint) if isinstance(size, torch.SymInt) and size.node.has_hint() else int(size)


def _place(trace: str, file: str) -> tuple[int | None, str]:
    """The innermost line of this file in a stack trace."""
    found = re.findall(r'File "([^"]*)", line (\d+)[^\n]*\n\s*([^\n]*)', trace)
    inside = [(int(number), code.strip()) for path, number, code in found if Path(path).name == file]
    return inside[-1] if inside else (None, "")


def _origins(mode: Mode, stage: Stage, gradient: bool) -> tuple[str, ...]:
    wanted = set(stage.nodes)
    nodes = (origin_of(n) for n in mode.joint.graph.nodes if n.name in wanted)
    return tuple(dict.fromkeys(o.name for o in nodes if o is not None and o.gradient == gradient))


# -- counts and titles


def count_text(p: Pass) -> str:
    """``2 kernels (1 contraction, 1 walk)``, with torch's own and the small ones apart."""
    ours = {k: n for k, n in p.counts.items() if k != "torch"}
    total = sum(ours.values())
    parts = [f"{n} {k if n == 1 else PLURALS[k]}" for k, n in ours.items()]
    text = f"{total} kernel{'' if total == 1 else 's'}" + (f" ({', '.join(parts)})" if parts else "")
    if p.small:
        text += f", {len(p.small)} small"
    if "torch" in p.counts:
        text += f", {p.counts['torch']} operator{'' if p.counts['torch'] == 1 else 's'} left to torch"
    return text


def title(p: Pass, modes: int) -> str:
    word = {"forward": "forward", "backward": "backward", "inference": "forward without gradients"}[p.direction]
    return f"{word} ({p.mode})" if modes > 1 else word


# -- text


def explain_text(fused: Fused, gpu: Gpu) -> str:
    """The explanation as plain text: the same for the same Model, options and GPU."""
    e = explain(fused, gpu)
    lines = [f"{e.model}: engine {e.engine}, precision {e.precision}"]
    shapes = ", ".join(f"{t.name} {t.shape}" for t in e.inputs)
    lines += _wrapped("sizes: ", f"{shapes or 'no tensors'}, in {e.element}")
    lines.append(f"speed of light: {gpu.title}, {gpu.bandwidth:g} GB/s, {gpu.fp32:g} TFLOP/s in float32"
                 + (f", {gpu.tf32:g} in TF32" if gpu.tf32 else ""))  # fmt: skip
    for p in e.passes:
        lines += ["", f"{title(p, len(e.modes))}: {count_text(p)}, {_total(p)}"]
        if p.direction == "inference" and _same_work(p, e):
            lines.append("  as forward, with nothing kept for a backward pass")
            continue
        for k in p.kernels:
            lines += _kernel_lines(k)
    lines += ["", "not fused:" if e.unfused else "not fused: nothing"]
    for name, reason in e.unfused:
        lines += _wrapped(f"  {name}: ", reason)
    lines += ["", "rewrites:" if e.rewrites else "rewrites: none"]
    for sentence in e.rewrites:
        lines += _wrapped("  ", sentence)
    if e.tuning is not None:
        lines += ["", *_wrapped("tuned: ", tuning.sentence(e.tuning))]
        for line in tuning.lines(e.tuning):
            lines += _wrapped("  ", line)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _total(p: Pass) -> str:
    if not any(k.ours for k in p.kernels):
        return amount(p.bytes)
    return f"{gflop(p.operations)} GFLOP, {amount(p.bytes)}, at least {least(p.seconds)}"


def _same_work(p: Pass, e: Explanation) -> bool:
    """Whether inference has the kinds of kernels that forward has, absorbing the same."""
    forward = next(f for f in e.passes if f.mode == p.mode and f.direction == "forward")

    def work(k: Kernel) -> tuple[str, list[str]]:
        return k.kind, sorted(re.sub(r"_\d+$", "", node) for node in k.absorbs)

    return [work(k) for k in p.kernels] == [work(k) for k in forward.kernels]


def _kernel_lines(k: Kernel) -> list[str]:
    notes = [k.kind if k.ours else k.operator]
    notes += ["small"] if k.small else []
    notes += [k.beside] if k.beside else []
    lines = _wrapped(f"  {k.name:<12} ", f"{', '.join(k.absorbs)}  [{'; '.join(notes)}]")
    lines += _wrapped("      reads  ", tensors_text(k.reads))
    lines += _wrapped("      writes ", tensors_text(k.writes))
    if k.ours:
        lines.append(f"      {gflop(k.operations)} GFLOP, {amount(k.bytes)}, at least {least(k.seconds)} ({k.bound})")
    return lines


def tensors_text(tensors: tuple[Tensor, ...]) -> str:
    """Names with amounts; no line breaks between the two."""
    return ", ".join(f"{t.name} {amount(t.bytes)}".replace(" ", "\u00a0") for t in tensors) or "nothing"


def _wrapped(head: str, text: str) -> list[str]:
    indent = " " * len(head) if 2 < len(head) < 24 else "      "
    lines = textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=indent, break_long_words=False,
                          break_on_hyphens=False)  # fmt: skip
    return [line.replace("\u00a0", " ") for line in lines] or [head]
