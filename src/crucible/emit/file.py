"""The whole generated file: the reference's own text with ``forward`` exchanged, and the kernels it calls."""

from __future__ import annotations

import ast
import hashlib
import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.utils._pytree as pytree

from crucible.emit import settings, wgmma
from crucible.emit.cuda import Functor
from crucible.emit.host import Mode, bind_sizes, largest, needed_for, run_stages, sizes_of
from crucible.emit.library import library
from crucible.plan.program import Buffer
from crucible.plan.stages import Call

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
    for mode in request.modes:
        for m in (mode, mode.inference):
            if m is None:
                continue
            for stage in m.plan.stages:
                if isinstance(stage, Call):
                    continue
                part = "backward" if stage in m.plan.backward_stages else "forward"
                parts.setdefault(part, [])
                f = m.functors[stage.name]
                label = m.labels[stage.name]
                if all(x.name != label for x in parts[part]):
                    renamed = re.sub(rf"\b(run_|bytes_)?{re.escape(f.name)}\b", rf"\g<1>{label}", f.text)
                    parts[part].append(Functor(label, renamed, f.pointers, f.sizes, f.extra, f"run_{label}",
                                               f.functions,
                                               f.structs, f.templates, f.columns, f.tf32, f.asks))  # fmt: skip
    sections = [_header(request), _imports(), _cuda(parts), _builder(request, parts)]
    for mode in request.modes:
        sections.append(_functions(mode))
    sections.append(_constants(request))
    sections.append(_module(request))
    return "\n\n\n".join(s.strip("\n") for s in sections if s.strip()) + "\n"


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
    library = [f"import {name}" for name in ("contextlib", "functools", "hashlib", "inspect", "itertools")]
    return "\n".join([*library, "", *wanted])


def _cuda(parts: dict[str, list[Functor]]) -> str:
    out = []
    for part, functors in parts.items():
        templates = set().union(*(f.templates for f in functors)) if functors else set()
        functions = set().union(*(f.functions for f in functors)) if functors else set()
        structs = set().union(*(f.structs for f in functors)) if functors else set()
        columns = set().union(*(f.columns for f in functors)) if functors else set()
        tf32 = set().union(*(f.tf32 for f in functors)) if functors else set()
        text = "\n\n".join([
            "#include <stdexcept>\n#include <string>\n#include <cstring>",
            f"{LIBRARY_BEGIN}\n\n{library(templates, functions, structs)}\n\n{LIBRARY_END}",
            *([wgmma.instructions(columns, tf32)] if columns or tf32 else []),
            "using namespace crucible;",
            'inline void check(cudaError_t error, const char* kernel) {\n'
            "  if (error != cudaSuccess)\n"
            '    throw std::runtime_error(std::string(kernel) + ": " + cudaGetErrorString(error));\n}',
            *(f.text for f in functors),
        ])  # fmt: skip
        out.append(f'_{part.upper()}_SOURCE = r"""\n{text}\n"""')
    return "\n\n".join(out)


def _signature(f: Functor) -> str:
    arguments = ["uint64_t"] * len(f.pointers) + ["int64_t"] * len(f.sizes)
    arguments += [{"parts": "uint64_t", "splits": "int", "packed": "uint64_t"}[e] for e in f.extra]
    text = f"void run_{f.name}({', '.join([*arguments, 'uint64_t'])});"
    return text + (f"\nint64_t bytes_{f.name}({', '.join(['int64_t'] * len(f.sizes))});" if f.asks else "")


