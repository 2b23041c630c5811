"""A process with one candidate on the GPU: builds it, checks it, times it. Requests and answers are lines of JSON.

    python -m crucible.tune.worker PROBLEM.py FILE.py|reference DTYPE

What the Model prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

from crucible import switches
from crucible.exact import Wide, copied, parts, wide, widened
from crucible.problem import import_file, load_problem
from crucible.tune.bench import REFERENCE

FLUSH_BYTES = 256 << 20  # several times the largest L2 there is


class Worker:
    """One candidate. Between two requests it keeps no memory but its weights.

    ``dtype`` is what all floating tensors are to be, or nothing where they have several types.
    """

    def __init__(self, problem: str, file: str, dtype: str) -> None:
        self.problem = load_problem(Path(problem))
        self.file = file
        self.dtype = getattr(torch, dtype) if dtype else None
        self.model: Any = None
        self.reference: Any = None

    def build(self, elements: int) -> dict[str, Any]:
        self.reference = self._typed(self.problem.build(0).cuda())
        self.model = copied(self.reference)
        if self.file != REFERENCE:
            module = import_file(Path(self.file), "crucible_tuned")
            self.model = self._typed(module.ModelNew(*self.problem.init_inputs).cuda())
            self.model.load_state_dict(self.reference.state_dict())
            if "forward" in module._SOURCES:
                module._kernels("forward", self.dtype or next(iter(module._SCALARS)), torch.device("cuda", 0), elements)
        return {}

    def check(self) -> dict[str, Any]:
        """The distance from float64; from the reference in its own type where memory does not suffice."""
        inputs = self._inputs(0)
        with torch.no_grad():
            copies = pytree.tree_map_only(torch.Tensor, torch.clone, inputs)  # a Model may write into them
            got = [t.clone() for t in _tensors(self.model(*copies))]
            try:
                with Wide():
                    truth = _tensors(widened(copied(self.reference))(*pytree.tree_map(wide, inputs)))
            except torch.cuda.OutOfMemoryError:
                torch.cuda.empty_cache()
                truth = _tensors(copied(self.reference)(*inputs))
            if len(got) != len(truth):
                raise ValueError(f"{len(got)} results where there should be {len(truth)}")
            return {"error": max((_distance(g, t) for g, t in zip(got, truth)), default=0.0)}

    def time(self, seed: int, samples: int) -> dict[str, Any]:
        inputs = self._inputs(seed)
        flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        times = []
        with torch.no_grad():
            for number in range(samples + 2):  # two to warm up
                flush.zero_()
                torch.cuda.synchronize()
                start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
                start.record()
                self.model(*inputs)
                end.record()
                end.synchronize()
                if number >= 2:
                    times.append(start.elapsed_time(end))
        return {"times": times}

    def _inputs(self, seed: int) -> list[Any]:
        torch.manual_seed(seed)
        with torch.device("cuda"):
            made = list(self.problem.module.get_inputs())
        return pytree.tree_map(self._placed, made)

    def _typed(self, value: Any) -> Any:
        return value if self.dtype is None else value.to(self.dtype)

    def _placed(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return self._typed(value.cuda()) if value.is_floating_point() else value.cuda()


def _tensors(out: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]


def _distance(got: torch.Tensor, truth: torch.Tensor) -> float:
    """Relative, in the L2 norm; infinite where shapes differ, or one has a number where the other has none."""
    if got.shape != truth.shape:
        return float("inf")
    got, truth = parts(got), parts(truth)
    if not truth.is_floating_point():
        return float("inf") if bool((got != truth).any()) else 0.0
    got = got.double()
    truth = truth.double()
    finite = truth.isfinite()
    if not bool((got.isfinite() == finite).all()):
        return float("inf")
    zero = torch.zeros((), dtype=truth.dtype, device=truth.device)
    difference = torch.where(finite, got - truth, zero).norm()
    return float(difference / torch.where(finite, truth, zero).norm().clamp_min(1e-300))


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker: Worker | None = None
    for line in sys.stdin:
        request = json.loads(line)
        operation = request.pop("op")
        try:
            if worker is None:
                worker = Worker(*sys.argv[1:4])
                usual = {"cudnn_tf32": True, "matmul": "highest"}
                switches.put({k: request.pop(k, v) for k, v in usual.items()})
            answer = getattr(worker, operation)(**request)
        except Exception as error:  # noqa: BLE001  a candidate may raise anything
            text = (str(error).strip().splitlines() or [""])[0]
            answer = {"failed": f"{type(error).__name__}: {text[:200]}"}
        torch.cuda.empty_cache()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
