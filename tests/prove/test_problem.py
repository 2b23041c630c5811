"""Loading a Problem: clear errors, shapes without allocation, inputs of other sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from crucible.problem import ProblemError, load_problem
from crucible.prove.small import find_small

HUGE = """
    import torch
    import torch.nn as nn

    class Model(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.conv = nn.ConvTranspose2d(channels, 2 * channels, 3)

        def forward(self, x):
            return self.conv(x)

    def get_inputs():
        return [torch.rand(4096, 16, 2048, 2048) * 2 - 1]

    def get_init_inputs():
        return [16]
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "defines no Model"),
        ("import no_such_module", "cannot be imported: ModuleNotFoundError"),
        ("def f(:", "cannot be imported: SyntaxError"),
        ("import sys\nsys.exit(3)", "cannot be imported: SystemExit"),
        (
            "import torch\nclass Model(torch.nn.Module): pass\n"
            "def get_inputs(): return []\ndef get_init_inputs(): return 1 / 0",
            "get_init_inputs.. of .* fails",
        ),
    ],
)
def test_errors_name_what_is_wrong(write, text, message):
    with pytest.raises(ProblemError, match=message):
        load_problem(write("bad.py", text))


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(ProblemError, match="does not exist"):
        load_problem(tmp_path / "none.py")
    with pytest.raises(ProblemError, match="is a folder"):
        load_problem(tmp_path)


def test_huge_inputs_are_not_allocated(write):
    problem = load_problem(write("huge.py", HUGE))
    assert problem.shapes == [(4096, 16, 2048, 2048)]
    work = find_small(problem)
    small = problem.shapes_for(problem.small_sizes)[0]
    assert small is not None and small[1] == 16, "channels are fixed by get_init_inputs"
    assert work.multiply_adds <= 15_000_000 and small[0] == 2 and small[2] != small[3]
    x = problem.inputs([small], seed=3)[0]
    assert x.shape == small and x.min() < -0.5 and x.max() > 0.5, "the declared distribution"
    assert torch.equal(x, problem.inputs([small], seed=3)[0])
    assert not torch.equal(x, problem.inputs([small], seed=4)[0])


def test_tied_dimensions_shrink_together(write):
    problem = load_problem(
        write(
            "matmul.py",
            """
        import torch
        class Model(torch.nn.Module):
            def forward(self, a, b):
                return a @ b
        def get_inputs(): return [torch.rand(4096, 4096), torch.rand(4096, 4096)]
        def get_init_inputs(): return []
    """,
        )
    )
    find_small(problem)
    groups = {tuple(map(tuple, f.members)) for f in problem.free}
    assert groups == {((0, 0),), ((0, 1), (1, 0)), ((1, 1),)}


def test_an_index_is_tied_to_what_it_indexes(write):
    problem = load_problem(
        write(
            "scatter.py",
            """
        import torch
        class Model(torch.nn.Module):
            def forward(self, index, weight):
                return torch.zeros(index.shape[0], 8).scatter_add(1, index, weight)
        def get_inputs(): return [torch.randint(0, 8, (64, 100000)), torch.rand(64, 100000)]
        def get_init_inputs(): return []
    """,
        )
    )
    find_small(problem)
    assert {len(f.members) for f in problem.free} == {2}
    index, weight = problem.inputs(problem.shapes_for(problem.small_sizes), 0)
    assert index.shape == weight.shape and index.max() < 8


def test_inputs_that_cannot_be_resized_are_cut(write):
    problem = load_problem(
        write(
            "numpy_inputs.py",
            """
        import numpy as np
        import torch
        class Model(torch.nn.Module):
            def forward(self, x):
                return x * 2
        def get_inputs(): return [torch.from_numpy(np.arange(12000.0).reshape(30, 400))]
        def get_init_inputs(): return []
    """,
        )
    )
    assert not problem.on_meta
    x = problem.inputs([(3, 7)], 0)[0]
    assert x.shape == (3, 7) and x[1, 0] == 400


@pytest.mark.quick
def test_tensors_in_containers_are_inputs_like_others(write):
    problem = load_problem(
        write(
            "containers.py",
            """
        import torch
        class Model(torch.nn.Module):
            def forward(self, x, state, options):
                return x * state[0] + state[1] * options["by"], options["n"]
        def get_inputs():
            return [torch.rand(600, 900), (torch.randn(600, 900), torch.zeros(600, 900)),
                    {"n": 3, "by": torch.rand(900)}]
        def get_init_inputs(): return []
    """,
        )
    )
    assert problem.on_meta and problem.shapes == [(600, 900)] * 3 + [None, (900,)]
    find_small(problem)
    shapes = problem.shapes_for(problem.small_sizes)
    inputs = problem.inputs(shapes, 0)
    assert [tuple(x.shape) for x in inputs if x is not inputs[3]] == [s for s in shapes if s] and shapes[1] < (600, 900)
    x, (h, c), options = problem.arguments(inputs)
    assert (x is inputs[0]) and (h is inputs[1]) and (c is inputs[2]) and options == {"n": 3, "by": inputs[4]}
    assert h.min() < 0 and not c.any(), "each keeps its own distribution"


def test_a_model_that_needs_values_is_asked_on_the_cpu(write):
    problem = load_problem(
        write(
            "values.py",
            """
        import torch
        class Model(torch.nn.Module):
            def forward(self, x):
                return x / max(x.sum().item(), 1.0)
        def get_inputs(): return [torch.rand(100, 50)]
        def get_init_inputs(): return []
    """,
        )
    )
    find_small(problem)
    assert problem.free


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[1] / "problems").glob("*.py")), ids=lambda p: p.stem)
def test_every_small_problem_shrinks(path):
    problem = load_problem(path)
    work = find_small(problem)
    assert work.excess <= 1.6
