"""The files that a user names: is it there, can it be read, is it Python, does it define what is needed.

Nothing here runs the file or imports torch, so that a misspelled path is answered at once.
"""

from __future__ import annotations

import ast
import difflib
import os
from pathlib import Path

PROBLEM_NAMES = ("Model", "get_inputs", "get_init_inputs")


class ProblemError(Exception):
    """A file cannot be used; the message says why, in words for its author."""


def check_path(path: Path, what: str) -> Path:
    """The resolved path of a file that can be read, or a ProblemError that says what is wrong with it."""
    try:
        if not path.exists():
            raise ProblemError(f"{what} {path} does not exist{_broken_link(path)}{nearest(path)}")
        if path.is_dir():
            raise ProblemError(f"{what} {path} is a folder; a Python file is needed{_inside(path)}")
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise ProblemError(f"{what} {path} cannot be read: {error.strerror or error}") from None
    return path.resolve()


def check_problem(path: Path, what: str = "the reference") -> Path:
    """A file that, as far as can be seen without running it, defines a Model and its inputs."""
    resolved = check_path(path, what)
    tree = parsed(resolved, f"{what} {path}")
    defined = names(tree)
    if defined is None:
        return resolved
    for name in PROBLEM_NAMES:
        if name not in defined:
            needed, instead = ", ".join(PROBLEM_NAMES), _instead(name, tree, defined)
            raise ProblemError(f"{what} {path.name} defines no {name}; it needs {needed}{instead}")
    return resolved


def parsed(path: Path, called: str) -> ast.Module:
    """The file as Python, or a ProblemError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ProblemError(f"{called} cannot be read: {error.strerror or error}") from None
    if not data.strip():
        raise ProblemError(f"{called} is empty")
    if b"\0" in data:
        raise ProblemError(f"{called} is a binary file, not Python")
    try:
        return ast.parse(data, filename=path.name)
    except SyntaxError as error:
        at = f"line {error.lineno}: " if error.lineno else ""
        line = f": {error.text.strip()}" if error.text and error.text.strip() else ""
        raise ProblemError(f"{called} is not Python: {at}{error.msg}{line}") from None
    except (RecursionError, MemoryError, ValueError) as error:
        raise ProblemError(f"{called} cannot be parsed: {type(error).__name__}") from None


def names(tree: ast.Module) -> set[str] | None:
    """Every name that a module may define; None where that cannot be told without running it."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Name) and node.id in ("exec", "globals", "vars", "setattr", "__getattr__"):
            return None
        elif isinstance(node, ast.alias):
            if node.name == "*":
                return None
            found.add(node.asname or node.name)
    return None if "__getattr__" in found else found


def nearest(path: Path) -> str:
    """``; did you mean X?`` for what lies nearest to a path that does not exist, or the folder that is missing."""
    parent = path.parent
    if not parent.is_dir():
        while not parent.parent.is_dir() and parent != parent.parent:
            parent = parent.parent
        return f": there is no folder {parent}{nearest(parent)}"
    try:
        there = sorted(os.listdir(parent))
    except OSError:
        return ""
    stems = {name.removesuffix(".py").lower(): name for name in reversed(there)}
    close = difflib.get_close_matches(path.name.removesuffix(".py").lower(), stems, n=1, cutoff=0.6)
    return f"; did you mean {parent / stems[close[0]]}?" if close else ""


def _broken_link(path: Path) -> str:
    return " (it is a link to nothing)" if path.is_symlink() else ""


def _inside(folder: Path) -> str:
    """The first few files of a folder that was named in place of one."""
    try:
        files = sorted(p.name for p in folder.iterdir() if p.suffix == ".py" and not p.name.startswith("_"))
    except OSError:
        return ""
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    return f" (it has {', '.join(files[:3])}{more})" if files else ""


def _instead(name: str, tree: ast.Module, defined: set[str]) -> str:
    """What the file has in place of a missing name."""
    if name == "Model" and "ModelNew" in defined:
        return "; it defines ModelNew, as a candidate does"
    kind, word = (ast.ClassDef, "classes") if name == "Model" else (ast.FunctionDef, "functions")
    there = [n.name for n in tree.body if isinstance(n, kind)]
    return f"; its {word} are {', '.join(there[:5])}" if there else ""
