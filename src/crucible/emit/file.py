"""The whole generated file: the reference's own text with ``forward`` exchanged, and the kernels it calls."""

from __future__ import annotations

import ast
import hashlib
import math
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.utils._pytree as pytree

from crucible.emit import settings, wgmma
from crucible.emit.builder_text import BUILDER, CONSTANT, EXPECT, NARROWER
from crucible.emit.functor import Functor
from crucible.emit.host import DTYPES, Mode, bind_sizes, needed_for, sizes_of
from crucible.emit.library import library
from crucible.emit.passes import Pass
from crucible.graph import recurrent
from crucible.graph.capture import Graph
from crucible.plan.boxes import WindowTile
from crucible.plan.program import Buffer
from crucible.plan.stages import Call, Contraction

MARK = "Made by crucible"
# Around the kernel bodies, which are the same in every file that uses them.
LIBRARY_BEGIN = "// ---- kernel bodies and what they share"
LIBRARY_END = "// ---- the stages of this file"


@dataclass
class Request:
    """What the file is made from."""

    source: str  # text of the reference file
    name: str  # its file name
    modes: list[Mode]  # one, or training and evaluation
    arguments: list[str]  # expressions of the flattened inputs in terms of forward()'s parameters
    fixed: list[tuple[str, Any]]  # parameters of forward() that must have the captured value
    settings: str  # digest of the module's configuration
    signature: str = "self, x"  # of forward(), where the class has none of its own
    engine: str = "mma"
    precision: str = "torch"
    hopper: bool = True  # its own instructions, where the chip has them
    proof: str = ""
    version: str = ""
    table: list[str] = field(default_factory=list)  # which node went into which kernel
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16", "float64")


def write_file(request: Request) -> str:
    """The text of the ModelNew file."""
    parts: dict[str, list[Functor]] = {}
    runs = [run for mode in request.modes for run in passes_of(mode)]
    for run in runs:
        found = parts.setdefault(run.part, [])
        for stage in run.stages:
            if isinstance(stage, Call):
                continue
            f, label = run.functor(stage), run.label(stage)
            if all(x.name != label for x in found):
                renamed = re.sub(rf"\b(run_|packed_|pieces_)?{re.escape(f.name)}\b", rf"\g<1>{label}", f.text)
                found.append(Functor(label, renamed, f.pointers, f.sizes, f.extra, f"run_{label}", f.functions,
                                     f.structs, f.templates, f.columns, f.tf32, f.across,
                                     f.kept, f.asks))  # fmt: skip
    parts = {part: functors for part, functors in parts.items() if functors}
    sections = [_header(request), _imports(), _cuda(parts, runs), _builder(request, parts, runs)]
    functions = [_functions(mode) for mode in request.modes]
    sections += [recurrent.source()] * any(recurrent.NAME in text for text in functions)
    sections += functions
    sections.append(_constants(request))
    sections.append(_module(request))
    return "\n\n\n".join(s.strip("\n") for s in sections if s.strip()) + "\n"


def passes_of(mode: Mode) -> list[Pass]:
    """All that a mode can be asked for: forward, backward where there are gradients, forward without them."""
    found = [_forward_pass(mode, "forward")]
    if mode.joint.wanted:
        found.append(_backward_pass(mode))
        if mode.inference is not None:
            found.append(_forward_pass(mode.inference, "inference", in_place(mode)))
    return found


def _header(request: Request) -> str:
    lines = [
        f'"""{MARK} {request.version} from {request.name}: '
        "the same function, gradients and side effects in fused CUDA kernels.",
        "",
    ]
    lines += ["Kernels, and the operators of the reference that each one absorbs:", ""]
    lines += [f"    {t}" for t in request.table]
    if request.proof:
        lines += ["", *textwrap.wrap(request.proof, 110)]
    lines += ['"""']
    return "\n".join(lines)


