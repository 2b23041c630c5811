"""Records for pages, made by the program's own types: numbers are invented, structure is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from crucible.prove.compare import Error, judge
from crucible.prove.hints import describe
from crucible.prove.proof import Check, Finding, Proof, plain
from crucible.race.claims import conclude
from crucible.race.record import Entry, Pass, Race, Row
from crucible.sweep.store import Store

REFERENCE = '''"""A small Model."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 32)

    def forward(self, x):
        x = self.linear(x)
        x = torch.relu(x)
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.rand(24, 16)]


def get_init_inputs():
    return []
'''
CANDIDATE = '''"""A candidate."""
import torch

cuda = r"""
__global__ void twice(const float* x, float* y, int n) {
  int i = threadIdx.x;
  if (i <= n) y[i] = 2 * x[i];
}
"""


class ModelNew(torch.nn.Module):
    pass
'''
ENVIRONMENT = {"crucible": "0.1.0", "program": "0123456789abcdef", "torch": "2.0", "date": "2026-01-01T00:00:00Z"}


def proof(**changes: Any) -> Proof:
    made = Proof("model.py", "new.py", "sim", "proven", seed=3, seconds=4.2, environment=dict(ENVIRONMENT),
                 options={"quick": True}, sources={"reference": REFERENCE, "candidate": CANDIDATE})  # fmt: skip
    rows = [{"name": f"trial {k}", "seed": k, "seconds": 0.1, "tensors": {
        "output": {"l2": 2e-7 * k, "limit_l2": 9e-7, "worst": 1e-6, "limit_worst": 4e-6, "terms": {"eager": 1.5e-7}}}}
        for k in (1, 2, 3)]  # fmt: skip
    made.checks = [
        Check("loads", "It loads", evidence=["imported in 1 s"]),
        Check("forward", "Forward", evidence=["3 trials"], data={"trials": rows}),
        Check("gradients", "Gradients", "skipped", ["not checked (--forward-only)"]),
    ]
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def refuted() -> Proof:
    """Wrong in the third row of the planes of one channel."""
    exact = torch.linspace(1, 2, 2 * 4 * 6 * 8, dtype=torch.float64).reshape(2, 4, 6, 8)
    got = exact.float()
    got[:, 1, 2] += 0.5
    judged = judge(exact, got, Error(1e-7, 1e-7), torch.float32)
    text, evidence = describe("output", exact, got, judged)
    evidence["case"] = "normal inputs, fresh weights"
    finding = Finding("wrong_values", text, evidence)
    made = proof(verdict="refuted", reason=finding)
    made.checks = [made.checks[0], Check("forward", "Forward", "failed", findings=[finding])]
    return made


def out_of_bounds() -> Proof:
    message = "out-of-bounds read of 4 bytes, in kernel twice at new.py:7, block (0, 0, 0), thread (24, 0, 0)"
    report = {"file": "new.py", "line": 7, "kernel": "twice", "block": [0, 0, 0], "thread": [24, 0, 0]}
    return proof(verdict="refuted", reason=Finding("out_of_bounds", message, {"report": report}))


def race(plan: dict[str, Any] | None = None, **changes: Any) -> Race:
    made = Race("model.py", "d" * 64, "float32", [[24, 16]], 3, {"against": ["eager", "compile"], "rounds": 2},
                {**ENVIRONMENT, "gpu": {"name": "NVIDIA H200"}}, source=REFERENCE)  # fmt: skip
    made.ceilings = {"copy": 4200.0, "fp32": 51.0, "tf32": 396.0, "fp16": 768.0}
    made.light = {"forward": {"bytes": 5_000_000, "certain": 0, "operations": 800_000_000, "floor": 0.5, "limit": 0.1,
                              "bound": "memory", "source": "graph"}}  # fmt: skip
    ran = [k["name"] for p in (plan or {"passes": []})["passes"] if p["direction"] == "inference" for k in p["kernels"]]
    kernels = [{"name": f"void kernel<256, {n}>(int)", "launches": 1.0, "milliseconds": 0.3} for n in ran]
    times = {"eager": 2.0, "eager again": 2.01, "compile": 1.5, "new": 0.8}
    rows = [
        Row(name, "candidate" if name == "new" else "baseline", samples=[[t, t * 1.01], [t * 0.99, t]],
            checked={"error": 1e-6, "eager": 2e-6}, peak={"call": 1000, "whole": 2000}, build_seconds=1.0)
        for name, t in times.items()
    ]  # fmt: skip
    rows[-1].kernels = kernels or None
    failed = Row("max_autotune", "baseline")
    failed.end("failed", "it took too long")
    made.passes = [Pass("forward", [*rows, failed])]
    given = proof().to_json(sources=False)
    made.candidates = [Entry("new", "new.py", "e" * 64, "proven", proof=given, plan=plan, source=CANDIDATE)]
    conclude(made, made.passes[0])
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def row(title: str, status: str, given: Race | None, reason: str | None = None) -> dict[str, Any]:
    """A row of a sweep."""
    return {
        "key": title, "problem": title, "title": title, "digest": "d", "candidate": "new.py", "fused": True,
        "status": status, "reason": reason, "step": "judge", "seconds": {"fuse": 1.0, "judge": 2.0}, "options": {},
        "environment": dict(ENVIRONMENT), "race": plain(given.to_json()) if given is not None else None,
    }  # fmt: skip


def sweep(folder: Path, plan: dict[str, Any]) -> Path:
    """The store of a sweep of three problems: proven and raced, refuted, and not fused."""
    wrong = race()
    entry = wrong.candidates[0]
    entry.verdict, entry.proof = "refuted", refuted().to_json(sources=False)
    wrong.passes, wrong.untimed = [], "no times: no candidate is proven"
    kept = Store(folder)
    kept.append(row("b/fast.py", "proven", race(plan)))
    kept.append(row("a_wrong.py", "refuted", wrong, "wrong_values: output is off"))
    kept.append(row("c<odd> name.py", "not fused", None, "control flow at <line 3>"))
    return folder
