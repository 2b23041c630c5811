"""Pieces of the Python of a generated file: sizes, checks of shapes, and torch's own operators."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from crucible.emit.functor import Functor
from crucible.graph import recurrent
from crucible.graph.capture import Graph
from crucible.graph.joint import Joint
from crucible.plan.index import Int
from crucible.plan.program import BYTES, COMPLEX_BYTES, SCALAR_BYTES, Buffer, Extern, Tensor
from crucible.plan.schedule import Plan
from crucible.plan.stages import Call, read, written
from crucible.plan.symbols import python_text

DTYPES = {"scalar": "dtype", "accum": "accum", "int64": "torch.int64", "int32": "torch.int32",
          "int16": "torch.int16", "int8": "torch.int8", "uint8": "torch.uint8", "bool": "torch.bool",
          **{name: f"torch.{name}" for name in {**SCALAR_BYTES, **COMPLEX_BYTES}}}  # fmt: skip
# Bytes of an element, and of what may lie with other buffers until the end of a call that has torch's own operators.
ITEMS = {"scalar": "_bytes(dtype)", "accum": "_bytes(accum)",
         **{name: str(n) for name, n in {**BYTES, **SCALAR_BYTES}.items()}}  # fmt: skip
SMALL = 8 << 20


def python(value: Int) -> str:
    """A size as Python."""
    return value.python()


def is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def shape_text(shape: Sequence[Int]) -> str:
    inner = ", ".join(python(s) for s in shape)
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


@dataclass
class Mode:
    """A Model as captured in one mode (training or not), traced, planned and with the functors of its stages."""

    name: str
    graph: Graph
    joint: Joint
    plan: Plan
    functors: dict[str, Functor]  # by the name of the stage
    labels: dict[str, str]  # what a launcher is called in the file, by the name of the stage
    arguments: list[Buffer]  # beside the primals that are tensors
    inference: Mode | None = None
    part: str = ""
    same: dict[str, str] = field(default_factory=dict)  # new values of buffers that may lie where the old ones do

    @property
    def tangents(self) -> list[Buffer]:
        return [b for b in self.plan.program.buffers.values() if b.role == "tangent"]


def sizes_of(mode: Mode) -> list[str]:
    """The names of all sizes, those of the arguments first."""
    names = {s.name for b in mode.plan.program.buffers.values() for d in b.shape for s in d.sizes()}
    free = sorted(names - set(mode.plan.program.sizes))
    return [*free, *mode.plan.program.sizes]


def bind_sizes(mode: Mode, wanted: Iterable[Buffer]) -> list[str]:
    """Statements that read sizes off the arguments and refuse shapes that the Model would not take."""
    lines: list[str] = []
    bound: dict[str, str] = {}  # a size's name: where it comes from
    checks: list[str] = []
    for b in wanted:
        if not b.shape and b.role != "input":
            continue
        plain = []
        for k, s in enumerate(b.shape):
            atom = s.atom
            name = str(atom) if atom is not None and not s.variables() else ""
            if name and name.isidentifier() and name not in bound and name not in mode.plan.program.sizes:
                bound[name] = f"{b.name}.shape[{k}]"
                plain.append(name)
            else:
                plain.append("_")
        binds = any(p != "_" for p in plain)
        if b.role == "input" and (binds or not b.shape):  # one that binds none is compared as a whole
            lines.append(f"if {b.name}.dim() != {len(b.shape)}:")
            lines.append(f"    raise _shape_error({b.name!r}, {b.name}, {_display(b)!r})")
        if binds:
            lines.append(f"{', '.join(plain)}{',' if len(plain) == 1 else ''} = {b.name}.shape")
        if "_" in plain:
            checks.append(f"if {b.name}.shape != {shape_text(b.shape)}:")
            checks.append(f"    raise _shape_error({b.name!r}, {b.name}, {_display(b)!r})")
    for name, text in mode.plan.program.sizes.items():
        checks.append(f"{name} = {text}")
    for condition in mode.joint.guards:
        if {str(symbol) for symbol in condition.free_symbols} <= set(bound):
            text = python_text(condition)
            checks.append(f"if not ({text}):")
            said = re.sub(r"\w+", lambda word: bound.get(word[0], word[0]), text)
            message = f"ModelNew: made for sizes with {said}; run crucible fuse again for others"
            checks.append(f"    raise RuntimeError({message!r})")
    return lines + checks


def _display(b: Buffer) -> str:
    return "(" + ", ".join(python(s) for s in b.shape) + ("," if len(b.shape) == 1 else "") + ")"


def largest(plan: Plan) -> str:
    """Python for the number of elements of the largest tensor."""
    texts = dict.fromkeys(python(b.numel) for b in plan.program.buffers.values())
    fixed = [int(t) for t in texts if t.isdigit()]
    texts_ = [t for t in texts if not t.isdigit()]
    parts = [*texts_, str(max(fixed, default=1))]
    return parts[0] if len(parts) == 1 else f"max({', '.join(parts)})"


def times(count: Int, item: str) -> str:
    """A number of elements times the bytes of one, as Python."""
    if item == "1":
        return python(count)
    if count.constant is not None and item.isdigit():
        return str(count.constant * int(item))
    return f"{python(count) if len(count.terms) == 1 else f'({python(count)})'} * {item}"


def call_text(mode: Mode, stage: Call) -> list[str]:
    """An operator that stays torch's."""
    extern = stage.extern
    node = extern.node
    lowered = mode.plan.program

    def argument(a: Any) -> str:
        if isinstance(a, fx.Node):
            return _node_text(a, mode, lowered.buffers)
        if isinstance(a, (list, tuple)):
            inner = ", ".join(argument(x) for x in a)
            return f"[{inner}]" if isinstance(a, list) or type(a).__name__ == "immutable_list" else f"({inner},)"
        if isinstance(a, torch.dtype):
            return str(a) if lowered.own or not a.is_floating_point else "dtype"
        if isinstance(a, torch.device):
            return "device"
        if isinstance(a, (torch.layout, torch.memory_format)):
            return str(a)
        if isinstance(a, (torch.SymInt, torch.SymFloat)):
            return _symbolic(a)
        return repr(a)

    parts = [argument(a) for a in node.args] + [
        f"{k}={argument(v)}" for k, v in node.kwargs.items() if k != "pin_memory"
    ]
    call = f"{_target(node)}({', '.join(parts)})"
    results = extern.results
    if len(results) == 1 and results[0] is not None and not isinstance(node.meta["val"], (tuple, list)):
        assert results[0].buffer is not None
        return [f"{results[0].buffer.name} = {call}{_ready(extern, results[0])}  # torch's own: {extern.reason}"]
    if results == [None]:
        return [f"{call}  # torch's own: {extern.reason}"]
    lines = [f"made = {call}  # torch's own: {extern.reason}"]
    for k, t in enumerate(results):
        if t is not None and t.buffer is not None:
            lines.append(f"{t.buffer.name} = made[{k}]{_ready(extern, t)}")
    return [*lines, "del made"]


