"""A source file as highlighted HTML: CUDA in strings as CUDA, and kernel bodies that files share folded away."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

FOLD_BEGIN = "// ---- kernel bodies and what they share"
FOLD_END = "// ---- the stages of this file"
CUDA = re.compile(r"__global__|__device__|#include|<<<")
# Classes of style.css by the kind of token, the first that fits; all else is plain text.
CLASSES = (
    ("Comment.Preproc", "p"), ("Comment", "c"), ("Keyword", "k"), ("Literal.String", "s"), ("Literal.Number", "n"),
    ("Name.Function", "f"), ("Name.Class", "f"), ("Operator.Word", "k"), ("Name.Builtin", "k"),
    ("Name.Decorator", "p"),
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """Some lines of a file in one language."""

    language: str  # "python" or "cuda"
    first: int  # line number
    lines: int
    html: Markup
    folded: bool = False

    @property
    def last(self) -> int:
        return self.first + self.lines - 1


@dataclass(frozen=True)
class Stretch:
    language: str
    first: int
    text: str
    folded: bool = False


def listing(text: str, marked: int | None = None) -> list[Part]:
    """The parts of a file in order; ``marked`` is the line that a finding speaks of, in a part that is not folded."""
    parts = []
    for s in stretches(text):
        count = s.text.count("\n") + (not s.text.endswith("\n"))
        inside = marked is not None and s.first <= marked < s.first + count
        html = highlighted(s.text, s.language, marked - s.first if inside and marked is not None else None)
        parts.append(Part(s.language, s.first, count, html, s.folded and not inside))
    return parts


def stretches(text: str) -> list[Stretch]:
    """Python and CUDA by turns, in whole lines."""
    lines = text.splitlines(keepends=True)
    found: list[Stretch] = []
    at = 1
    for first, last in sorted(_cuda_strings(text)):
        if first < at:
            continue
        if first > at:
            found.append(Stretch("python", at, "".join(lines[at - 1 : first - 1])))
        found += _folds(first, lines[first - 1 : last])
        at = last + 1
    if at <= len(lines):
        found.append(Stretch("python", at, "".join(lines[at - 1 :])))
    return [s for s in found if s.text]


def _cuda_strings(text: str) -> Iterator[tuple[int, int]]:
    """First and last line of what is inside each string of several lines that is CUDA."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and CUDA.search(node.value):
            last = node.end_lineno or node.lineno
            if last > node.lineno + 1:
                yield node.lineno + 1, last - 1


def _folds(first: int, lines: list[str]) -> Iterator[Stretch]:
    """CUDA with the shared kernel bodies as parts of their own."""
    text = "".join(lines)
    at = 0
    for found in re.finditer(rf"^{re.escape(FOLD_BEGIN)}.*?(?=^{re.escape(FOLD_END)})", text, flags=re.S | re.M):
        for piece, folded in ((text[at : found.start()], False), (found.group(), True)):
            if piece:
                yield Stretch("cuda", first, piece, folded)
                first += piece.count("\n")
        at = found.end()
    if text[at:]:
        yield Stretch("cuda", first, text[at:])


def highlighted(text: str, language: str, marked: int | None = None) -> Markup:
    """One element for each line, so that a style sheet can number them and nothing else copies the numbers."""
    from pygments.lexers.c_like import CudaLexer
    from pygments.lexers.python import PythonLexer

    options: Any = {"stripnl": False, "ensurenl": True}
    lexer = CudaLexer(**options) if language == "cuda" else PythonLexer(**options)
    rows: list[list[str]] = [[]]
    for kind, value in _joined(lexer.get_tokens(text)):
        for k, piece in enumerate(value.split("\n")):
            if k:
                rows.append([])
            if piece:
                safe = str(escape(piece))
                rows[-1].append(f'<b class="{kind}">{safe}</b>' if kind and not piece.isspace() else safe)
    if not rows[-1]:
        rows.pop()
    out = []
    for k, row in enumerate(rows):
        opened = '<span class="l marked">' if k == marked else '<span class="l">'
        out.append(f"{opened}{''.join(row)}\n</span>")
    return Markup("".join(out))


def _joined(tokens: Any) -> Iterator[tuple[str, str]]:
    """Neighbours of one class as one."""
    before, held = "", ""
    for token, value in tokens:
        name = str(token).removeprefix("Token.")
        kind = next((c for start, c in CLASSES if name.startswith(start)), "")
        if kind == before:
            held += value
        else:
            if held:
                yield before, held
            before, held = kind, value
    if held:
        yield before, held
