"""Models as files, fused and proven in the simulator: what tests of whole Models share."""

from __future__ import annotations

import textwrap

import pytest

import crucible
from crucible.fuse import FuseOptions, fuse_problem

HEAD = """
import torch
import torch.nn as nn
import torch.nn.functional as F
"""
TAIL = """

def get_inputs():
    return [INPUTS]


def get_init_inputs():
    return []
"""


@pytest.fixture
def reference(tmp_path):
    """reference(model, inputs) -> path of a Problem with this Model, whose arguments are these."""

    def write(model, inputs):
        path = tmp_path / "reference.py"
        path.write_text(HEAD + textwrap.dedent(model) + TAIL.replace("INPUTS", inputs))
        return path

    return write


@pytest.fixture
def proven(tmp_path):
    """proven(problem) -> what was fused and its proof; a problem is a path or a text."""

    def prove(problem):
        path, new = tmp_path / "reference.py", tmp_path / "new.py"
        if isinstance(problem, str):
            path.write_text(problem)
        fused = fuse_problem(path, FuseOptions())
        new.write_text(fused.text)
        proof = crucible.prove(path, new, device="sim", seed=3, quick=True, timeout=300)
        assert proof.verdict == "proven", proof.to_text()[-3000:]
        return fused, proof

    return prove