def _imports() -> str:
    wanted = ["import torch", "import torch.nn as nn", "from torch.autograd.function import once_differentiable",
              "from torch.utils.cpp_extension import load_inline"]  # fmt: skip
    library = [f"import {name}" for name in ("functools", "hashlib", "inspect", "math", "operator")]
    return "\n".join([*library, "", *wanted])


def _cuda(parts: dict[str, list[Functor]], runs: Sequence[Pass]) -> str:
    out = []
    for part, functors in parts.items():
        mine = [run for run in runs if run.part == part]
        templates = set().union(*(f.templates for f in functors), *(run.templates for run in mine))
        functions = set().union(*(f.functions for f in functors))
        structs = set().union(*(f.structs for f in functors))
        columns = set().union(*(f.columns for f in functors))
        tf32 = set().union(*(f.tf32 for f in functors))
        across = set().union(*(f.across for f in functors))
        kept = set().union(*(f.kept for f in functors))
        text = "\n\n".join([
            "#include <stdexcept>\n#include <string>\n#include <cstring>",
            f"{LIBRARY_BEGIN}\n\n{library(templates, functions, structs)}\n\n{LIBRARY_END}",
            *([wgmma.instructions(columns, tf32, across, kept)] if columns or tf32 or across else []),
            "using namespace crucible;",
            'inline void check(cudaError_t error, const char* kernel) {\n'
            "  if (error == cudaSuccess) return;\n"
            "  cudaGetLastError();  // whoever launches next is not to find it\n"
            '  throw std::runtime_error(std::string(kernel) + ": " + cudaGetErrorString(error));\n}',
            *(f.text for f in functors),
            *(text for run in mine for text in run.cuda()),
        ])  # fmt: skip
        out.append(f'_{part.upper()}_SOURCE = r"""\n{text}\n"""')
    return "\n\n".join(out)


def _binding(functors: Sequence[Functor], runs: Sequence[Pass]) -> str:
    """What Python can call: a function of integers for each pass, so that no header of torch's is needed."""
    functions = {name: types for run in runs for name, types in run.signatures().items()}
    lines = ["#include <cstdint>", "#include <pybind11/pybind11.h>", ""]
    lines += [f"void run_{name}({', '.join(p.split()[0] for p in types)});" for name, types in functions.items()]
    lines += [f"int64_t {a}_{f.name}({', '.join(['int64_t'] * len(f.sizes))});" for f in functors for a in f.asks]
    lines += ["", "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {"]
    lines += [f'  m.def("{name}", &run_{name});' for name in functions]
    lines += [f'  m.def("{a}_{f.name}", &{a}_{f.name});' for f in functors for a in f.asks] + ["}"]
    return "\n".join(lines)


def _builder(request: Request, parts: dict[str, list[Functor]], runs: Sequence[Pass]) -> str:
    scalars = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3}
    listed = ", ".join(f"torch.{d}: {scalars[d]}" for d in request.dtypes)
    bindings = []
    for part, functors in parts.items():
        text = _binding(functors, [run for run in runs if run.part == part])
        bindings.append(f'_{part.upper()}_BINDING = r"""\n{text}\n"""')
    table = ", ".join(f'"{p}": (_{p.upper()}_BINDING, _{p.upper()}_SOURCE)' for p in parts)
    texts = [f.text for fs in parts.values() for f in fs] + [text for run in runs for text in run.cuda()]
    digest = hashlib.sha256("".join(texts).encode()).hexdigest()[:12]
    switches = {
        "torch": ("torch.backends.cudnn.allow_tf32", 'torch.get_float32_matmul_precision() != "highest"'),
        "fp32": ("False", "False"),
        "tf32": ("True", "True"),
    }[request.precision]
    rules = sorted({s.contract.rule for run in runs for s in run.stages if isinstance(s, Contraction)})
    own = any(f.columns or f.tf32 or f.across for part in parts.values() for f in part)
    tiles = [s.tile for run in runs for s in run.stages if isinstance(s, Contraction)]
    boxed = any(isinstance(tile, WindowTile) and tile.pair is not None and tile.pair.narrower for tile in tiles)
    conv = switches[0]
    besides = {k: v.replace("{conv}", conv) if boxed else "" for k, v in NARROWER.items()}
    body = BUILDER.format(
        **besides,
        scalars="{" + listed + "}", name=f"crucible_{digest}", conv=conv, matmul=switches[1],
        switches="".join(f"_{rule}_switch(), " for rule in rules) if request.precision == "torch" else "",
        simt="True or " if request.engine == "simt" else "",
        hopper=request.hopper and request.engine != "simt" and own,
    )  # fmt: skip
    return "\n\n".join([*bindings, f"_SOURCES = {{{table}}}"]) + "\n" + body + "\n\n" + settings.source() + EXPECT


