"""The truth of a case, and how far from it an honest computation may be (reference worker only).

Truth is the reference run in float64. The yardstick is the largest error among computations that nobody would call
wrong. Its terms, each with its reason:

``eager``        torch's own error in the dtype under test, on the same device. The measure that a user knows.
                 Taken over a few copies of the data that differ by an ulp, because on a tensor of few elements (or few
                 independent ones, such as a mean per sample) a single run may be exact by luck.
``sequential``   contractions and sums added one term after the other in float32, which is what one GPU thread per
                 output does, from the first to the last and from the last to the first. Libraries add in blocks, or
                 split a long sum when there are few: unfairly good. On a GPU only where the tensors are small.
``tf32``         operands of contractions rounded to TF32 with exact sums, where torch's switches permit that:
                 ``torch.backends.cudnn.allow_tf32`` for convolutions, ``torch.backends.cuda.matmul.allow_tf32`` (or
                 ``torch.set_float32_matmul_precision``) for matmuls. Never with ``--precision fp32``.
``tensor cores`` the same with the sums as the units for TF32 make them, which cut each total instead of rounding it:
                 seen only where the operands are exact. Where the tensors are small.
``conditioning`` the change of the truth itself when inputs, parameters and incoming gradients move by one ulp. No
                 implementation can be held to more than the data deserve.

Discrete choices (the index of a maximum, the sign under a relu) can hang on the last bits. A case whose truth jumps
under perturbations of 64 ulps is made again from another seed; where every seed does (exact ties), the jump becomes a
term, ``ties``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from crucible import switches
from crucible.exact import Wide, is_number, typed, widened, wider
from crucible.exact import wide as widen
from crucible.problem import ProblemError
from crucible.prove.arithmetic import SequentialSums, TensorCores, TF32Operands, mixtures
from crucible.prove.cases import Spec
from crucible.prove.compare import LOST, Error, expectations, measure, sampled
from crucible.prove.execute import Result, Unsaved, call, same_bits

State = dict[str, torch.Tensor]
STEADY_ULPS = 64
TF32_STEADY = 2e-3
EXTREME = ("huge", "tiny", "mixed", "special")
LIGHT = 4_000_000  # elements of weights, inputs and outputs up to which every term is affordable
CUT = 1e-5  # more than cutting instead of rounding can do to a sum of this size
HEAVY_WEIGHTS = 100_000_000  # on a GPU weights may have so many


@dataclass
class Settings:
    """What the yardstick may assume about the device and torch's switches."""

    device: torch.device
    simulated: bool
    precision: str = "torch"

    @property
    def tf32_convolutions(self) -> bool:
        return self.precision == "torch" and switches.conv_tf32()

    @property
    def tf32_matmuls(self) -> bool:
        return self.precision == "torch" and switches.matmul_tf32()


@dataclass
class Truth:
    """Everything known about the right answer of one case, by tensor name."""

    exact: Result
    eager: Result
    yard: dict[str, Error] = field(default_factory=dict)
    terms: dict[str, dict[str, float]] = field(default_factory=dict)
    masks: dict[str, torch.Tensor] = field(default_factory=dict)
    steady: bool = True
    inputs_changed: list[int] = field(default_factory=list)
    from_eager: bool = False  # float64 could not run: the truth is eager's own result
    narrow: bool = False  # whether a weight or an input is of a narrower type than float64

    def counted(self, name: str) -> torch.dtype:
        """The type whose ulps count for a tensor.

        A result of float64 that eager itself has with an error of float32's size was computed in float32 on the way,
        and only said to be wider: it is held to what it would be held to without.
        """
        own = self.eager.tensors[name].dtype
        if own != torch.float64 or not self.narrow:
            return own
        seen = self.terms.get(name, {}).get("eager", 0.0)
        return torch.float32 if seen > torch.finfo(torch.float32).eps / 64 else own


