"""Sees where a Model switches automatic mixed precision on for itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def switched_on() -> Iterator[dict[str, None]]:
    """What is entered meanwhile, as text: ``torch.autocast("cuda", dtype=torch.bfloat16)``.

    Without a GPU torch makes those for CUDA inert, and forgets that they were meant to be switched on. So what they
    were made with is noted, and of one that was made before, as a decorator, it is assumed.
    """
    kind = torch.autocast
    made, enter = kind.__init__, kind.__enter__
    found: dict[str, None] = {}

    def noted(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None) -> None:
        made(self, device_type, dtype, enabled, cache_enabled)
        self.crucible_meant = enabled

    def entered(self: Any) -> Any:
        if getattr(self, "crucible_meant", True):
            found[f'torch.autocast("{self.device}", dtype={self.fast_dtype})'] = None
        return enter(self)

    kind.__init__, kind.__enter__ = noted, entered  # type: ignore[method-assign]
    try:
        yield found
    finally:
        kind.__init__, kind.__enter__ = made, enter  # type: ignore[method-assign]
