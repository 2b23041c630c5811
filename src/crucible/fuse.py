"""fuse: a Model becomes a ModelNew file. Capture, rewrite, trace, lower, schedule, write."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

from crucible import __version__
from crucible.emit import settings
from crucible.emit.cuda import functor
from crucible.emit.file import Request, labelled, write_file
from crucible.emit.host import Mode
from crucible.graph.capture import Graph, capture
from crucible.graph.joint import trace
from crucible.plan.lower import lower
from crucible.plan.schedule import Plan, schedule
from crucible.plan.stages import Call, Stage
from crucible.problem import ProblemError, load_problem

Progress = Callable[[str], None]


class FuseError(Exception):
    """The Model cannot be fused as asked; the message says why and what to do."""


@dataclass(frozen=True)
class FuseOptions:
    engine: str = "mma"  # "simt" or "mma"
    precision: str = "torch"  # "torch", "fp32" or "tf32"
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16", "float64")
    forward_only: bool = False
    strict: bool = False

    def __post_init__(self) -> None:
        if self.engine not in ("simt", "mma"):
            raise FuseError(f"no engine {self.engine!r}; choose simt or mma")
        if self.precision not in ("torch", "fp32", "tf32"):
            raise FuseError(f"no precision {self.precision!r}; choose torch, fp32 or tf32")


@dataclass
class Fused:
    """What came out: the text of the file, and the plans behind it."""

    text: str
    modes: list[Mode]
    rewrites: list[str] = field(default_factory=list)

    @property
    def unfused(self) -> list[tuple[str, str]]:
        """Operators that stayed torch's, each with the reason."""
        seen: dict[str, str] = {}
        for mode in self.modes:
            for stage in mode.plan.stages:
                if isinstance(stage, Call):
                    seen.setdefault(f"{stage.extern.node.name} ({stage.extern.node.target})", stage.extern.reason)
        return list(seen.items())


def fuse_source(
    source: str, name: str, model: torch.nn.Module, inputs: Sequence[Any], options: FuseOptions | None = None,
    progress: Progress = lambda _: None,
) -> Fused:  # fmt: skip
    """The ModelNew text for a module whose class is ``Model`` in ``source``. Inputs may live on the meta device."""
    options = options or FuseOptions()
    progress("capturing")
    modes, rewrites = _modes(model, inputs, options, progress)
    labelled(modes)
    parameters = [p for p in inspect.signature(model.forward).parameters.values()]
    arguments, fixed = _arguments(parameters, inputs, modes[0].graph)
    progress("writing")
    request = Request(
        source, name, modes, arguments, fixed, settings.digest(model), options.engine, options.precision,
        version=__version__, table=_table(modes), dtypes=options.dtypes,
    )  # fmt: skip
    fused = Fused(write_file(request), modes, rewrites)
    if options.strict and fused.unfused:
        listed = "\n".join(f"    {n}: {why}" for n, why in fused.unfused)
        raise FuseError(f"these operators stay torch's, and --strict allows none:\n{listed}")
    return fused


def fuse_problem(path: str | Path, options: FuseOptions | None = None, progress: Progress = lambda _: None) -> Fused:
    """The ModelNew text for a Problem file."""
    path = Path(path)
    problem = load_problem(path)
    module = problem.module
    with torch.device("meta"):
        inputs = module.get_inputs()
        try:
            model = module.Model(*module.get_init_inputs())
        except Exception:  # some initialisers compute with values
            model = None
    if model is None:
        model = module.Model(*module.get_init_inputs()).to("meta")
    if not isinstance(inputs, (list, tuple)):
        raise ProblemError(f"{path.name}: get_inputs() gives {type(inputs).__name__}, not a list")
    return fuse_source(path.read_text(), path.name, model, inputs, options, progress)


def _modes(
    model: torch.nn.Module, inputs: Sequence[Any], options: FuseOptions, progress: Progress
) -> tuple[list[Mode], list[str]]:
    """One mode, or two where the module computes something else when it is not training."""
    rewrites: list[str] = []
    training = model.training
    graphs = [capture(model, inputs)]
    names = ["training" if training else "evaluation"]
    if _has_modes(model):
        other = copy.deepcopy(model).train(not training)
        second = capture(other, inputs)
        if _text(second) != _text(graphs[0]):
            graphs.append(second)
            names.append("evaluation" if training else "training")
        if not training and len(graphs) == 2:
            graphs.reverse()
            names.reverse()
    if len(graphs) == 1:
        names = ["model"]
    modes = []
    for graph, name in zip(graphs, names):
        progress(f"planning ({name})" if len(graphs) > 1 else "planning")
        modes.append(_mode(graph, name, options))
    return modes, rewrites


