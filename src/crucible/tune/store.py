"""What tuning found, remembered: one JSON file for each key under ``tune`` in the cache folder.

A key names the GPU, its driver, torch, the kernels and planner, and what was tuned. Files are written in one rename;
one that cannot be read is ignored with a warning, and written again when there is something to write.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crucible.build.cache import cache_dir, content_key
from crucible.plan.ways import Site
from crucible.tune.machine import Machine
from crucible.tune.result import Tuning

SCHEMA = 1


class Store:
    """Entries of one machine; ``folder`` is elsewhere in tests."""

    def __init__(self, machine: Machine, folder: Path | None = None) -> None:
        self.machine = machine
        self.folder = folder or cache_dir() / "tune"

    # -- one Problem

    def problem(self, parts: tuple[str, ...]) -> Tuning | None:
        data = self._read(self._path("problem", *parts))
        if data is None:
            return None
        try:
            return Tuning.from_json(data["tuning"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._damaged(self._path("problem", *parts), error)
            return None

    def keep_problem(self, parts: tuple[str, ...], tuning: Tuning) -> None:
        self._write(self._path("problem", *parts), {"tuning": {**tuning.to_json(), "cached": False}})

    # -- one contraction, whatever it is part of

    def site(self, site: Site, element: str, grade: str, hopper: bool) -> str | None:
        """The label of the way that was the fastest."""
        path = self._site_path(site, element, grade, hopper)
        data = self._read(path)
        if data is None:
            return None
        label = data.get("way")
        if not isinstance(label, str):
            self._damaged(path, "it names no way")
            return None
        return label

    def keep_site(
        self, site: Site, element: str, grade: str, hopper: bool, label: str, times: Mapping[str, float]
    ) -> None:
        told = {"site": site.text, "element": element, "grade": grade, "way": label, "milliseconds": dict(times)}
        self._write(self._site_path(site, element, grade, hopper), told)

    def forget_site(self, site: Site, element: str, grade: str, hopper: bool) -> None:
        self._site_path(site, element, grade, hopper).unlink(missing_ok=True)

    def _site_path(self, site: Site, element: str, grade: str, hopper: bool) -> Path:
        return self._path("site", site.text, element, grade, str(hopper))

    # -- files

    def _path(self, *parts: str) -> Path:
        return self.folder / f"{content_key(self.machine.key(), *parts)}.json"

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            self._damaged(path, error)
            return None
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            self._damaged(path, "it is no such document")
            return None
        return data

    def _damaged(self, path: Path, why: object) -> None:
        warnings.warn(f"{path} was ignored, and will be written again: {why}", stacklevel=4)

    def _write(self, path: Path, data: dict[str, Any]) -> None:
        text = json.dumps({"schema": SCHEMA, "gpu": self.machine.gpu, **data}, indent=1) + "\n"
        name = ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(name, path)
        except OSError as error:
            if name:
                Path(name).unlink(missing_ok=True)
            warnings.warn(f"what tuning found could not be kept in {path}: {error.strerror}", stacklevel=3)
