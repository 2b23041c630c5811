"""The Problems of a folder, and the candidates that lie beside them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from crucible.files import nearest


class SweepError(Exception):
    """The sweep cannot be run as asked; the message says why."""


@dataclass(frozen=True)
class Found:
    """A Problem by its path inside the folder, and the file to judge: None where it is to be fused."""

    name: str
    problem: Path
    candidate: Path | None = None
    alone: bool = True  # it is the Problem's only candidate

    @property
    def title(self) -> str:
        return self.name if self.alone or self.candidate is None else f"{self.name} ({self.candidate.name})"


def check_folder(folder: Path) -> None:
    """Raise a SweepError for a path that no sweep can go through."""
    if not folder.exists():
        raise SweepError(f"{folder} does not exist{nearest(folder)}")
    if not folder.is_dir():
        raise SweepError(f"{folder} is a file; a sweep goes through a folder of them (crucible race takes one)")


def problems(folder: Path, without: Path | None = None) -> tuple[list[Found], list[str]]:
    """All Problems below a folder, and the names of Python files that are none; nothing from ``without``.

    A file that cannot be read or parsed counts as a Problem: it is somebody's mistake and gets a row.
    """
    check_folder(folder)
    found, others = [], []
    hidden = without.resolve() if without is not None and without.resolve() != folder.resolve() else None
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).as_posix()
        if any(part.startswith((".", "__")) for part in Path(name).parts) or hidden in path.resolve().parents:
            continue
        if _is_problem(path):
            found.append(Found(name, path))
        else:
            others.append(name)
    if not found:
        raise SweepError(f"no file in {folder} defines a Model")
    return found, others


def with_candidates(found: list[Found], folder: Path, beside: Path) -> tuple[list[Found], list[str]]:
    """Every Problem with its candidates in ``beside``, and the Problems that have none.

    The candidate of NAME.py is NAME.py or NAME_new.py there; several are several rows.
    """
    if not beside.is_dir():
        raise SweepError(f"{beside} is no folder; --candidates takes the folder that they are in")
    pairs, without = [], []
    for each in found:
        own = [c for c in _candidates(each, beside) if c.resolve() != each.problem.resolve()]
        pairs += [Found(each.name, each.problem, c, len(own) == 1) for c in own]
        without += [] if own else [each.name]
    if not pairs:
        raise SweepError(f"{beside} has no candidate for any of the {len(found)} Problems (NAME.py or NAME_new.py)")
    return pairs, without


def _candidates(found: Found, beside: Path) -> Iterator[Path]:
    inside = Path(found.name)
    places = dict.fromkeys(beside / name for name in (inside, inside.with_name(f"{inside.stem}_new.py")))
    places |= dict.fromkeys(beside / name for name in (inside.name, f"{inside.stem}_new.py"))
    return (p for p in places if p.is_file())


def _is_problem(path: Path) -> bool:
    try:
        tree = ast.parse(path.read_bytes(), filename=path.name)
    except (SyntaxError, ValueError, RecursionError, OSError):
        return True
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
    return "Model" in names
