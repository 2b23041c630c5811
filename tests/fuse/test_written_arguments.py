"""Models that write into their arguments."""

from __future__ import annotations

import re

import pytest

import crucible
from crucible.fuse import FuseOptions, fuse_problem

# What most people write: the first layer of a block works in place; the sum needs what it left.
BLOCK = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.relu, self.norm, self.conv = nn.ReLU(inplace=True), nn.BatchNorm2d(6), nn.Conv2d(6, 6, 3, padding=1)

    def forward(self, x):
        return x + self.conv(self.norm(self.relu(x)))
"""
# States that follow, in a container, one of which is returned; whole numbers; parts; what has no gradient at all.
STATES = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(8, 8), nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, x, state, cache):
        y = torch.tanh(self.linear(x * 2) + state["h"])
        state["h"].lerp_(y.detach(), 0.3)
        state["n"].add_(1)
        cache[:, -2:] = y.detach().mean(0)[:, None]
        x.mul_(self.scale)
        return y * x, x, cache.sum()
"""
# Nothing is returned, and nothing is computed but what is written.
WRITING = """
class Model(nn.Module):
    def forward(self, x, y):
        x.sub_(y).relu_()
        y.exp_()
"""
STATE_INPUTS = 'torch.randn(5, 8), {"h": torch.randn(5, 8), "n": torch.tensor(3)}, torch.randn(8, 4)'


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        pytest.param(BLOCK, "torch.randn(2, 6, 7, 9)", id="block"),
        pytest.param(STATES, STATE_INPUTS, id="states"),
        pytest.param(WRITING, "torch.randn(5, 8), torch.randn(5, 8)", id="writing"),
    ],
)
def test_proven(reference, proven, model, inputs):
    _, found = proven(reference(model, inputs))
    notes = [note for check in found.checks if check.name == "side_effects" for note in check.evidence]
    assert any("inputs changed as the reference does" in note for note in notes)


def wrong(text, change):
    """A generated file whose author forgot something about the arguments."""
    if change == "left alone":
        text = re.sub(r"tensors\[(\d)\]\.copy_\(", r"tensors[\1].clone().copy_(", text)
        return text.replace("ctx.mark_dirty(", "str(")
    if change == "behind autograd's back":
        text = re.sub(r"(made\[\d\]) = (tensors\[\d\])\.copy_\(", r"\2.data.copy_(", text)
        return re.sub(r"ctx\.mark_dirty\(.*\)", "pass", text)
    assert change == "slightly other"
    return re.sub(r"\.copy_\((made\[\d\])\)", r".copy_(\1 * 1.001)", text)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("left alone", "inputs_not_updated"),
        ("slightly other", "inputs_wrong"),
        ("behind autograd's back", "wrong_grad"),
    ],
)
def test_a_candidate_that_leaves_something_else_is_refuted(tmp_path, reference, change, code):
    path, new = reference(BLOCK, "torch.randn(2, 6, 7, 9)"), tmp_path / "new.py"
    text = fuse_problem(path, FuseOptions()).text
    new.write_text(wrong(text, change))
    assert new.read_text() != text
    found = crucible.prove(path, new, device="sim", seed=3, quick=True, timeout=300)
    assert found.verdict == "refuted" and found.reason.code == code, found.to_text()[-3000:]


@pytest.mark.quick
def test_what_an_argument_held_is_kept_where_gradients_need_it(reference):
    text = fuse_problem(reference(STATES, STATE_INPUTS), FuseOptions()).text
    assert "saved = [t.clone() if t is tensors[3] or t is tensors[4] else t for t in saved]" in text
    assert "saved = [" not in fuse_problem(reference(WRITING, "torch.randn(3), torch.randn(3)"), FuseOptions()).text