def _functions(mode: Mode) -> str:
    """forward and backward of a mode, and the autograd function that joins them."""
    out = [_backward_function(r) if r.part == "backward" else _forward_function(r) for r in passes_of(mode)]
    if not mode.joint.wanted:
        return "\n\n\n".join(out)
    count = 0 if in_place(mode) else len(mode.plan.program.updates)
    numbers = [i for i, o in enumerate(mode.plan.program.outputs) if isinstance(o, Buffer)]
    made = {i: f"made[{count + k}]" for k, i in enumerate(numbers)}
    aside = [f"made[{k}]" for k in range(count)]
    aside += [text for i, text in made.items() if i not in mode.joint.tangible]
    lines = [
        f"class _{mode.name.title()}(torch.autograd.Function):",
        "    @staticmethod",
        "    def forward(ctx, *tensors):",
        f"        made, saved, ctx.sizes = _{mode.name}_forward(tensors)",
        "        ctx.save_for_backward(*saved)",
    ]
    lines += _aside(mode, aside, made)
    tangible = [f"gradients[{count + _position(mode, i)}]" for i in mode.joint.tangible]
    lines += [
        "        return tuple(made)",
        "",
        "    @staticmethod",
        "    @once_differentiable",
        "    def backward(ctx, *gradients):",
        f"        return _{mode.name}_backward("
        f"ctx.needs_input_grad, ctx.sizes, ctx.saved_tensors, {', '.join(tangible)})",
    ]
    out.append("\n".join(lines))
    return "\n\n\n".join(out)


def _aside(mode: Mode, aside: list[str], made: dict[int, str]) -> list[str]:
    """Say which results have no gradients: some never, some where all that they come from is frozen."""
    joint, place = mode.joint, _places(mode)
    parts = [(made[i], reach) for i, reach in zip(joint.tangible, joint.reach) if i in made]
    everything = {k for _, reach in parts for k in reach}
    some = [(text, reach) for text, reach in parts if set(reach) != everything]  # of all inputs, one is not frozen
    if not some:
        return [f"        ctx.mark_non_differentiable({', '.join(aside)})"] * bool(aside)
    lines = [f"        aside = [{', '.join(aside)}]"]
    for text, reach in some:
        lines.append(f"        if not any(ctx.needs_input_grad[k] for k in {tuple(place[k] for k in reach)}):")
        lines.append(f"            aside.append({text})")
    return [*lines, "        ctx.mark_non_differentiable(*aside)"]


def _position(mode: Mode, output: int) -> int:
    """The place of an output among those that are tensors."""
    return sum(1 for o in mode.plan.program.outputs[:output] if isinstance(o, Buffer))


