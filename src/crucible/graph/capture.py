"""Capture a Model as a functional ATen graph: parameters and buffers by name, buffer updates kept, sizes symbolic."""

from __future__ import annotations

import inspect
import io
import logging
import sys
import threading
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

import torch
import torch.utils._pytree as pytree
from torch import fx

from crucible.autocast import switched_on
from crucible.exact import copied
from crucible.graph import recurrent
from crucible.graph.asked import asked_of_sizes, assumed_of_sizes
from crucible.graph.backward import backward_hooks, own_functions
from crucible.graph.exported import Lost, mend, without_assertions
from crucible.graph.instead import said_otherwise
from crucible.graph.older_torch import like_later_ones
from crucible.switches import agreeing

Example = Sequence[Any]


class CaptureError(Exception):
    """The Model cannot be captured; the message names the line and what to do about it."""


@dataclass(frozen=True)
class Source:
    """Where the value of a placeholder comes from when the captured function is called."""

    kind: str  # "parameter", "buffer", "input" or "constant"
    name: str  # of the parameter or buffer; for an input the expression that reaches it in forward()
    position: int = -1  # of an input among the flattened arguments
    stored: str = ""  # the name of a parameter or buffer as the way through its modules' own tables


@dataclass
class Graph:
    """A captured Model, without side effects.

    ``module`` maps placeholders to (updates..., outputs..., changed...): the new values of buffers, what the Model
    returns, and the new values of arguments that it writes into.
    """

    module: fx.GraphModule
    sources: dict[str, Source]
    updates: list[str]  # buffers, in the order of the first outputs
    out_spec: pytree.TreeSpec
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    fixed: dict[int, Any] = field(default_factory=dict)  # flattened positions of non-tensor inputs and their values
    arguments: int = 0  # how many flattened arguments forward() was captured with
    notes: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)  # placeholders, in the order of the last outputs
    returned: dict[int, str] = field(default_factory=dict)  # outputs that are such an argument itself
    asked: list[Any] = field(default_factory=list)  # conditions on sizes under which it is right
    functions: list[str] = field(default_factory=list)  # what of its backward is Python, of which the graph has nothing

    @property
    def placeholders(self) -> list[fx.Node]:
        return [n for n in self.module.graph.nodes if n.op == "placeholder"]

    @property
    def outputs(self) -> list[Any]:
        """The nodes (or constants) of the user's outputs, flattened, and the new values of arguments."""
        return list(self._returned)[len(self.updates) :]

    @property
    def updated(self) -> list[fx.Node]:
        return list(self._returned)[: len(self.updates)]

    @property
    def _returned(self) -> Sequence[Any]:
        (last,) = [n for n in self.module.graph.nodes if n.op == "output"]
        return last.args[0]


def capture(model: torch.nn.Module, args: Example, *, kwargs: dict[str, Any] | None = None) -> Graph:
    """The graph of ``model(*args)`` in the mode the model is in. ``args`` may live on the meta device."""
    like_later_ones()
    for free in (None, 1, 0):  # a Model that needs a size as a number, as a key say, pins it down
        try:
            return _captured(model, args, kwargs, free)
        except CaptureError as error:
            if "SymInt" not in str(error.__cause__) or not isinstance(error.__cause__, TypeError) or free == 0:
                raise
    raise AssertionError


