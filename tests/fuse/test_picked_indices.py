"""Indices that come out of tensors: one that is none ends the kernel with an error, as torch's own kernels do."""

from __future__ import annotations

import pytest

from crucible.fuse import FuseOptions, fuse_problem

SOURCE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 6)

    def forward(self, rows, picked, gathered, chosen, marked, labels):
        x = self.table(rows) * 2
        x = torch.tanh(x[picked])
        x = torch.sigmoid(x.gather(1, gathered))
        x = x.index_select(1, chosen)
        marks = torch.zeros(len(marked), 3, device=x.device).scatter(1, marked[:, None], 1.0)
        return nn.functional.cross_entropy(x, labels) + marks.square().sum()


def get_inputs():
    return [torch.tensor([0, 1, 4, 2]), torch.tensor([0, -4, 3]), torch.tensor([[0, 5, 1], [1, 1, 1], [2, 0, 4]]),
            torch.tensor([0, 2, 2]), torch.tensor([2, 0, 0]), torch.tensor([0, 2, 1])]


def get_init_inputs():
    return []
"""
SCRIPT = """
import reference, new
inputs = [x.cuda() for x in reference.get_inputs()]
model = new.ModelNew().cuda()
wanted = reference.Model()
wanted.load_state_dict({k: v.cpu() for k, v in model.state_dict().items()})
assert torch.allclose(model(*inputs).cpu(), wanted(*reference.get_inputs()))
inputs[WHICH].view(-1)[-1] = VALUE
try:
    model(*inputs)
    torch.cuda.synchronize()
except RuntimeError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def fused(tmp_path_factory):
    path = tmp_path_factory.mktemp("fused") / "reference.py"
    path.write_text(SOURCE)
    return fuse_problem(path, FuseOptions()).text


@pytest.mark.parametrize(
    ("which", "value"),
    [(0, 5), (0, -1), (1, 4), (1, -5), (2, 6), (2, -1), (3, 3), (3, -1), (4, 3), (4, -1), (5, 3), (5, -1)],
)
def test_out_of_bounds(tmp_path, fused, run_on_device, which, value):
    (tmp_path / "reference.py").write_text(SOURCE)
    (tmp_path / "new.py").write_text(fused)
    said = run_on_device(SCRIPT.replace("WHICH", str(which)).replace("VALUE", str(value)))
    assert "index out of bounds" in said, said
