"""The whole generated file: the reference's own text with ``forward`` exchanged, and the kernels it calls."""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from crucible.emit import once, settings, wgmma
from crucible.emit.builder_text import BUILDER, NARROWER, ONE_TYPE, SEVERAL_TYPES
from crucible.emit.functions import functions_text, passes_of
from crucible.emit.functor import Functor
from crucible.emit.host import Mode
from crucible.emit.library import library
from crucible.emit.module import CHANGED, constants, module_text
from crucible.emit.passes import Pass
from crucible.graph import recurrent
from crucible.plan.boxes import WindowTile
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
    # Whether a layer that has modes is in training mode, when the module is in eval mode and when it trains.
    layers: dict[str, tuple[bool, bool]] = field(default_factory=dict)


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
    cuda = _cuda(parts, runs)
    sections = [_header(request), _imports(), cuda, _builder(request, parts, runs, cuda)]
    functions = [functions_text(mode) for mode in request.modes]
    sections += [once.source()] * any(once.NAME in text for text in functions)
    sections += [recurrent.source()] * any(recurrent.NAME in text for text in functions)
    sections += functions
    sections.append(constants(request))
    module = module_text(request)
    sections += [CHANGED] * ("_changed(" in module)
    sections.append(module)
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
    wanted = ["import torch", "import torch.nn as nn", "from torch.utils.cpp_extension import load_inline"]
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


def _builder(request: Request, parts: dict[str, list[Functor]], runs: Sequence[Pass], cuda: str) -> str:
    scalars = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3}
    listed = ", ".join(f"torch.{d}: {scalars[d]}" for d in request.dtypes)
    bindings = []
    for part, functors in parts.items():
        text = _binding(functors, [run for run in runs if run.part == part])
        bindings.append(f'_{part.upper()}_BINDING = r"""\n{text}\n"""')
    table = ", ".join(f'"{p}": (_{p.upper()}_BINDING, _{p.upper()}_SOURCE)' for p in parts)
    # Of all that is compiled: files that differ in a kernel's body alone must not be built in one folder.
    digest = hashlib.sha256("\n".join([cuda, *bindings]).encode()).hexdigest()[:12]
    switches = {
        "torch": ("_allowed(_conv_switch())", "_allowed(_matmul_switch())"),
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
        checked=SEVERAL_TYPES if request.modes[0].plan.program.own else ONE_TYPE,
    )  # fmt: skip
    sources = "\n\n".join([*bindings, f"_SOURCES = {{{table}}}"])
    return f"{sources}\n{body}\n\n{settings.source()}{_layers(request)}"


def _layers(request: Request) -> str:
    return f"\n\n# Whether they are in training mode: in eval mode, and while training.\n_LAYERS = {request.layers!r}\n"


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