_BUILDER = '''
_SCALARS = {scalars}
_kept = functools.lru_cache(None)  # what is asked for in every call, and computed in the first


def _grade(dtype, device, tf32):
    """How contractions are computed: 0 ordinary cores, 1 TF32, 2 as good as float32, 3 in the type itself."""
    if {simt}dtype == torch.float64 or torch.cuda.get_device_capability(device) < (8, 0):
        return 0
    if dtype != torch.float32:
        return 3
    return 1 if tf32 else 2


@_kept
def _hopper(device):
    """Whether this chip has Hopper's matrix instructions, the compiler knows them, and the file makes use of them."""
    known = int((torch.version.cuda or "0").split(".")[0]) >= 12
    return int({hopper} and known and torch.cuda.get_device_capability(device) == (9, 0))


def _boxes(dtype, device, precise, hopper, others):
    """How many boxes a convolution has: as good as float32 on Hopper, otherwise on Hopper, elsewhere."""
    if not _hopper(device):
        return others
    return precise if _grade(dtype, device, {conv}) == 2 else hopper


def _kernels(part, dtype, device, elements):
    """The compiled kernels for an element type, an index width and the precision that torch's switches allow."""
    conv, matmul = {conv}, {matmul}
    return _chosen(part, dtype, device, elements > 2**31 - 1, conv, matmul)


@_kept
def _chosen(part, dtype, device, wide, conv, matmul):
    grades = _grade(dtype, device, conv), _grade(dtype, device, matmul)
    return _compiled(part, dtype, int(wide), *grades, _hopper(device))


@_kept
def _compiled(part, dtype, wide, conv, matmul, hopper):
    flags = [f"-DCRUCIBLE_SCALAR={{_SCALARS[dtype]}}", f"-DCRUCIBLE_WIDE={{wide}}", f"-DCRUCIBLE_CONV={{conv}}",
             f"-DCRUCIBLE_MATMUL={{matmul}}", f"-DCRUCIBLE_HOPPER={{hopper}}"]
    if hopper:
        flags.append("-gencode=arch=compute_90a,code=sm_90a")
    binding, source = _SOURCES[part]
    bare = "no_implicit_headers" in inspect.signature(load_inline).parameters  # torch's headers cost half a minute
    options = {{"no_implicit_headers": True}} if bare else {{}}
    return load_inline(
        name=f"{name}_{{part}}_{{_SCALARS[dtype]}}{{wide}}{{conv}}{{matmul}}{{hopper}}",
        cpp_sources=binding, cuda_sources=source,
        extra_cflags=["-O1"], extra_cuda_cflags=["-O3", "-std=c++17", *flags], **options,
    )


def _on(device):
    """A context in which a device is the current one; most often it is already."""
    return _NOTHING if torch.cuda.current_device() == device.index else torch.cuda.device(device)


_NOTHING = contextlib.nullcontext()
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # torch has it where it was built for CUDA


def _stream(device):
    """The current stream as CUDA knows it."""
    return _raw_stream(device.index) if _raw_stream else torch.cuda.current_stream(device).cuda_stream


def _accumulated(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


def _room(device, *sizes):
    """Memory for small buffers, and where each begins. In a simulator, which checks bounds, each has its own."""
    if getattr(torch.cuda, "crucible_simulated", False):
        held = [torch.empty(n, dtype=torch.uint8, device=device) for n in sizes]
        return held, [t.data_ptr() for t in held]
    ends = list(itertools.accumulate((n + 511) // 512 * 512 for n in sizes))
    held = torch.empty(ends[-1], dtype=torch.uint8, device=device)
    start = held.data_ptr()
    return held, [start, *(start + end for end in ends[:-1])]


def _splits(rows, length, lanes):
    """Into how many parts long rows are cut: enough to fill a GPU, none too short."""
    return max(1, min(length // (16 * lanes), 131072 // max(rows * lanes, 1), 1024))


def _shape_error(name, tensor, expected):
    return RuntimeError(f"ModelNew: expected {{name}} of shape {{expected}}, got {{tuple(tensor.shape)}}")


def _checked(**tensors):
    """The tensors, contiguous, after a look at their devices and types; then the common type and device."""
    first = next(iter(tensors.values()))
    device, cuda, dtype, made = first.device, first.is_cuda, None, []
    for name, t in tensors.items():
        if not cuda or t.device != device:
            raise _device_error(name, t.device, device)
        if t.is_floating_point():
            if dtype is None:
                dtype = t.dtype
            elif t.dtype != dtype:
                raise RuntimeError(f"ModelNew: {{name}} is {{t.dtype}}, other tensors are {{dtype}}")
        made.append(t if t.is_contiguous() else t.contiguous())
    dtype = dtype or torch.float32
    if dtype not in _SCALARS:
        raise RuntimeError(f"ModelNew: {{dtype}} is not supported; use one of {{', '.join(map(str, _SCALARS))}}")
    return made, dtype, device


def _device_error(name, own, first):
    if own.type != "cuda":
        return RuntimeError(f"ModelNew: {{name}} is on {{own}}; these kernels need a CUDA device")
    return RuntimeError(f"ModelNew: {{name}} is on {{own}}, other tensors are on {{first}}")
'''


_EXPECT = '''

def _expect(module, digest):
    """Refuse a configuration that these kernels were not made for."""
    if module.__dict__.get("_crucible_settings") != digest:
        if _settings(module) != digest:
            raise RuntimeError("ModelNew: made for get_init_inputs(); run crucible fuse again for other arguments")
        module.__dict__["_crucible_settings"] = digest
'''