def _captured(model: torch.nn.Module, args: Example, kwargs: dict[str, Any] | None, free: int | None) -> Graph:
    """With the sizes of the first ``free`` dimensions free, or all."""
    from torch.export import export

    shapes = _grouped(model, pytree.tree_map(lambda value: _all_free(value, free), tuple(args)))
    model, args = _off_meta(model), pytree.tree_map(_allocated, tuple(args))
    try:
        with (
            warnings.catch_warnings(), _quiet(), said_otherwise(), recurrent.whole(), own_functions() as functions,
            switched_on() as mixed, agreeing(),
        ):  # fmt: skip
            warnings.simplefilter("ignore")
            with asked_of_sizes() as asked:
                program = export(model, tuple(args), kwargs, dynamic_shapes=shapes, strict=False)
            if mixed:
                raise CaptureError(
                    f"forward() switches automatic mixed precision on, {next(iter(mixed))}, of which torch decides for "
                    "each operator what it does. Write the types instead, such as x.to(torch.bfloat16)"
                )
            mend(program)
            program = program.run_decompositions({})
            without_assertions(program.graph_module)
    except CaptureError:
        raise
    except Lost as error:
        raise CaptureError(str(error)) from error
    except Exception as error:  # torch.export raises many kinds, from many packages
        raise CaptureError(explain(error)) from error
    graph = _graph(program, {name for name, p in model.named_parameters() if not p.requires_grad})
    graph.asked = [*asked, *assumed_of_sizes(graph.module)]
    graph.functions = [*functions, *backward_hooks(model)]
    return graph


def _off_meta(model: torch.nn.Module) -> torch.nn.Module:
    """The model with (untouched) memory on the CPU: tensors that forward() makes on the meta device have no values."""
    model = copied(model)
    made: dict[int, torch.Tensor] = {}
    for module in model.modules():
        groups: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for members in groups:
            for name, tensor in members.items():
                if tensor is None or tensor.device.type != "meta":
                    continue
                if id(tensor) not in made:  # tied weights stay tied
                    new = _allocated(tensor)
                    wanted = tensor.requires_grad
                    made[id(tensor)] = torch.nn.Parameter(new, wanted) if members is module._parameters else new
                members[name] = made[id(tensor)]
    return model


