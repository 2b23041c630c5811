"""What rows keep between their walks, and how walks are dealt to warps."""

import pytest

import crucible
from crucible.fuse import FuseOptions, fuse_problem
from crucible.plan.kept import keeping
from crucible.plan.stages import Row
from crucible.plan.value import Kept, Load, Op, walk

PROBLEM = '''
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm({features})

    def forward(self, x):
        return {body}


def get_inputs():
    return [torch.randn({shape})]


def get_init_inputs():
    return []
'''


def rows_of(tmp_path, body, shape, features=300):
    path = tmp_path / "problem.py"
    path.write_text(PROBLEM.format(body=body, shape=shape, features=features))
    fused = fuse_problem(path, FuseOptions(strict=True, forward_only=True))
    return path, fused, [s for s in fused.modes[0].plan.forward_stages if isinstance(s, Row)]


def parts(stage, number):
    p = stage.passes[number]
    values = [v for _, vs in p.reduces for v in vs] + [s.value for s in p.stores]
    return {v for value in values for v in walk(value)}


def test_later_walks_read_what_the_first_computed(tmp_path):
    _, fused, (row,) = rows_of(tmp_path, "self.norm(torch.tanh(x))", "70, 300")
    kept = keeping(row)
    assert kept is not None and len(kept.names) == 1
    (value,) = kept.values
    assert isinstance(value, Op) and value.name == "tanh"
    later = parts(kept.stage, len(row.passes) - 1)
    assert any(isinstance(v, Kept) for v in later)
    assert not any(isinstance(v, Op) and v.name == "tanh" for v in later)
    assert not any(isinstance(v, Load) and v.buffer == "x" for v in later)
    assert "launch_keeping_rows<" in fused.text


def test_one_walk_keeps_nothing(tmp_path):
    _, fused, rows = rows_of(tmp_path, "torch.tanh(x).sum(1)", "70, 300")
    assert rows and all(keeping(r) is None for r in rows)
    assert "launch_keeping_rows<" not in fused.text


def test_what_a_condition_guards_is_not_kept_by_itself(tmp_path):
    """The first walk would read it where it is not."""
    _, _, (row,) = rows_of(tmp_path, "self.norm(F.pad(x, (3, 0)))", "70, 297")
    kept = keeping(row)
    assert kept is not None
    assert not any(isinstance(v, Load) and v.buffer == "x" for v in kept.values)


def test_short_parts_go_to_warps(tmp_path):
    """A group norm over 16 channels of 289 pixels: its weights belong to channels."""
    body = "F.group_norm(x, 2, torch.arange(32.0, device=x.device) * 0.1, None)"
    _, fused, rows = rows_of(tmp_path, body, "140, 32, 17, 17", features=1)
    row = next(r for r in rows if len(r.passes) > 1)
    assert all(p.warps for p in row.passes) and len({p.by for p in row.passes}) == 1
    assert "part = lanes.warp()" in fused.text


@pytest.mark.parametrize("body,shape", [
    ("self.norm(torch.tanh(x))", "70, 300"),
    ("self.norm(F.pad(x, (3, 0)))", "70, 297"),
    ("F.softmax(torch.relu(x) * 2, 1) + self.norm(x)", "70, 300"),
    ("F.group_norm(x, 2, torch.arange(32.0, device=x.device) * 0.1, None)", "140, 32, 17, 17"),
])  # fmt: skip
def test_they_are_proven(tmp_path, body, shape):
    path, fused, _ = rows_of(tmp_path, body, shape)
    new = tmp_path / "new.py"
    new.write_text(fused.text)
    proof = crucible.prove(path, new, device="sim", seed=3, quick=True, forward_only=True)
    assert proof.verdict == "proven", f"{proof.reason.code}: {proof.reason.message}" if proof.reason else proof.verdict