def _builder(request: Request, parts: dict[str, list[Functor]]) -> str:
    scalars = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3}
    listed = ", ".join(f"torch.{d}: {scalars[d]}" for d in request.dtypes)
    bindings = []
    for part, functors in parts.items():
        lines = ["#include <cstdint>", "#include <pybind11/pybind11.h>", "", *(_signature(f) for f in functors), ""]
        lines += ["PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {"]
        lines += [f'  m.def("{f.name}", &run_{f.name});' for f in functors]
        lines += [f'  m.def("{f.name}_bytes", &bytes_{f.name});' for f in functors if f.asks] + ["}"]
        text = "\n".join(lines)
        bindings.append(f'_{part.upper()}_BINDING = r"""\n{text}\n"""')
    table = ", ".join(f'"{p}": (_{p.upper()}_BINDING, _{p.upper()}_SOURCE)' for p in parts)
    digest = hashlib.sha256("".join(f.text for fs in parts.values() for f in fs).encode()).hexdigest()[:12]
    switches = {
        "torch": ("torch.backends.cudnn.allow_tf32", 'torch.get_float32_matmul_precision() != "highest"'),
        "fp32": ("False", "False"),
        "tf32": ("True", "True"),
    }[request.precision]
    own = any(f.columns or f.tf32 for part in parts.values() for f in part)
    body = _BUILDER.format(
        scalars="{" + listed + "}", name=f"crucible_{digest}", conv=switches[0], matmul=switches[1],
        simt="True or " if request.engine == "simt" else "",
        hopper=request.hopper and request.engine != "simt" and own,
    )  # fmt: skip
    return "\n\n".join([*bindings, f"_SOURCES = {{{table}}}"]) + "\n" + body + "\n\n" + settings.source() + _EXPECT


def _functions(mode: Mode) -> str:
    """forward and backward of a mode, and the autograd function that joins them."""
    names = [b.name for b in mode.arguments]
    out = [_forward_function(mode, f"_{mode.name}_forward")]
    if mode.joint.wanted:
        out.append(_backward_function(mode))
    inference = mode.inference
    if inference is not None and mode.joint.wanted:
        out.append(_forward_function(inference, f"_{mode.name}_inference"))
    if not mode.joint.wanted:
        return "\n\n\n".join(out)
    count = len(mode.plan.program.updates)
    outputs = [o for o in mode.plan.program.outputs if isinstance(o, Buffer)]
    aside = [f"made[{k}]" for k in range(count)]
    aside += [f"made[{count + k}]" for k, o in enumerate(outputs) if o.kind != "f"]
    lines = [
        f"class _{mode.name.title()}(torch.autograd.Function):",
        "    @staticmethod",
        f"    def forward(ctx, {', '.join(names)}):",
        f"        made, saved, ctx.sizes = _{mode.name}_forward({', '.join(names)})",
        "        ctx.save_for_backward(*saved)",
    ]
    if aside:
        lines.append(f"        ctx.mark_non_differentiable({', '.join(aside)})")
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


def _position(mode: Mode, output: int) -> int:
    """The place of an output among those that are tensors."""
    return sum(1 for o in mode.plan.program.outputs[:output] if isinstance(o, Buffer))


def _forward_function(mode: Mode, name: str) -> str:
    plan = mode.plan
    names = [b.name for b in mode.arguments]
    outputs = [b for b in [*plan.program.updates, *plan.program.outputs] if isinstance(b, Buffer)]
    saved = plan.saved
    sizes = sizes_of(mode)
    kept = {b.name for b in outputs} | set(saved)
    body = []
    given = ", ".join(f"{n}={n}" for n in names)
    body.append(f"({', '.join(names)}{',' if len(names) == 1 else ''}), dtype, device = _checked({given})")
    body += bind_sizes(mode, mode.arguments)
    if any(not isinstance(s, Call) for s in plan.forward_stages):
        body.append(f'kernels = _kernels("forward", dtype, device, {largest(plan)})')
    body.append("with _on(device):")
    inner = ["stream = _stream(device)"]
    inner += run_stages(mode, plan.forward_stages, kept, set(names))
    body += [f"    {line}" for line in inner]
    made = ", ".join(b.name for b in outputs)
    if mode.joint.wanted:
        body.append(f"return [{made}], [{', '.join(saved)}], ({', '.join(sizes)}{',' if len(sizes) == 1 else ''})")
    else:
        body.append(f"return [{made}]")
    return "\n".join([f"def {name}({', '.join(names)}):", *(f"    {line}" for line in body)])


