"""Random operator graphs for hypothesis: small, valid and numerically tame, each printable as a Problem file.

``programs()`` draws a ``Program``; the step kinds and their attribute ranges are rows of ``graph_kinds.FAMILIES``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from graph_kinds import FAMILIES, NO_GRADIENT, TIED, Kind
from graph_rules import Shape
from hypothesis import strategies as st

ELEMENTS = 2000  # of the largest tensor
MAGNITUDE = 64.0  # of the largest value, roughly: keeps what follows an exponential well-conditioned
SATURATION = 6.0  # from here on float32 can no longer tell the results of a sigmoid apart
INPUTS = 3
CHAIN = 8  # how much likelier than any other value the newest one is to be used next
STEPS = (2, 9)
SIZES = {2: ((2, 4), (2, 12)), 3: ((2, 4), (1, 12), (3, 11)), 4: ((2, 3), (1, 8), (3, 9), (3, 9)),
         5: ((2, 2), (1, 6), (3, 5), (3, 5), (3, 5))}  # fmt: skip

KINDS = {kind.name: kind for family in FAMILIES.values() for kind in family}


@dataclass(frozen=True)
class Value:
    """A tensor of the program: an input or the result of a step."""

    name: str
    shape: Shape
    magnitude: float = 4.0
    traits: frozenset[str] = frozenset()
    usable: bool = True  # as an argument of a later step


@dataclass(frozen=True)
class Step:
    """One line of the program (a few where it works in place)."""

    result: str
    kind: str
    arguments: tuple[str, ...]
    attributes: dict[str, Any]
    shape: Shape
    before: Shape  # of the first argument

    @property
    def member(self) -> str:
        """The name of the parameter, buffer or module of the step."""
        return f"{self.kind.rstrip('_')}_{self.result}"

    def _fill(self, text: str) -> str:
        before = self.before
        facts = {
            "x": self.arguments[0],
            "y": self.arguments[-1],
            "m": f"self.{self.member}",
            "out": self.result,
            "n": len(before) - 2,
            "c": before[1] if len(before) > 1 else 1,
            "last": before[-1] if before else 1,
            "ones": ", 1" * (len(before) - 2),
        }
        return text.format(**facts, **self.attributes)

    def forward_lines(self) -> list[str]:
        lines = self._fill(KINDS[self.kind].text).splitlines()
        return lines if len(lines) > 1 else [f"{self.result} = {lines[0]}"]

    def init_lines(self) -> list[str]:
        made = self._fill(KINDS[self.kind].make)
        if not made:
            return []
        if made.startswith("torch."):
            return [f'self.register_buffer("{self.member}", {made})']
        return [f"self.{self.member} = {made}"]


@dataclass
class Program:
    """A drawn graph: the inputs' shapes, the steps in order, the names of the outputs."""

    input_shapes: dict[str, Shape]
    steps: list[Step] = field(default_factory=list)
    outputs: tuple[str, ...] = ()

    @property
    def output_shapes(self) -> list[Shape]:
        shapes = {**self.input_shapes, **{s.result: s.shape for s in self.steps}}
        return [shapes[name] for name in self.outputs]

    def source(self) -> str:
        """The program as the text of a Problem file."""
        init = [line for s in self.steps for line in s.init_lines()]
        if any("nn." in line for line in init):
            init += [
                "with torch.no_grad():  # a norm's weights are not all equal once it has been trained",
                "    for parameter in self.parameters():",
                "        parameter.add_(0.3 * torch.randn_like(parameter))",
            ]
        forward = [line for s in self.steps for line in s.forward_lines()]
        names = ", ".join(f"{name}: torch.Tensor" for name in self.input_shapes)
        inputs = ", ".join(f"torch.randn({', '.join(map(str, shape)) or '()'})" for shape in self.input_shapes.values())
        parts = [
            f'"""A drawn operator graph: {", ".join(s.kind for s in self.steps)}."""\n',
            "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n",
            "class Model(nn.Module):",
        ]
        if init:
            parts += ["    def __init__(self):", "        super().__init__()", *(f"        {x}" for x in init), ""]
        parts += [f"    def forward(self, {names}):", *(f"        {x}" for x in forward)]
        parts += [f"        return {', '.join(self.outputs)}", "\n"]
        parts += ["def get_inputs():", f"    return [{inputs}]", "\n", "def get_init_inputs():", "    return []", ""]
        return "\n".join(parts)

    def module(self, seed: int = 0) -> torch.nn.Module:
        """The program as a module whose parameters come from this seed."""
        names: dict[str, Any] = {"__name__": "drawn_program"}
        exec(compile(self.source(), "<drawn program>", "exec"), names)
        torch.manual_seed(seed)
        return names["Model"]()

    def inputs(self, seed: int = 0) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return [torch.randn(shape) for shape in self.input_shapes.values()]