def in_place(mode: Mode) -> bool:
    """Whether kernels bring the module's buffers up to date themselves.

    They must be among the arguments, of the same size and type, and nothing may need what they held before.
    """
    old = dict(zip(mode.graph.updates, targets(mode.graph, mode.arguments)))
    for m in (mode, *([mode.inference] if mode.inference is not None else [])):
        arguments = {b.name: b for b in m.arguments}
        if not Pass(m, "", "forward", m.plan.forward_stages, (), ()).straight:
            return False
        for path, b in zip(mode.graph.updates, m.plan.program.updates):
            target = arguments.get(old[path])
            if target is None or not isinstance(b, Buffer) or b.role != "made" or target.name in m.plan.saved:
                return False
            if (b.dtype, b.shape) != (target.dtype, target.shape) or b.numel.constant is None:
                return False
    return len(old) == len(mode.graph.updates) > 0


def targets(graph: Graph, arguments: Sequence[Buffer]) -> list[str]:
    """The arguments that are the buffers to be updated; empty names for those that are not among them."""
    placeholders = [n for n in graph.placeholders if _is_tensor(n)]
    names = {graph.sources[n.name].name: b.name for n, b in zip(placeholders, arguments)
             if graph.sources[n.name].kind == "buffer"}  # fmt: skip
    return [names.get(path, "") for path in graph.updates]


def _results(mode: Mode, updates: bool) -> list[Buffer]:
    """What a forward pass returns."""
    program = mode.plan.program
    return [b for b in [*([] if updates else program.updates), *program.outputs] if isinstance(b, Buffer)]


def _forward_pass(mode: Mode, what: str, updates: bool | None = None) -> Pass:
    updates = in_place(mode) if updates is None else updates
    kept = [b.name for b in _results(mode, updates)] + list(mode.plan.saved)
    pairs = list(zip(targets(mode.graph, mode.arguments), mode.plan.program.updates)) if updates else []
    return Pass(mode, f"{mode.name}_{what}", "forward", mode.plan.forward_stages, [b.name for b in mode.arguments],
                kept, updates=pairs)  # fmt: skip


def _listed(names: Sequence[str]) -> str:
    """Names as a tuple."""
    return f"{', '.join(names)}," if len(names) == 1 else ", ".join(names)


def _forward_function(run: Pass) -> str:
    """The plan of a forward pass, and its call."""
    mode = run.mode
    names = list(run.given)
    sizes = f"({_listed(sizes_of(mode))})" if mode.joint.wanted or run.calls else ""
    given = ", ".join(f"{n}={n}" for n in names)
    head = [f"dtype, device = _checked({given})", *bind_sizes(mode, mode.arguments)]
    for target, b in run.updates:
        if b.dtype not in ("scalar", "accum"):
            expected = DTYPES[b.dtype]
            head.append(f"if {target}.dtype != {expected}:")
            head.append(f'    raise RuntimeError(f"ModelNew: expected {target} of {expected}, got {{{target}.dtype}}")')
    body = [
        f"({', '.join(run.planned(sizes=bool(sizes)))}), dense = _planned(_{run.name}_plan, tensors)",
        *run.elsewhere(f"_{run.name}(tensors)"),
    ]
    held = {*mode.plan.saved, *(b.name for b in _results(mode, bool(run.updates)))} & set(names)
    if not run.straight or held:
        body.append(f"{_listed(names)} = dense")
    if run.calls and sizes != "()":
        body.append(f"{_listed(sizes_of(mode))} = sizes")
    body += run.body()
    if run.updates:
        body.append("if dense is not tensors:")
        body += [f"    tensors[{k}].copy_(dense[{k}])" for k in (names.index(target) for target, _ in run.updates)]
    made = ", ".join(b.name for b in _results(mode, bool(run.updates)))
    saved = f", [{', '.join(mode.plan.saved)}], sizes" if mode.joint.wanted else ""
    body.append(f"return [{made}]{saved}")
    call = "\n".join([f"def _{run.name}(tensors):", *(f"    {line}" for line in body)])
    return f"{run.plan(', '.join(names), head, sizes=sizes)}\n\n\n{call}"


