"""The cache of builds: one folder an entry, named by a hash of all that went into it, published in one rename.

Nothing here is ever half-written: an entry is built in a temporary folder beside its place and renamed when done, and a
lock file keeps two processes from building the same entry twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path


def cache_dir() -> Path:
    """The cache folder: ``$CRUCIBLE_CACHE``, or ``crucible`` in the user's cache folder."""
    chosen = os.environ.get("CRUCIBLE_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "crucible"


def content_key(*parts: str | bytes) -> str:
    """A short name for a build made of ``parts``; they are delimited: ``("ab", "c")`` differs from ``("a", "bc")``."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:24]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)


def entry_path(kind: str, key: str) -> Path:
    """Where the entry ``key`` lies once it is built."""
    return cache_dir() / kind / key


def entry(kind: str, key: str, build: Callable[[Path], None]) -> Path:
    """The folder of entry ``key``, calling ``build(folder)`` to fill it if it is not there yet.

    A build that raises leaves nothing behind; the next caller tries again.
    """
    place = entry_path(kind, key)
    if place.is_dir():
        return place
    with _locked(cache_dir() / kind / f".{key}.lock"):
        if place.is_dir():  # somebody else built it while we waited
            return place
        scratch = Path(tempfile.mkdtemp(prefix=f".{key}.", dir=place.parent))
        try:
            build(scratch)
            os.rename(scratch, place)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
    return place


def keep_newest(kind: str, count: int) -> None:
    """Drop all but the ``count`` newest entries of a kind (for entries that are large and soon out of date)."""
    folder = cache_dir() / kind
    entries = sorted((p for p in folder.iterdir() if not p.name.startswith(".")), key=lambda p: p.stat().st_mtime)
    for old in entries[: max(0, len(entries) - count)]:
        shutil.rmtree(old, ignore_errors=True)
