"""ModelNew itself: the reference's own text with Model renamed and its forward() exchanged, and its constants."""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree

from crucible.emit.builder_text import CONSTANT
from crucible.emit.functions import listed, passes_of, results, written_arguments
from crucible.emit.host import Mode, is_tensor
from crucible.plan.program import Buffer
from crucible.plan.symbols import python_text

if TYPE_CHECKING:
    from crucible.emit.file import Request

# In a file whose kernels write into buffers where they lie.
CHANGED = '''
try:  # autograd is told of a tensor that kernels have changed, as by an operator of torch's
    from torch.autograd.graph import increment_version as _changed
except ImportError:  # torch 2.0

    def _changed(tensor):
        torch._C._autograd._unsafe_set_version_counter(tensor, tensor._version + 1)
'''


def module_text(request: Request) -> str:
    """The reference's text with Model renamed and its forward() exchanged."""
    tree = ast.parse(request.source)
    lines = request.source.splitlines()
    (model,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model"]
    forward = next((n for n in model.body if isinstance(n, ast.FunctionDef) and n.name == "forward"), None)
    body = _forward_body(request)
    if forward is None:  # a base class has it
        return _without_head(_renamed(_with_forward(model, lines, [f"def forward({request.signature}):", *body])))
    first = forward.body[0]
    document = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    assert first.end_lineno is not None and forward.end_lineno is not None
    indent = " " * (forward.col_offset + 4)
    # What decorators do (no_grad, compile) is in the graph.
    begins = min([d.lineno for d in forward.decorator_list], default=forward.lineno) - 1
    if document:
        head = lines[forward.lineno - 1 : first.end_lineno]
    else:  # the body may begin on the line of the signature
        head = lines[forward.lineno - 1 : first.lineno - 1] + [lines[first.lineno - 1][: first.col_offset].rstrip()]
    head = [*lines[:begins], *head]
    edited = [*head, *(indent + line if line else "" for line in body), *lines[forward.end_lineno :]]
    return _without_head(_renamed("\n".join(edited)))


def _with_forward(model: ast.ClassDef, lines: list[str], forward: list[str]) -> str:
    """The text with a forward() at the end of the class."""
    first, indent = model.body[0], " " * (model.col_offset + 4)
    assert model.end_lineno is not None
    inside = lines[first.lineno - 1 : model.end_lineno]
    head = lines[: first.lineno - 1]
    if first.lineno == model.lineno:  # the body is on the line of the class
        head, inside = [*head, inside[0][: first.col_offset].rstrip()], [indent + inside[0][first.col_offset :]]
    else:
        indent = " " * first.col_offset
    definition, *body = forward
    added = ["", indent + definition, *(indent + "    " + line if line else "" for line in body)]
    return "\n".join([*head, *inside, *added, *lines[model.end_lineno :]])


def _renamed(text: str) -> str:
    text = re.sub(r"\bclass Model\b", "class ModelNew", text)
    return re.sub(r"\bsuper\(Model,", "super(ModelNew,", text)


def _without_head(text: str) -> str:
    """Leave out the docstring and the imports that the file has already."""
    tree = ast.parse(text)
    lines = text.splitlines()
    have = {"import torch", "import torch.nn as nn"}
    drop: set[int] = set()
    for k, node in enumerate(tree.body):
        whole = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        document = k == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if document or whole.strip() in have:
            assert node.end_lineno is not None
            drop |= set(range(node.lineno - 1, node.end_lineno))
    return "\n".join(line for k, line in enumerate(lines) if k not in drop).strip("\n")


def _forward_body(request: Request) -> list[str]:
    lines = [f"_expect(self, {request.settings!r}, _LAYERS)"] if request.settings else []
    for name, value in request.fixed:
        lines.append(f"if {name} != {value!r}:")
        lines.append(f'    raise ValueError(f"ModelNew: made for {name}={value!r}, got {{{name}}}")')
    gathered = [_gathered(request, mode) for mode in request.modes]
    if len(request.modes) == 1:
        return lines + gathered[0] + _mode_body(request, request.modes[0])
    if gathered[0] == gathered[1]:
        lines += gathered[0]
        gathered = [[], []]
    training, evaluation = (g + _mode_body(request, mode) for g, mode in zip(gathered, request.modes))
    return [*lines, "if self.training:", *(f"    {line}" for line in training), *evaluation]


def _any_tensor(request: Request, mode: Mode) -> str:
    """An expression for some tensor of the call: constants go to its device."""
    for node in mode.graph.placeholders:
        source = mode.graph.sources[node.name]
        if is_tensor(node) and source.kind != "constant":
            return request.arguments[source.position] if source.kind == "input" else f"self.{source.name}"
    raise ValueError("forward() takes no tensor and has no parameters: there is nothing to compute on a GPU")


def constants(request: Request) -> str:
    """Tensors that are part of the Model's code, and a function that brings them to a device."""
    found = {name: t for mode in request.modes for name, t in mode.graph.constants.items()}
    if not found:
        return ""
    for name, t in found.items():
        if t.numel() > LARGEST_CONSTANT:
            raise ValueError(f"the constant {name} has {t.numel()} elements; register it as a buffer of the Model")
    rows = ", ".join(f"{name!r}: torch.tensor({_literal(t.tolist())}, dtype={t.dtype})" for name, t in found.items())
    return f"_CONSTANTS = {{{rows}}}" + CONSTANT


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_literal(v) for v in value) + "]"
    return f'float("{value}")' if isinstance(value, float) and not math.isfinite(value) else repr(value)