def _places(mode: Mode) -> dict[int, int]:
    """The place among the arguments of each input that has a gradient."""
    tensor_places = [i for i, n in enumerate(mode.graph.placeholders) if _is_tensor(n)]
    return {p: tensor_places.index(p) for p in mode.joint.wanted}


def _backward_pass(mode: Mode) -> Pass:
    plan = mode.plan
    gradients, positions, place = plan.program.gradients, mode.joint.wanted, _places(mode)
    useful = needed_for(mode)
    everything = {k for k, b in enumerate(gradients) if b is not None}
    guards = {}
    for stage in plan.backward_stages:
        wanted = useful[stage.name]
        if wanted != everything:
            tests = sorted({place[positions[k]] for k in wanted})
            guards[stage.name] = " or ".join(f"needs[{t}]" for t in tests) or "False"
    live = list(dict.fromkeys(b.name for b in gradients if b is not None))
    given = [*plan.saved, *(b.name for b in mode.tangents)]
    return Pass(mode, f"{mode.name}_backward", "backward", plan.backward_stages, given, live, guards)


def _backward_function(run: Pass) -> str:
    """The plan of a backward pass, and its call."""
    mode, plan = run.mode, run.mode.plan
    tangents = [b.name for b in mode.tangents]
    sizes = sizes_of(mode)
    parameters = f"needs, sizes, {', '.join(tangents)}"
    head = [f"{_listed(sizes)} = sizes"] if sizes else []
    head.append(f"dtype, device = {tangents[0]}.dtype, {tangents[0]}.device")
    given = f"needs, sizes, saved, {', '.join(tangents)}"
    body = [
        f"tensors = {_listed(tangents)}",
        f"({', '.join(run.planned())}), ({_listed(tangents)}) = _planned(_{run.name}_plan, tensors, needs, sizes)",
        *run.elsewhere(f"_{run.name}({given})"),
    ]
    if plan.saved:
        body.append(f"{_listed(plan.saved)} = saved")
    if run.calls and sizes:
        body.append(f"{_listed(sizes)} = sizes")
    body += run.body()
    # Two inputs may share one gradient.
    place, positions = _places(mode), mode.joint.wanted
    by_place = {place[positions[k]]: b.name for k, b in enumerate(plan.program.gradients) if b is not None}
    count = sum(1 for n in mode.graph.placeholders if _is_tensor(n))
    body.append(f"return {_listed([by_place.get(i, 'None') for i in range(count)])}")
    call = "\n".join([f"def _{run.name}({given}):", *(f"    {line}" for line in body)])
    return f"{run.plan(parameters, head)}\n\n\n{call}"


def _is_tensor(node: Any) -> bool:
    import torch

    return torch.is_tensor(node.meta.get("val"))


# -- the module


def _module(request: Request) -> str:
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
    lines = [f"_expect(self, {request.settings!r})"] if request.settings else []
    for name, value in request.fixed:
        lines.append(f"if {name} != {value!r}:")
        lines.append(f'    raise ValueError(f"ModelNew: made for {name}={value!r}, got {{{name}}}")')
    gathered = [_gathered(request, mode) for mode in request.modes]
    if len(request.modes) == 1:
        return lines + gathered[0] + _mode_body(request.modes[0])
    if gathered[0] == gathered[1]:
        lines += gathered[0]
        gathered = [[], []]
    training, evaluation = (g + _mode_body(mode) for g, mode in zip(gathered, request.modes))
    return [*lines, "if self.training:", *(f"    {line}" for line in training), *evaluation]


def _any_tensor(request: Request, mode: Mode) -> str:
    """An expression for some tensor of the call: constants go to its device."""
    for node in mode.graph.placeholders:
        source = mode.graph.sources[node.name]
        if _is_tensor(node) and source.kind != "constant":
            return request.arguments[source.position] if source.kind == "input" else f"self.{source.name}"
    raise ValueError("forward() takes no tensor and has no parameters: there is nothing to compute on a GPU")


