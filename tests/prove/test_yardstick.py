"""The yardstick on real models: honest arithmetic passes its gate, wrong functions do not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from crucible.prove import tensors
from crucible.prove.arithmetic import TF32Operands
from crucible.prove.cases import Spec
from crucible.prove.compare import Error, judge
from crucible.prove.reference import Reference

PROBLEMS = Path(__file__).parents[2] / "problems"
GELU = """
    import torch
    import torch.nn as nn

    class Model(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.conv = nn.Conv2d(channels, channels, 3)
            self.norm = nn.GroupNorm(2, channels)

        def forward(self, x):
            return self.norm(nn.functional.gelu(self.conv(x)))

    def get_inputs():
        return [torch.rand(2, 8, 12, 11)]

    def get_init_inputs():
        return [8]
"""
POOL = """
    import torch
    import torch.nn as nn

    class Model(nn.Module):
        def forward(self, x):
            return nn.functional.max_pool2d(x, 2)

    def get_inputs():
        return [torch.rand(4, 8, 16, 16)]

    def get_init_inputs():
        return []
"""

WIDENED = """
    import torch
    import torch.nn as nn

    class Model(nn.Module):
        def __init__(self, wide):
            super().__init__()
            self.linear = nn.Linear(32, 32)
            self.table = nn.Parameter(torch.randn(32, 32, dtype=torch.float64))
            self.wide = wide

        def forward(self, x):
            y = x.double() @ self.table if self.wide else self.linear(x).double()
            return y.square().mean()

    def get_inputs():
        return [torch.rand(16, 32)]

    def get_init_inputs():
        return [WIDE]
"""


@pytest.fixture
def worker(write, tmp_path):
    def open_problem(problem: str | Path, **options) -> Reference:
        reference = Reference()
        for folder in ("cases", "truths"):
            (tmp_path / folder).mkdir()
        reply = reference.handle(
            {
                "op": "open",
                "path": str(problem if isinstance(problem, Path) else write("problem.py", problem)),
                "device": "sim",
                "dtype": None,
                "cases": str(tmp_path / "cases"),
                "truths": str(tmp_path / "truths"),
                **options,
            }
        )
        assert reply["ok"], reply
        return reference

    return open_problem


def make(reference: Reference, **values):
    sizes = values.pop("sizes", tuple(reference.problem.small_sizes))
    spec = Spec("test", values.pop("seed", 11), sizes, **values)
    reply = reference.handle({"op": "case", "spec": spec.to_json(), "id": f"case{len(reference.recent)}"})
    assert "truth" in reply, reply
    return reply


def verdict(reference: Reference, reply, name: str, got: torch.Tensor) -> bool:
    row = reply["truth"]["tensors"][name]
    truth = tensors.load(row["truth"], Path(reference.truths) / reply["truth"]["folder"])
    return judge(truth, got, Error.from_json(row["yard"]), tensors.DTYPES[row["ulps"]]).ok


def output_with(reference: Reference, reply, edit) -> torch.Tensor:
    """The reference's own output in float32 with an edit applied to the model's functions."""
    spec, state, inputs, _ = reference.recent[reply["case"]["folder"]]
    with edit:
        return reference.bench.run(state, inputs, None, spec.but(grads=False), wide=False).tensors["output"]


class _Tanh:
    """gelu replaced by its tanh form while the block runs."""

    def __enter__(self):
        self.real = torch.nn.functional.gelu
        torch.nn.functional.gelu = lambda x: self.real(x, approximate="tanh")

    def __exit__(self, *exc):
        torch.nn.functional.gelu = self.real


class _Nothing:
    def __enter__(self):
        pass

    def __exit__(self, *exc):
        pass


def test_tf32_is_permitted_for_convolutions_and_vanishes_on_exact_operands(worker):
    reference = worker(GELU)
    loose = make(reference, values="normal")["truth"]["tensors"]["output"]["terms"]
    exact = make(reference, values="grid", weights="grid")["truth"]["tensors"]["output"]["terms"]
    assert loose["tf32"] > 50 * loose["eager"] and exact["tf32"] == 0
    assert exact["sequential"] < 1e-6


def test_tanh_gelu_fails_on_exact_operands(worker):
    reference = worker(GELU)
    reply = make(reference, values="grid", weights="grid")
    assert verdict(reference, reply, "output", output_with(reference, reply, _Nothing()))
    assert not verdict(reference, reply, "output", output_with(reference, reply, _Tanh()))


def test_precision_fp32_takes_the_permission_away(worker):
    reference = worker(GELU, precision="fp32")
    assert "tf32" not in make(reference, values="normal")["truth"]["tensors"]["output"]["terms"]


def test_ties_make_room_in_gradients_but_not_in_their_sums(worker):
    reference = worker(POOL)
    reply = make(reference, values="grid", grads=True)
    rows = reply["truth"]["tensors"]
    assert rows["grad:input 0"]["yard"]["l2"] > 0.1, "the gradient of a tie may go to any of the tied"
    assert rows["sum:input 0"]["yard"]["l2"] < 1e-5


def test_a_steady_seed_is_found_where_there_is_one(worker):
    reference = worker(POOL)
    reply = make(reference, values="normal", grads=True)
    assert reply["truth"]["steady"] and reply["truth"]["tensors"]["grad:input 0"]["yard"]["l2"] < 1e-6


def test_whoever_leaves_some_contractions_exact_passes_where_tf32_flips_a_sign(worker):
    """A relu6 after an expanding convolution in TF32 and a depthwise one in float32, as fused files have it.

    At this seed it has another gradient at one weight than either convolution in TF32, both, or none: 0.084 for 0.433.
    """
    reference = worker(PROBLEMS / "gallery" / "conv2d_inverted_residual_inference.py")
    reply = make(
        reference, seed=878904915, sizes=(3, 33, 41), values="normal", grads=True, weights_seed=1786307800
    )  # fmt: skip
    assert not reply["truth"]["steady"], "the case is of no use: another seed"
    spec, state, inputs, cotangents = reference.recent[reply["case"]["folder"]]
    far = []
    for chosen in range(8):
        exact = frozenset(i for i in range(3) if chosen >> i & 1)
        with TF32Operands(convolutions=True, matmuls=False, exact=exact) as mode:
            got = reference.bench.run(state, inputs, cotangents, spec, wide=True).tensors
        assert mode.count == 3
        far.append(abs(got["grad:norm2.weight"][30].item() - 0.4334) > 0.3)
        for name, t in got.items():
            assert verdict(reference, reply, name, t), (exact, name)
    assert far == [False, False, True, False, False, False, True, False]  # the depthwise one exact, the first one not


def test_fresh_weights_move_everything(worker):
    reference = worker(GELU)
    state = reference._state(Spec("x", 3, tuple(reference.problem.small_sizes)))
    assert state["norm.weight"].std() > 0.1 and state["norm.bias"].std() > 0.1 and state["conv.bias"].std() > 0.1
    grid = reference._state(Spec("x", 3, tuple(reference.problem.small_sizes), weights="grid"))["conv.weight"]
    assert len(grid.unique()) <= 13


@pytest.mark.parametrize("wide", [False, True], ids=["computed in float32", "computed in float64"])
def test_a_result_that_was_only_widened_is_held_to_the_type_it_was_computed_in(worker, wide):
    reference = worker(WIDENED.replace("WIDE", str(wide)))
    reply = make(reference, values="normal", weights="fresh")
    row = reply["truth"]["tensors"]["output"]
    assert (row["dtype"], row["ulps"]) == ("float64", "float64" if wide else "float32")
    exact = tensors.load(row["truth"], Path(reference.truths) / reply["truth"]["folder"])
    assert verdict(reference, reply, "output", exact * (1 + 3e-7)) is not wide
    assert not verdict(reference, reply, "output", exact * (1 + 3e-6))
