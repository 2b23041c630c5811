"""crucible: fuse the operators of a PyTorch module into CUDA kernels, and prove that the result computes the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    import torch

    from crucible.fuse_to_file import FusedFile
    from crucible.prove.proof import Proof

# Imports stand inside the functions: torch takes a second, and is not loaded before it is needed.


def fuse(module: torch.nn.Module, example_inputs: Any, **options: Any) -> torch.nn.Module:
    """A module that shares ``module``'s parameters and buffers and computes the same with fused CUDA kernels.

    ``example_inputs`` is a tensor or a sequence of arguments of forward(). Options: ``engine`` ("auto", "mma", "simt"),
    ``precision`` ("torch", "fp32", "tf32"), ``dtypes``, ``strict``, ``forward_only``. Nothing is proven here.
    """
    from crucible.fuse_module import fuse_module

    return fuse_module(module, example_inputs, **options)


def fuse_file(path: str | Path, output: str | Path | None = None, **options: Any) -> FusedFile:
    """Write the ``ModelNew`` of a Problem's file to ``output`` (by default NAME_new.py beside it), and prove it.

    Options: ``engine``, ``precision``, ``dtype``, ``strict``, ``forward_only``, ``force``, ``prove`` (False: write the
    file and stop there), ``gpu``, and those of ``prove()``. Returns an object with ``path``, ``proof``, ``text`` and
    ``explanation``.
    """
    from crucible.fuse_to_file import fuse_file as run

    return run(path, output, **options)


def prove(reference: str | Path, candidate: str | Path, **options: Any) -> Proof:
    """Say whether ``ModelNew`` in one file can be trusted to do what ``Model`` in another does.

    Options: ``device`` ("sim" or "cuda"; a GPU if there is one), ``dtype``, ``seed``, ``trials``, ``timeout``,
    ``quick``, ``strict``, ``forward_only``, ``arch``, ``sanitize``, ``precision``, and ``progress``, a function of two
    strings. Returns a ``Proof`` with ``verdict``, ``reason``, ``limits``, ``warnings`` and ``checks``.
    """
    from crucible.prove.run import prove as run

    return run(reference, candidate, **options)


__all__ = ["__version__", "fuse", "fuse_file", "prove"]
