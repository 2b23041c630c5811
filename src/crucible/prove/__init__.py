"""Prove: does a candidate compute the same function, the same gradients and the same side effects as its reference?

``crucible.prove`` is both this package and a function: importing anything from the package makes Python put it where
``crucible/__init__.py`` had the function, so the package can be called too.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, reference: Any, candidate: Any, **options: Any) -> Any:
        """See ``crucible.prove.run.prove``."""
        from crucible.prove.run import prove

        return prove(reference, candidate, **options)


sys.modules[__name__].__class__ = _Callable
