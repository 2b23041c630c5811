"""Walks and maps that take 16 bytes at a time, on a real GPU: right wherever a tensor begins, with and without."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from crucible.fuse import FuseOptions, fuse_problem

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

PROBLEM = '''
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        return {body}


def get_inputs():
    return [torch.randn({shape})]


def get_init_inputs():
    return []
'''
CASES = [
    ("F.group_norm(F.gelu(x), 4)", "16, 32, 66, 66"),
    ("F.layer_norm(torch.tanh(x), (1000,))", "500, 1000"),
    ("torch.tanh(x) * 2", "33, 1004"),
    ("F.softmax(x, -1)", "64, 40000"),
]


def loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("vectors", [1, 0])
@pytest.mark.parametrize("body,shape", CASES)
def test_right_wherever_a_tensor_begins(tmp_path, body, shape, vectors):
    path = tmp_path / "problem.py"
    path.write_text(PROBLEM.format(body=body, shape=shape))
    text = fuse_problem(path, FuseOptions(strict=True, forward_only=True)).text
    assert "#define CRUCIBLE_VECTORS 1" in text and "read_vector" in text
    new = tmp_path / "new.py"
    new.write_text(text.replace("#define CRUCIBLE_VECTORS 1", f"#define CRUCIBLE_VECTORS {vectors}"))
    model, reference = loaded(new).ModelNew().cuda(), loaded(path).Model()
    sizes = tuple(int(n) for n in shape.split(", "))
    count = torch.Size(sizes).numel()
    torch.manual_seed(3)
    for dtype, most in ((torch.float32, 1e-6), (torch.float16, 1e-3), (torch.bfloat16, 1e-2), (torch.float64, 1e-14)):
        for begin in (0, 1, 3, 4):
            x = torch.randn(count + begin, device="cuda", dtype=torch.float64).to(dtype)[begin:].view(sizes)
            got, wanted = model(x).double(), reference(x.double())
            assert float((got - wanted).norm() / wanted.norm()) < most, (dtype, begin)
