"""Imports of torch in a worker: hundreds of thousands of objects that all stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def nothing_is_garbage() -> Iterator[None]:
    """What is made within is neither looked through for garbage meanwhile nor later; a sixth of an import of torch."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collecting:
            gc.enable()
