"""fuse: a Model becomes the text of a ModelNew file. Capture, rewrite, trace, lower, schedule, write.

``crucible.fuse`` is both this module and a function: importing anything from here makes Python put the module where
``crucible/__init__.py`` had the function, so the module can be called too.
"""

from __future__ import annotations

import ast
import inspect
import keyword
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree

from crucible import __version__
from crucible.emit import settings
from crucible.emit.cuda import functor
from crucible.emit.file import Request, labelled, write_file
from crucible.emit.functions import targets
from crucible.emit.host import Mode
from crucible.exact import copied
from crucible.graph import early_pools
from crucible.graph.capture import Graph, Source, capture
from crucible.graph.joint import Joint, forward_of, trace
from crucible.graph.recurrent import shown
from crucible.graph.rewrites import run_all
from crucible.plan.held import pair_up
from crucible.plan.lower import Unsupported, lower
from crucible.plan.lowering import RESERVED, SIZE, name_of
from crucible.plan.program import Buffer
from crucible.plan.same_place import same_place
from crucible.plan.schedule import Plan, schedule
from crucible.plan.stages import Call, Stage, read
from crucible.plan.ways import Choices
from crucible.problem import Problem, ProblemError, error_line, load_problem

if TYPE_CHECKING:
    from crucible.tune.result import Tuning

Progress = Callable[[str], None]
# Layers of torch's that compute something else when they are not training.
WITH_MODES = (
    torch.nn.modules.batchnorm._NormBase, torch.nn.modules.dropout._DropoutNd, torch.nn.RReLU,
    torch.nn.MultiheadAttention, torch.nn.RNNBase, torch.nn.TransformerEncoderLayer, torch.nn.TransformerDecoderLayer,
    torch.nn.TransformerEncoder,
)  # fmt: skip
ENGINES = ("auto", "mma", "simt")
PRECISIONS = ("torch", "fp32", "tf32")
DTYPES = ("float32", "float16", "bfloat16", "float64")
# What kernels compute as products, as torch.export has it.
PRODUCTS = {
    getattr(torch.ops.aten, name)
    for name in "linear matmul mm bmm addmm baddbmm convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d "
    "conv_transpose3d scaled_dot_product_attention".split()
}


class FuseError(Exception):
    """The Model cannot be fused as asked; the message says why and what to do."""


@dataclass(frozen=True)
class FuseOptions:
    """What can be asked of the planner; each is checked here, once."""

    engine: str = "auto"  # "mma" where the chip has it, "simt" everywhere; auto is mma, which falls back by itself
    precision: str = "torch"  # "torch" follows its TF32 switches at run time
    dtypes: tuple[str, ...] = DTYPES  # element types that the file takes
    forward_only: bool = False
    strict: bool = False
    # For ``fuse_file``, which measures alternatives on a GPU: None is yes where there is one. Planning takes no notice.
    tune: bool | None = None
    tune_budget: float = 120.0  # seconds
    choices: Choices = Choices()  # of tiles, in place of the cost model's

    def __post_init__(self) -> None:
        for word, value, known in (("engine", self.engine, ENGINES), ("precision", self.precision, PRECISIONS)):
            if value not in known:
                raise FuseError(f"no {word} {value!r}; choose one of {', '.join(known)}")
        if not self.dtypes or set(self.dtypes) - set(DTYPES):
            wrong = ", ".join(sorted(set(self.dtypes) - set(DTYPES))) or "none"
            raise FuseError(f"element types {wrong}: choose among {', '.join(DTYPES)}")
        if not 0 < self.tune_budget < float("inf"):
            raise FuseError(f"a budget of {self.tune_budget:g} seconds for tuning: it must be positive and finite")

    @property
    def chosen_engine(self) -> str:
        return "mma" if self.engine == "auto" else self.engine


