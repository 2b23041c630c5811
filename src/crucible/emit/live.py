"""Kernels for a module that is at hand: the text of a file whose forward() takes no source from its class.

The class of a module may be defined in a notebook, a REPL or a library; all that is needed of it is the signature of
forward(). A stand-in class with that signature goes through the same writer as a Problem's file, and the forward() of
what comes out is then given to a copy of the module.
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Forward = Callable[..., Any]


def stand_in(parameters: Sequence[inspect.Parameter]) -> str:
    """Source of a Model whose forward() takes these parameters by position, with no defaults."""
    names = ", ".join(["self", *(p.name for p in parameters)])
    body = f"class Model(nn.Module):\n    def forward({names}):\n        pass\n"
    return f"import torch\nimport torch.nn as nn\n\n\n{body}"


def load_forward(text: str, name: str) -> Forward:
    """The forward() of a generated text. Its lines are known to tracebacks although it is in no file."""
    file = f"<fused {name}>"
    module = ModuleType(f"crucible_fused_{name}")
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), vars(module))
    forward: Forward = module.ModelNew.forward
    return forward


def bound_forward(generated: Forward, signature: inspect.Signature, check: Callable[[Any], None]) -> Forward:
    """A forward() with the original's signature, defaults and keywords, that calls the generated one by position."""
    names = list(signature.parameters)
    kinds = [p.kind for p in signature.parameters.values()]
    plain = all(k is inspect.Parameter.POSITIONAL_OR_KEYWORD for k in kinds)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        check(self)
        if plain and not kwargs and len(args) == len(names):
            return generated(self, *args)
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        return generated(self, *(given.arguments[n] for n in names))

    forward.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY), *signature.parameters.values()]
        if not any(k is inspect.Parameter.POSITIONAL_ONLY for k in kinds)
        else list(signature.parameters.values())
    )
    return forward
