"""Whether a generated file computes what its Model does: outputs, gradients and buffers against float64.

Each is held to twice the error of torch's own float32 (over a few copies of the data that differ by an ulp), at the
sizes that the graph was drawn with and at others that the Model takes too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from crucible.prove.compare import slack
from crucible.sim import device

EPS = torch.finfo(torch.float32).eps
ULPS = 8  # an error of this many ulps is always permitted
FACTOR = 2.0  # times eager's own
FLOOR = 1e-2  # a gradient that is zero but for rounding is measured against this part of the others' scale
STEADY = 1e-3  # where 64 ulps change more than this, a discrete choice hangs on the last bits: another seed
SEEDS = 6
Shapes = list[list[int]]
Results = dict[str, torch.Tensor]


def run(model: torch.nn.Module, inputs: list[torch.Tensor], weights_seed: int) -> Results:
    """Outputs, gradients of their random combination, and buffers afterwards, by name."""
    inputs = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    outputs = _listed(model(*inputs))
    generator = torch.Generator().manual_seed(weights_seed)
    weights = [torch.randn(x.shape, generator=generator).to(x) for x in outputs]
    found = {f"output {k}": x.detach() for k, x in enumerate(outputs)}
    losses = [(x * w).sum() for x, w in zip(outputs, weights) if x.requires_grad]
    if losses:
        leaves = {f"input {k}": x for k, x in enumerate(inputs) if x.requires_grad}
        leaves |= dict(model.named_parameters())
        gradients = torch.autograd.grad(sum(losses), list(leaves.values()), allow_unused=True)
        found |= {f"gradient of {n}": g for n, g in zip(leaves, gradients) if g is not None}
    return found | {f"buffer {n}": b.detach().clone() for n, b in model.named_buffers()}


def _listed(outputs: Any) -> list[torch.Tensor]:
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def _nudged(tensors: list[torch.Tensor], ulps: float, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def moved(x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            return x
        return x * (1 + ulps * EPS * (2 * torch.rand(x.shape, generator=generator).to(x) - 1))

    return [moved(x) for x in tensors]


class Reference:
    """The Model of a drawn file: in float64, and in float32 on data that differ by an ulp."""

    def __init__(self, job: dict[str, Any], shapes: Shapes, seed: int, training: bool) -> None:
        names: dict[str, Any] = {"__name__": "drawn"}
        exec(compile(job["source"], "<drawn>", "exec"), names)
        torch.manual_seed(seed)
        self.model = names["Model"](*names["get_init_inputs"]()).train(training)
        originals = names["get_inputs"]()
        self.inputs = [x if list(x.shape) == s else _resized(x, s) for x, s in zip(originals, shapes)]
        self.state = {n: t.detach().clone() for n, t in self.model.state_dict().items()}
        self.seed = seed

    def at(self, dtype: torch.dtype, ulps: float = 0.0, seed: int = 0) -> Results:
        names = list(self.state)
        nudged = _nudged([*self.inputs, *self.state.values()], ulps, seed)
        inputs, state = nudged[: len(self.inputs)], dict(zip(names, nudged[len(self.inputs) :]))
        self.model.to(dtype).load_state_dict(state)
        return run(self.model, [x.to(dtype) if x.is_floating_point() else x for x in inputs], self.seed)


def _resized(x: torch.Tensor, shape: list[int]) -> torch.Tensor:
    if x.is_floating_point():
        return torch.randn(shape)
    return torch.randint(int(x.min()), int(x.max()) + 1, shape, dtype=x.dtype)


def _scales(truth: Results) -> dict[str, float]:
    """What an error of each tensor is relative to."""
    largest = max((_rms(t) for n, t in truth.items() if n.startswith("gradient")), default=0.0)
    out = {}
    for n, t in truth.items():
        floor = FLOOR * largest * math.sqrt(t.numel()) if n.startswith("gradient") else 0.0
        out[n] = max(float(t.double().norm()), floor, 1e-30)
    return out


def _rms(t: torch.Tensor) -> float:
    return float(t.double().square().mean().sqrt()) if t.numel() else 0.0


def _error(got: torch.Tensor, truth: torch.Tensor, scale: float) -> tuple[float, float]:
    """Relative L2 error, and the worst element's."""
    difference = torch.nan_to_num((got.double() - truth.double()).abs(), nan=math.inf)
    difference = torch.where(got.double().isnan() & truth.isnan(), 0.0, difference)
    if not difference.numel():
        return 0.0, 0.0
    rms = scale / math.sqrt(truth.numel())
    return float(difference.norm()) / scale, float((difference / (truth.double().abs() + rms)).max())


def _steady(reference: Reference, truth: Results) -> bool:
    scales = _scales(truth)
    moved = reference.at(torch.float64, 64, 1)
    return all(
        _error(moved[n], t, scales[n])[0] < STEADY if t.is_floating_point() else bool(torch.equal(moved[n], t))
        for n, t in truth.items()
    )