LARGEST_CONSTANT = 4096


def _gathered(request: Request, mode: Mode) -> list[str]:
    """The tensors of a call. A parameter is found much sooner in its module's own table than by __getattr__."""
    plain: list[str] = []
    stored: list[tuple[str, str]] = []  # module and table entry of parameters and buffers, text of others
    for node in mode.graph.placeholders:
        if not is_tensor(node):
            continue
        source = mode.graph.sources[node.name]
        if source.kind == "input":
            plain.append(request.arguments[source.position])
        elif source.kind == "constant":
            plain.append(f"_constant({source.name!r}, {_any_tensor(request, mode)})")
        else:
            plain.append(f"self.{source.name}")
        owner, _, entry = f"self.{source.stored}".rpartition(".")
        stored.append((owner, entry) if source.stored else ("", plain[-1]))
    if not any(owner for owner, _ in stored):
        return [f"tensors = {listed(plain)}"]
    uses = Counter(owner for owner, _ in stored)
    named = {o: f"_layer{k}" for k, o in enumerate(o for o, n in uses.items() if n > 1 and o not in ("", "self"))}
    quick = [f"{named.get(owner, owner)}.{entry}" if owner else entry for owner, entry in stored]
    return [
        "try:",
        *(f"    {name} = {owner}" for owner, name in named.items()),
        f"    tensors = {listed(quick)}",
        "except (AttributeError, KeyError):  # a layer that was exchanged, or computes its weights",
        f"    tensors = {listed(plain)}",
    ]