def _has_modes(model: torch.nn.Module) -> bool:
    """Whether train() and eval() can make a difference: some module reads ``training``, or the file's own does."""
    plain = (torch.nn.Linear, torch.nn.modules.conv._ConvNd, torch.nn.GroupNorm, torch.nn.LayerNorm)
    return any(not isinstance(m, plain) for m in model.modules())


def _text(graph: Graph) -> str:
    return str(graph.module.graph) + str(graph.updates)


def _mode(graph: Graph, name: str, options: FuseOptions) -> Mode:
    from crucible.graph.rewrites import run_all

    run_all(graph.module)
    mode = _planned(graph, name, options, backward=not options.forward_only)
    if mode.joint.wanted:
        mode.inference = _planned(graph, name, options, backward=False)
    return mode


def _planned(graph: Graph, name: str, options: FuseOptions, *, backward: bool) -> Mode:
    joint = trace(graph, backward=backward)
    roles = [(_identifier(graph, n.name), graph.sources[n.name].kind) for n in graph.placeholders]
    roles += [(f"d_output{i}" if len(joint.tangible) > 1 else "d_output", "tangent") for i in joint.tangible]
    program = lower(joint, _unique(roles))
    plan = schedule(program, options.engine)
    functors = {
        s.name: functor(s, program.buffers, _comment(s)) for s in plan.stages if not isinstance(s, Call)
    }
    arguments = [b for b in program.buffers.values() if b.role in ("parameter", "buffer", "input", "constant")]
    return Mode(name, graph, joint, plan, functors, {}, arguments)


def _identifier(graph: Graph, placeholder: str) -> str:
    source = graph.sources[placeholder]
    return source.name.replace(".", "_") if source.kind != "input" else placeholder


def _unique(roles: list[tuple[str, str]]) -> list[tuple[str, str]]:
    taken = {"dtype", "device", "stream", "kernels", "parts", "splits", "made", "saved", "sizes", "needs", "torch", "nn", "self"}
    out = []
    for name, role in roles:
        while name in taken or not name.isidentifier():
            name = f"{name}_" if name.isidentifier() else f"v_{name}"
        taken.add(name)
        out.append((name, role))
    return out


def _comment(stage: Stage) -> list[str]:
    nodes = list(dict.fromkeys(stage.nodes))
    return [f"{', '.join(nodes)}"]


def _table(modes: Sequence[Mode]) -> list[str]:
    lines = []
    for mode in modes:
        if len(modes) > 1:
            lines.append(f"{mode.name}:")
        for stage in mode.plan.stages:
            part = "backward" if stage in mode.plan.backward_stages else "forward"
            label = mode.labels.get(stage.name, "torch")
            nodes = ", ".join(dict.fromkeys(stage.nodes))
            lines.append(f"{part:<8}  {label:<12}  {nodes}")
    return lines


def _arguments(
    parameters: Sequence[inspect.Parameter], inputs: Sequence[Any], graph: Graph
) -> tuple[list[str], list[tuple[str, Any]]]:
    """How each flattened input is reached from forward()'s parameters, and the parameters with a fixed value."""
    leaves, _ = pytree.tree_flatten_with_path(tuple(inputs))
    names: list[str] = []
    for p in parameters:
        if p.kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{p.name}[{k}]" for k in range(len(inputs) - len(names))]
        elif p.kind is not inspect.Parameter.VAR_KEYWORD:
            names.append(p.name)
    expressions, fixed = [], []
    for position, (path, value) in enumerate(leaves):
        expression = names[path[0].idx] + pytree.keystr(path[1:])
        expressions.append(expression)
        if not isinstance(value, torch.Tensor):
            fixed.append((expression, value))
        del position
    for p in parameters[len(inputs) :]:
        if p.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
            fixed.append((p.name, p.default))
    del graph
    return expressions, fixed


__all__ = ["FuseError", "FuseOptions", "Fused", "Plan", "fuse_problem", "fuse_source"]
