"""What every record says about itself: when it was made, by which code, and from which texts."""

from __future__ import annotations

import functools
import hashlib
from datetime import datetime, timezone
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
CODE = {".py", ".cuh", ".h", ".hpp", ".cpp"}
LARGEST_TEXT = 4 << 20


@functools.cache
def program_digest() -> str:
    """Of all code of this program: the first digits of a SHA-256."""
    found = hashlib.sha256()
    for path in sorted(p for p in PACKAGE.rglob("*") if p.suffix in CODE and p.is_file()):
        found.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def now_text() -> str:
    """The time in UTC, to the second."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def texts_of(**paths: str | Path) -> dict[str, str]:
    """The texts of files by the names that they are given; what is no readable text of ordinary size is left out."""
    found = {}
    for name, path in paths.items():
        try:
            if Path(path).is_file() and Path(path).stat().st_size <= LARGEST_TEXT:
                found[name] = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
    return found
