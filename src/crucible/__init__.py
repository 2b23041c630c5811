"""crucible: fuse the operators of a PyTorch module into CUDA kernels, and prove that the result computes the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from crucible.prove.proof import Proof


def prove(reference: str | Path, candidate: str | Path, **options: Any) -> Proof:
    """Say whether ``ModelNew`` in one file can be trusted to do what ``Model`` in another does.

    Options: ``device`` ("sim" or "cuda"; a GPU if there is one), ``dtype``, ``seed``, ``trials``, ``timeout``,
    ``quick``, ``strict``, ``forward_only``, ``arch``, ``sanitize``, ``precision``, and ``progress``, a function of two
    strings. Returns a ``Proof`` with ``verdict``, ``reason``, ``limits``, ``warnings`` and ``checks``.
    """
    from crucible.prove.run import prove as run  # torch takes a second to import: not before it is needed

    return run(reference, candidate, **options)


__all__ = ["__version__", "prove"]