def _mode_body(request: Request, mode: Mode) -> list[str]:
    lines = []
    run = passes_of(mode)[0]
    count = 0 if run.updates else len(mode.graph.updates)
    outputs = mode.plan.program.outputs
    numbers = {i: count + k for k, i in enumerate(i for i, o in enumerate(outputs) if isinstance(o, Buffer))}
    written = written_arguments(mode)
    copies = [f"tensors[{k}].copy_(made[{numbers[i]}])" for k, i in written]
    if mode.joint.wanted:
        loud = "torch.is_grad_enabled() and any(t.requires_grad for t in tensors)"
        inference = (
            f"_{mode.name}_inference(tensors)" if mode.inference is not None else f"_{mode.name}_forward(tensors)[0]"
        )
        if copies:
            lines += [f"if {loud}:", f"    made = _{mode.name.title()}.apply(*tensors)", "else:"]
            lines += [f"    {line}" for line in (f"made = {inference}", *copies)]
        else:
            lines.append(f"made = _{mode.name.title()}.apply(*tensors) if {loud} else {inference}")
    else:
        fresh = not run.calls and all(b.role == "made" for b in results(mode, bool(run.updates)))
        given = "tensors" if fresh else "tuple(t.detach() for t in tensors)"
        lines += [f"made = _{mode.name}_forward({given})", *copies]
    if count:
        lines.append("with torch.no_grad():")
        lines += [f"    self.{name}.copy_(made[{k}])" for k, name in enumerate(mode.graph.updates)]
    lines += [f"_changed(tensors[{list(run.given).index(target)}])" for target, _ in run.updates]
    place = {name: f"tensors[{k}]" for name, (k, _) in zip(mode.graph.changed, written)}
    leaves = []
    for i, o in enumerate(outputs[: len(outputs) - len(written)]):
        own = mode.graph.returned.get(i)
        if own or isinstance(o, Buffer):
            leaves.append(_Name(place[own] if own else f"made[{numbers[i]}]"))
        else:
            leaves.append(_Name(_size(mode, o)) if isinstance(o, (torch.SymInt, torch.SymFloat)) else o)
    lines.append(f"return {_returned(pytree.tree_unflatten(leaves, mode.graph.out_spec), request)}")
    return lines


def _size(mode: Mode, value: Any) -> str:
    """What is computed from sizes alone, by the shapes of the arguments."""
    tensors = [n.meta["val"] for n in mode.graph.placeholders if is_tensor(n)]
    shapes = {str(s): f"tensors[{k}].shape[{d}]" for k, t in enumerate(tensors) for d, s in enumerate(t.shape)}
    text = python_text(value.node.expr)
    return re.sub(r"\bs\d+\b", lambda found: shapes[found.group()], text)


def _returned(tree: Any, request: Request) -> str:
    """The structure of the outputs as Python; torch's own named tuples are made from a tuple."""
    kind = type(tree)
    if kind.__module__ == "torch.return_types":
        return f"torch.return_types.{kind.__name__}(({', '.join(_returned(t, request) for t in tree)},))"
    if isinstance(tree, (list, tuple)):
        inner = ", ".join(_returned(t, request) for t in tree)
        if kind is list:
            return f"[{inner}]"
        if hasattr(kind, "_fields"):
            return f"{_class(kind, request)}({inner})"
        plain = f"({inner},)" if len(tree) == 1 else f"({inner})"
        return plain if kind is tuple else f"{_class(kind, request)}({plain})"
    if isinstance(tree, dict):
        inner = ", ".join(f"{k!r}: {_returned(v, request)}" for k, v in tree.items())
        return f"{{{inner}}}" if kind is dict else f"{_class(kind, request)}({{{inner}}})"
    if isinstance(tree, (_Name, bool, int, float, complex, str, bytes, type(None), torch.dtype)):
        return repr(tree)
    raise ValueError(f"forward() returns a {kind.__name__}; return tensors, numbers, lists, tuples and dicts of them")


def _class(kind: type, request: Request) -> str:
    """How a class is reached: one of the Model's file by its name there."""
    if "<locals>" in kind.__qualname__:
        raise ValueError(
            f"forward() returns a {kind.__name__}, a class that is made when it runs; make it beside Model"
        )
    outer = kind.__qualname__.partition(".")[0]
    if any(isinstance(n, ast.ClassDef) and n.name == outer for n in ast.parse(request.source).body):
        return re.sub(r"^Model\.", "ModelNew.", kind.__qualname__)
    return f'__import__({kind.__module__!r}, fromlist=["{outer}"]).{kind.__qualname__}'


class _Name:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text
