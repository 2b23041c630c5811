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
    return example_records.sweep(tmp_path / "sweep", plan)
