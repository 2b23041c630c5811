"""Gradients of gradients are not in a fused file: who differentiates again gets an error, never a constant."""

from __future__ import annotations

import pytest

import crucible
from crucible.fuse import FuseOptions, fuse_problem

SOURCE = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, x, t):
        return self.last(torch.tanh(self.first(x) + t))


def get_inputs():
    return [torch.randn(5, 6), torch.randn(5, 8)]


def get_init_inputs():
    return []
"""
# A penalty on the gradient of the input, of a result's sum and of its squares, as losses and by autograd.grad.
SCRIPT = """
import new
from torch.utils.checkpoint import checkpoint
model = new.ModelNew().cuda()
x, t = torch.randn(5, 6, device="cuda", requires_grad=True), torch.randn(5, 8, device="cuda")
plain, = torch.autograd.grad(model(x, t).sum(), x)
assert not plain.requires_grad


def refused(call):
    try:
        call()
    except RuntimeError as error:
        assert "gradients of gradients (a penalty on gradients, a Hessian) are not in this file" in str(error), error
        return
    raise AssertionError("no error")


for loss in (lambda y: y.sum(), lambda y: y.square().sum()):
    g, = torch.autograd.grad(loss(model(x, t)), x, create_graph=True)
    assert g.requires_grad
    refused(lambda: g.square().sum().backward())
    refused(lambda: g.square().sum().backward(inputs=[x]))
    g, = torch.autograd.grad(loss(model(x, t)), x, create_graph=True)
    refused(lambda: torch.autograd.grad(g.square().sum(), model.first.weight))
    refused(lambda: (loss(model(x, t)) + (g.norm(dim=1) - 1).square().mean()).backward())
g, = torch.autograd.grad(model(x, t).sum(), x, create_graph=True)
assert torch.equal(g, plain)
g, = torch.autograd.grad(checkpoint(model, x, t, use_reentrant=False).sum(), x, create_graph=True)
assert torch.equal(g, plain)
model.zero_grad()
model(x, t).sum().backward(create_graph=True)  # who asks for a graph and does not use it has the gradients
assert torch.equal(x.grad, plain) and model.last.bias.grad.item() == 5
model.first.requires_grad_(False)
gradients = torch.autograd.grad(model(x, t).sum(), [x, model.last.weight], create_graph=True)
assert torch.equal(gradients[0], plain)
"""


def file_of(folder):
    (folder / "reference.py").write_text(SOURCE)
    (folder / "new.py").write_text(fuse_problem(folder / "reference.py", FuseOptions()).text)
    return folder / "reference.py", folder / "new.py"


@pytest.mark.filterwarnings("ignore")
def test_who_differentiates_again_gets_an_error(tmp_path, run_on_device):
    file_of(tmp_path)
    run_on_device(SCRIPT)


def test_a_proof_says_what_there_is_of_gradients_of_gradients(tmp_path):
    reference, new = file_of(tmp_path)
    head, model = SOURCE.split("class Model(")
    once = """
class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.tanh())
        return x.tanh()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * (1 - ctx.saved_tensors[0].square())


"""
    texts = {
        "file": (new.read_text(), "of gradients: an error, RuntimeError: ModelNew: gradients of gradients"),
        "torch": (f"{head}class ModelNew({model}", None),
        "once": (f"{head}{once}class ModelNew({model}".replace("torch.tanh(", "Once.apply("), "of gradients: none at "),
    }
    for text, words in texts.values():
        new.write_text(text)
        proof = crucible.prove(reference, new, device="sim", seed=3, quick=True)
        assert proof.verdict == "proven", proof.to_text()[-2000:]
        (check,) = (c for c in proof.checks if c.name == "gradients")
        said = [note for note in check.evidence if note.startswith("of gradients")]
        assert len(said) == (words is not None) and all(note.startswith(words) for note in said), said
