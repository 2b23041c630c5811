"""The parts of ``kernels/*.cuh`` that a file needs, inlined: headers in order, functions and structs by name."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

KERNELS = Path(__file__).parent.parent / "kernels"
# Headers of which a file takes only the functions and structs that it names.
PICKED = ("pointwise.cuh", "reduce.cuh")

_OWN = re.compile(r'^#include "([\w.]+)"\s*\n', re.M)


@lru_cache(None)
def _text(name: str) -> str:
    return (KERNELS / name).read_text()


@lru_cache(None)
def _needs(name: str) -> tuple[str, ...]:
    """A header and those it includes, the included first."""
    order: list[str] = []
    for inner in _OWN.findall(_text(name)):
        order += [n for n in _needs(inner) if n not in order]
    return (*order, name)


def _body(name: str) -> str:
    text = _OWN.sub("", _text(name)).replace("#pragma once\n", "")
    return text.strip("\n")


def _picked(name: str, wanted: set[str]) -> str:
    """The wanted definitions of a header, with those that they call."""
    text = _text(name)
    inner = text[text.index("namespace crucible {") + len("namespace crucible {") : text.rindex("}  // namespace")]
    chunks = [c for c in re.split(r"\n\n(?=\S)", inner.strip("\n")) if c.strip()]
    named: dict[str, str] = {}
    for chunk in chunks:
        found = re.search(r"^(?:__device__ __forceinline__ [\w ]+? (\w+)\(|struct (\w+) \{)", chunk, re.M)
        if found:
            named[found.group(1) or found.group(2)] = chunk
    taken: list[str] = []
    todo = sorted(wanted & set(named))
    while todo:
        current = todo.pop(0)
        if current not in taken:
            taken.append(current)
            todo += [n for n in named if n not in taken and re.search(rf"\b{n}\b", named[current])]
    body = "\n\n".join(named[n] for n in named if n in taken)
    return f"namespace crucible {{\n\n{body}\n\n}}  // namespace crucible" if taken else ""


def library(templates: set[str], functions: set[str], structs: set[str]) -> str:
    """Everything that generated functors refer to, as one text."""
    order: list[str] = []
    for name in ["common.cuh", "pointwise.cuh", "reduce.cuh", *sorted(templates)]:
        order += [n for n in _needs(name) if n not in order]
    parts = []
    for name in order:
        if name in PICKED:
            parts.append(_picked(name, functions | structs))
        elif name == "common.cuh" or name in set().union(*(_needs(t) for t in templates)):
            parts.append(_body(name))
    return "\n\n".join(p for p in parts if p)
