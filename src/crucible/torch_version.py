"""Which torch this is, and whether it is new enough to fuse with."""

from __future__ import annotations

OLDEST = (2, 0)  # for proofs and races, and for a fused file
OLDEST_TO_FUSE = (2, 7)  # of which torch.export can leave sizes open


class TorchTooOld(ImportError):
    """The message says what this torch is too old for."""


def number(text: str) -> tuple[int, int]:
    """Of a version such as ``2.13.0a0+cu130`` what counts."""
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def require_to_fuse() -> None:
    import torch

    if number(torch.__version__) < OLDEST_TO_FUSE:
        oldest = ".".join(map(str, OLDEST_TO_FUSE))
        raise TorchTooOld(
            f"fusing needs torch {oldest} or later, this is {torch.__version__}. Fuse where there is one: the file "
            f"that comes out runs with torch {'.'.join(map(str, OLDEST))} and later"
        )
