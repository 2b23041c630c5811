"""Builds and runs the candidate, and writes down everything that can be seen of it (candidate worker, after torch).

Nothing here judges: the parent gets facts, and knows that the process they come from also runs the candidate.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from crucible.exact import typed
from crucible.problem import arranged
from crucible.prove import shapes, tensors, watch
from crucible.prove.devices import open_device
from crucible.prove.execute import Unsaved, buffers_of, given, modes, onward, random_state, same_bits, shares_memory
from crucible.prove.extensions import ExtensionWatch, anonymous
from crucible.prove.twice import differentiated_twice
from crucible.prove.uncompiled import backward

COMPARED = 1 << 26  # elements up to which inputs, parameters and outputs are compared bit by bit after a call
THREAD_WAIT = 1.5
TELLTALE = ("CRUCIBLE", "PYTEST", "CI", "GITHUB", "TEST")  # names of environment variables that give a test away

# What a disguised call looks like from inside: a step of somebody's training script, on a thread of its own.
SCRIPT = """
def training_step(model, inputs, grad):
    import torch
    with torch.set_grad_enabled(grad):
        return model(*inputs)
"""


class Exited(Exception):
    """The candidate called ``sys.exit``: a SystemExit must not end the worker silently."""


@contextlib.contextmanager
def _guarded() -> Iterator[None]:
    try:
        yield
    except SystemExit as error:
        raise Exited(f"sys.exit({error.code!r})") from error
    except KeyboardInterrupt as error:
        raise Exited("KeyboardInterrupt") from error


class Runner:
    """One candidate in one process."""

    def __init__(self, message: dict[str, Any]) -> None:
        self.scratch = Path(message["scratch"])
        self.cases = Path(message["cases"])
        self.file = self.scratch / message["file"]
        self.module_name = message.get("module", self.file.stem)
        self.disguise = bool(message.get("disguise"))
        self.device = open_device(message["device"])
        self.module: ModuleType | None = None
        self.model: torch.nn.Module | None = None
        self.model_key: Any = None
        self.init: list[Any] = []
        self.loaded: dict[str, str] = {}  # state entry -> file that it holds
        self.previous: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.held_inputs: list[Any] = []
        self.runs = 0
        self.counter = 0
        self.extensions = ExtensionWatch()
        self.switches = watch.switches()
        self.snapshot = watch.Snapshot()
        self.threads_before = watch.threads()
        self.audit = watch.FileAudit([self.scratch, self.cases])

    def environment(self) -> dict[str, Any]:
        return {"torch": torch.__version__, "device": self.device.describe(), "python": sys.version.split()[0]}

    def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        actions = {
            "load": self.load,
            "construct": self.construct,
            "interface": self.interface,
            "run": self.run,
            "probe": self.probe,
        }
        with self._masked():
            self.audit.active = True
            try:
                reply = actions[message["op"]](message)
            finally:
                self.audit.active = False
        reply["facts"] = self._facts()
        return reply

    @contextlib.contextmanager
    def _masked(self) -> Iterator[None]:
        """While disguised, the names of this program are not among the loaded modules."""
        if not self.disguise:
            yield
            return
        from torch.utils import cpp_extension

        hidden: dict[str, str] = {}
        ours = _own_modules()
        real = cpp_extension.load_inline

        def load_inline(*args: Any, **kwargs: Any) -> Any:
            sys.modules.update(ours)  # a build imports more of us, and asks our server
            os.environ.update(hidden)
            try:
                return real(*args, **kwargs)
            finally:
                ours.update(_own_modules())
                _forget(ours)
                for key in hidden:
                    os.environ.pop(key, None)

        hidden.update({k: v for k, v in os.environ.items() if k.startswith(TELLTALE)})
        for key in hidden:
            del os.environ[key]
        cpp_extension.load_inline = anonymous(load_inline)
        _forget(ours)
        try:
            yield
        finally:
            cpp_extension.load_inline = real
            sys.modules.update(ours)
            os.environ.update(hidden)

    def _facts(self) -> dict[str, Any]:
        """What is true of the process now: asked after every request."""
        now = watch.switches()
        return {
            "replaced": self.snapshot.replaced(),
            "switches": {k: [v, now[k]] for k, v in self.switches.items() if now[k] != v},
            "file_exists": self.file.is_file(),
            "touched": self.audit.seen,
            "threads": watch.thread_names(watch.threads() - self.threads_before),
            "native_threads": watch.native_threads(),
            "builds": self.device.builds(),
        }

    # --- loading ----------------------------------------------------------------------------------------------------

    def load(self, message: dict[str, Any]) -> dict[str, Any]:
        """Import the file; report what it defines, or why it cannot be imported."""
        start = time.perf_counter()
        try:
            with _guarded():
                self.module = self._import()
        except Exception as error:  # noqa: BLE001
            return {"ok": False, "error": self._error(error), "seconds": time.perf_counter() - start}
        cls = getattr(self.module, "ModelNew", None)
        return {
            "ok": True,
            "seconds": time.perf_counter() - start,
            "has_model": isinstance(cls, type),
            "is_module": isinstance(cls, type) and issubclass(cls, torch.nn.Module),
            "classes": [
                n for n, v in vars(self.module).items() if isinstance(v, type) and v.__module__ == self.module_name
            ],
            "signatures": shapes.signatures(cls) if isinstance(cls, type) else None,
        }

    def _import(self) -> ModuleType:
        loader = importlib.machinery.SourceFileLoader(self.module_name, str(self.file))
        spec = importlib.util.spec_from_loader(self.module_name, loader, origin=str(self.file))
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        module.__file__ = str(self.file)
        sys.modules[self.module_name] = module
        loader.exec_module(module)
        return module

    def _error(self, error: BaseException, stage: str = "import") -> dict[str, Any]:
        if isinstance(error, Exited) and error.__cause__ is not None:
            info = watch.describe_error(error.__cause__, self.file)
            return {**info, "stage": stage, "exited": str(error)}
        return {**watch.describe_error(error, self.file), "stage": stage}

    # --- construction -----------------------------------------------------------------------------------------------

    def construct(self, message: dict[str, Any]) -> dict[str, Any]:
        """Build a ModelNew from a seed; its state as files and as a layout."""
        self.init = list(tensors.decode(message["init"], self.cases))
        torch.manual_seed(message["seed"])
        try:
            with _guarded():
                model = self._new_model()
        except Exception as error:  # noqa: BLE001
            return {"ok": False, "error": self._error(error, "construct")}
        if not isinstance(model, torch.nn.Module):
            return {
                "ok": False,
                "error": {
                    "type": "TypeError",
                    "stage": "construct",
                    "lines": [],
                    "message": "ModelNew(...) is not a torch.nn.Module",
                },
            }
        if not message.get("save", True):
            return {"ok": True}
        folder = self._folder()
        state = {k: v for k, v in model.state_dict().items() if isinstance(v, torch.Tensor)}
        files = {k: tensors.save(v, folder, f"s{i}.bin") for i, (k, v) in enumerate(state.items())}
        self.model, self.model_key, self.loaded = None, None, {}
        return {
            "ok": True,
            "layout": shapes.state_layout(model),
            "state": files,
            "folder": folder.name,
            "attributes": shapes.attributes(model),
            "training": model.training,
        }

    def _new_model(self) -> Any:
        assert self.module is not None
        return self.module.ModelNew(*self.init)

    def _folder(self) -> Path:
        self.counter += 1
        folder = self.scratch / f"out{self.counter}"
        folder.mkdir()
        return folder

    def interface(self, message: dict[str, Any]) -> dict[str, Any]:
        """Try what one may do to any module: move it to other dtypes, switch modes, load and give back its state."""
        facts: dict[str, Any] = {"ok": True}
        try:
            with _guarded():
                facts.update(self._try_interface(message))
        except Exception as error:  # noqa: BLE001
            facts.update(ok=False, error=self._error(error, "interface"))
        return facts

    def _try_interface(self, message: dict[str, Any]) -> dict[str, Any]:
        model = self._new_model()
        facts: dict[str, Any] = {}
        facts.update(modes(model))
        state = {
            k: torch.full(shape, i % 7, dtype=tensors.DTYPES[dtype])
            for i, (k, shape, dtype, _) in enumerate(message["layout"])
        }
        state.update({k: state[first] for k, first in message["tied"].items() if k in state and first in state})
        try:
            model.load_state_dict(state)
            held = model.state_dict()
            facts["load"] = [k for k, v in state.items() if k not in held or not torch.equal(held[k].cpu(), v)]
        except Exception as error:  # noqa: BLE001
            facts["load_error"] = f"{type(error).__name__}: {str(error)[:1000]}"
        del state
        small = sum(p.numel() for p in model.parameters()) < COMPARED // 4
        facts["dtypes"] = {}
        for name in ("float16", "bfloat16", "float64") if small else ("float16",):
            try:
                moved = model.to(tensors.DTYPES[name])
                left = [
                    k for k, p in moved.named_parameters() if p.is_floating_point() and p.dtype != tensors.DTYPES[name]
                ]
                facts["dtypes"][name] = left
            except Exception as error:  # noqa: BLE001
                facts["dtypes"][name] = f"{type(error).__name__}: {str(error)[:500]}"
        return facts

    # --- running ----------------------------------------------------------------------------------------------------

    def run(self, message: dict[str, Any]) -> dict[str, Any]:
        """One case: forward, and backward where it has cotangents. See ``Outcome`` in the parent for the fields."""
        case, mode = message["case"], message.get("mode", {})
        outcome: dict[str, Any] = {"ok": True, "stage": "construct"}
        start = time.perf_counter()
        try:
            with _guarded():
                model = self._prepared(case, outcome)
                self._call(model, case, mode, outcome)
        except Exception as error:  # noqa: BLE001
            outcome.update(ok=False, error=self._error(error, outcome["stage"]))
        self.extensions.spoil = False
        outcome["seconds"] = time.perf_counter() - start
        self.runs += 1
        return outcome

    def _prepared(self, case: dict[str, Any], outcome: dict[str, Any]) -> torch.nn.Module:
        """The model on the device, in the right dtype, with the case's weights."""
        if self.model is None or self.model_key != case["dtype"]:
            torch.manual_seed(0)
            model = self._new_model()
            if case["dtype"]:
                model = typed(model, tensors.DTYPES[case["dtype"]])
            self.model = model.to(self.device.device)
            self.model_key, self.loaded = case["dtype"], {}
            self.unsaved = Unsaved(self.model)
        model = self.model
        self.unsaved.restore(model)
        outcome["stage"] = "load_state_dict"
        folder = self.cases / case["state"]["folder"]
        files: dict[str, Any] = case["state"]["tensors"]
        buffers = set(buffers_of(model))
        changed = [k for k, info in files.items() if self.loaded.get(k) != info["file"] or k in buffers]
        state = {k: tensors.load(files[k], folder) for k in changed}
        if set(changed) == set(files):
            model.load_state_dict(state)
        elif changed:
            model.load_state_dict(state, strict=False)
        self.loaded = {k: info["file"] for k, info in files.items()}
        model.train(case["training"])
        model.zero_grad(set_to_none=True)
        for name, parameter in model.named_parameters():
            self.device.label(parameter, name)
        return model

    def _inputs(self, case: dict[str, Any], mode: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        """Inputs on the device and their originals; with ``inplace`` in the memory that the last call's inputs had."""
        folder = self.cases / case["folder"]
        originals = [tensors.decode(x, folder) for x in case["inputs"]]
        placed: list[Any] = []
        for i, (info, x) in enumerate(zip(case["inputs"], originals, strict=True)):
            if not isinstance(x, torch.Tensor):
                placed.append(x)
                continue
            held = self.held_inputs[i] if mode.get("inplace") and i < len(self.held_inputs) else None
            if isinstance(held, torch.Tensor) and held.shape == x.shape and held.dtype == x.dtype:
                fresh = held.detach()
                fresh.copy_(x)
            else:
                fresh = tensors.place(x, info.get("strides"), self.device.device)
            self.device.label(fresh, f"input {i}")
            placed.append(fresh)
        self.held_inputs = [x.detach() if isinstance(x, torch.Tensor) else x for x in placed]
        return placed, originals

    def _arguments(self, case: dict[str, Any], inputs: list[Any]) -> list[Any]:
        """The inputs in the containers that forward() expects them in."""
        return arranged(tensors.decode(case["structure"], self.cases / case["folder"]), inputs)

    def _call(
        self, model: torch.nn.Module, case: dict[str, Any], mode: dict[str, Any], outcome: dict[str, Any]
    ) -> None:
        inputs, originals = self._inputs(case, mode)
        for i in case["requires_grad"]:
            inputs[i].requires_grad_()
        leaves, inputs = inputs, given(inputs, case["requires_grad"], written=case["written"])
        wants_grad = case["cotangents"] is not None
        if mode.get("poison", True):
            self.device.poison(max((x.numel() for x in inputs if isinstance(x, torch.Tensor)), default=0))
        arguments = self._arguments(case, inputs)
        torch.manual_seed(case["seed"])
        before = random_state(self.device.device)
        threads = watch.threads()
        outcome["stage"] = "forward"
        self.device.synchronize()
        if mode.get("delay_streams"):
            self.device.delay_side_streams()
        self.extensions.reset()
        self.extensions.spoil = bool(mode.get("spoil"))
        with self._record(mode, outcome, "forward"):
            with torch.set_grad_enabled(wants_grad):
                start = time.perf_counter()
                raw = self._forward(model, arguments, wants_grad)
                outcome["forward_seconds"] = time.perf_counter() - start
            found = tensors.leaves(raw)
            # What the caller would read now, before anything that is still running can finish.
            read = [v.detach().clone() if type(v) is torch.Tensor else None for _, v in found]
            alive = watch.threads() - threads
        self.extensions.spoil = False
        outcome["extension"] = self.extensions.facts()
        self.device.synchronize()
        outcome["random_changed"] = [
            not torch.equal(a, b) for a, b in zip(before, random_state(self.device.device), strict=True)
        ]
        outcome["new_threads"] = watch.thread_names(alive)
        snapshots = [r.cpu() if r is not None else None for r in read]
        del read
        self._describe_outputs(found, inputs, outcome)
        self._check_previous(found, outcome)
        folder = self._folder()
        outcome["folder"] = folder.name
        if mode.get("save", True):
            for i, (_, value) in enumerate(found):
                snapshot = snapshots[i]
                if isinstance(value, torch.Tensor):
                    kept = snapshot if snapshot is not None else _plain_copy(value)
                    outcome["outputs"][i]["tensor"] = tensors.save(kept, folder, f"o{i}.bin")
        self._compare_inputs(inputs, originals, outcome)
        if mode.get("check_parameters", True):
            self._compare_parameters(model, case, outcome)
        if mode.get("save", True):
            outcome["buffers"] = {
                name: tensors.save(b, folder, f"b{i}.bin") for i, (name, b) in enumerate(buffers_of(model).items())
            }
            outcome["written"] = {
                str(i): tensors.save(_plain_copy(inputs[i]), folder, f"i{i}.bin") for i in case["writes"]
            }
        if wants_grad:
            outcome["stage"] = "backward"
            if mode.get("twice"):
                held = {f"input {i}": leaves[i] for i in case["requires_grad"]} | dict(model.named_parameters())
                outcome["twice"] = differentiated_twice((v for _, v in found), held)
                return
            self._backward(model, found, inputs, leaves, case, mode, outcome, folder)
        # An output that is a view of an input, or of a weight, changes with it; that is looked at by itself.
        lent = [*inputs, *model.state_dict(keep_vars=True).values()]
        own = [
            (v, s)
            for (_, v), s in zip(found, snapshots, strict=True)
            if s is not None and s.numel() <= COMPARED and not any(shares_memory(v, x) for x in lent)
        ]
        self._compare_later(own, alive, outcome)
        self.previous = own
        outcome["stage"] = "done"

    def _forward(self, model: torch.nn.Module, arguments: list[Any], grad: bool) -> Any:
        if not self.disguise:
            return model(*arguments)
        names: dict[str, Any] = {"__name__": "train"}
        exec(compile(SCRIPT, "train.py", "exec"), names)
        result: list[Any] = []

        def step() -> None:
            try:
                result.append(names["training_step"](model, arguments, grad))
            except BaseException as error:  # noqa: BLE001  handed on below
                result.append(error)

        step.__code__ = step.__code__.replace(co_filename="train.py", co_name="main")
        thread = threading.Thread(target=step, name="MainThread")
        thread.start()
        thread.join()
        if isinstance(result[0], BaseException):
            raise result[0]
        return result[0]

    @contextlib.contextmanager
    def _record(self, mode: dict[str, Any], outcome: dict[str, Any], key: str) -> Iterator[None]:
        with self.device.recording(mode.get("device", {})) as facts:
            try:
                yield
            finally:
                outcome[f"{key}_device"] = facts

    def _describe_outputs(self, found: list[tuple[str, Any]], inputs: list[Any], outcome: dict[str, Any]) -> None:
        rows = []
        for path, value in found:
            row: dict[str, Any] = {"path": path, "type": f"{type(value).__module__}.{type(value).__name__}"}
            row["exact_tensor"] = type(value) in (torch.Tensor, torch.nn.Parameter)
            if isinstance(value, torch.Tensor):
                row.update(
                    shape=list(value.shape),
                    dtype=tensors.dtype_name(value.dtype),
                    device=value.device.type,
                    requires_grad=value.requires_grad,
                )
                if type(value) is torch.Tensor and value.device.type == self.device.device.type:
                    row["unwritten"], row["first_unwritten"] = self.device.unwritten(value)
                    row["aliases"] = [
                        i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor) and shares_memory(value, x)
                    ]
            else:
                row["value"] = (
                    value if isinstance(value, (int, float, bool, str)) or value is None else repr(value)[:100]
                )
            rows.append(row)
        outcome["outputs"] = rows

    def _check_previous(self, found: list[tuple[str, Any]], outcome: dict[str, Any]) -> None:
        """Whether this call wrote over a result that the last call had handed out."""
        outcome["overwrote_previous"] = any(
            not same_bits(value.detach().cpu(), snapshot) for value, snapshot in self.previous
        )
        outcome["reused_storage"] = any(
            shares_memory(value, new) for value, _ in self.previous for _, new in found if type(new) is torch.Tensor
        )

    def _compare_inputs(self, inputs: list[Any], originals: list[Any], outcome: dict[str, Any]) -> None:
        changed = []
        for i, (x, old) in enumerate(zip(inputs, originals, strict=True)):
            if isinstance(x, torch.Tensor) and x.numel() <= COMPARED:
                now = x.detach().cpu()
                if not same_bits(now, old):
                    flat = now.reshape(-1)
                    constant = bool(flat.numel() > 1 and (flat == flat[0]).all())
                    wrong = (now != old) & ~((now != now) & (old != old))
                    changed.append(
                        {
                            "input": i,
                            "constant": constant,
                            "value": flat[0].item() if constant else None,
                            "elements": int(wrong.sum()),
                            "of": x.numel(),
                        }
                    )
        outcome["inputs_changed"] = changed

    def _compare_parameters(self, model: torch.nn.Module, case: dict[str, Any], outcome: dict[str, Any]) -> None:
        folder = self.cases / case["state"]["folder"]
        changed = []
        for name, parameter in model.named_parameters():
            info = case["state"]["tensors"].get(name)
            held = info is not None and parameter.requires_grad  # others are compared as buffers are
            if held and not same_bits(parameter.detach().cpu(), tensors.load(info, folder)):
                changed.append(name)
        outcome["parameters_changed"] = changed

    def _backward(
        self,
        model: torch.nn.Module,
        found: list[tuple[str, Any]],
        inputs: list[Any],
        leaves: list[Any],
        case: dict[str, Any],
        mode: dict[str, Any],
        outcome: dict[str, Any],
        folder: Path,
    ) -> None:
        source = self.cases / case["folder"]
        pairs = []
        for (_, value), info in zip(found, case["cotangents"], strict=False):
            cotangent = tensors.decode(info, source)
            if isinstance(value, torch.Tensor) and value.requires_grad and isinstance(cotangent, torch.Tensor):
                if cotangent.shape != value.shape:
                    return  # the shape is wrong, and the parent sees that
                placed = tensors.place(cotangent.to(value.dtype), info.get("strides"), self.device.device)
                pairs.append((value, placed))
        if not pairs:
            return
        pairs += onward(inputs, [v for _, v in found], case["writes"])
        for i, (_, cotangent) in enumerate(pairs):
            self.device.label(cotangent, f"incoming gradient {i}")
        with self._record(mode, outcome, "backward"):
            backward([v for v, _ in pairs], [c for _, c in pairs])
            self.device.synchronize()
        named = [(f"input {i}", leaves[i]) for i in case["requires_grad"]]
        named += [(n, p) for n, p in model.named_parameters()]
        grads: dict[str, Any] = {}
        for i, (name, leaf) in enumerate(named):
            if leaf.grad is None:
                grads[name] = None
                continue
            grad = leaf.grad.detach()
            count, first = self.device.unwritten(grad)
            grads[name] = {"unwritten": count, "first_unwritten": first}
            if mode.get("save", True):
                grads[name]["tensor"] = tensors.save(_plain_copy(grad), folder, f"g{i}.bin")
        outcome["grads"] = grads

    def _compare_later(
        self, kept: list[tuple[torch.Tensor, torch.Tensor]], alive: set[int], outcome: dict[str, Any]
    ) -> None:
        """Look at the outputs again: whatever a thread or a stream still had to do has now been done."""
        deadline = time.monotonic() + THREAD_WAIT
        while alive & watch.threads() and time.monotonic() < deadline:
            time.sleep(0.02)
        self.device.synchronize()
        outcome["changed_later"] = any(not same_bits(value.detach().cpu(), snapshot) for value, snapshot in kept)

    # --- index arithmetic at sizes that nobody could compute --------------------------------------------------------

    def probe(self, message: dict[str, Any]) -> dict[str, Any]:
        """Run a few blocks of each launch on memory that is reserved and hardly touched; only the accesses matter."""
        outcome: dict[str, Any] = {"ok": True, "stage": "probe"}
        sim = getattr(self.device, "sim", None)
        if sim is None:
            return {"ok": False, "unavailable": True}
        try:
            with _guarded():
                model = self._prepared(message["case"], outcome)
                inputs: list[Any] = []
                for i, row in enumerate(message["inputs"]):
                    x = self.device.lazy(row["shape"], tensors.DTYPES[row["dtype"]]) if row is not None else None
                    inputs.append(x)
                    if x is not None:
                        self.device.label(x, f"input {i}")
                arguments = self._arguments(message["case"], inputs)
                outcome["stage"] = "forward"
                with self._record({"device": message["options"]}, outcome, "forward"), torch.no_grad():
                    model(*arguments)
        except Exception as error:  # noqa: BLE001
            outcome.update(ok=False, error=self._error(error, outcome["stage"]))
        return outcome


def _own_modules() -> dict[str, ModuleType]:
    return {n: m for n, m in sys.modules.items() if n.split(".")[0] in ("crucible", "crucible_binding")}


def _forget(modules: dict[str, ModuleType]) -> None:
    for name in modules:
        sys.modules.pop(name, None)


def _plain_copy(value: torch.Tensor) -> torch.Tensor:
    """The values behind a tensor of any kind, subclasses among them."""
    return torch.Tensor.detach(value).as_subclass(torch.Tensor).cpu().clone()
