"""Capture a Model as a functional ATen graph: parameters and buffers by name, buffer updates kept, sizes symbolic."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

import torch
import torch.utils._pytree as pytree
from torch import fx

from crucible.autocast import switched_on
from crucible.exact import copied
from crucible.graph import recurrent

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
    functions: list[str] = field(default_factory=list)  # with a backward of their own, of which the graph has nothing

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
    from torch.export import export

    shapes = _grouped(model, pytree.tree_map(_all_free, tuple(args)))
    model, args = _off_meta(model), pytree.tree_map(_allocated, tuple(args))
    try:
        with (
            warnings.catch_warnings(), _quiet(), _free_lengths(), recurrent.whole(), _own_functions() as functions,
            switched_on() as mixed,
        ):  # fmt: skip
            warnings.simplefilter("ignore")
            program = export(model, tuple(args), kwargs, dynamic_shapes=shapes, strict=False)
            if mixed:
                raise CaptureError(
                    f"forward() switches automatic mixed precision on, {next(iter(mixed))}, of which torch decides for "
                    "each operator what it does. Write the types instead, such as x.to(torch.bfloat16)"
                )
            _detach_where_no_grad(program.graph_module)
            _copy_apart(program.graph_module)
            program = program.run_decompositions({})
    except CaptureError:
        raise
    except Exception as error:  # torch.export raises many kinds, from many packages
        raise CaptureError(explain(error)) from error
    graph = _graph(program)
    graph.functions = list(functions)
    return graph


def _detach_where_no_grad(module: fx.GraphModule) -> None:
    """Say by detach() what torch.no_grad() says: its blocks are opened later, and nothing else would remember it."""
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.higher_order.wrap_with_set_grad_enabled):
        enabled, block, *_ = node.args
        inner = getattr(module, str(block.target))
        if not enabled:
            for given in inner.graph.find_nodes(op="placeholder"):
                written = any(_writes(user, given) for user in given.users)
                if isinstance(given.meta.get("val"), torch.Tensor) and not written:
                    with inner.graph.inserting_after(given):
                        alone = inner.graph.call_function(torch.ops.aten.detach.default, (given,))
                    alone.meta["val"] = given.meta["val"]
                    given.replace_all_uses_with(alone, lambda user, own=alone: user is not own)
            inner.recompile()
    for _, part in module.named_children():
        if isinstance(part, fx.GraphModule):
            _detach_where_no_grad(part)


def _copy_apart(module: fx.GraphModule) -> None:
    """What is copied into a tensor, and used elsewhere too, gets a name of its own: torch.export knows new values of
    buffers by their names."""
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        source = node.args[1]
        if len(source.users) == 1:
            continue
        with module.graph.inserting_before(node):
            own = module.graph.call_function(torch.ops.aten.clone.default, (source,))
        own.meta["val"] = source.meta["val"]
        node.update_arg(1, own)
    module.recompile()
    for _, part in module.named_children():
        if isinstance(part, fx.GraphModule):
            _copy_apart(part)


def _writes(node: fx.Node, value: fx.Node) -> bool:
    """Whether a call changes one of its arguments."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return False
    named = ((a, node.kwargs[a.name]) for a in schema.arguments if a.name in node.kwargs)
    given = [*zip(schema.arguments, node.args), *named]
    return any(a.alias_info is not None and a.alias_info.is_write and x is value for a, x in given)


@contextlib.contextmanager
def _own_functions() -> Iterator[dict[str, None]]:
    """The Model's own classes of torch.autograd.Function that run meanwhile."""
    original = torch.autograd.Function.__dict__["apply"]
    found: dict[str, None] = {}

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not cls.__module__.startswith("torch."):
            found[cls.__name__] = None
        return original.__func__(cls, *args, **kwargs)

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[method-assign,assignment]
    try:
        yield found
    finally:
        torch.autograd.Function.apply = original  # type: ignore[method-assign]


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


def _all_free(value: Any) -> Any:
    """Every size of every tensor input may vary; torch.export fixes those that the Model itself pins down."""
    from torch.export import Dim

    return dict.fromkeys(range(value.dim()), Dim.AUTO) if isinstance(value, torch.Tensor) else None


@contextlib.contextmanager
def _free_lengths() -> Iterator[None]:
    """Where torch's own code would fix a size that the Model leaves open, say the same in other operators."""
    originals = torch.max_pool1d, torch.affine_grid_generator

    def max_pool1d(
        x: torch.Tensor, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> torch.Tensor:
        def pair(value: Any, other: int) -> list[Any]:
            return [other, *(value if isinstance(value, (list, tuple)) else [value])]

        step = pair(stride, 1) if stride is not None and stride != [] else pair(kernel, 1)
        wide = x.unsqueeze(-2)
        return torch.max_pool2d(wide, pair(kernel, 1), step, pair(padding, 0), pair(dilation, 1), ceil_mode).squeeze(-2)

    def affine_grid_generator(theta: torch.Tensor, size: Sequence[int], align_corners: bool) -> torch.Tensor:
        spatial = size[2:]
        wide = theta.reshape(theta.shape[0], *[1] * len(spatial), *theta.shape[1:])
        grid = wide[..., -1]
        for k, n in enumerate(spatial):
            place = torch.arange(n, dtype=theta.dtype, device=theta.device) * 2 - (n - 1)  # whole numbers
            place = place / (torch.sym_max(n - 1, 1) if align_corners else n)
            axis = len(spatial) - 1 - k  # the last extent is x
            grid = grid + wide[..., axis] * place.reshape(n, *[1] * axis, 1)
        return grid

    torch.max_pool1d, torch.affine_grid_generator = max_pool1d, affine_grid_generator  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.max_pool1d, torch.affine_grid_generator = originals


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


def _graph(program: Any) -> Graph:
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
        elif out.kind is not OutputKind.USER_OUTPUT:
            raise CaptureError(f"an output of kind {out.kind.name.lower()} is not supported")
        elif value in changed:
            returned[len(values[out.kind])] = changed[value]
            value = None
        values[out.kind].append(value)
    user, mutated = values[OutputKind.USER_OUTPUT], values[OutputKind.USER_INPUT_MUTATION]
    if mutated:
        last.args = ((*values[OutputKind.BUFFER_MUTATION], *user, *mutated),)
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

    own = [f for f in traceback.extract_tb(trace) if "/torch/" not in f.filename and "/crucible/" not in f.filename]
    if own:
        where = f"{own[-1].filename.rsplit('/', 1)[-1]}:{own[-1].lineno}: {(own[-1].line or '').strip()}"
    elif theirs:
        where = f"{theirs[-1][0].rsplit('/', 1)[-1]}:{theirs[-1][1]}: {theirs[-1][3].strip()}"
    if "DataDependent" in kind or "data-dependent" in text or "Unsupported" in kind or ".item()" in text:
        what = (
            "the path through forward() depends on the values in a tensor, so there is no one graph to fuse. "
            "Express the choice with torch.where, or move it out of forward()"
        )
    else:
        what = f"{kind}: {text.strip().splitlines()[0][:300] if text.strip() else 'no message'}"
    return f"forward() could not be captured: {what}" + (f"\n    {where}" if where else "")
