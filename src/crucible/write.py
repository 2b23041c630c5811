"""Files that are there as a whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


class WriteError(Exception):
    """The file cannot be written; the message names it and says why."""


def write_atomically(path: Path, text: str) -> None:
    """All of the text or nothing: it is written beside its place and then moved there."""
    place = path.resolve()  # through a link, to the file it names
    try:
        mode = place.stat().st_mode & 0o777
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        mode = 0o666 & ~mask
    try:
        handle, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(name, mode)
            os.replace(name, place)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise WriteError(f"{path} cannot be written: {error.strerror}") from None
