"""What the shell offers when the tab key is pressed: Python files and folders, and the values of options.

Loaded on every key press, so nothing here imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable

Complete = Callable[[str], list[str]]  # what is there so far -> what it may become


def python_files(incomplete: str) -> list[str]:
    """Python files, and folders, which may have some."""
    return _paths(incomplete, lambda entry: entry.is_dir() or entry.name.endswith(".py"))


def folders(incomplete: str) -> list[str]:
    return _paths(incomplete, lambda entry: entry.is_dir())


def words(*known: str) -> Complete:
    """One of these words."""
    return lambda incomplete: [w for w in known if w.startswith(incomplete)]


def listed(*known: str) -> Complete:
    """Several of these words with commas between them."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        taken = before.split(",")
        return [before + comma + w for w in known if w.startswith(last) and w not in taken]

    return complete


def gpu_names(incomplete: str) -> list[str]:
    from crucible.plan import gpus

    return [n for n in gpus.names() if n.startswith(incomplete.lower())]


DEVICES = words("cuda", "sim")
PRECISIONS = words("torch", "fp32")
TYPE_NAMES = ("float32", "float16", "bfloat16")
TYPE, TYPES = words(*TYPE_NAMES), listed(*TYPE_NAMES, "float64")
BASELINES = listed("eager", "channels_last", "compile", "max_autotune")


def _paths(incomplete: str, wanted: Callable[[os.DirEntry[str]], bool]) -> list[str]:
    """Entries of the folder that the text so far names, written as it writes it; a folder ends with a slash."""
    folder, beginning = os.path.split(incomplete)
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as entries:
            found = [e for e in entries if e.name.startswith(beginning) and wanted(e)]
    except OSError:
        return []
    shown = [e for e in found if beginning.startswith(".") or not e.name.startswith((".", "__pycache__"))]
    if len(shown) == 1 and shown[0].is_dir():  # shells put a space after an only match, so go on inside
        return _paths(os.path.join(folder, shown[0].name, ""), wanted)
    return sorted(os.path.join(folder, e.name) + ("/" if e.is_dir() else "") for e in shown)
