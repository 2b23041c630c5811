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
from crucible.emit.functor import Functor
from crucible.emit.host import DTYPES, Mode, bind_sizes, needed_for, sizes_of
from crucible.emit.library import library
from crucible.emit.passes import Pass
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
                                     f.asks))  # fmt: skip
    parts = {part: functors for part, functors in parts.items() if functors}
    sections = [_header(request), _imports(), _cuda(parts, runs), _builder(request, parts, runs)]
    for mode in request.modes:
        sections.append(_functions(mode))
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
        text = "\n\n".join([
            "#include <stdexcept>\n#include <string>\n#include <cstring>",
            f"{LIBRARY_BEGIN}\n\n{library(templates, functions, structs)}\n\n{LIBRARY_END}",
            *([wgmma.instructions(columns, tf32, across)] if columns or tf32 or across else []),
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


# What the builder has besides in a file where some boxes on Hopper may be narrower than the first.
_NARROWER = {
    "box": '''def _box(dtype, device, blocks, *ways):
    """Which boxes Hopper's own instructions take, by cycles of a tile and tiles; other engines have but the first."""
    if not _hopper(device) or _grade(dtype, device, {conv}) not in (1, 3):
        return 0
    if _SIMULATED:  # sizes are small there, and each of a few calls is to meet other boxes
        return hash((len(_PLANS), *ways)) % len(ways)
    cycles = [each * -(-tiles // blocks) for each, tiles in ways]
    best = min(cycles)
    return 0 if cycles[0] < 1.05 * best else cycles.index(best)  # what is hardly faster is not compiled


''',
    "boxes": ", *boxes",
    "said": """

    Boxes: which each convolution takes that has several. Without need none but the first are compiled.
    """,
    "given": ", bool(boxes and (any(boxes) or _SIMULATED))",
    "narrower": ", narrower",
    "chosen": ", int(narrower)",
    "flag": ', f"-DCRUCIBLE_NARROWER={narrower}"',
    "also": "{narrower}",
}

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


{box}def _kernels(part, dtype, device, elements{boxes}):
    """The compiled kernels for an element type, an index width and the precision that torch's switches allow.{said}"""
    conv, matmul = {conv}, {matmul}
    return _chosen(part, dtype, device, elements > 2**31 - 1, conv, matmul{given})


@_kept
def _chosen(part, dtype, device, wide, conv, matmul{narrower}):
    grades = _grade(dtype, device, conv), _grade(dtype, device, matmul)
    return _compiled(part, dtype, int(wide), *grades, _hopper(device){chosen})


@_kept
def _compiled(part, dtype, wide, conv, matmul, hopper{narrower}):
    flags = [f"-DCRUCIBLE_SCALAR={{_SCALARS[dtype]}}", f"-DCRUCIBLE_WIDE={{wide}}", f"-DCRUCIBLE_CONV={{conv}}",
             f"-DCRUCIBLE_MATMUL={{matmul}}", f"-DCRUCIBLE_HOPPER={{hopper}}"{flag}]
    if hopper:
        flags.append("-gencode=arch=compute_90a,code=sm_90a")
    binding, source = _SOURCES[part]
    bare = "no_implicit_headers" in inspect.signature(load_inline).parameters  # torch's headers cost half a minute
    options = {{"no_implicit_headers": True}} if bare else {{}}
    return load_inline(
        name=f"{name}_{{part}}_{{_SCALARS[dtype]}}{{wide}}{{conv}}{{matmul}}{{hopper}}{also}",
        cpp_sources=binding, cuda_sources=source,
        extra_cflags=["-O1"], extra_cuda_cflags=["-O3", "-std=c++17", *flags], **options,
    )


_SIMULATED = getattr(torch.cuda, "crucible_simulated", False)
# What torch.cuda asks the driver for itself, where torch was built for CUDA.
_current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream)
try:
    if _SIMULATED:
        raise ImportError
    from torch._C._dynamo.guards import _empty_strided_cuda as _new  # in half the time
except ImportError:

    def _new(shape, stride, dtype):
        return torch.empty_strided(shape, stride, dtype=dtype, device="cuda")


def _accumulated(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


# What torch's switches for TF32 read.
_conv_switch = getattr(torch._C, "_get_cudnn_allow_tf32", lambda: torch.backends.cudnn.allow_tf32)
_matmul_switch = torch.get_float32_matmul_precision
_PLANS = {{}}  # of calls, by all that they depend on
_LAST = {{}}  # for each kind of call the last one: what it depended on, how to know its tensors, its plan
_kind = operator.attrgetter("shape", "dtype", "device")
_is_dense, _pointer = torch.Tensor.is_contiguous, torch.Tensor.data_ptr
try:  # compares a dozen tensors in a microsecond
    from torch._C._dynamo.guards import TensorGuards as _Guards
except ImportError:
    _Guards = None


def _planned(make, tensors, *others):
    """The plan of a call with such tensors, and the tensors, dense. The first call of its kind makes the plan."""
    given = ({switches}others)
    last = _LAST.get(make)
    if last is not None and last[1](*tensors) and last[0] == given:
        return last[2], tensors
    key = (make, given, *map(_kind, tensors))
    plan = _PLANS.get(key)
    if plan is None:
        plan = make(*others, *tensors)
        if len(_PLANS) >= 256:  # where sizes keep changing, old ones go
            _PLANS.clear()
        _PLANS[key] = plan
    if not all(map(_is_dense, tensors)):
        return plan, [t.contiguous() for t in tensors]
    _LAST[make] = given, _like(tensors), plan
    return plan, tensors


def _like(tensors):
    """A function that tells whether tensors have the type, device, shape and strides of these."""
    try:
        shapes = {{"dynamic_dims_sizes": [[*t.shape] for t in tensors]}}
        return _Guards(*tensors, **shapes, dynamic_dims_strides=[[*t.stride()] for t in tensors]).check
    except (TypeError, SystemError, RuntimeError):  # another torch
        return lambda *others: False


def _spec(shape, dtype):
    """What _new() takes."""
    return shape, torch.empty(shape, device="meta").stride(), dtype


def _laid_out(stages, buffers, hosts=()):
    """One piece of memory for all buffers, as _new() takes it; then for each buffer where it lies: holder, offset.

    Buffers come with their bytes and the set of stages that use them. Those that are never needed at the same time may
    share memory. Holder 0 is the piece; the others are tensors that are written after the buffer was read for the last
    time, so that what lies in them costs nothing.
    """
    sizes = [size if users & stages else 0 for size, users in buffers]
    if _SIMULATED:  # see _apart()
        return ((1,), (1,), torch.uint8), [n for size in sizes for n in (0, size)]
    holders = [(k, math.prod(s[0]) * s[2].itemsize, (u & -u).bit_length()) for k, (s, u) in enumerate(hosts, 1) if s]
    holders.append((0, math.inf, math.inf))
    placed, places = [], [(0, 0)] * len(buffers)
    for k in sorted(range(len(buffers)), key=sizes.__getitem__, reverse=True):
        users, size = buffers[k][1] & stages, -(-sizes[k] // 512) * 512
        first, last = (users & -users).bit_length(), users.bit_length()
        for holder, limit, written in holders:
            taken = [p for p in placed if p[0] == holder and p[3] <= last and first <= p[4]]
            starts = sorted([0, *(p[2] for p in taken)])
            at = next(s for s in starts if all(s + size <= p[1] or p[2] <= s for p in taken))
            if last < written and at + size <= limit:
                placed.append((holder, at, at + size, first, last))
                places[k] = holder, at
                break
    total = max((p[2] for p in placed if not p[0]), default=0)
    return ((total,), (1,), torch.uint8), [n for place in places for n in place]


def _apart(memory, counts, buffers):
    """A simulator checks bounds: there each buffer has memory of its own, given as a distance from the piece."""
    alone = [_new((size,), (1,), torch.uint8) for size in counts[1 : 2 * buffers : 2]]
    places = [n for t in alone for n in (0, t.data_ptr() - memory.data_ptr())]
    return alone, (*places, *counts[2 * buffers :])


def _address(tensor):
    return 0 if tensor is None else tensor.data_ptr()


def _splits(rows, lanes, length, times=1):
    """Into how many parts long rows are cut: enough to fill a GPU, none too short. Some are one stretch many times."""
    most = max(1, length // (16 * lanes)) * times
    return max(1, min(most, (131072 if times == 1 else 262144) // max(rows * lanes, 1), 1024))


def _shape_error(name, tensor, expected):
    return RuntimeError(f"ModelNew: expected {{name}} of shape {{expected}}, got {{tuple(tensor.shape)}}")


def _checked(**tensors):
    """The common type and device of the tensors, after a look at all of them."""
    first = next(iter(tensors.values()))
    device, cuda, dtype = first.device, first.is_cuda, None
    for name, t in tensors.items():
        if not cuda or t.device != device:
            raise _device_error(name, t.device, device)
        if t.is_floating_point():
            if dtype is None:
                dtype = t.dtype
            elif t.dtype != dtype:
                raise RuntimeError(f"ModelNew: {{name}} is {{t.dtype}}, other tensors are {{dtype}}")
    dtype = dtype or torch.float32
    if dtype not in _SCALARS:
        raise RuntimeError(f"ModelNew: {{dtype}} is not supported; use one of {{', '.join(map(str, _SCALARS))}}")
    return dtype, device


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
    besides = {k: v.replace("{conv}", conv) if boxed else "" for k, v in _NARROWER.items()}
    body = _BUILDER.format(
        **besides,
        scalars="{" + listed + "}", name=f"crucible_{digest}", conv=conv, matmul=switches[1],
        switches="".join(f"_{rule}_switch(), " for rule in rules) if request.precision == "torch" else "",
        simt="True or " if request.engine == "simt" else "",
        hopper=request.hopper and request.engine != "simt" and own,
    )  # fmt: skip
    return "\n\n".join([*bindings, f"_SOURCES = {{{table}}}"]) + "\n" + body + "\n\n" + settings.source() + _EXPECT


def _functions(mode: Mode) -> str:
    """forward and backward of a mode, and the autograd function that joins them."""
    out = [_backward_function(r) if r.part == "backward" else _forward_function(r) for r in passes_of(mode)]
    if not mode.joint.wanted:
        return "\n\n\n".join(out)
    count = 0 if in_place(mode) else len(mode.plan.program.updates)
    outputs = [o for o in mode.plan.program.outputs if isinstance(o, Buffer)]
    aside = [f"made[{k}]" for k in range(count)]
    aside += [f"made[{count + k}]" for k, o in enumerate(outputs) if o.kind != "f"]
    lines = [
        f"class _{mode.name.title()}(torch.autograd.Function):",
        "    @staticmethod",
        "    def forward(ctx, *tensors):",
        f"        made, saved, ctx.sizes = _{mode.name}_forward(tensors)",
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