# --- drawing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Option:
    """One way to apply a kind: its arguments, attributes, and what comes out."""

    arguments: tuple[Value, ...]
    attributes: dict[str, Any]
    result: Value


def result_of(kind: Kind, arguments: tuple[Value, ...], attributes: dict[str, Any], name: str) -> Value | None:
    """What the step gives, or None where it is not to be drawn."""
    shapes = [v.shape for v in arguments]
    shape = kind.shape(shapes, attributes)
    if shape is None or math.prod(shape) > ELEMENTS or len(shape) > 5:
        return None
    traits = set().union(*(v.traits for v in arguments))
    if traits & set(kind.refuses):
        return None
    magnitude = kind.size([v.magnitude for v in arguments], shapes[0], shape)
    if magnitude > MAGNITUDE:
        return None
    kept = traits & set(kind.keeps) | set(kind.adds)
    if kind.saturates and max(v.magnitude for v in arguments) > SATURATION:
        kept.add(TIED)
    if all(NO_GRADIENT in v.traits for v in arguments) and "nn." not in kind.make:
        kept.add(NO_GRADIENT)
    return Value(name, shape, magnitude, frozenset(kept), usable=not kind.terminal)


def options(kind: Kind, value: Value, values: Sequence[Value], inputs: int, name: str) -> Iterator[Option]:
    """Every way to apply a kind to a value, the simple ones first."""
    if len(value.shape) not in kind.ranks:
        return
    seconds: list[tuple[Value, ...]] = [()]
    if kind.partner is not None:
        others = [(v,) for v in values if v is not value]
        seconds = {"any": [*others, (value,)], "other": others, "new": []}[kind.second]
        if inputs < INPUTS:
            seconds.insert(2, (Value(f"input{inputs}", kind.partner(value.shape)),))
    for second in seconds:
        for chosen in itertools.product(*kind.attrs.values()):
            attributes = dict(zip(kind.attrs, chosen))
            result = result_of(kind, (value, *second), attributes, name)
            if result is not None:
                yield Option((value, *second), attributes, result)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """The shape of the first input: (batch, channels or features, spatial sizes), within the bound on elements."""
    ranges = SIZES[draw(st.sampled_from((2, 4, 3, 5)))]
    shape: list[int] = []
    for i, (low, high) in enumerate(ranges):
        room = ELEMENTS // (math.prod(shape) * math.prod(r[0] for r in ranges[i + 1 :]))
        shape.append(draw(st.integers(low, min(high, room))))
    return tuple(shape)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A random operator graph in which every value is an output or leads to one."""
    first = Value("input0", draw(shapes()))
    program = Program({first.name: first.shape})
    values = [first]
    used: set[str] = set()
    for number in range(1, draw(st.integers(*STEPS)) + 1):
        name = f"v{number}"
        open_values = [v for v in reversed(values) if v.usable]
        tensors = [v for v in open_values if len(v.shape) >= 2]
        value = draw(st.sampled_from([tensors[0]] * CHAIN + open_values))
        fitting = {
            family: [k for k in kinds if next(options(k, value, open_values, len(program.input_shapes), name), None)]
            for family, kinds in FAMILIES.items()
        }
        family = draw(st.sampled_from([f for f, kinds in fitting.items() if kinds]))
        kind = draw(st.sampled_from(fitting[family]))
        every = list(options(kind, value, open_values, len(program.input_shapes), name))
        chosen = draw(st.sampled_from(list(dict.fromkeys(o.arguments for o in every))))
        option = draw(st.sampled_from([o for o in every if o.arguments == chosen]))
        for argument in option.arguments:
            used.add(argument.name)
            if argument not in values:
                program.input_shapes[argument.name] = argument.shape
                values.append(argument)
        arguments = tuple(v.name for v in option.arguments)
        program.steps.append(Step(name, kind.name, arguments, option.attributes, option.result.shape, value.shape))
        values.append(option.result)
    steps = [v for v in values if v.name not in program.input_shapes]
    again = draw(st.sampled_from([None, *(v.name for v in steps)]))  # an output that later steps use too
    outputs = [v for v in steps if v.name not in used or v.name == again]
    if all(NO_GRADIENT in v.traits for v in outputs):
        outputs += [next(v for v in reversed(values) if NO_GRADIENT not in v.traits)]
    program.outputs = tuple(v.name for v in outputs)
    return program
