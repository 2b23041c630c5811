"""A process with one contender: builds it, calls it, times it. It answers the requests of ``lanes.Lane``.

The clock and everything else that a time depends on are taken before the candidate is imported. Between two requests
it holds no memory but its weights.
"""

from __future__ import annotations

import functools
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

from crucible import switches
from crucible.exact import Wide, copied, is_number, typed, wide, widened
from crucible.problem import Problem, import_file, load_problem
from crucible.prove import watch
from crucible.race import ceilings, values
from crucible.race.clock import Clock, CpuMarks, GpuMarks, Sample
from crucible.race.contenders import (
    FORMATS,
    STEPS,
    Contender,
    baseline,
    compile_in_this_process,
    compiler_process_failed,
    why,
)
from crucible.race.kernels import by_kernel
from crucible.race.names import EAGER

FLUSH_BYTES = 256 << 20  # several times the largest L2 there is
WARM_SECONDS = 0.1  # of calls before a turn's timed ones: a processor that was idle takes a while to reach its clock
CANDIDATE = "candidate"


class Cheat(Exception):
    """A result that is none."""


class Worker:
    """One contender. ``ready`` and ``open`` come first, then ``build``, ``first``, and a ``turn`` in every round."""

    def __init__(self) -> None:
        self.contender: Contender | None = None
        self.sizes: dict[str, dict[str, tuple[torch.Size, torch.dtype]]] = {}  # of results, by pass
        self.peaks: dict[str, int] = {}  # bytes that a call takes, by pass
        self.now, self.draw, self.since = time.perf_counter, secrets.randbits, time.time()

    def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        known = {
            "ready": self.ready, "open": self.open, "build": self.build, "first": self.first, "turn": self.turn,
            "truth": self.truth, "ceilings": self.ceilings, "spread": self.draws_numbers, "kernels": self.kernels,
        }  # fmt: skip
        try:
            return {"ok": True, **known[message["op"]](message)}
        except Exception as error:  # noqa: BLE001  a contender may raise anything; it costs this contender
            text = str(error) if isinstance(error, Cheat) else why(error)
            cheat = isinstance(error, Cheat)
            error.__traceback__ = None
            self._release()
            return {"ok": False, "failed": text, "cheat": cheat}

    # -- before the candidate

    def ready(self, message: dict[str, Any]) -> dict[str, Any]:
        return {"since": self.since}

    def open(self, message: dict[str, Any]) -> dict[str, Any]:
        """Load the Problem, take the clock, allocate what flushes the cache."""
        switches.put(message["switches"])
        self.gpu = message["device"] == "cuda"
        self.device = message["device"]
        self.dtype = getattr(torch, message["dtype"]) if message["dtype"] else None
        self.kind, self.file, self.seed = message["kind"], message["file"], message["seed"]
        self.problem: Problem = load_problem(Path(message["problem"]))
        self.shapes = [tuple(s) if s is not None else None for s in message["shapes"]]
        self.evaluating = False
        if self.gpu:
            torch.cuda.init()
            self.memory, self.empty_memory = torch.cuda.max_memory_allocated, torch.cuda.empty_cache
            self.free_memory, self.cached_memory = torch.cuda.mem_get_info, torch.cuda.memory_reserved
            self.reset_memory, self.held_memory = torch.cuda.reset_peak_memory_stats, torch.cuda.memory_allocated
        self.clock = Clock(GpuMarks() if self.gpu else CpuMarks())
        base = torch._C.TensorBase  # torch.Tensor's own can be replaced
        self.zero, self.copy, self.detach = base.zero_, base.copy_, base.detach
        self.flush = torch.empty(FLUSH_BYTES if self.gpu else 1024, dtype=torch.uint8, device=self.device)
        self.model = self._reference()
        self.snapshot = watch.Snapshot()
        return {"lag": self.clock.lag, "torch": torch.__version__, "python": sys.version.split()[0], **self._gpu()}

    def _gpu(self) -> dict[str, Any]:
        if not self.gpu:
            return {"gpu": None}
        p = torch.cuda.get_device_properties(0)
        free = torch.cuda.mem_get_info(0)[0]
        found = {"name": p.name, "capability": [p.major, p.minor], "memory_bytes": p.total_memory, "free_bytes": free}
        return {"gpu": {**found, "processors": p.multi_processor_count}, "cuda": torch.version.cuda}

    def _reference(self) -> torch.nn.Module:
        made = self.problem.build(self.seed).to(self.device)
        return typed(made, self.dtype) if self.dtype is not None else made

    def ceilings(self, message: dict[str, Any]) -> dict[str, Any]:
        found = ceilings.measure(self.clock)
        self.empty_memory()
        return {"ceilings": found}

    def draws_numbers(self, message: dict[str, Any]) -> dict[str, Any]:
        """Whether the Model's result depends on the random state, as that of dropout does."""
        inputs = self._inputs(message["seed"])
        outs = []
        with torch.no_grad():
            for seed in (1, 2):
                torch.manual_seed(seed)
                outs.append(values.tensors(copied(self.model)(*inputs)))
        random = any(not torch.equal(a, b) and values.distance(a, b) > 1e-2 for a, b in zip(*outs))
        del inputs, outs
        self._release()
        return {"random": random}

    # -- the contender

    def build(self, message: dict[str, Any]) -> dict[str, Any]:
        """Import and construct, with the reference's weights; nothing is cached from earlier runs."""
        self.evaluating = bool(message["evaluating"])
        self.model.train(self.model.training and not self.evaluating)
        began = self.now()
        if self.kind != CANDIDATE:
            self.contender = baseline(self.kind, self.model)
        else:
            module = import_file(Path(self.file), Path(self.file).stem)
            torch.manual_seed(self.seed)
            made = module.ModelNew(*self.problem.init_inputs)
            made = made.to(self.device)
            made = typed(made, self.dtype) if self.dtype is not None else made
            made.load_state_dict(self.model.state_dict())
            made.train(self.model.training)
            self.contender = Contender(made, made)
        if self.kind != EAGER:  # which also tells the truth
            del self.model
        return {"seconds": self.now() - began, "replaced": self._replaced()}

    def first(self, message: dict[str, Any]) -> dict[str, Any]:
        """The first call, which builds what is built lazily; and how much memory a call takes at its peak."""
        training = message["what"] == "training"
        began = self.now()
        given = self._call(message["seed"], training)
        try:
            self._once(message["what"], *given)
        except Exception as error:  # noqa: BLE001  torch.compile raises what its backends do
            if not compiler_process_failed(error):
                raise
            compile_in_this_process()
            self._once(message["what"], *given)
        self.clock.marks.wait()
        seconds = self.now() - began
        peak = None
        given = self._call(message["seed"] + 1, training)
        if self.gpu:
            self.clock.marks.wait()
            self.reset_memory()
            before = self.held_memory()
            self._once(message["what"], *given)
            self.clock.marks.wait()
            peak = {"call": self.memory() - before, "whole": self.memory()}
            self.peaks[message["what"]] = peak["call"]
        del given
        self._release()
        return {"seconds": seconds, "peak": peak, "replaced": self._replaced()}

    def turn(self, message: dict[str, Any]) -> dict[str, Any]:
        """One turn of a round: a timed call for every seed, each on inputs of its own and with a cold cache."""
        what = message["what"]
        room = self._room(what)  # before the first call, so that none of those that are timed has to ask for memory
        held: list[Any] = []  # the inputs' memory
        # A turn's first call through the clock takes longer than those after it: calls that warm up are timed ones too.
        calls, began = 0, self.now()
        while calls < message["warm"] or (self.gpu and calls and self.now() - began < WARM_SECONDS):
            self._timed(what, message["seeds"][0] + 7 + calls, held, None)
            calls += 1
        times, left, check, kept = [], False, {}, None
        for number, seed in enumerate(message["seeds"]):
            sample = self._timed(what, seed, held, room if number == message["check"] else None)
            times.append(sample.milliseconds)
            left = left or sample.left_threads
            if number == message["check"]:
                check["seed"], kept = seed, sample.kept
            del sample
            # Looked at last, because a call right behind that is slower than others; at once where memory is short.
            if kept is not None and (not room or number + 1 == len(message["seeds"])):
                check.update(self._look(kept, self.draw(31)))
                kept = None
        del room, held
        self._release()
        return {"times": times, "threads": left, "check": check or None, "replaced": self._replaced()}

    def _timed(self, what: str, seed: int, held: list[Any], room: dict[str, torch.Tensor] | None) -> Sample:
        """A call on new inputs, in the memory of the first ones; with ``room`` a copy of its results is kept."""
        training = what == "training"
        self.clock.settle()
        inputs, cotangents = self._call(seed, training)
        held[:] = inputs = self._in_place(held, inputs) if held else inputs
        keep = functools.partial(self._copies, inputs, training, room) if room is not None else None
        assert self.contender is not None
        # A forward pass without anything around it, as a loop of one's own would call it.
        step = (
            functools.partial(self._step, what, inputs, cotangents)
            if training
            else functools.partial(self.contender.run, *inputs)
        )
        self.zero(self.flush)
        with torch.set_grad_enabled(training):
            sample = self.clock.sample(step, keep)
        sample.result = None
        self._forget()
        return sample

    def kernels(self, message: dict[str, Any]) -> dict[str, Any]:
        """How the time of a call divides among kernels; nothing where the profiler cannot say."""
        training = message["what"] == "training"
        call = functools.partial(self._once, message["what"], *self._call(message["seed"], training))
        try:
            found = by_kernel(call, functools.partial(self.zero, self.flush), self.clock.marks.wait)
            return {"kernels": found, "note": None}
        except Exception as error:  # noqa: BLE001  without CUPTI there are times all the same
            return {"kernels": None, "note": why(error)}
        finally:
            del call
            self._release()

    def truth(self, message: dict[str, Any]) -> dict[str, Any]:
        """At the places that were looked at: what float64 gives, what eager gives, and what it gives for other inputs.

        Where float64 has no room eager stands in for it.
        """
        what, training = message["what"], message["what"] == "training"
        inputs, cotangents = self._call(message["seed"], training)
        truth = self._exact(what, inputs, cotangents, message["places"])
        self._release()
        seen = self._seen(what, inputs, cotangents, message["places"])
        del inputs, cotangents
        other = self._seen(what, *self._call(message["seed"] + 1, training), message["places"])
        return {"truth": truth or seen, "eager": seen, "other": other, "source": "float64" if truth else "eager"}

    def _seen(
        self, what: str, inputs: list[Any], cotangents: list[torch.Tensor], places: list[int]
    ) -> list[dict[str, Any]]:
        found = self._results(self._step(what, inputs, cotangents), inputs, what == "training")
        seen = [self._look(found, each)["values"] for each in places]
        del found
        self._release()
        return seen

    def _exact(
        self, what: str, inputs: list[Any], cotangents: list[torch.Tensor], places: list[int]
    ) -> list[dict[str, Any]] | None:
        """None where float64 takes more memory than there is."""
        training = what == "training"
        try:
            model = widened(copied(self.model))
            model.zero_grad(set_to_none=True)
            exact = Contender(model, model)
            given = exact.inputs(pytree.tree_map(lambda t: wide(_bare(t)), inputs), training)
            with Wide():
                out = STEPS[what](exact, given, [wide(c) for c in cotangents] if training else None)
            found = self._results(out, given, training, exact)
            return [self._look(found, each)["values"] for each in places]
        except torch.cuda.OutOfMemoryError:
            return None

    # -- pieces

    def _in_place(self, held: list[Any], inputs: list[Any]) -> list[Any]:
        """New values in the memory that is held: who knows a result by its input's address has another one's now."""

        def moved(old: Any, new: Any) -> Any:
            if type(new) is not torch.Tensor or type(old) is not torch.Tensor or not _dense(new):
                return new
            if (old.shape, old.stride(), old.dtype) != (new.shape, new.stride(), new.dtype):
                return new
            old.grad = None
            with torch.no_grad():
                return self.copy(old, new)

        return list(pytree.tree_map(moved, held, inputs))

    def _inputs(self, seed: int) -> list[Any]:
        return values.make_inputs(self.problem, self.shapes, seed, self.dtype, self.device)

    def _call(self, seed: int, training: bool) -> tuple[list[Any], list[torch.Tensor]]:
        """Fresh inputs and, for training, fresh gradients of the outputs."""
        assert self.contender is not None
        inputs = self.contender.inputs(self._inputs(seed), training)
        return inputs, self._cotangents(inputs, seed) if training else []

    def _cotangents(self, inputs: Sequence[Any], seed: int) -> list[torch.Tensor]:
        if not hasattr(self, "like"):
            assert self.contender is not None
            out = values.tensors(self.contender.run(*inputs))
            self.like = [(t.shape, t.dtype) for t in out if t.requires_grad]
            del out
        generator = torch.Generator(self.device).manual_seed(seed)
        return [torch.randn(s, dtype=d, device=self.device, generator=generator) for s, d in self.like]

    def _step(self, what: str, inputs: list[Any], cotangents: list[torch.Tensor]) -> Any:
        assert self.contender is not None
        return STEPS[what](self.contender, inputs, cotangents if what == "training" else None)

    def _once(self, what: str, inputs: list[Any], cotangents: list[torch.Tensor]) -> None:
        found = self._named(self._step(what, inputs, cotangents), inputs, what == "training")
        self.sizes[what] = {name: (t.shape, t.dtype) for name, t in found.items()}
        del found
        self._forget()

    def _room(self, what: str) -> dict[str, torch.Tensor]:
        """Memory for a copy of the results, taken before the call: taking it after would give late work the time.

        None where the call itself may want it.
        """
        sizes = self.sizes.get(what, {})
        if self.gpu:
            there = self.free_memory()[0] + self.cached_memory() - self.held_memory()
            wanted = sum(s.numel() * torch.empty((), dtype=d, device="meta").element_size() for s, d in sizes.values())
            if there < wanted + 1.25 * self.peaks.get(what, 0):
                return {}
        return {name: torch.empty(s, dtype=d, device=self.device) for name, (s, d) in sizes.items()}

    def _copies(
        self, inputs: Sequence[Any], training: bool, room: dict[str, torch.Tensor], out: Any
    ) -> dict[str, torch.Tensor]:
        """The results as they are now; those that there is no room for as they will be."""
        found = self._results(out, inputs, training)
        for name, t in found.items():
            there = room.get(name)
            if there is not None and (there.shape, there.dtype) == (t.shape, t.dtype):
                found[name] = self.copy(there, self.detach(t))
        return found

    def _results(
        self, out: Any, inputs: Sequence[Any], training: bool, contender: Contender | None = None
    ) -> dict[str, torch.Tensor]:
        """As ``_named``. A tensor that only pretends to be one is none."""
        found = self._named(out, inputs, training, contender)
        for name, t in found.items():
            if type(t) is not torch.Tensor:
                raise Cheat(f"{name} is a {type(t).__name__}, no plain torch.Tensor: it may compute when looked at")
        return found

    def _named(
        self, out: Any, inputs: Sequence[Any], training: bool, contender: Contender | None = None
    ) -> dict[str, torch.Tensor]:
        """Outputs, and after a training step the gradients, by name."""
        contender = contender or self.contender
        assert contender is not None
        found = {f"output {i}": t for i, t in enumerate(values.tensors(out))}
        if training:
            flat = pytree.tree_leaves(list(inputs))
            found |= {f"gradient of input {i}": t.grad for i, t in enumerate(flat) if _has_gradient(t)}
            named = contender.model.named_parameters()
            found |= {f"gradient of {n}": p.grad for n, p in named if p.grad is not None}
        return found

    def _look(self, found: dict[str, torch.Tensor], places: int) -> dict[str, Any]:
        seen = {
            name: {"shape": list(t.shape), "real": is_number(t),
                   "at": values.picked(t, places, k).double().tolist()}
            for k, (name, t) in enumerate(sorted(found.items()))
        }  # fmt: skip
        return {"places": places, "values": seen}

    def _forget(self) -> None:
        if self.contender is not None:
            self.contender.model.zero_grad(set_to_none=True)

    def _release(self) -> None:
        self._forget()
        if getattr(self, "gpu", False):
            self.empty_memory()

    def _replaced(self) -> list[str]:
        """Functions of torch, time and ours that are no longer what they were."""
        return self.snapshot.replaced() if self.kind == CANDIDATE else []


def _dense(t: torch.Tensor) -> bool:
    """Whether no two elements share memory, and none lies between them."""
    return t.is_contiguous() or any(t.is_contiguous(memory_format=f) for d, f in FORMATS.items() if d == t.dim())


def _bare(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_leaf and value.grad is not None


def main() -> None:
    from crucible.prove.sandbox import serve

    serve(Worker().handle)


if __name__ == "__main__":
    main()
