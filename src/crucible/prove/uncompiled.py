"""Keeps torch from importing its compiler, or algebra with symbols, where nothing is compiled and no shape is a symbol.

torch marks Python functions that its compiler must not look into, and imports the compiler on the first call of one of
them: a second, in a process that lives for a few. Whatever torch builds otherwise in another version stays as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from types import CellType, FunctionType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

COMPILER = "torch._dynamo"
_ENGINE = getattr(torch.autograd, "_engine_run_backward", None)  # what backward() ends in


def spare_the_compiler() -> None:
    """From now on, what torch marks is called as it is, for as long as nobody else has imported the compiler.

    Marked are all modes that see operators go by, and the rules for the meta device that torch has in Python.
    """
    mark = getattr(torch, "_disable_dynamo", None)
    if mark is None:
        return
    marked = mark(lambda: None).__code__  # that of every marked function: only what it stands for differs
    if "fn" not in marked.co_freevars:
        return
    todo: list[Any] = [*_handlers(TorchDispatchMode), *_rules()]
    seen: set[int] = set()
    while todo:  # a decorated function holds what it stands for, and that may be decorated again
        function = todo.pop()
        if not isinstance(function, FunctionType) or id(function) in seen:
            continue
        seen.add(id(function))
        held = _held(function)
        if function.__code__ is marked:
            _spare(function, held["fn"])
        todo += held.values()


def _held(function: FunctionType) -> dict[str, Any]:
    """The variables of the functions around ``function`` that it uses."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if cell != CellType()}


def _spare(marked: Any, function: Any) -> None:
    def call(*args: Any, **kwargs: Any) -> Any:
        if COMPILER not in sys.modules:
            return function(*args, **kwargs)
        del function.__dynamo_disable  # a compiler is at work: torch's own way from here on
        return marked(*args, **kwargs)

    function.__dynamo_disable = call  # where torch keeps what it made of the function on the first call


def _handlers(mode: type[TorchDispatchMode]) -> Iterator[Any]:
    for kind in mode.__subclasses__():
        yield kind.__dict__.get("__torch_dispatch__")
        yield from _handlers(kind)


def _rules() -> Iterator[Any]:
    tables: dict[str, dict[Any, Callable[..., Any]]] = getattr(torch._decomp, "global_decomposition_table", {})
    for table in tables.values():
        yield from table.values()
    for name, module in list(sys.modules.items()):  # those that only other rules call
        if name.startswith("torch._refs"):
            yield from (value for value in vars(module).values() if callable(value))


def backward(outputs: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor]) -> None:
    """``torch.autograd.backward``, which imports sympy (half a second) to compare shapes that may be symbols."""
    plain = all(
        type(v) is torch.Tensor and v.shape == c.shape and v.is_complex() == c.is_complex()
        for v, c in zip(outputs, cotangents, strict=True)
    )
    if _ENGINE is None or not plain:
        torch.autograd.backward(outputs, cotangents)
    else:
        _ENGINE(tuple(outputs), tuple(cotangents), False, False, (), allow_unreachable=True, accumulate_grad=True)
