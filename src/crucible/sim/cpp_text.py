"""C++ text without a parser: comments and literals masked, brackets matched, lists split."""

from __future__ import annotations

import re

# Comments and literals: places where code-like text means nothing. A ' between digits is a separator.
_LITERAL = re.compile(
    r"//(?:[^\n\\]|\\.|\\\n)*|/\*.*?\*/"
    r'|R"(?P<d>[^()\s\\"]{0,16})\(.*?\)(?P=d)"'
    r'|"(?:[^"\\\n]|\\.|\\\n)*"'
    r"|(?<![0-9a-zA-Z_])'(?:[^'\\\n]|\\.)+'",
    re.S,
)


def mask(text: str) -> str:
    """``text`` with comments and the insides of literals blanked: same length, same lines, so positions stay valid."""

    def blank(match: re.Match[str]) -> str:
        found = match.group(0)
        if found[0] == "/":
            return re.sub(r"[^\n]", " ", found)
        return found[0] + re.sub(r"[^\n]", " ", found[1:-1]) + found[-1]

    return _LITERAL.sub(blank, text)


OPEN, CLOSE = "([{", ")]}"


def closing(masked: str, start: int) -> int:
    """The position just after the bracket that closes the one at ``start``; -1 if there is none."""
    depth = 0
    for i in range(start, len(masked)):
        if masked[i] in OPEN:
            depth += 1
        elif masked[i] in CLOSE:
            depth -= 1
            if depth == 0:
                return i + 1
    return -1


def opening(masked: str, end: int) -> int:
    """The position of the bracket that opens the one at ``end``; -1 if there is none."""
    depth = 0
    for i in range(end, -1, -1):
        if masked[i] in CLOSE:
            depth += 1
        elif masked[i] in OPEN:
            depth -= 1
            if depth == 0:
                return i
    return -1


def angle_opening(masked: str, end: int) -> int:
    """The ``<`` that opens the template argument list closed by the ``>`` at ``end``; -1 if there is none."""
    depth, i = 0, end
    while i >= 0:
        c = masked[i]
        if c in CLOSE:
            i = opening(masked, i)
            if i < 0:
                return -1
        elif c in OPEN or c == ";":
            return -1
        elif c == ">":
            depth += 1
        elif c == "<":
            depth -= 1
            if depth == 0:
                return i
        i -= 1
    return -1


def angle_closing(masked: str, start: int) -> int:
    """The position just after the ``>`` that closes the ``<`` at ``start``; -1 if this is no template argument list."""
    depth, i = 0, start
    while i < len(masked):
        c = masked[i]
        if c in OPEN:
            i = closing(masked, i)
            if i < 0:
                return -1
            continue
        if c in CLOSE or c == ";":
            return -1
        if c == "<":
            depth += 1
        elif c == ">":
            depth -= 1
            if depth == 0:
                return i + 1
        i += 1
    return -1


def split_commas(masked: str, start: int, end: int) -> list[tuple[int, int]]:
    """The comma-separated parts of ``[start, end)``; commas inside brackets and template arguments do not count."""
    parts, begin, i = [], start, start
    while i < end:
        c = masked[i]
        if c in OPEN:
            after = closing(masked, i)
            i = after if 0 < after <= end else i + 1
            continue
        if c == "<" and i > start and (masked[i - 1].isalnum() or masked[i - 1] == "_"):
            after = angle_closing(masked, i)
            if 0 < after <= end and re.match(r"\s*(\(|::|,|\)|\{|$)", masked[after:end]):
                i = after
                continue
        if c == ",":
            parts.append((begin, i))
            begin = i + 1
        i += 1
    parts.append((begin, end))
    return parts if masked[start:end].strip() else []


def one_line(text: str) -> str:
    return re.sub(r"(?:\s|\\\n)+", " ", text).strip()
