"""Where a sweep keeps its rows: a folder of numbered JSON files that are only ever added.

A row is written beside its place, flushed to the disk, and then given a name that nobody has: a kill at any point
leaves all earlier rows and no half of a new one. Of several rows with the same key the last counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

from crucible.prove.proof import plain

SCHEMA = 1
KIND = "sweep row"


class StoreError(Exception):
    """The folder cannot be used; the message says why."""


class Store:
    """A folder with ``rows/NNNNNN.json``, and ``files/`` for what was fused."""

    def __init__(self, folder: Path, create: bool = True) -> None:
        self.folder, self.rows_folder, self.files = folder, folder / "rows", folder / "files"
        self._lock = threading.Lock()
        if folder.exists() and not folder.is_dir():
            raise StoreError(f"{folder} is a file; a folder is needed to keep results in")
        if not create:
            if not self.rows_folder.is_dir():
                raise StoreError(f"{folder} holds no results of a sweep")
            return
        if folder.is_dir() and any(folder.iterdir()) and not self.rows_folder.is_dir():
            raise StoreError(f"{folder} has other things in it; give a folder of its own with --store")
        try:
            self.rows_folder.mkdir(parents=True, exist_ok=True)
            self.files.mkdir(exist_ok=True)
        except OSError as error:
            raise StoreError(f"{folder} cannot be used: {error.strerror}") from None

    def rows(self) -> list[dict[str, Any]]:
        """All rows in order; a file that is none of ours is left alone."""
        found = []
        for path in sorted(self.rows_folder.glob("[0-9]*.json")):
            with contextlib.suppress(OSError, ValueError):
                row = json.loads(path.read_text(encoding="utf-8"))
                if isinstance(row, dict) and row.get("kind") == KIND and row.get("schema") == SCHEMA:
                    found.append(row)
        return found

    def latest(self) -> dict[str, dict[str, Any]]:
        """The last row of every key."""
        return {row["key"]: row for row in self.rows()}

    def append(self, row: dict[str, Any]) -> Path:
        """Keep a row. It is there as a whole when this returns, or not at all."""
        text = json.dumps(plain({"schema": SCHEMA, "kind": KIND, **row}), indent=1, allow_nan=False) + "\n"
        with self._lock:
            handle, name = tempfile.mkstemp(dir=self.rows_folder, prefix=".", suffix=".tmp")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                os.chmod(name, 0o644)
                return self._name(Path(name))
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(name)

    def _name(self, written: Path) -> Path:
        """The next free number; another sweep may be adding rows at the same time."""
        last = max((int(p.stem) for p in self.rows_folder.glob("[0-9]*.json") if p.stem.isdigit()), default=0)
        while True:
            last += 1
            place = self.rows_folder / f"{last:06d}.json"
            try:
                os.link(written, place)  # unlike a rename it never replaces anything
            except FileExistsError:
                continue
            except OSError:  # a file system without links
                if place.exists():
                    continue
                os.rename(written, place)
            _flush_folder(self.rows_folder)
            return place


def _flush_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