class Bench:
    """The reference model in two precisions, and a way to run either on given weights and inputs."""

    def __init__(
        self, build: Callable[[], torch.nn.Module], dtype: torch.dtype | None, device: torch.device,
        arguments: Callable[[list[Any]], list[Any]] = list,
    ) -> None:  # fmt: skip
        self.device = device
        self.arguments = arguments  # that inputs make up
        self.narrow = build().to(device)
        if dtype is not None:
            self.narrow = typed(self.narrow, dtype)
        self.wide = widened(build().to(device))
        self.wide_error: str | None = None
        self.written = False  # whether the reference writes into its inputs
        self._build, self._dtype = build, dtype
        self._beside: torch.nn.Module | None = None  # the narrow model on the CPU, where the others are not
        self.held: dict[int, State] = {}
        self.unsaved: dict[int, Unsaved] = {}
        self.inputs_changed: list[int] = []  # by the last run in the narrow dtype

    @property
    def beside(self) -> torch.nn.Module:
        if self.device.type == "cpu":
            return self.narrow
        if self._beside is None:
            made = self._build()
            self._beside = made if self._dtype is None else typed(made, self._dtype)
        return self._beside

    def run_beside(self, state: State, inputs: list[Any], cotangents: list[Any] | None, spec: Spec) -> Result:
        """A run in the narrow dtype on the CPU, with its results where the others are."""
        result = self._run(self.beside, torch.device("cpu"), state, inputs, cotangents, spec, wide=False)
        result.tensors = {k: t.to(self.device) for k, t in result.tensors.items()}
        return result

    def run(self, state: State, inputs: list[Any], cotangents: list[Any] | None, spec: Spec, *, wide: bool) -> Result:
        model = self.wide if wide else self.narrow
        result = self._run(model, self.device, state, inputs, cotangents, spec, wide=wide)
        if not wide:
            after = {i: result.tensors.get(f"input:{i}") for i in range(len(inputs))}
            self.inputs_changed = [
                i for i, new in after.items() if new is not None and not same_bits(inputs[i].to(self.device), new)
            ]
        return result

    def _run(
        self, model: torch.nn.Module, device: torch.device, state: State, inputs: list[Any],
        cotangents: list[Any] | None, spec: Spec, *, wide: bool,
    ) -> Result:  # fmt: skip
        self.load(model, state)
        model.train(spec.training)
        moved = [_place(x, device, wide) for x in inputs]
        grads = None if cotangents is None else [_place(c, device, wide) for c in cotangents]
        result = self._call(model, moved, grads, spec, wide)
        if result.error is not None and "leaf Variable that requires grad" in result.error:
            self.written = True
            self.load(model, state)
            moved = [_place(x, device, wide) for x in inputs]
            result = self._call(model, moved, grads, spec, wide)
        return result

    def _call(
        self, model: torch.nn.Module, inputs: list[Any], cotangents: list[Any] | None, spec: Spec, wide: bool
    ) -> Result:
        with Wide() if wide else contextlib.nullcontext():
            return call(
                model, inputs, cotangents, seed=spec.seed, differentiate=spec.grads, written=self.written,
                arguments=self.arguments,
            )  # fmt: skip

    def load(self, model: torch.nn.Module, state: State) -> None:
        """Copy values into a model of either precision. Large parameters that it already holds are left alone."""
        held = self.held.setdefault(id(model), {})
        if id(model) not in self.unsaved:
            self.unsaved[id(model)] = Unsaved(model)
        self.unsaved[id(model)].restore(model)
        parameters = {k for k, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
        with torch.no_grad():
            for name, own in model.state_dict().items():
                value = state[name]
                if name not in parameters or held.get(name) is not value:
                    own.copy_(value)
                    held[name] = value


def _place(x: Any, device: torch.device, wide: bool) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    return x.to(device, wider(x.dtype) if wide else x.dtype, copy=True)


def find_truth(
    bench: Bench, state: State, inputs: list[Any], cotangents: list[Any] | None, spec: Spec, settings: Settings,
    *, retry: bool = False,
) -> Truth:  # fmt: skip
    """Run the reference in every way that the yardstick needs.

    With ``retry`` a case that TF32 makes unsteady is given up at once: another seed will be tried in its stead.
    """
    eager = bench.run(state, inputs, cotangents, spec, wide=False)
    if eager.error is not None:
        return Truth(eager, eager)
    inputs_changed = bench.inputs_changed
    exact = bench.run(state, inputs, cotangents, spec, wide=True)
    truth = Truth(exact, eager)
    truth.narrow = any(
        x.dtype != torch.float64
        for x in [*state.values(), *inputs]
        if isinstance(x, torch.Tensor) and x.is_floating_point()
    )
    if exact.error is not None or exact.tensors.keys() != eager.tensors.keys():
        bench.wide_error = exact.error or "it gives other outputs in float64"
        truth.exact, truth.from_eager = eager, True
    for name, t in truth.exact.tensors.items():
        if name.startswith("sum:"):
            continue
        mask = expectations(t, eager.tensors[name], extreme=spec.values in EXTREME)
        if mask is not None:
            truth.masks[name] = mask
    _measure(truth, "eager", truth.exact, eager, spec)
    _arithmetic_terms(truth, bench, state, inputs, cotangents, spec, settings, retry=retry)
    if retry and not truth.steady:
        return truth
    _perturbed_terms(truth, bench, state, inputs, cotangents, spec, settings)
    truth.inputs_changed = inputs_changed
    return truth


def _measure(truth: Truth, term: str, exact: Result, other: Result, spec: Spec) -> None:
    """Add the error of one computation to the yardstick."""
    if other.error is not None:
        return
    for name, t in exact.tensors.items():
        got = other.tensors.get(name)
        if got is None or got.shape != t.shape:
            continue
        # Elements at which a computation that is not eager overflows say nothing about the others.
        mask = truth.masks.get(name)
        # The worst element of a sample is smaller than the worst of all, which the candidate is held to.
        part = (lambda x: x) if term == "eager" or t.is_cuda else sampled
        error = measure(part(t), part(got), None if mask is None else part(mask), classes=spec.classes)
        if term != "eager" and not (error.l2 < float("inf") and error.worst < float("inf")):
            continue
        truth.yard[name] = truth.yard.get(name, Error()).merge(error)
        row = truth.terms.setdefault(name, {})
        row[term] = max(row.get(term, 0.0), error.l2)


def _is_light(state: State, inputs: list[Any], eager: Result, settings: Settings) -> bool:
    """Whether every term is affordable."""
    weights = sum(t.numel() for t in state.values())
    others = sum(x.numel() for x in inputs if isinstance(x, torch.Tensor))
    others += sum(t.numel() for name, t in eager.tensors.items() if name.removeprefix("grad:") not in state)
    if settings.simulated:
        return 2 * weights + others <= LIGHT
    return weights <= HEAVY_WEIGHTS and others <= LIGHT


def _arithmetic_terms(
    truth: Truth,
    bench: Bench,
    state: State,
    inputs: list[Any],
    cotangents: list[Any] | None,
    spec: Spec,
    settings: Settings,
    *,
    retry: bool,
) -> None:
    narrow = any(t.dtype == torch.float32 for t in truth.eager.tensors.values())
    if narrow and not truth.from_eager and (settings.tf32_convolutions or settings.tf32_matmuls):
        mode = TF32Operands(convolutions=settings.tf32_convolutions, matmuls=settings.tf32_matmuls)
        with mode:
            rounded = bench.run(state, inputs, cotangents, spec, wide=True)
        if mode.used:
            _measure(truth, "tf32", truth.exact, rounded, spec)
            worst = max(
                (row.get("tf32", 0.0) for row in truth.terms.values() if row.get("eager", 0.0) < LOST), default=0.0
            )
            # TF32 noise that flips a maximum makes the yardstick of a gradient useless: look for a better seed. Where
            # there is none, who uses TF32 for some contractions and not for others sees other maxima flip. torch itself
            # may be one: by its source, depthwise convolutions of contiguous float32 are its own kernels, not cuDNN's.
            truth.steady = not spec.grads or worst < TF32_STEADY
            if not truth.steady and retry:
                return
            for exact in [] if truth.steady else mixtures(mode.count):
                with TF32Operands(
                    convolutions=settings.tf32_convolutions, matmuls=settings.tf32_matmuls, exact=exact
                ):
                    some = bench.run(state, inputs, cotangents, spec, wide=True)
                _measure(truth, "tf32", truth.exact, some, spec)
    # In float64 the truth is eager itself, whose own error then cannot be seen: another order of sums shows its size.
    own = any(t.dtype == torch.float64 for t in truth.eager.tensors.values())
    light = _is_light(state, inputs, truth.eager, settings)
    # Random numbers are others on the CPU.
    affordable = settings.simulated or (light and not truth.eager.drew_random)
    if light and affordable and narrow and (settings.tf32_convolutions or settings.tf32_matmuls) and not spec.brief:
        with TensorCores(convolutions=settings.tf32_convolutions, matmuls=settings.tf32_matmuls):
            cores = bench.run_beside(state, inputs, cotangents, spec)
        # What is much further off than rounded operands explain took another branch: it says nothing about sums.
        near = {
            name: t
            for name, t in cores.tensors.items()
            if name in truth.exact.tensors
            and measure(truth.exact.tensors[name], t, truth.masks.get(name)).l2
            <= 2 * truth.terms.get(name, {}).get("tf32", 0.0) + CUT
        }
        cores.tensors = near
        _measure(truth, "tensor cores", truth.exact, cores, spec)
    if affordable and (own or not spec.brief):
        _measure(truth, "sequential", truth.exact, _sequential(bench, state, inputs, cotangents, spec), spec)
        if light:
            other = _sequential(bench, state, inputs, cotangents, spec, backwards=True)
            _measure(truth, "sequential", truth.exact, other, spec)


def _sequential(
    bench: Bench,
    state: State,
    inputs: list[Any],
    cotangents: list[Any] | None,
    spec: Spec,
    *,
    backwards: bool = False,
) -> Result:
    with SequentialSums(backwards=backwards):
        return bench.run_beside(state, inputs, cotangents, spec)


def _perturbed_terms(
    truth: Truth,
    bench: Bench,
    state: State,
    inputs: list[Any],
    cotangents: list[Any] | None,
    spec: Spec,
    settings: Settings,
) -> None:
    if truth.from_eager:
        return
    light = _is_light(state, inputs, truth.eager, settings)
    draws = 1 if spec.brief or not light else 3
    for draw in range(draws):
        moved = _perturb(state, inputs, cotangents, spec.seed * 31 + draw, 1.0)
        exact = bench.run(*moved, spec, wide=True)
        _measure(truth, "conditioning", truth.exact, exact, spec)
        if light and not spec.brief:
            _measure(truth, "eager", exact, bench.run(*moved, spec, wide=False), spec)
    if not (spec.steady and light):
        return
    jumps: dict[str, Error] = {}
    for draw in range(3):
        moved = _perturb(state, inputs, cotangents, spec.seed * 37 + draw, float(STEADY_ULPS))
        exact = bench.run(*moved, spec, wide=True)
        if exact.error is not None:
            raise ProblemError(f"Model can be called once, and not again with almost the same data: {exact.error}")
        for name, t in truth.exact.tensors.items():
            jumps[name] = jumps.get(name, Error()).merge(measure(t, exact.tensors[name], truth.masks.get(name)))
    smooth = 8.0 * STEADY_ULPS
    for name, jump in jumps.items():
        if truth.yard[name].l2 > LOST or name.startswith("sum:"):
            continue
        expected = max(truth.terms[name].get("conditioning", 0.0), _eps(truth.eager.tensors[name]) / 4)
        if jump.l2 > smooth * expected and jump.l2 < float("inf"):
            truth.steady = False
            truth.yard[name] = truth.yard[name].merge(jump)
            truth.terms[name]["ties"] = jump.l2


def _eps(t: torch.Tensor) -> float:
    return torch.finfo(t.dtype).eps if is_number(t) else 0.0


def _perturb(
    state: State, inputs: list[Any], cotangents: list[Any] | None, seed: int, ulps: float
) -> tuple[State, list[Any], list[Any] | None]:
    """Everything floating moved by up to ``ulps`` ulps of its own dtype, each element by itself.

    Very large weights stay: moving the other operand of their contraction has the same effect on its result.
    """
    generator = torch.Generator().manual_seed(seed % (1 << 62))

    def move(x: Any) -> Any:
        if not is_number(x) or not 0 < x.numel() <= LIGHT:
            return x
        noise = torch.empty(x.shape).uniform_(-1, 1, generator=generator)
        step = ulps * torch.finfo(x.dtype).eps
        return (widen(x) * (1 + step * noise.double())).to(x.dtype)

    return (
        {k: move(v) for k, v in state.items()},
        [move(x) for x in inputs],
        None if cotangents is None else [move(c) for c in cotangents],
    )
