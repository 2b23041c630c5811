"""Models whose operators take sizes that vary, and tensors that are made empty and filled in parts."""

from __future__ import annotations

import pytest

import crucible
from crucible.fuse import FuseOptions, fuse_problem

HEAD = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
"""
TAIL = """

def get_inputs():
    return [INPUTS]


def get_init_inputs():
    return []
"""
# A rewrite joins the two factors; then the operator that takes the sizes is looked at again.
INTERPOLATED = """    def forward(self, x, y):
        return F.interpolate(x * 2.0 * 3.0, size=y.shape[-2:], mode="bilinear")
"""
INTERLEAVED = """    def forward(self, x, cos, sin):
        a, b = x[..., ::2], x[..., 1::2]
        out = torch.empty_like(x)
        out[..., ::2] = a * cos - b * sin
        out[..., 1::2] = a * sin + b * cos
        return out
"""
# Places on an image, and in a volume from corner to corner; of one extent there is but the middle.
AFFINE = """    def forward(self, theta, x, phi, v):
        flat = F.affine_grid(theta, x.size(), align_corners=False)
        return flat, F.affine_grid(phi, [v.size(0), 1, 1, *v.shape[3:]], align_corners=True)
"""
# Sizes that are zero whatever the input is.
NOTHING = """    def forward(self, x):
        y = torch.tanh(x)
        return y[:, :0], torch.cat([y[:, :0], y], 1), y[:, :0].sum(1), (y[:, :0] * 2).reshape(-1)
"""
# What a U-Net does with a skip connection: it pads by a difference, or crops where that is negative.
PADDED = """    def forward(self, a, u):
        more = a.size(2) - u.size(2)
        return F.pad(torch.tanh(u), [more // 2, more - more // 2]) + a
"""
SCRIPT = """
import new, reference
for long, short in ((11, 8), (8, 11), (9, 9), (12, 7), (3, 10)):
    given = [torch.randn(2, 4, n, requires_grad=True) for n in (long, short)]
    placed = [x.detach().cuda().requires_grad_() for x in given]
    wanted, got = reference.Model()(*given), new.ModelNew()(*placed)
    assert torch.allclose(wanted, got.cpu(), atol=1e-6), (long, short)
    wanted.square().sum().backward()
    got.square().sum().backward()
    assert torch.allclose(given[1].grad, placed[1].grad.cpu(), atol=1e-5), (long, short)
"""

# Answers that torch knows of sizes of two or more, and parts that fewer rows have not.
TAKEN = """    def forward(self, x, y):
        if x.size(0) > 1 and y.size(0) != 3:
            x = x - x.mean(0)
        return torch.tanh(x[:2, 1:7:2]) + x[-4:-2, :3], y.squeeze(0) * 2
"""
REFUSES = """
import new, reference
for rows, columns, others, words in (
    (9, 8, 4, None), (4, 6, 2, None), (5, 7, 5, None), (3, 8, 4, "x.shape[0] >= 4"), (1, 8, 4, "x.shape[0] > 1"),
    (9, 5, 4, "x.shape[1] >= 6"), (9, 8, 3, "y.shape[0] != 3"), (9, 8, 1, "y.shape[0] != 1"),
):
    given = [torch.randn(rows, columns), torch.randn(others, 5)]
    try:
        got = new.ModelNew()(*(x.cuda() for x in given))
    except RuntimeError as error:
        assert words and words in str(error), (rows, columns, others, str(error))
    else:
        assert words is None, (rows, columns, others)
        for a, b in zip(got, reference.Model()(*given), strict=True):
            assert a.shape == b.shape and torch.allclose(a.cpu(), b, atol=1e-6)
"""


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        pytest.param(INTERPOLATED, "torch.randn(2, 3, 4, 5), torch.randn(2, 3, 9, 7)", id="interpolated"),
        pytest.param(INTERLEAVED, "torch.randn(2, 6, 16), torch.randn(6, 8), torch.randn(6, 8)", id="interleaved"),
        pytest.param(
            AFFINE, "torch.randn(2, 2, 3), torch.randn(2, 1, 5, 6), torch.randn(3, 3, 4), torch.randn(3, 1, 4, 5, 7)",
            id="affine",
        ),
        pytest.param(NOTHING, "torch.randn(5, 4)", id="nothing"),
    ],
)  # fmt: skip
def test_proven(tmp_path, body, inputs):
    reference, new = tmp_path / "reference.py", tmp_path / "new.py"
    reference.write_text(HEAD + body + TAIL.replace("INPUTS", inputs))
    fused = fuse_problem(reference, FuseOptions())
    new.write_text(fused.text)
    found = crucible.prove(reference, new, device="sim", seed=3, quick=True, timeout=300)
    assert found.verdict == "proven", found.to_text()[-3000:]
    assert not found.limits, found.limits  # it refuses no size
    assert not any("empty" in name for name, _ in fused.unfused)


def test_padded_and_cropped(tmp_path, run_on_device):
    reference = tmp_path / "reference.py"
    reference.write_text(HEAD + PADDED + TAIL.replace("INPUTS", "torch.randn(2, 4, 11), torch.randn(2, 4, 8)"))
    fused = fuse_problem(reference, FuseOptions(strict=True))
    (tmp_path / "new.py").write_text(fused.text)
    run_on_device(SCRIPT)


def test_sizes_that_would_give_other_shapes_are_refused(tmp_path, run_on_device):
    reference = tmp_path / "reference.py"
    reference.write_text(HEAD + TAKEN + TAIL.replace("INPUTS", "torch.randn(9, 8), torch.randn(4, 5)"))
    (tmp_path / "new.py").write_text(fuse_problem(reference, FuseOptions(forward_only=True)).text)
    run_on_device(REFUSES)