@dataclass
class Fused:
    """What came out: the text of the file, and the plans behind it."""

    text: str
    modes: list[Mode]
    rewrites: list[str] = field(default_factory=list)
    name: str = ""  # of the Model's file
    element: str = "float32"  # the Model's own type, or the first of those asked for: figures are for this one
    options: FuseOptions = field(default_factory=FuseOptions)
    request: Request | None = None
    tuning: Tuning | None = None  # what was measured on the way to it

    @property
    def mixed(self) -> bool:
        """Whether there are tensors of other floating types beside the element type: the file takes no others."""
        return bool(self.modes[0].plan.program.own)

    @property
    def unfused(self) -> list[tuple[str, str]]:
        """Operators that stayed torch's, each with the reason."""
        seen: dict[str, str] = {}
        for mode in self.modes:
            for stage in mode.plan.stages:
                if isinstance(stage, Call):
                    node = stage.extern.node
                    seen.setdefault(f"{node.name} ({shown(node.target)})", stage.extern.reason)
        return list(seen.items())

    def with_proof(self, sentence: str) -> Fused:
        """The same, with a header that says what was proven."""
        assert self.request is not None
        request = replace(self.request, proof=sentence)
        return replace(self, request=request, text=write_file(request))


def fuse_source(
    source: str, name: str, model: torch.nn.Module, inputs: Sequence[Any], options: FuseOptions | None = None,
    progress: Progress = lambda _: None, *, digest: str | None = None,
) -> Fused:  # fmt: skip
    """The ModelNew text for a module whose class is ``Model`` in ``source``. Inputs may live on the meta device.

    ``digest`` is what the text checks the module's configuration against; an empty one leaves that to the caller.
    """
    options = options or FuseOptions()
    if [n.name for n in ast.parse(source).body if isinstance(n, ast.ClassDef)].count("Model") != 1:
        raise FuseError(f"{name} makes Model in another way than by one `class Model`, from which ModelNew is written")
    progress("capturing")
    try:
        modes, rewrites, layers = _modes(model, inputs, options, progress)
    except Unsupported as error:  # where no operator can be left to torch either, such as an argument's type
        raise FuseError(f"{name} cannot be fused: {error}") from error
    dtypes = _dtypes(modes, name, options)
    labelled(modes)
    parameters = list(inspect.signature(model.forward).parameters.values())
    arguments, fixed = _arguments(parameters, inputs)
    progress("writing")
    digest = settings.digest(model) if digest is None else digest
    request = Request(
        source, name, modes, arguments, fixed, digest, _signature(parameters), options.chosen_engine, options.precision,
        hopper=options.engine == "auto", version=__version__, table=_table(modes), dtypes=dtypes,
        layers=layers,
    )  # fmt: skip
    captured = name_of(_element([m.graph for m in modes]))
    element = captured if captured in dtypes else dtypes[0]
    fused = Fused(write_file(request), modes, rewrites, name, element, options, request)
    if options.strict and fused.unfused:
        listed = "\n".join(f"    {n}: {why}" for n, why in fused.unfused)
        raise FuseError(f"{name}: these operators stay torch's, and --strict allows none:\n{listed}")
    return fused


def fuse_problem(path: str | Path, options: FuseOptions | None = None, progress: Progress = lambda _: None) -> Fused:
    """The ModelNew text for a Problem file."""
    path = Path(path)
    progress("loading")
    problem = load_problem(path)
    inputs = without_memory(problem.arguments(problem.declared))
    return fuse_source(path.read_text(), path.name, _built(problem), inputs, options, progress)


def without_memory(inputs: Sequence[Any]) -> Any:
    """The same inputs with tensors that have a shape and no memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        return pytree.tree_map_only(torch.Tensor, lambda t: torch.empty(t.shape, dtype=t.dtype), inputs)


def _built(problem: Problem) -> torch.nn.Module:
    try:
        return problem.build(0)
    except ProblemError:
        raise
    except Exception as error:  # noqa: BLE001  a Model may raise anything
        where = error_line(error, problem.path.resolve())
        what = f"{type(error).__name__}: {error}{where}"
        raise ProblemError(f"Model of {problem.path.name} cannot be made: {what}") from error


def _modes(
    model: torch.nn.Module, inputs: Sequence[Any], options: FuseOptions, progress: Progress
) -> tuple[list[Mode], list[str], dict[str, tuple[bool, bool]]]:
    """One mode, or two where the module computes something else when it is not training; and its layers' own modes."""
    rewrites: list[str] = []
    layers: dict[str, tuple[bool, bool]] = {}
    training = model.training
    graphs = [capture(model, inputs)]
    names = ["training" if training else "evaluation"]
    if _has_modes(model):
        other = copied(model).train(not training)
        layers = _layers(other, model) if training else _layers(model, other)
        second = capture(other, inputs)
        if _text(second) != _text(graphs[0]):
            graphs.append(second)
            names.append("evaluation" if training else "training")
        if not training and len(graphs) == 2:
            graphs.reverse()
            names.reverse()
    if len(graphs) == 1:
        names = ["model"]
        layers = {name: modes for name, modes in layers.items() if modes[0] == modes[1]}  # of others it is all the same
    functions = list(dict.fromkeys(f for graph in graphs for f in graph.functions))
    if functions and not options.forward_only:
        raise FuseError(
            f"gradients go through Python code, which would be lost: {', '.join(functions)}. Fuse it for inference "
            "with --forward-only, or say the gradient with operators: for one that passes straight through f, "
            "x + (f(x) - x).detach()"
        )
    modes, element = [], _element(graphs)
    for graph, name in zip(graphs, names):
        label = f" ({name})" if len(graphs) > 1 else ""
        progress(f"rewriting{label}")
        rewrites += [f"{sentence}{label}" for sentence in run_all(graph.module)]
        progress(f"planning{label}")
        mode, moved = _mode(graph, name, options, element)
        modes.append(mode)
        rewrites += [f"{sentence}{label}" for sentence in moved]
        _reachable(graph, model)
    return modes, rewrites, layers


