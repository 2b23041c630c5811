"""Load a Problem (a file with Model, get_inputs, get_init_inputs) and make small versions of its inputs.

``get_inputs()`` of a real problem may ask for gigabytes. Shapes are therefore found on the meta device, and smaller
inputs are made by running the same ``get_inputs()`` with the sizes of its factory calls replaced, so that the values
keep the distribution that the author chose.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.overrides import TorchFunctionMode

from crucible.files import PROBLEM_NAMES, ProblemError, check_path

Shape = tuple[int, ...]


def import_file(path: Path, name: str) -> ModuleType:
    """Import a file under a module name of our choosing (exceptions pass through)."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        spec = importlib.util.spec_from_loader(name, importlib.machinery.SourceFileLoader(name, str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def error_line(error: BaseException, path: Path) -> str:
    """`` (line N: text)`` for the last frame of an exception that lies in ``path``, or nothing."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == path]
    if not frames:
        return ""
    return f" ({path.name}:{frames[-1].lineno}: {(frames[-1].line or '').strip()})"


@dataclass
class FreeDimension:
    """One size that the reference lets vary: the (input, dimension) pairs that must change together."""

    members: list[tuple[int, int]]
    declared: int
    small: int

    @property
    def is_batch(self) -> bool:
        return any(dim == 0 for _, dim in self.members)


@dataclass
class Problem:
    """A loaded reference: its module, its declared input shapes, and the sizes that may vary.

    An argument of forward() may be a tuple, a list or a dict with tensors in it. Inputs are what is left when all of
    these are opened: each tensor is one, wherever it lies, and is resized, moved, filled and compared like any other.
    """

    path: Path
    module: ModuleType
    init_inputs: list[Any]
    declared: list[Any]  # the inputs on the meta device; those that are not tensors as they are
    structure: Any  # what get_inputs() returns, with the number of an input in the place of each
    on_meta: bool  # False: get_inputs() cannot run on meta, the declared inputs are real tensors
    factory_calls: list[Shape] = field(default_factory=list)
    free: list[FreeDimension] = field(default_factory=list)

    @property
    def shapes(self) -> list[Shape | None]:
        return [tuple(x.shape) if isinstance(x, torch.Tensor) else None for x in self.declared]

    def arguments(self, inputs: Sequence[Any]) -> list[Any]:
        """The arguments of forward() that these inputs make up."""
        return arranged(self.structure, inputs)

    def build(self, seed: int, device: str = "cpu") -> torch.nn.Module:
        """A Model with the weights that this seed gives."""
        torch.manual_seed(seed)
        with torch.device(device):
            model = self.module.Model(*self.init_inputs)
        if not isinstance(model, torch.nn.Module):
            raise ProblemError(f"{self.path.name}: Model is not a torch.nn.Module")
        return model

    def shapes_for(self, sizes: Sequence[int]) -> list[Shape | None]:
        """The input shapes when the free dimensions take these sizes."""
        shapes: list[list[int] | None] = [list(s) if s is not None else None for s in self.shapes]
        for free, size in zip(self.free, sizes, strict=True):
            for i, dim in free.members:
                row = shapes[i]
                assert row is not None
                row[dim] = size
        return [tuple(s) if s is not None else None for s in shapes]

    @property
    def small_sizes(self) -> list[int]:
        return [f.small for f in self.free]

    @property
    def declared_sizes(self) -> list[int]:
        return [f.declared for f in self.free]

    def inputs(self, shapes: Sequence[Shape | None], seed: int) -> list[Any]:
        """Inputs of these shapes with the declared distribution, from this seed."""
        torch.manual_seed(seed)
        made = _resized_inputs(self, shapes)
        if made is not None:
            return made
        torch.manual_seed(seed)
        return _cropped_inputs(self, shapes)


def opened(arguments: Sequence[Any]) -> tuple[list[Any], Any]:
    """The inputs in the arguments of a call, and the same arguments with the number of an input in its place."""
    inputs, containers = pytree.tree_flatten(list(arguments))
    return inputs, pytree.tree_unflatten(list(range(len(inputs))), containers)


def arranged(structure: Any, inputs: Sequence[Any]) -> list[Any]:
    """The arguments that ``opened`` was given."""
    made: list[Any] = pytree.tree_map(lambda number: inputs[number], structure)
    return made


def load_problem(path: Path) -> Problem:
    """Import a reference file and find its input shapes without allocating them."""
    path = check_path(path, "the reference")
    try:
        module = import_file(path, f"crucible_reference_{path.stem}")
    except BaseException as error:  # noqa: BLE001  a reference may raise anything, SystemExit among it
        raise ProblemError(
            f"the reference {path.name} cannot be imported: {type(error).__name__}: {error}{error_line(error, path)}"
        ) from None
    for name in PROBLEM_NAMES:
        if not callable(getattr(module, name, None)):
            raise ProblemError(f"the reference {path.name} defines no {name}; it needs {', '.join(PROBLEM_NAMES)}")
    try:
        init_inputs = list(module.get_init_inputs())
    except Exception as error:  # noqa: BLE001
        raise ProblemError(f"get_init_inputs() of {path.name} fails: {error}{error_line(error, path)}") from None
    recorder = _Recorder()
    try:
        with torch.device("meta"), recorder:
            declared, structure = opened(module.get_inputs())
        on_meta = all(not isinstance(x, torch.Tensor) or x.is_meta for x in declared)
    except Exception:  # noqa: BLE001  something in it needs real values
        on_meta = False
    if not on_meta:
        recorder = _Recorder()
        try:
            with recorder:
                declared, structure = opened(module.get_inputs())
        except Exception as error:  # noqa: BLE001
            raise ProblemError(f"get_inputs() of {path.name} fails: {error}{error_line(error, path)}") from None
    return Problem(path, module, init_inputs, declared, structure, on_meta, recorder.shapes)


# --- inputs of other sizes ------------------------------------------------------------------------------------------

_VARIADIC = {torch.rand, torch.randn, torch.zeros, torch.ones, torch.empty}
_SIZED_AT = {torch.full: 0, torch.normal: 2}


class _Recorder(TorchFunctionMode):
    """Notes the shape of each factory call, in order; with ``replace`` it changes the sizes of chosen calls."""

    def __init__(self, replace: dict[int, Shape] | None = None) -> None:
        super().__init__()
        self.replace = replace or {}
        self.shapes: list[Shape] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func not in _VARIADIC and func not in _SIZED_AT and func is not torch.randint:
            return func(*args, **kwargs)
        shape, rest = _split_size(func, list(args), kwargs)
        if shape is None:
            return func(*args, **kwargs)
        index = len(self.shapes)
        self.shapes.append(shape)
        size = self.replace.get(index, shape)
        return func(*rest(size), **kwargs)


def _split_size(
    func: Any, args: list[Any], kwargs: dict[str, Any]
) -> tuple[Shape | None, Callable[[Shape], list[Any]]]:
    """The size argument of a factory call, and a function that gives its arguments with another size."""

    def keyword(size: Shape) -> list[Any]:
        kwargs["size"] = size
        return args

    if "size" in kwargs:
        return tuple(kwargs["size"]), keyword
    if func in _VARIADIC:
        if args and isinstance(args[0], (tuple, list, torch.Size)):
            return tuple(args[0]), lambda size: [size, *args[1:]]
        if args and all(isinstance(a, int) for a in args):
            return tuple(args), lambda size: list(size)
        return None, lambda size: args
    at = _SIZED_AT.get(func, len(args) - 1)  # randint: the last positional argument
    if 0 <= at < len(args) and isinstance(args[at], (tuple, list, torch.Size)):
        return tuple(args[at]), lambda size: [*args[:at], size, *args[at + 1 :]]
    return None, lambda size: args


def _resized_inputs(problem: Problem, shapes: Sequence[Shape | None]) -> list[Any] | None:
    """Run get_inputs() with the factory calls that made each input resized; None where that does not work out."""
    replace: dict[int, Shape] = {}
    used: set[int] = set()
    for old, new in zip(problem.shapes, shapes, strict=True):
        if old is None or new is None:
            continue
        call = next((i for i, s in enumerate(problem.factory_calls) if i not in used and s == old), None)
        if call is not None:
            used.add(call)
            replace[call] = new
        elif old != new:
            return None
    try:
        with _Recorder(replace):
            made, _ = opened(problem.module.get_inputs())
    except Exception:  # noqa: BLE001
        return None
    got = [tuple(x.shape) if isinstance(x, torch.Tensor) else None for x in made]
    return made if got == list(shapes) else None


def _cropped_inputs(problem: Problem, shapes: Sequence[Shape | None]) -> list[Any]:
    """The declared inputs cut (or tiled) to the wanted shapes: for a get_inputs() whose factories cannot be resized."""
    made = []
    inputs, _ = opened(problem.module.get_inputs())
    for x, shape in zip(inputs, shapes, strict=True):
        if isinstance(x, torch.Tensor) and shape is not None:
            for dim, n in enumerate(shape):
                if n > x.shape[dim] > 0:
                    x = torch.cat([x] * math.ceil(n / x.shape[dim]), dim)
                x = x.narrow(dim, 0, n)
            x = x.clone()
        made.append(x)
    return made
