"""A module's configuration as a short digest: what was compiled into the kernels, and must not differ at run time.

The same functions stand in the generated file; ``source()`` gives their text.
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


class _Seen:
    """What was found right in a module, and where it stands. A copy of the module is looked at anew."""

    def __init__(self, digest=None, held=(), modes=()):
        self.digest, self.held, self.modes = digest, held, modes

    def __reduce__(self):
        return _Seen, ()


def _expect(module, digest, layers):
    """Refuse a configuration that these kernels were not made for, and layers in another mode than they were made for.

    ``layers``: by name whether a layer is in training mode while the module is in eval mode, and while it trains.
    """
    seen = module.__dict__.get("_crucible_settings")
    same = seen is not None and seen.digest == digest
    if same:
        for table, key, value in seen.held:
            if table.get(key) is not value:
                same = False
    if not same:
        if _settings(module) != digest:
            raise RuntimeError(
                f"{type(module).__name__}: these kernels were made for another configuration, that of "
                "get_init_inputs() or of the module that was fused; fuse it again for this one"
            )
        parts = dict(module.named_modules())
        # What may change from call to call: numbers, such as a momentum, and layers that are exchanged.
        held = [(vars(p), k, v) for p in parts.values() for k, v in vars(p).items() if type(v) is float]
        held += [(p._modules, k, v) for p in parts.values() for k, v in p._modules.items()]
        seen = _Seen(digest, held, [(vars(parts[name]), name, modes) for name, modes in layers.items()])
        module.__dict__["_crucible_settings"] = seen
    for table, name, modes in seen.modes:
        if table["training"] is not modes[module.training]:
            mode, other = ("training", "eval") if table["training"] else ("eval", "training")
            raise RuntimeError(
                f"{type(module).__name__}: {name} is in {mode} mode, and these kernels were made for it in {other} "
                "mode; give the Model a train() that sets it so, and fuse it again"
            )


def digest(module: object) -> str:
    return str(_settings(module))


def expect(module: object, made_for: str, layers: dict[str, tuple[bool, bool]]) -> None:
    _expect(module, made_for, layers)


def source() -> str:
    """Their text for a generated file."""
    return "\n\n\n".join(inspect.getsource(part).rstrip() for part in (_settings, _Seen, _expect)) + "\n"