def _reachable(graph: Graph, model: torch.nn.Module) -> None:
    """Names of parameters and buffers as Python that reaches them from ``self``: ``layers.0.bias`` is no attribute."""
    for key, source in graph.sources.items():
        if source.kind != "input":
            graph.sources[key] = replace(source, name=_path(model, source.name), stored=_stored(source))
    graph.updates = [_path(model, name) for name in graph.updates]


def _stored(source: Source) -> str:
    """The way to a parameter or buffer through the tables that modules keep."""
    table = {"parameter": "_parameters", "buffer": "_buffers"}.get(source.kind)
    *owners, name = source.name.split(".")
    return "".join(f"_modules[{o!r}]." for o in owners) + f"{table}[{name!r}]" if table else ""


def _path(model: torch.nn.Module, name: str) -> str:
    owner: Any = model
    path = ""
    for part in name.split("."):
        if part.isidentifier() and not keyword.iskeyword(part):
            path += f".{part}"
        elif path and part.isdigit() and hasattr(type(owner), "__getitem__"):  # Sequential and the lists
            path += f"[{part}]"
        else:
            table = "_modules" if part in owner._modules else "_parameters" if part in owner._parameters else "_buffers"
            path += f".{table}[{part!r}]"
        owner = getattr(owner, part, None)
    return path.removeprefix(".")


def _has_modes(model: torch.nn.Module) -> bool:
    """Whether train() and eval() can differ: a layer of torch's that has modes, or code that asks for one."""
    return any(_asks_for_mode(kind) for kind in {type(m) for m in model.modules()})


def _layers(evaluation: torch.nn.Module, training: torch.nn.Module) -> dict[str, tuple[bool, bool]]:
    """Whether layers that have modes are in training mode, in either mode of the whole."""
    trained = dict(training.named_modules())
    return {
        name: (layer.training, trained[name].training)
        for name, layer in evaluation.named_modules()
        if name and _asks_for_mode(type(layer))
    }


def _asks_for_mode(kind: type) -> bool:
    if issubclass(kind, WITH_MODES):
        return True
    # A forward() that is inherited asks in the text of the class that has it.
    return any(_asks(base) for base in kind.__mro__ if base is not object)


def _asks(kind: type) -> bool:
    if kind.__module__.startswith("torch.nn.") and not kind.__module__.startswith("torch.nn.utils"):
        return False
    try:
        return "training" in inspect.getsource(kind)
    except (OSError, TypeError):
        return True


def _text(graph: Graph) -> str:
    return str(graph.module.graph) + str(graph.updates)


def _mode(graph: Graph, name: str, options: FuseOptions, element: torch.dtype) -> tuple[Mode, list[str]]:
    """The plans of a graph, and what was rewritten where gradients do not matter."""
    joint = trace(graph, backward=not options.forward_only)
    inference = forward_of(joint) if joint.wanted else joint
    moved = early_pools.apply(inference) if options.chosen_engine == "mma" else []
    mode = _planned(graph, name, options, joint, element)
    if inference is not joint:
        mode.inference = _planned(graph, name, options, inference, element)
    return mode, moved


