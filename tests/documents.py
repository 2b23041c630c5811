"""Reads the project's documents: fenced blocks, and the commands in them and in the text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = ("crucible", "python", "make")

_FENCE = re.compile(r"^```([\w-]*)\n(.*?)^```$", re.M | re.S)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language and text."""

    language: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command, the page it is on, and what the page says that it prints (nothing where it does not say)."""

    page: str
    text: str
    output: str = ""


def blocks(page: Path) -> list[Block]:
    return [Block(*m.groups()) for m in _FENCE.finditer(page.read_text())]


def files(page: Path) -> dict[str, str]:
    """The Python blocks of a page that begin with the name of a file, by that name."""
    found = {}
    for block in blocks(page):
        name = re.match(r"# (\w+\.py)\n", block.text)
        if block.language == "python" and name:
            found[name[1]] = block.text
    return found


def session(page: Path) -> list[Command]:
    """The commands of a page's console blocks, in order, with what they print."""
    found = []
    for block in blocks(page):
        if block.language == "console":
            for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
                command, _, output = part.partition("\n")
                found.append(Command(page.name, command.strip(), output))
    return found


def commands(page: Path) -> list[Command]:
    """Every command on a page: lines of fenced blocks and spans of the text that begin with one of our programs."""
    found = session(page)
    for block in blocks(page):
        if block.language in ("", "sh", "bash"):
            lines = [x.removeprefix("$ ").split("  #")[0].strip() for x in block.text.splitlines()]
            found += [Command(page.name, x) for x in lines if x.split(" ")[0] in PROGRAMS and " " in x and _told(x)]
    text = _FENCE.sub("", page.read_text())
    spans = [m[1].strip() for m in _SPAN.finditer(text)]
    found += [Command(page.name, s) for s in spans if s.split(" ")[0] in PROGRAMS and " " in s]
    return list(dict.fromkeys(found))


def _told(line: str) -> bool:
    """Whether a line of an untyped block is a command: those are output too, in which sentences may begin alike."""
    word = line.split(" ")[1]
    return bool(re.fullmatch(r"-?-?[a-z][\w./-]*", word)) and not line.endswith((".", ":"))
