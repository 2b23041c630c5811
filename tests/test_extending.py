"""The examples of docs/extending.md, taken from the page, added, and used."""

from __future__ import annotations

import re
from types import ModuleType

import pytest
import torch

import crucible
import documents
from crucible.build import toolchain
from crucible.graph import rewrites
from crucible.plan import gpus, lower_pointwise, lowering, pointwise

PAGE = documents.ROOT / "docs" / "extending.md"
PYTHON = [b.text for b in documents.blocks(PAGE) if b.language == "python"]
MODEL = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return {result}


def get_inputs():
    return [torch.rand(8, 12) + 0.5]


def get_init_inputs():
    return []
"""


@pytest.fixture
def model(tmp_path):
    def make(result: str):
        path = tmp_path / "model.py"
        path.write_text(MODEL.format(result=result))
        return path

    return make


def added_row(monkeypatch) -> str:
    """Add the row on the page to the table; returns its name."""
    (text,) = [t for t in PYTHON if re.match(r'"\w+": Row\(', t)]
    ((name, row),) = eval(f"{{{text}}}", {"Row": pointwise.Row}).items()
    assert name not in pointwise.TABLE, "the page shows how to add what is there already"
    for overload in getattr(torch.ops.aten, name).overloads():
        target = getattr(getattr(torch.ops.aten, name), overload)
        monkeypatch.setitem(lowering.HANDLERS, target, None)  # so that it is gone afterwards
        del lowering.HANDLERS[target]
    monkeypatch.setitem(pointwise.TABLE, name, row)
    lower_pointwise.register_rows()
    return name


@pytest.mark.quick
def test_without_its_row_an_operator_stays_with_torch(model):
    made = crucible.fuse_file(model("torch.lgamma(x) * 2"), prove=False, forward_only=True, tune=False)
    assert [name for name, _ in made.fused.unfused] == ["lgamma (aten.lgamma.default)"]


@pytest.mark.skipif(toolchain.torch_has_cuda(), reason="the simulator needs the CPU build of torch")
def test_a_pointwise_operator_is_one_row(model, monkeypatch):
    """Added, fused, and proven in the simulator: the file needs no table."""
    name = added_row(monkeypatch)
    path = model(f"torch.{name}(x) * 2")
    made = crucible.fuse_file(path, strict=True, forward_only=True, tune=False, device="sim", quick=True, seed=1)
    assert made.fused.unfused == [] and f"{name}(" in made.text
    assert made.proof is not None and made.proof.verdict == "proven", made.proof.reason


@pytest.mark.quick
def test_its_gradient_is_an_operator_too(model, monkeypatch):
    added_row(monkeypatch)
    made = crucible.fuse_file(model("torch.lgamma(x) * 2"), prove=False, tune=False)
    assert [name for name, _ in made.fused.unfused] == ["digamma (aten.digamma.default)"]  # as the page says


@pytest.mark.quick
def test_rows_do_not_replace_handlers():
    """A row named like an operator with other arguments leaves the operator's own handler alone."""
    before = dict(lowering.HANDLERS)
    lower_pointwise.register_rows()
    assert lowering.HANDLERS == before
    own = lowering.HANDLERS[torch.ops.aten.gelu.default]
    assert own.__name__ != "<lambda>" and torch.ops.aten.where.default not in lowering.HANDLERS


@pytest.mark.quick
def test_a_rewrite_is_one_file(monkeypatch):
    (text,) = [t for t in PYTHON if "def apply(graph" in t]
    made = ModuleType("abs_of_neg")
    exec(compile(text, "abs_of_neg.py", "exec"), made.__dict__)

    class Net(torch.nn.Module):
        def forward(self, x):
            return (-x).abs() * 3

    def graph():
        return torch.export.export(Net(), (torch.rand(4, 5),)).run_decompositions({}).graph_module

    plain = graph()
    assert not any("abs_of_neg" in sentence for sentence in rewrites.run_all(plain))
    monkeypatch.setattr(rewrites, "PASSES", (made, *rewrites.PASSES))
    done = graph()
    assert any(s.startswith("abs_of_neg: ") for s in rewrites.run_all(done))
    assert not [n for n in done.graph.nodes if n.target is torch.ops.aten.neg.default]
    inputs = torch.tensor([[-1.5, 0.0, -0.0, float("inf"), float("nan")]] * 4, requires_grad=True)
    results = []
    for each in (plain, done):
        (out,) = torch.fx.Interpreter(each).run(inputs)
        (gradient,) = torch.autograd.grad(out.sum(), inputs)
        results.append((out.detach(), gradient))
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.quick
def test_a_gpu_is_one_row(model, monkeypatch):
    (text,) = [t for t in PYTHON if t.startswith("Gpu(")]
    (row,) = eval(f"[{text}]", {"Gpu": gpus.Gpu})
    assert gpus.known_as(row.title) is None, "the page shows how to add what is there already"
    monkeypatch.setattr(gpus, "TABLE", (*gpus.TABLE, row))
    assert gpus.find(row.name) is row and gpus.known_as(row.title) is row and row.tensor_cores
    made = crucible.fuse_file(model("torch.relu(x)"), prove=False, tune=False, gpu=row.name)
    assert row.title in made.explanation