def _constants(request: Request) -> str:
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
        if not _is_tensor(node):
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
        return [f"tensors = {_listed(plain)}"]
    uses = Counter(owner for owner, _ in stored)
    named = {o: f"_layer{k}" for k, o in enumerate(o for o, n in uses.items() if n > 1 and o not in ("", "self"))}
    quick = [f"{named.get(owner, owner)}.{entry}" if owner else entry for owner, entry in stored]
    return [
        "try:",
        *(f"    {name} = {owner}" for owner, name in named.items()),
        f"    tensors = {_listed(quick)}",
        "except (AttributeError, KeyError):  # a layer that was exchanged, or computes its weights",
        f"    tensors = {_listed(plain)}",
    ]


def _mode_body(mode: Mode) -> list[str]:
    lines = []
    run = passes_of(mode)[0]
    if mode.joint.wanted:
        loud = "torch.is_grad_enabled() and any(t.requires_grad for t in tensors)"
        inference = (
            f"_{mode.name}_inference(tensors)" if mode.inference is not None else f"_{mode.name}_forward(tensors)[0]"
        )
        lines.append(f"made = _{mode.name.title()}.apply(*tensors) if {loud} else {inference}")
    else:
        fresh = not run.calls and all(b.role == "made" for b in _results(mode, bool(run.updates)))
        given = "tensors" if fresh else "tuple(t.detach() for t in tensors)"
        lines.append(f"made = _{mode.name}_forward({given})")
    count = 0 if run.updates else len(mode.graph.updates)
    if count:
        lines.append("with torch.no_grad():")
        lines += [f"    self.{name}.copy_(made[{k}])" for k, name in enumerate(mode.graph.updates)]
    for target, _ in run.updates:  # autograd is told, as an operator of torch's would
        lines.append(f"torch.autograd.graph.increment_version(tensors[{list(run.given).index(target)}])")
    leaves = []
    k = count
    for o in mode.plan.program.outputs:
        if isinstance(o, Buffer):
            leaves.append(_Name(f"made[{k}]"))
            k += 1
        else:
            leaves.append(o)
    lines.append(f"return {_returned(pytree.tree_unflatten(leaves, mode.graph.out_spec))}")
    return lines


def _returned(tree: Any) -> str:
    """The structure of the outputs as Python; torch's own named tuples are made from a tuple."""
    if type(tree).__module__ == "torch.return_types":
        return f"torch.return_types.{type(tree).__name__}(({', '.join(map(_returned, tree))},))"
    if type(tree) in (list, tuple):
        inner = ", ".join(map(_returned, tree)) + ("," if len(tree) == 1 and type(tree) is tuple else "")
        return f"[{inner}]" if isinstance(tree, list) else f"({inner})"
    if type(tree) is dict:
        return "{" + ", ".join(f"{k!r}: {_returned(v)}" for k, v in tree.items()) + "}"
    return repr(tree)


class _Name:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def labelled(modes: Sequence[Mode]) -> None:
    """Name the launchers: stages with the same text share one, others of the same name get a number."""
    seen: dict[str, dict[str, str]] = {"forward": {}, "backward": {}}
    for mode in modes:
        for m in (mode, mode.inference):
            if m is None:
                continue
            for stage in m.plan.stages:
                if isinstance(stage, Call):
                    continue
                part = "backward" if stage in m.plan.backward_stages else "forward"
                f = m.functors[stage.name]
                text = re.sub(rf"\b(run_|packed_|pieces_)?{re.escape(f.name)}\b", "@", "\n".join(
                    line for line in f.text.splitlines() if not line.startswith("//")))  # fmt: skip
                stem = stage.name.rsplit("_", 1)[0]
                table = seen[part]
                if text not in table:
                    table[text] = f"{stem}_{sum(1 for v in table.values() if v.rsplit('_', 1)[0] == stem) + 1}"
                m.labels[stage.name] = table[text]
