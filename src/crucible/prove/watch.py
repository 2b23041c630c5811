"""What a candidate does to its surroundings: replaced functions, threads, global switches (candidate worker)."""

from __future__ import annotations

import builtins
import inspect
import math
import os
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import torch
import torch.testing

from crucible import switches as tf32

_CALLABLES = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.GetSetDescriptorType,
    types.WrapperDescriptorType,
    types.MemberDescriptorType,
    property,
    classmethod,
    staticmethod,
    type,
)


def _places() -> dict[str, Any]:
    """The namespaces that a harness relies on, by the name a user knows them under."""
    places: dict[str, Any] = {
        "torch": torch,
        "torch.Tensor": torch.Tensor,
        "torch.nn.Module": torch.nn.Module,
        "torch.nn.functional": torch.nn.functional,
        "torch.autograd": torch.autograd,
        "torch.autograd.Function": torch.autograd.Function,
        "torch.testing": torch.testing,
        "torch.cuda": torch.cuda,
        "torch.cuda.Event": torch.cuda.Event,
        "torch.cuda.Stream": torch.cuda.Stream,
        "torch.utils.cpp_extension": sys.modules.get("torch.utils.cpp_extension"),
        "torch.utils.benchmark": sys.modules.get("torch.utils.benchmark"),
        "numpy": sys.modules.get("numpy"),
        "numpy.testing": sys.modules.get("numpy.testing"),
        "time": time,
        "math": math,
        "builtins": builtins,
        "threading": threading,
        "inspect": inspect,
    }
    for name, module in list(sys.modules.items()):
        if name.startswith("crucible.") and module is not None:
            places[name] = module
            own = {k: v for k, v in vars(module).items() if isinstance(v, type) and v.__module__ == name}
            places |= {f"{name}.{k}": v for k, v in own.items()}  # methods can be replaced as well
    return {name: place for name, place in places.items() if place is not None}


class Snapshot:
    """Identities of the functions in those namespaces, to be compared after foreign code has run."""

    def __init__(self) -> None:
        self.places = _places()
        self.known = {name: self._functions(place) for name, place in self.places.items()}

    @staticmethod
    def _functions(place: Any) -> dict[str, Any]:
        return {
            k: v
            for k, v in vars(place).items()
            if isinstance(v, _CALLABLES)
            and not k.startswith("__")
            or k in ("__call__", "__eq__", "__torch_function__", "__import__", "__sub__")
        }

    def replaced(self) -> list[str]:
        """Names whose function is no longer the one it was."""
        found = []
        for name, before in self.known.items():
            now = vars(self.places[name])
            for key, value in before.items():
                if now.get(key) is not value and not _wrapped_by_torch(now.get(key), value):
                    found.append(f"{name}.{key}")
        return found[:50]


_TORCH = os.path.dirname(os.path.realpath(torch.__file__)) + os.sep


def _wrapped_by_torch(now: Any, before: Any) -> bool:
    """Whether torch itself put a wrapper around ``before``: importing torch._dynamo does so to torch.manual_seed."""
    if not isinstance(now, types.FunctionType) or not os.path.realpath(now.__code__.co_filename).startswith(_TORCH):
        return False
    inside = [getattr(now, "__wrapped__", None), getattr(now, "_torchdynamo_orig_callable", None)]
    inside += [cell.cell_contents for cell in now.__closure__ or ()]
    return any(held is before for held in inside)


class FileAudit:
    """Which files and folders Python code opens or lists outside the places where a candidate has business."""

    EVENTS = ("open", "os.listdir", "os.scandir")
    SYSTEM = ("/proc", "/sys", "/dev", "/usr", "/lib", "/lib64", "/etc", "/opt", "/bin")
    KEPT = 100

    def __init__(self, own: list[Path]) -> None:
        places = [*own, Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[1]]
        self.own = tuple(os.path.realpath(p) for p in places)
        self.seen: list[list[str]] = []
        self.active = False
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.active or event not in self.EVENTS or not args:
            return
        self.active = False  # resolving a path raises events of its own
        try:
            self._note(event, args[0])
        finally:
            self.active = True

    def _note(self, event: str, path: Any) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        full = os.path.realpath(os.fsdecode(path))
        inside = any(full == p or full.startswith(p + "/") for p in (*self.own, *self.SYSTEM))
        scratch = event == "open" and full.startswith("/tmp/")
        row = ["list" if event != "open" else "open", full]
        if (not inside or (row[0] == "list" and full == "/dev/shm")) and not scratch and row not in self.seen:
            if full not in sys.path and len(self.seen) < self.KEPT:
                self.seen.append(row)


def switches() -> dict[str, Any]:
    """torch's global settings that change what a user's other code computes."""
    return {
        "grad_mode": torch.is_grad_enabled(),
        "default_dtype": str(torch.get_default_dtype()),
        "matmul_precision": tf32.matmul_precision(),
        "matmul_tf32": tf32.matmul_tf32(),
        "cudnn_tf32": tf32.conv_tf32(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def threads() -> set[int]:
    """Identities of the Python threads that are alive."""
    return {t.ident or 0 for t in threading.enumerate() if t.is_alive()}


def thread_names(idents: set[int]) -> list[str]:
    return sorted(t.name for t in threading.enumerate() if (t.ident or 0) in idents)


def native_threads() -> int:
    """Threads of this process as the kernel counts them (0 where /proc is missing)."""
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return 0


def describe_error(error: BaseException, file: Path) -> dict[str, Any]:
    """An exception for the parent: type, message, and the lines of the candidate's own file that it passed through."""
    lines = []
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(file):
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    source = []
    try:
        source = file.read_text(errors="replace").splitlines()
    except OSError:
        pass
    last = lines[-1] if lines else None
    raised_here = bool(last and last <= len(source) and source[last - 1].lstrip().startswith(("raise", "assert")))
    info: dict[str, Any] = {
        "type": type(error).__name__,
        "message": str(error)[:4000],
        "lines": [[n, source[n - 1].strip() if n <= len(source) else ""] for n in lines[-3:]],
        "deliberate": raised_here,
    }
    if isinstance(error, SyntaxError):
        info["lines"] = [[error.lineno or 0, (error.text or "").strip()]]
        info["message"] = error.msg or "invalid syntax"
    to_json = getattr(error, "to_json", None)
    if type(error).__name__ == "BuildError" and callable(to_json):
        info["build"] = to_json()
    return info
