"""The reference worker: loads the Problem, finds its sizes, makes cases, and works out the truth and the yardstick.

It never meets the candidate: it writes the inputs of a case where the candidate may read them, and the truth where only
the parent may.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from crucible.autocast import switched_on
from crucible.exact import is_number, parts, typed
from crucible.problem import Problem, ProblemError, load_problem
from crucible.prove import generate, tensors
from crucible.prove.cases import Spec
from crucible.prove.execute import Result, given, modes
from crucible.prove.shapes import attributes, signatures, state_layout, tied
from crucible.prove.small import Work, find_small
from crucible.prove.twice import differentiated_twice
from crucible.prove.uncompiled import spare_the_compiler
from crucible.prove.variants import variants
from crucible.prove.yardstick import Bench, Settings, Truth, find_truth

SEED_STEP = 1_000_003
ATTEMPTS = 4
LIGHT_WORK = 40_000_000
RECENT = 4  # cases that are kept for hints; the next one is made while the candidate works on this one


class _Recorder(TorchDispatchMode):
    """Keeps the names of all operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func._schema.name))
        return func(*args, **(kwargs or {}))


class Reference:
    """Answers the parent's requests; one instance a process."""

    def __init__(self) -> None:
        self.problem: Problem
        self.work: Work
        self.bench: Bench
        self.settings: Settings
        self.dtype: torch.dtype | None = None
        self.cases = self.truths = Path()
        self.states: dict[str, generate.State] = {}
        self.pool: dict[tuple[str, str, int], tuple[torch.Tensor, dict[str, Any]]] = {}
        self.recent: dict[str, tuple[Spec, generate.State, list[Any], list[Any] | None]] = {}

    def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            action = {
                "open": self.open,
                "case": self.case,
                "initial": self.initial,
                "accepts": self.accepts,
                "variants": self.variants,
            }[message["op"]]
            return {"ok": True, **action(message)}
        except ProblemError as error:
            return {"ok": False, "problem": str(error)}

    # --- opening ----------------------------------------------------------------------------------------------------

    def open(self, message: dict[str, Any]) -> dict[str, Any]:
        self.cases, self.truths = Path(message["cases"]), Path(message["truths"])
        self.dtype = tensors.DTYPES[message["dtype"]] if message.get("dtype") else None
        device = torch.device("cuda:0" if message["device"] == "cuda" else "cpu")
        self.settings = Settings(device, message["device"] != "cuda", message.get("precision", "torch"))
        self.problem = problem = load_problem(Path(message["path"]))
        self.work = find_small(problem)
        try:
            model = problem.build(0)
            self.bench = Bench(lambda: problem.build(0), self.dtype, device, problem.arguments)
        except Exception as error:  # noqa: BLE001
            raise ProblemError(
                f"Model of {problem.path.name} cannot be built: {type(error).__name__}: {error}"
            ) from None
        if device.type == "cpu" and self.work.multiply_adds + sum(p.numel() for p in model.parameters()) < LIGHT_WORK:
            torch.set_num_threads(
                1
            )  # small operators lose more to waking threads than they gain, and the candidate runs too
        declared = [
            {"shape": list(x.shape), "dtype": tensors.dtype_name(x.dtype)} if isinstance(x, torch.Tensor) else None
            for x in problem.declared
        ]
        return {
            "init": tensors.encode(problem.init_inputs, self.cases, "init"),
            "declared": declared,
            "free": [
                {"members": f.members, "declared": f.declared, "small": f.small, "batch": f.is_batch}
                for f in problem.free
            ],
            "small_shapes": [list(s) if s else s for s in problem.shapes_for(problem.small_sizes)],
            "outputs": [list(s) for s in self.work.output_shapes],
            "multiply_adds": self.work.multiply_adds,
            "signatures": signatures(problem.module.Model),
            "state": state_layout(model),
            "tied": tied(model),
            "modes": modes(model),
            "attributes": attributes(model),
            "tf32": {"convolutions": self.settings.tf32_convolutions, "matmuls": self.settings.tf32_matmuls},
            "operators": self._operators(),
            "twice": self._twice(),
            "draws_random": {mode: self._draws(mode == "training") for mode in ("training", "eval")},
            "torch": torch.__version__,
        }

    def _draws(self, training: bool) -> bool:
        """Whether forward() uses torch's random generator."""
        spec = Spec("randomness", 0, tuple(self.problem.small_sizes), weights="initial", training=training)
        inputs = generate.make_inputs(self.problem, self.problem.shapes_for(spec.sizes), spec, self.dtype)
        state = {k: v.detach().clone() for k, v in self.bench.narrow.state_dict().items()}
        return self.bench.run(state, inputs, None, spec, wide=False).drew_random

    def _twice(self) -> list[str]:
        """At what gradients of gradients arrive; not looked at where weights are very large."""
        model = self.problem.build(0)
        if sum(p.numel() for p in model.parameters()) > LIGHT_WORK:
            return []
        inputs = self.problem.inputs(self.problem.shapes_for(self.problem.small_sizes), 0)
        own = {f"input {i}": x.requires_grad_() for i, x in enumerate(inputs) if is_number(x)}
        try:
            returned = model(*self.problem.arguments(given(inputs, range(len(inputs)), written=self.bench.written)))
        except Exception:  # noqa: BLE001  what is wrong with it is told by those who need it
            return []
        found = differentiated_twice((v for _, v in tensors.leaves(returned)), own | dict(model.named_parameters()))
        return found if isinstance(found, list) else []

    def _operators(self) -> list[str]:
        """The ATen operators of one forward, in order: a candidate that calls these wraps the reference."""
        inputs = self.problem.inputs(self.problem.shapes_for(self.problem.small_sizes), 0)
        model = self.problem.build(0)
        with torch.no_grad(), switched_on() as mixed, _Recorder() as recorder:
            model(*self.problem.arguments(inputs))
        if mixed and self.settings.device.type == "cpu":
            raise ProblemError(
                f"Model switches automatic mixed precision on, {next(iter(mixed))}, which does something else on a "
                "CPU: what it computes on a GPU can be seen on a GPU alone"
            )
        return list(dict.fromkeys(recorder.names))

    def initial(self, message: dict[str, Any]) -> dict[str, Any]:
        """The state that a seed gives, for comparison with the candidate's. Hidden: it is a result like any other."""
        model = self.problem.build(message["seed"])
        return {"state": self._save_all(model.state_dict(), self.truths, f"initial{message['seed']}")}

    def accepts(self, message: dict[str, Any]) -> dict[str, Any]:
        """Whether the reference loads a state dict with the candidate's names, shapes and dtypes."""
        model = self.problem.build(0)
        state = {name: torch.zeros(shape, dtype=tensors.DTYPES[dtype]) for name, shape, dtype, _ in message["layout"]}
        try:
            model.load_state_dict(state)
        except Exception as error:  # noqa: BLE001
            return {"accepted": False, "error": str(error)[:2000]}
        return {"accepted": True}

    # --- cases ------------------------------------------------------------------------------------------------------

    def case(self, message: dict[str, Any]) -> dict[str, Any]:
        """Make a case and its truth. A seed at which discrete choices hang on the last bits is passed over."""
        spec = Spec.from_json(message["spec"])
        name = message["id"]
        for attempt in range(ATTEMPTS):
            trial = spec.but(seed=spec.seed + attempt * SEED_STEP)
            last = attempt == ATTEMPTS - 1 or not spec.steady
            state, inputs, cotangents, truth = self._evaluate(trial, retry=not last)
            if truth.steady or truth.eager.error or last:
                break
        if truth.eager.error is not None:
            if "out of memory" in truth.eager.error.lower():
                return {"refused": truth.eager.error, "memory": True}
            return {"refused": truth.eager.error, "memory": False}
        self.recent[name] = (trial, state, inputs, cotangents)
        while len(self.recent) > RECENT:
            del self.recent[next(iter(self.recent))]
        folder = self.cases / name
        folder.mkdir()
        wire = {
            "folder": name,
            "seed": trial.seed,
            "training": trial.training,
            "dtype": tensors.dtype_name(self.dtype) if self.dtype is not None else None,
            "state": self._state_files(trial, state),
            "inputs": [tensors.encode(x, folder, f"input{i}") for i, x in enumerate(inputs)],
            "structure": tensors.encode(self.problem.structure, folder, "structure"),
            "requires_grad": [
                i
                for i, x in enumerate(inputs)
                if trial.grads and is_number(x)
            ],
            "written": self.bench.written,
            "writes": [int(k.removeprefix("input:")) for k in truth.eager.tensors if k.startswith("input:")],
            "cotangents": None
            if cotangents is None
            else [tensors.encode(c, folder, f"cotangent{i}") for i, c in enumerate(cotangents)],
        }
        reply = {"case": wire, "truth": self._describe(truth, trial, name)}
        if self.settings.device.type == "cuda":
            torch.cuda.empty_cache()
        return reply

    def _evaluate(self, spec: Spec, *, retry: bool) -> tuple[generate.State, list[Any], list[Any] | None, Truth]:
        shapes = self.problem.shapes_for(spec.sizes)
        inputs = generate.make_inputs(self.problem, shapes, spec, self.dtype)
        state = self._state(spec)
        cotangents = self._cotangents(state, inputs, spec) if spec.grads else None
        truth = find_truth(self.bench, state, inputs, cotangents, spec, self.settings, retry=retry)
        return state, inputs, cotangents, truth

    def _cotangents(self, state: generate.State, inputs: list[Any], spec: Spec) -> list[Any] | None:
        """A random incoming gradient for each output: ``sum().backward()`` would forgive any permutation.

        Its layout is that of the inputs; an expanded one is what ``sum()`` sends back, one number with strides of zero.
        """
        shape_run: Result = self.bench.run(state, inputs, None, spec.but(grads=False), wide=False)
        if shape_run.error is not None:
            return None
        generator = torch.Generator().manual_seed(spec.seed + 3)

        def cotangent(v: Any) -> torch.Tensor | None:
            if not is_number(v):
                return None
            if spec.layout == "expanded" and v.dim() > 0:
                return torch.full([1] * v.dim(), 0.75, dtype=v.dtype).expand(v.shape)
            made = generate.standard_normal(parts(v).shape, generator)
            made = torch.view_as_complex(made.float()) if v.is_complex() else made
            return generate.with_layout(made.to(v.dtype), spec.layout)

        return [cotangent(v) for _, v in shape_run.outputs]

    @staticmethod
    def _weights(spec: Spec) -> tuple[str, int]:
        seed = spec.seed if spec.weights_seed is None else spec.weights_seed
        return f"{spec.weights}-{seed}", seed

    def _state(self, spec: Spec) -> generate.State:
        """The weights of a case, as files too. Tensors that several kinds of weights share are the same objects, so
        that neither a file nor a copy into a model is made twice: one of the five problems has 256 MiB of them."""
        key, seed = self._weights(spec)
        if key not in self.states:
            model = self.problem.build(seed)
            if self.dtype is not None:
                model = typed(model, self.dtype)
            state = generate.make_state(model, spec)
            folder = self.cases / "states"
            folder.mkdir(exist_ok=True)
            for name, value in state.items():
                kind = "fresh" if spec.weights == "offset" and generate.is_contracted(value) else spec.weights
                if (name, kind, seed) not in self.pool:
                    file = tensors.save(value, folder, f"{len(self.pool)}.bin")
                    self.pool[name, kind, seed] = (value, file)
                state[name] = self.pool[name, kind, seed][0]
            self.states[key] = state
        return self.states[key]

    def _state_files(self, spec: Spec, state: generate.State) -> dict[str, Any]:
        files = {id(value): file for value, file in self.pool.values()}
        return {"folder": "states", "tensors": {name: files[id(value)] for name, value in state.items()}}

    @staticmethod
    def _save_all(state: dict[str, torch.Tensor], folder: Path, prefix: str) -> dict[str, Any]:
        return {k: tensors.save(v, folder, f"{prefix}{i}.bin") for i, (k, v) in enumerate(state.items())}

    def _describe(self, truth: Truth, spec: Spec, name: str) -> dict[str, Any]:
        """The truth as files and numbers, for the parent."""
        folder = self.truths / name
        folder.mkdir()
        rows: dict[str, Any] = {}
        for i, (key, value) in enumerate(truth.exact.tensors.items()):
            mask = truth.masks.get(key)
            rows[key] = {
                "truth": tensors.save(value, folder, f"t{i}.bin"),
                "dtype": tensors.dtype_name(truth.eager.tensors[_owner(key)].dtype),
                "ulps": tensors.dtype_name(truth.counted(_owner(key))),
                "yard": truth.yard[key].to_json(),
                "terms": truth.terms[key],
                "mask": None if mask is None else tensors.save(mask, folder, f"m{i}.bin"),
            }
        return {
            "folder": name,
            "seed": spec.seed,
            "tensors": rows,
            "missing": truth.eager.missing,
            "differentiable": truth.eager.differentiable,
            "outputs": [[path, isinstance(v, torch.Tensor)] for path, v in truth.eager.outputs],
            "drew_random": truth.eager.drew_random,
            "inputs_changed": truth.inputs_changed,
            "steady": truth.steady,
            "from_eager": truth.from_eager,
            "aliases": truth.eager.aliases,
        }

    # --- hints ------------------------------------------------------------------------------------------------------

    def variants(self, message: dict[str, Any]) -> dict[str, Any]:
        """Plausible mistakes applied to a recent case: what the output would be with each of them."""
        recent = self.recent.get(message["case"])
        if recent is None:
            return {"variants": []}
        folder = self.truths / message["id"]
        folder.mkdir()
        found = []
        for i, (text, code, value) in enumerate(variants(self.bench, *recent)):
            found.append({"text": text, "code": code, "tensor": tensors.save(value, folder, f"v{i}.bin")})
        return {"variants": found, "folder": message["id"]}


def _owner(key: str) -> str:
    """The tensor whose dtype counts; sums are added up in float64 from gradients in their own dtype."""
    return f"grad:{key.removeprefix('sum:')}" if key.startswith("sum:") else key


def main() -> None:
    from crucible.prove.sandbox import serve

    spare_the_compiler()
    serve(Reference().handle)
