"""Inputs of other sizes, distances, and elements at places nobody knows before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from crucible.problem import load_problem
from crucible.race import contenders, values

pytestmark = pytest.mark.quick
ROOT = Path(__file__).parents[2]
TWO = """
    import torch
    import torch.nn as nn

    class Model(nn.Module):
        def forward(self, x, y):
            return x @ y

    def get_inputs():
        return [torch.rand(8, 16), torch.rand(8, 24)]

    def get_init_inputs():
        return []
"""


def test_other_sizes(write):
    loaded = load_problem(write("two.py", TWO))
    assert values.scaled_shapes(loaded) == [(8, 16), (8, 24)]
    assert values.scaled_shapes(loaded, batch=3) == [(3, 16), (3, 24)]
    made = values.make_inputs(loaded, values.scaled_shapes(loaded, batch=3), 0, torch.float16, "cpu")
    assert [(tuple(t.shape), t.dtype) for t in made] == [((3, 16), torch.float16), ((3, 24), torch.float16)]
    images = load_problem(ROOT / "problems" / "conv_transpose2d.py")
    ((batch, channels, *pixels),) = images.shapes
    assert values.scaled_shapes(images, 2, 0.5) == [(2, channels, *(p // 2 for p in pixels))]
    assert values.scaled_shapes(images, spatial=1e-9) == [(batch, channels, *[1] * len(pixels))]
    assert values.sizes_text([(2, 3), None, (4,)]) == "2x3 4"


def test_tensors_in_containers(write):
    text = TWO.replace("forward(self, x, y)", "forward(self, x, state)").replace("[torch.rand(8, 16), ", "[3, (")
    loaded = load_problem(write("state.py", text.replace("(8, 24)]", "(8, 24), torch.rand(8))]")))
    made = values.make_inputs(loaded, values.scaled_shapes(loaded, batch=5), 0, torch.float16, "cpu")
    contender = contenders.Contender(torch.nn.Identity(), torch.nn.Identity())
    three, (a, b) = contender.inputs(made, training=True)
    assert three == 3 and a.shape == (5, 24) and b.shape == (5,) and a.dtype == b.dtype == torch.float16
    assert a.requires_grad and b.requires_grad and not made[1][0].requires_grad


def test_distance():
    one = torch.tensor([3.0, 4.0])
    assert values.distance(one, one) == 0.0 and values.distance(one * 1.1, one) == pytest.approx(0.1, rel=1e-5)
    assert values.distance(torch.tensor([1, 2]), torch.tensor([1, 3])) == 0.5
    assert values.distance(one, torch.ones(3)) == float("inf") and values.distance(torch.ones(0), torch.ones(0)) == 0.0
    odd = torch.tensor([float("nan"), float("inf"), 1.0])
    assert values.distance(odd, odd) == 0.0 and not values.distance(odd, torch.ones(3)) < 1.0


def test_picked_elements():
    t = torch.arange(120.0).reshape(2, 3, 4, 5)
    assert torch.equal(values.picked(t, 7, 0), values.picked(t, 7, 0))
    assert not torch.equal(values.picked(t, 7, 0), values.picked(t, 8, 0))
    moved = t.contiguous(memory_format=torch.channels_last)
    assert torch.equal(values.picked(moved, 7, 0), values.picked(t, 7, 0))  # places are of the shape, not of memory
    assert values.picked(torch.ones(0, 3), 1, 0).numel() == 0


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 4 GiB\nmore"), "out of memory: CUDA"),
        (RuntimeError("Error building extension 'x': ninja"), "does not compile: RuntimeError"),
        (type("BackendCompilerFailed", (Exception,), {})("inductor"), "does not compile: BackendCompilerFailed"),
        (ValueError(""), "ValueError: no message"),
        (RuntimeError("An exception occurred in a subprocess:\n\nName=f\nTraceback (most recent call last):\n"
                      "    raise\nOSError: [Errno 28] No space left on device"),
         "RuntimeError: An exception occurred in a subprocess: OSError: [Errno 28] No space"),
    ],
)  # fmt: skip
def test_why_a_contender_failed(error, word):
    assert contenders.why(error).startswith(word) and "\n" not in contenders.why(error)


def test_contenders():
    model = torch.nn.Conv2d(3, 4, 3)
    eager, last = contenders.baseline("eager", model), contenders.baseline("channels_last", model)
    x = torch.rand(2, 3, 5, 5)
    assert eager.model is not model and torch.equal(contenders.forward(eager, [x]), model(x))
    (given,) = last.inputs([x], training=True)
    assert given.is_contiguous(memory_format=torch.channels_last) and given.requires_grad
    out = contenders.training(last, [given], [torch.ones(2, 4, 3, 3)])
    assert out.shape == (2, 4, 3, 3) and given.grad is not None and last.model.weight.grad is not None
    assert contenders.makes_sense("channels_last", [(1, 2, 3, 4)])
    assert not contenders.makes_sense("channels_last", [(8, 16), None]) and contenders.makes_sense("compile", [])
