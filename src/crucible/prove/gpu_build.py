"""Make sense of a failed nvcc build on a GPU machine: the first error, at a line of the candidate's own file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from crucible.prove.outcome import build_finding
from crucible.prove.proof import Finding

_NVCC = re.compile(r"^(?P<file>[^\s(]+)\((?P<line>\d+)\): error\s*:?\s*(?P<text>.*)$", re.M)
_GCC = re.compile(r"^(?P<file>[^\s:]+):(?P<line>\d+):\d+: (?:fatal )?error: (?P<text>.*)$", re.M)


def nvcc_finding(error: dict[str, Any], scratch: Path, file: str) -> Finding | None:
    """A compile_error for torch's "Error building extension", or None for any other exception."""
    message = str(error.get("message", ""))
    if "Error building extension" not in message and "Error compiling objects" not in message:
        return None
    match = _NVCC.search(message) or _GCC.search(message)
    if match is None:
        undefined = re.search(r"undefined (?:reference to|symbol:) ?(.*)", message)
        kind = "link_error" if undefined else "compile_error"
        return build_finding({"kind": kind, "message": undefined.group(0) if undefined else message[-400:]}, file)
    line = _source_line(Path(match["file"]), int(match["line"]))
    number = _find(scratch / file, line)
    return build_finding(
        {"kind": "compile_error", "message": match["text"], "file": file, "line": number, "source_line": line}, file
    )


def _source_line(path: Path, number: int) -> str | None:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return None
    return lines[number - 1] if 0 < number <= len(lines) else None


def _find(path: Path, line: str | None) -> int | None:
    if not line or not line.strip():
        return None
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return None
    hits = [i for i, text in enumerate(lines, 1) if text.strip() == line.strip()]
    return hits[0] if hits else None