def _backward_function(mode: Mode) -> str:
    plan = mode.plan
    tangents = [b.name for b in mode.tangents]
    sizes = sizes_of(mode)
    gradients = plan.program.gradients
    positions = mode.joint.wanted
    tensor_places = [i for i, n in enumerate(mode.graph.placeholders) if _is_tensor(n)]
    place = {p: tensor_places.index(p) for p in positions}
    body = []
    if sizes:
        body.append(f"{', '.join(sizes)}{',' if len(sizes) == 1 else ''} = sizes")
    if plan.saved:
        body.append(f"{', '.join(plan.saved)}{',' if len(plan.saved) == 1 else ''} = saved")
    body += [f"{t} = {t}.contiguous()" for t in tangents]
    body.append(f"dtype, device = {tangents[0]}.dtype, {tangents[0]}.device")
    if any(not isinstance(s, Call) for s in plan.backward_stages):
        body.append(f'kernels = _kernels("backward", dtype, device, {largest(plan)})')
    live = dict.fromkeys(b.name for b in gradients if b is not None)
    body.append(f"{' = '.join(live)} = None")
    body.append("with _on(device):")
    inner = ["stream = _stream(device)"]
    have = set(plan.saved) | set(tangents)
    useful = needed_for(mode)
    everything = {k for k, b in enumerate(gradients) if b is not None}
    guards = {}
    for stage in plan.backward_stages:
        wanted = useful[stage.name]
        if wanted != everything:
            tests = sorted({place[positions[k]] for k in wanted})
            guards[stage.name] = " or ".join(f"needs[{t}]" for t in tests) or "False"
    inner += run_stages(mode, plan.backward_stages, set(live), have, guards)
    body += [f"    {line}" for line in inner]
    # Two inputs may share one gradient.
    by_place = {place[positions[k]]: b.name for k, b in enumerate(gradients) if b is not None}
    returned = [by_place.get(i, "None") for i in range(len(tensor_places))]
    body.append(f"return {', '.join(returned)}{',' if len(returned) == 1 else ''}")
    head = f"def _{mode.name}_backward(needs, sizes, saved, {', '.join(tangents)}):"
    return "\n".join([head, *(f"    {line}" for line in body)])


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
    if forward is None:
        raise ValueError("Model has no forward() of its own")
    first = forward.body[0]
    document = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    assert first.end_lineno is not None and forward.end_lineno is not None
    indent = " " * (forward.col_offset + 4)
    if document:
        head = lines[: first.end_lineno]
    else:  # the body may begin on the line of the signature
        head = lines[: first.lineno - 1] + [lines[first.lineno - 1][: first.col_offset].rstrip()]
    edited = [*head, *(indent + line if line else "" for line in body), *lines[forward.end_lineno :]]
    text = "\n".join(edited)
    text = re.sub(r"\bclass Model\b", "class ModelNew", text)
    text = re.sub(r"\bsuper\(Model,", "super(ModelNew,", text)
    return _without_head(text)


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
    if len(request.modes) == 1:
        return lines + _mode_body(request, request.modes[0])
    training, evaluation = request.modes
    lines.append("if self.training:")
    lines += [f"    {line}" for line in _mode_body(request, training)]
    return lines + _mode_body(request, evaluation)


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
    return f"_CONSTANTS = {{{rows}}}" + _CONSTANT


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_literal(v) for v in value) + "]"
    return f'float("{value}")' if isinstance(value, float) and not math.isfinite(value) else repr(value)


_CONSTANT = '''


def _constant(name, like):
    """A tensor that is part of the Model's code, on the device of another; brought there once."""
    key = (name, like.device)
    if key not in _CONSTANTS:
        _CONSTANTS[key] = _CONSTANTS[name].to(like.device)
    return _CONSTANTS[key]
'''
LARGEST_CONSTANT = 4096


def _mode_body(request: Request, mode: Mode) -> list[str]:
    arguments = []
    for node in mode.graph.placeholders:
        if not _is_tensor(node):
            continue
        source = mode.graph.sources[node.name]
        if source.kind == "input":
            arguments.append(request.arguments[source.position])
        elif source.kind == "constant":
            arguments.append(f"_constant({source.name!r}, {_any_tensor(request, mode)})")
        else:
            arguments.append(f"self.{source.name}")
    call = f"tensors = [{', '.join(arguments)}]"
    lines = [call]
    if mode.joint.wanted:
        quiet = "not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))"
        inference = (
            f"_{mode.name}_inference(*tensors)" if mode.inference is not None else f"_{mode.name}_forward(*tensors)[0]"
        )
        lines.append(f"made = {inference} if {quiet} else _{mode.name.title()}.apply(*tensors)")
    else:
        lines.append(f"made = _{mode.name}_forward(*(t.detach() for t in tensors))")
    count = len(mode.graph.updates)
    if count:
        lines.append("with torch.no_grad():")
        lines += [f"    self.{name}.copy_(made[{k}])" for k, name in enumerate(mode.graph.updates)]
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
                text = re.sub(rf"\b(run_|bytes_)?{re.escape(f.name)}\b", "@", "\n".join(
                    line for line in f.text.splitlines() if not line.startswith("//")))  # fmt: skip
                stem = stage.name.rsplit("_", 1)[0]
                table = seen[part]
                if text not in table:
                    table[text] = f"{stem}_{sum(1 for v in table.values() if v.rsplit('_', 1)[0] == stem) + 1}"
                m.labels[stage.name] = table[text]