def _allocated(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.device.type != "meta":
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")


def _grouped(model: torch.nn.Module, shapes: tuple[Any, ...]) -> tuple[Any, ...]:
    """torch.export wants the arguments of a ``*inputs`` as one."""
    for position, p in enumerate(inspect.signature(model.forward).parameters.values()):
        if p.kind is inspect.Parameter.VAR_POSITIONAL:
            return (*shapes[:position], shapes[position:])
    return shapes


def _all_free(value: Any, free: int | None = None) -> Any:
    """Every size of every tensor input may vary; torch.export fixes those that the Model itself pins down."""
    from torch.export import Dim

    if not isinstance(value, torch.Tensor):
        return None
    return dict.fromkeys(range(value.dim() if free is None else min(free, value.dim())), Dim.AUTO)


class _quiet:
    """torch.export logs and prints what it then raises; once is enough."""

    def __enter__(self) -> None:
        self.level = logging.getLogger("torch").level
        logging.getLogger("torch").setLevel(logging.CRITICAL)
        self.stream = sys.stderr
        sys.stderr = self.held = _Held(sys.stderr)

    def __exit__(self, kind: object, *_: object) -> None:
        sys.stderr = self.stream
        logging.getLogger("torch").setLevel(self.level)
        if kind is None:
            self.stream.write(self.held.text)  # the Model's own


class _Held(io.TextIOBase):
    """Keeps what this thread writes; others, such as one that shows progress, write on."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.owner, self.text = stream, threading.get_ident(), ""

    def write(self, text: str) -> int:
        if threading.get_ident() != self.owner:
            return self.stream.write(text)
        self.text += text
        return len(text)

    def flush(self) -> None:
        self.stream.flush()

    def isatty(self) -> bool:
        return self.stream.isatty()


def _graph(program: Any, frozen: Collection[str]) -> Graph:
    from torch.export.graph_signature import InputKind, OutputKind

    signature = program.graph_signature
    sources: dict[str, Source] = {}
    constants: dict[str, torch.Tensor] = {}
    fixed: dict[int, Any] = {}
    position = 0
    for spec in signature.input_specs:
        if spec.kind is InputKind.PARAMETER:
            sources[spec.arg.name] = Source("parameter", spec.target)
        elif spec.kind is InputKind.BUFFER:
            sources[spec.arg.name] = Source("buffer", spec.target)
        elif spec.kind is InputKind.CONSTANT_TENSOR:
            sources[spec.arg.name] = Source("constant", spec.target)
            constants[spec.target] = program.constants[spec.target]
        elif spec.kind is InputKind.USER_INPUT:
            sources[spec.arg.name] = Source("input", spec.arg.name, position)
            if not hasattr(spec.arg, "value"):
                pass
            else:
                fixed[position] = spec.arg.value
            position += 1
        else:
            raise CaptureError(f"the Model uses {spec.kind.name.lower()} {spec.target}, which is not supported")
    updates: list[str] = []
    changed: dict[Any, str] = {}
    returned: dict[int, str] = {}
    module = program.graph_module
    (last,) = module.graph.find_nodes(op="output")
    values: dict[Any, list[Any]] = {kind: [] for kind in OutputKind}
    for out, value in zip(signature.output_specs, last.args[0], strict=True):
        if out.kind is OutputKind.BUFFER_MUTATION:
            updates.append(out.target)
        elif out.kind is OutputKind.USER_INPUT_MUTATION:
            changed[value] = out.target
        elif out.kind.name == "PARAMETER_MUTATION" and out.target in frozen:  # a kind that came with torch 2.9
            updates.append(out.target)
        elif out.kind.name == "PARAMETER_MUTATION":
            raise CaptureError(
                f"forward() changes the parameter {out.target}, which has gradients. Change it outside of forward(), "
                "or make it a buffer or requires_grad_(False) if nobody trains it"
            )
        elif out.kind is not OutputKind.USER_OUTPUT:
            raise CaptureError(f"an output of kind {out.kind.name.lower()} is not supported")
        elif value in changed:
            returned[len(values[out.kind])] = changed[value]
            value = None
        values[out.kind].append(value)
    user, mutated = values[OutputKind.USER_OUTPUT], values[OutputKind.USER_INPUT_MUTATION]
    if mutated:
        last.args = ((*last.args[0][: len(updates)], *user, *mutated),)
        module.recompile()
    assert program.call_spec.out_spec is not None
    return Graph(
        module, sources, updates, program.call_spec.out_spec, constants, fixed, position,
        changed=list(changed.values()), returned=returned,
    )  # fmt: skip


def explain(error: Exception) -> str:
    """torch.export's page of advice in two lines: what happened, at which line of the user's file."""
    import re

    text = str(error)
    kind = type(error).__name__
    where = ""
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\w+)\s*\n\s*([^\n]*)', text)
    theirs = [f for f in frames if "/torch/" not in f[0]]
    trace = error.__traceback__
    import traceback

    others = ("/torch/", "/crucible/", "<")  # "<string>" has no lines
    own = [f for f in traceback.extract_tb(trace) if not any(o in f.filename for o in others)]
    if own:
        where = f"{own[-1].filename.rsplit('/', 1)[-1]}:{own[-1].lineno}: {(own[-1].line or '').strip()}"
    elif theirs:
        where = f"{theirs[-1][0].rsplit('/', 1)[-1]}:{theirs[-1][1]}: {theirs[-1][3].strip()}"
    if "DataDependent" in kind or "data-dependent" in text or "Unsupported" in kind or ".item()" in text:
        what = (
            "the path through forward() depends on the values in a tensor, so there is no one graph to fuse. "
            "Express the choice with torch.where, or move it out of forward()"
        )
    elif "not a known type" in text and "in output" in text:
        returned = re.search(r"Found (.*?) in output", text)
        what = (
            f"it returns a {returned.group(1) if returned else 'type'}, whose tensors torch does not know. Return a "
            "tuple, a dict or a NamedTuple"
        )
    elif "DynamicOutputShape" in kind:
        what = (
            f"{text.strip().splitlines()[-1]} gives a tensor whose size depends on the values in another. Keep the "
            "size and mask what is not wanted (torch.where), or move it out of forward()"
        )
    else:
        what = f"{kind}: {text.strip().splitlines()[0][:300] if text.strip() else 'no message'}"
    return f"forward() could not be captured: {what}" + (f"\n    {where}" if where else "")