def _ready(extern: Extern, result: Tensor) -> str:
    """What is done to a result of torch's own: kernels want rows, and no view of a buffer that may get new values."""
    schema = getattr(extern.node.target, "_schema", None)
    view = schema is not None and any(r.alias_info is not None for r in schema.returns)
    read = any(t.buffer is not None and t.buffer.role == "buffer" for t in extern.inputs)
    rows = "" if result.dtype in COMPLEX_BYTES else ".contiguous()"  # torch alone reads complex numbers
    return f".clone(){rows}" if view and read else rows


def _target(node: fx.Node) -> str:
    target = node.target
    if target in recurrent.WRITTEN:
        return recurrent.WRITTEN[target]
    if hasattr(target, "overloadpacket"):
        return f"torch.ops.{target}" if not str(target).startswith("torch") else str(target)
    raise NotImplementedError(f"{target} cannot be written into a file")


def _symbolic(value: Any) -> str:
    return python_text(value.node.expr)


def _node_text(node: fx.Node, mode: Mode, buffers: Mapping[str, Buffer]) -> str:
    value = node.meta.get("val")
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return _symbolic(value)
    if isinstance(value, (int, float, bool)):
        return repr(value)
    env = mode.plan.program.env
    tensor = env[node]
    assert tensor.buffer is not None, node
    return str(tensor.buffer.name)


def needed_for(mode: Mode) -> dict[str, set[int]]:
    """For each backward stage, the gradients (by position) that it helps to compute."""
    wanted: dict[str, set[int]] = {}
    reach: dict[str, set[int]] = {}
    for position, b in enumerate(mode.plan.program.gradients):
        if b is not None:
            reach.setdefault(b.name, set()).add(position)
    for stage in reversed(mode.plan.backward_stages):
        if isinstance(stage, Call):
            outs = [t.buffer.name for t in stage.extern.results if t is not None and t.buffer is not None]
        else:
            outs = [b.name for b in written(stage)]
        mine = set().union(*(reach.get(o, set()) for o in outs)) if outs else set()
        wanted[stage.name] = mine
        for name in read(stage):
            reach.setdefault(name, set()).update(mine)
    return wanted
