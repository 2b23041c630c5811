"""Determinants of matrices that do not lie in rows: torch takes the matrix or its transpose, by how it lies."""

from __future__ import annotations

from crucible.fuse import FuseOptions, fuse_problem

SOURCE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.across, self.along = nn.Parameter(torch.randn(5, 5).t()), nn.Parameter(torch.randn(5, 5))

    def forward(self, x):
        of_view = torch.linalg.slogdet(torch.tanh(self.along).t())[1]
        of_product = torch.logdet(self.along @ self.along.t())
        return torch.tanh(x) @ self.across, torch.linalg.det(self.across), of_view, of_product


def get_inputs():
    return [torch.randn(7, 5)]


def get_init_inputs():
    return []
"""

SYSTEMS = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.linalg.cholesky(x) * 2, torch.linalg.inv(x + 1)


def get_inputs():
    return [torch.eye(5).repeat(3, 1, 1)]


def get_init_inputs():
    return []
"""


def test_proven(proven):
    proven(SOURCE)


def test_what_cannot_be_computed_is_an_error(tmp_path, run_on_device):
    (tmp_path / "reference.py").write_text(SYSTEMS)
    (tmp_path / "new.py").write_text(fuse_problem(tmp_path / "reference.py", FuseOptions()).text)
    run_on_device("""
        import new, reference
        model = new.ModelNew()
        right = torch.eye(5).repeat(3, 1, 1)
        for got, wanted in zip(model(right.cuda()), reference.Model()(right)):
            assert torch.allclose(got.cpu(), wanted)
        for wrong in (-right, torch.zeros(3, 5, 5)):
            try:
                model(wrong.cuda())
            except torch.linalg.LinAlgError:
                continue
            raise AssertionError("no error")
    """)