def _planned(graph: Graph, name: str, options: FuseOptions, joint: Joint, element: torch.dtype) -> Mode:
    roles = [(_identifier(graph, n.name), graph.sources[n.name].kind) for n in graph.placeholders]
    roles += [(f"d_output{i}" if len(joint.tangible) > 1 else "d_output", "tangent") for i in joint.tangible]
    pools = options.chosen_engine == "mma" and not joint.wanted  # else all elements are needed again
    program = lower(joint, _unique(roles), element, pools=pools)
    plan = schedule(program, options.chosen_engine, options.choices)
    arguments = [b for b in program.buffers.values() if b.role in ("parameter", "buffer", "input", "constant")]
    old = {b.name: b for b in arguments}
    pairs = [(old.get(name), new) for name, new in zip(targets(graph, arguments), program.updates)]
    returned = {b.name for b in (*program.outputs, *program.gradients) if isinstance(b, Buffer)}
    same = same_place(plan, [(o, new) for o, new in pairs if o is not None and isinstance(new, Buffer)], returned)
    outside = [*program.outputs, *program.updates, *program.gradients]
    pair_up(plan.forward_stages, {b.name for b in outside if isinstance(b, Buffer)} | set(plan.saved))
    functors = {}
    for number, s in enumerate(plan.stages):
        if not isinstance(s, Call):
            later = frozenset(name for other in plan.stages[number + 1 :] for name in read(other))
            functors[s.name] = functor(s, program.buffers, _comment(s), later, same)
    return Mode(name, graph, joint, plan, functors, {}, arguments, same=same)


def _element(graphs: Sequence[Graph]) -> torch.dtype:
    """The file's own floating type: what most products have, or most arguments where there are none."""
    nodes = [n for graph in graphs for n in graph.module.graph.nodes]
    products = [n for n in nodes if getattr(n.target, "overloadpacket", None) in PRODUCTS]
    for group in (products, [n for n in nodes if n.op == "placeholder"]):
        values = [n.meta.get("val") for n in group]
        types = Counter(v.dtype for v in values if isinstance(v, torch.Tensor) and name_of(v.dtype) in DTYPES)
        if types:
            return types.most_common(1)[0][0]
    return torch.float32


def _dtypes(modes: Sequence[Mode], name: str, options: FuseOptions) -> tuple[str, ...]:
    """The types that the file takes: where the Model has several beside each other, the one that it has itself."""
    programs = [m.plan.program for mode in modes for m in (mode, mode.inference) if m is not None]
    own = next((p.own for p in programs if p.own), "")
    if not own:
        return options.dtypes
    for p in programs:
        p.own = own
    if own not in options.dtypes:
        raise FuseError(f"{name} has tensors of several floating types; it can be fused as it is, for {own}, alone")
    return (own,)


def _identifier(graph: Graph, placeholder: str) -> str:
    source = graph.sources[placeholder]
    return source.name.replace(".", "_") if source.kind != "input" else placeholder


def _unique(roles: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Names of variables, each another, and none that the text around them uses."""
    taken: set[str] = set()
    out = []
    for name, role in roles:
        if not name.isidentifier() or name.startswith("_"):
            name = f"v_{name.lstrip('_')}"
        while name in taken or name in RESERVED or SIZE.fullmatch(name) or keyword.iskeyword(name):
            name = f"{name}_"
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
    parameters: Sequence[inspect.Parameter], inputs: Sequence[Any]
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
    for path, value in leaves:
        expression = names[path[0].idx] + pytree.keystr(path[1:])  # type: ignore[attr-defined]
        expressions.append(expression)
        if not isinstance(value, torch.Tensor):
            fixed.append((expression, value))
    for p in parameters[len(inputs) :]:
        if p.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
            fixed.append((p.name, p.default))
    return expressions, fixed


def _signature(parameters: Sequence[inspect.Parameter]) -> str:
    """forward()'s parameters as text, without types, which other files may define."""
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return str(inspect.Signature([me, *plain])).removeprefix("(").removesuffix(")")


class _Callable(ModuleType):
    def __call__(self, module: Any, example_inputs: Any, **options: Any) -> Any:
        """See ``crucible.fuse_module.fuse_module``."""
        from crucible.fuse_module import fuse_module

        return fuse_module(module, example_inputs, **options)


sys.modules[__name__].__class__ = _Callable

__all__ = ["FuseError", "FuseOptions", "Fused", "Plan", "fuse_problem", "fuse_source"]
