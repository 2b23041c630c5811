"""A plan of a small Model, made once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import example_records
import pytest


@pytest.fixture(scope="session")
def plan(tmp_path_factory) -> dict[str, Any]:
    from crucible.fuse import fuse_problem
    from crucible.plan.gpus import find
    from crucible.prove.proof import plain
    from crucible.report.explain import explain

    path: Path = tmp_path_factory.mktemp("plan") / "model.py"
    path.write_text(example_records.REFERENCE)
    found: dict[str, Any] = plain(explain(fuse_problem(path), find("h200")).to_json())
    return found


@pytest.fixture
def store(tmp_path, plan) -> Path:
    """A sweep of three problems: proven and raced, refuted, and not fused."""
    from crucible.sweep.store import Store

    refuted = example_records.race()
    entry = refuted.candidates[0]
    entry.verdict, entry.proof = "refuted", example_records.refuted().to_json(sources=False)
    refuted.passes, refuted.untimed = [], "no times: no candidate is proven"
    kept = Store(tmp_path / "sweep")
    kept.append(example_records.row("b/fast.py", "proven", example_records.race(plan)))
    kept.append(example_records.row("a_wrong.py", "refuted", refuted, "wrong_values: output is off"))
    kept.append(example_records.row("c<odd> name.py", "not fused", None, "control flow at <line 3>"))
    return tmp_path / "sweep"