def compared(job: dict[str, Any], names: dict[str, Any]) -> str:
    """What is wrong with a generated file, or nothing."""
    for shapes in sizes(job):
        for training in (True, False):
            wrong = _compared_at(job, names, shapes, training)
            if wrong:
                return f"inputs {shapes}, {'training' if training else 'evaluation'}:\n{wrong}"
    return ""


def _compared_at(job: dict[str, Any], names: dict[str, Any], shapes: Shapes, training: bool) -> str:
    for seed in range(SEEDS):
        reference = Reference(job, shapes, seed, training)
        try:
            truth = reference.at(torch.float64)
        except Exception:  # the Model itself does not take these sizes
            return ""
        if _steady(reference, truth):
            break
    else:
        return ""
    torch.manual_seed(seed)
    model = names["ModelNew"](*names["get_init_inputs"]()).train(training)
    model.load_state_dict(reference.state)
    model = model.cuda()
    device.reset()
    try:
        got = run(model, [x.cuda() for x in reference.inputs], seed)
        quiet = _quiet(names, reference, training)
    except RuntimeError as error:
        found = device.reports()
        if str(error).startswith(("ModelNew: expected", "ModelNew: made for sizes")) and shapes != job["shapes"]:
            return ""  # refuses sizes that it was not made for, and says so
        return f"{error}\n{found[0] if found else ''}"
    if found := device.reports():
        return f"the simulator reports {found[0]}"
    return _judged(got, truth, reference) or _alike(got, quiet)


def _quiet(names: dict[str, Any], reference: Reference, training: bool) -> list[torch.Tensor]:
    """Outputs where nothing is differentiated: other kernels."""
    model = names["ModelNew"](*names["get_init_inputs"]()).train(training)
    model.load_state_dict(reference.state)
    model = model.cuda()
    with torch.no_grad():
        return [x.cpu() for x in _listed(model(*(x.cuda() for x in reference.inputs)))]


def _alike(got: Results, quiet: list[torch.Tensor]) -> str:
    for k, x in enumerate(quiet):
        truth = got[f"output {k}"].cpu()
        if x.shape != truth.shape or x.dtype != truth.dtype:
            return f"output {k} without gradients: {x.dtype} {tuple(x.shape)}"
        scale = max(float(truth.double().norm()), 1e-30)
        if _error(x, truth, scale)[0] > 1e-4:
            return f"output {k} without gradients differs by {_error(x, truth, scale)[0]:.1e}"
    return ""


def _judged(got: Results, truth: Results, reference: Reference) -> str:
    eager = [reference.at(torch.float32), *(reference.at(torch.float32, 1, s) for s in (2, 3, 4))]
    if got.keys() != eager[0].keys():
        return f"there is {sorted(got.keys() ^ eager[0].keys())} on one side only"
    scales = _scales(truth)
    lines = []
    for n, t in truth.items():
        mine = got[n].cpu()
        if mine.shape != t.shape or mine.dtype != eager[0][n].dtype:
            lines.append(f"{n}: {mine.dtype} {tuple(mine.shape)}, expected {eager[0][n].dtype} {tuple(t.shape)}")
            continue
        if not t.is_floating_point():
            if not torch.equal(mine, t):
                lines.append(f"{n}: integers differ in {int((mine != t).sum())} of {t.numel()} places")
            continue
        yards = [_error(e[n], t, scales[n]) for e in eager]
        l2, worst = _error(mine, t, scales[n])
        room = FACTOR * slack(t.numel())
        limit = max(room * max(y[0] for y in yards), ULPS * EPS)
        limit_worst = max(room * max(y[1] for y in yards), 2 * ULPS * EPS, 3 * limit)
        if not (l2 <= limit and worst <= limit_worst):
            lines.append(f"{n}: error {l2:.1e} (limit {limit:.1e}), worst {worst:.1e} (limit {limit_worst:.1e})")
    return "\n".join(lines)


def sizes(job: dict[str, Any]) -> Iterator[Shapes]:
    """The drawn sizes; then more samples and pixels; then one sample."""
    drawn: Shapes = job["shapes"]
    yield drawn
    first = drawn[0]
    if not first:
        return
    larger = [_changed(s, first, first[0] + 1, 1) for s in drawn]
    yield larger if _takes(job, larger) else [_changed(s, first, first[0] + 1, 0) for s in drawn]
    yield [_changed(s, first, job.get("batch", 1), 0) for s in drawn]


def _changed(shape: list[int], first: list[int], batch: int, grown: int) -> list[int]:
    """The shape with another batch, and larger spatial sizes where it has those of the first input."""
    out = list(shape)
    if shape and shape[0] == first[0]:
        out[0] = batch
    for d in range(2, min(len(shape), len(first))):
        if shape[d] == first[d]:
            out[d] += grown
    return out


def _takes(job: dict[str, Any], shapes: Shapes) -> bool:
    try:
        Reference(job, shapes, 0, True).at(torch.float32)
    except Exception:
        return False
    return True
