"""A module's configuration as a short digest: what was compiled into the kernels, and must not differ at run time.

The same function stands in the generated file; ``source()`` gives its text.
"""

from __future__ import annotations

import hashlib
import inspect


def _settings(module):
    """A digest of the plain attributes of a module and its submodules: strides, sizes, constants."""
    kept = []
    for name, part in module.named_modules():
        values = {k: v for k, v in vars(part).items() if not k.startswith("_") and k != "training"}
        plain = {k: v for k, v in values.items() if isinstance(v, (bool, int, float, str, tuple, list, type(None)))}
        kept.append((name, type(part).__name__ if name else "", sorted((k, repr(v)) for k, v in plain.items())))
    return hashlib.sha256(repr(kept).encode()).hexdigest()[:16]


def digest(module: object) -> str:
    return str(_settings(module))


def source() -> str:
    """The function's text for a generated file."""
    return inspect.getsource(_settings)
