"""Watches the functions of a candidate's extensions: which were called, which raised, and what if they gave nothing.

An exception that an extension function throws may be swallowed by the candidate, which then lets torch do the work.
And a kernel's result may be thrown away. Both show when the functions that load_inline returns are wrapped.
"""

from __future__ import annotations

import functools
from collections import Counter
from types import ModuleType
from typing import Any

import torch
from torch.utils import cpp_extension

KEPT = 20


def anonymous(function: Any) -> Any:
    """Take a function's file away: a loader that asks which file called it must find the candidate's, not ours."""
    function.__code__ = function.__code__.replace(co_filename="<crucible>")
    return function


class _Memory:
    """Bytes of the GPU, for ``torch.as_tensor``."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 2}


def pointed_at(numbers: list[int]) -> list[torch.Tensor]:
    """The memory behind plain addresses: from each number inside a tensor's memory to that memory's end."""
    if not numbers or not torch.cuda.is_available():
        return []
    found = []
    for segment in torch.cuda.memory_snapshot():
        first = segment["address"]
        for block in segment["blocks"]:
            last = first + block["size"]
            if block["state"] == "active_allocated":
                for number in sorted({n for n in numbers if first <= n < last}):
                    size = min(last, first + block.get("requested_size", block["size"])) - number
                    found.append(torch.as_tensor(_Memory(number, size), device="cuda"))
            first = last
    return found


class ExtensionWatch:
    """Wraps ``load_inline`` and ``load`` of this process; one instance a process, before the candidate is imported."""

    def __init__(self) -> None:
        self.called: Counter[str] = Counter()
        self.raised: list[dict[str, str]] = []
        self.spoil = False  # fill what the functions return or write with nan
        self._load_inline, self._load = cpp_extension.load_inline, cpp_extension.load
        cpp_extension.load_inline = self._wrapping(self._load_inline)
        cpp_extension.load = self._wrapping(self._load)

    def reset(self) -> None:
        self.called.clear()
        self.raised.clear()

    def facts(self) -> dict[str, Any]:
        return {"called": dict(self.called), "raised": list(self.raised[:KEPT])}

    def _wrapping(self, loader: Any) -> Any:
        @functools.wraps(loader)
        def load(*args: Any, **kwargs: Any) -> Any:
            module = loader(*args, **kwargs)
            if isinstance(module, ModuleType):
                for name, value in list(vars(module).items()):
                    if not name.startswith("__") and callable(value) and not isinstance(value, type):
                        setattr(module, name, self._watched(name, value))
            return module

        return anonymous(load)

    def _watched(self, name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.called[name] += 1
            before = self._copies(args) if self.spoil else []
            try:
                result = function(*args, **kwargs)
            except Exception as error:
                self.raised.append({"function": name, "type": type(error).__name__, "message": str(error)[:500]})
                raise
            if self.spoil:
                self._spoil(result, before)
            return result

        return functools.update_wrapper(call, function, assigned=("__name__", "__doc__"), updated=())

    @staticmethod
    def _copies(args: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
        given = [a for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()]
        given += pointed_at([a for a in args if isinstance(a, int)])
        return [(a, a.detach().clone()) for a in given]

    @staticmethod
    def _spoil(result: Any, before: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        results = result if isinstance(result, (list, tuple)) else [result]
        with torch.no_grad():
            for r in results:
                if isinstance(r, torch.Tensor) and r.is_floating_point():
                    r.detach().fill_(float("nan"))
            for tensor, old in before:
                if not torch.equal(tensor.detach(), old):
                    tensor.detach().fill_(float("nan") if tensor.is_floating_point() else 0xFF)  # all ones are a nan
