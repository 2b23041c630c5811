"""Which line of a Model a kernel computes: forward, its derivatives, and what is computed again."""

from __future__ import annotations

from pathlib import Path

import pytest

from crucible.fuse import fuse_problem
from crucible.plan.gpus import find
from crucible.report.explain import explain

pytestmark = pytest.mark.quick
MODEL = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(12, 20)

    def forward(self, x, y):
        a = self.linear(x)
        b = torch.softmax(a, dim=1)
        return {result}


def get_inputs():
    return [torch.rand(6, 12), torch.rand(6, 20)]


def get_init_inputs():
    return []
"""


@pytest.fixture
def explained(tmp_path: Path):
    def make(result: str):
        path = tmp_path / "model.py"
        path.write_text(MODEL.format(result=result))
        return explain(fuse_problem(path), find("h200"))

    return make


def test_every_line_goes_somewhere(explained):
    found = explained("torch.tanh(b * y)")
    assert [o.line for o in found.operators] == [11, 12, 13, 13]
    assert found.operators[0].code == "a = self.linear(x)" and found.operators[0].shape == (6, 20)
    names = {o.name for o in found.operators}
    for p in found.passes:
        own = [set(k.operators) for k in p.kernels]
        derived = [set(k.gradients) for k in p.kernels]
        if p.direction == "backward":
            assert set().union(*derived) == names  # each has a derivative somewhere
        else:
            assert set().union(*own) == names and not any(derived)


def test_what_is_left_to_torch_is_named(explained):
    found = explained("torch.sort(b * y, dim=1).values")
    forward = next(p for p in found.passes if p.direction == "forward")
    (kernel,) = (k for k in forward.kernels if not k.ours)
    assert kernel.operators == ("sort",) and kernel.gradients == ()


def test_a_line_of_two_operators(explained):
    document = explained("torch.relu(b) + torch.relu(y)").to_json()
    assert [o["line"] for o in document["operators"]] == [11, 12, 13, 13, 13]
    assert all(o["code"] == "return torch.relu(b) + torch.relu(y)" for o in document["operators"][2:])


def test_origins_do_not_change_what_is_written(explained, monkeypatch):
    """Tracing is only watched: with nobody watching the text is the same."""
    from crucible.graph import origins

    watched = explained("torch.tanh(b * y)")
    monkeypatch.setattr(origins, "_graph", lambda: None)
    alone = explained("torch.tanh(b * y)")
    first, second = ([[k.absorbs for k in p.kernels] for p in e.passes] for e in (watched, alone))
    assert first == second
    assert not any(k.operators for p in alone.passes for k in p.kernels)
