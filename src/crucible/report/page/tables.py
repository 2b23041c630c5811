"""Tables as templates want them: columns with a kind, rows of cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Column:
    title: str
    kind: str = ""  # "number", or a class of style.css: "text", "lines", "name"

    @property
    def number(self) -> bool:
        return self.kind == "number"


@dataclass(frozen=True)
class Cell:
    text: str
    value: float | str | None = None  # to sort by, where the text does not do
    link: str | None = None
    status: str | None = None  # a class of style.css
    chip: int | None = None  # the number of a kernel


@dataclass
class Row:
    cells: list[Cell]
    ours: bool = False


@dataclass
class Table:
    caption: str
    columns: list[Column]
    rows: list[Row] = field(default_factory=list)

    def add(self, *cells: Cell | str, ours: bool = False) -> None:
        """A row; plain texts become cells."""
        self.rows.append(Row([c if isinstance(c, Cell) else Cell(c) for c in cells], ours))


def columns(*titles: str) -> list[Column]:
    """``"median#"`` is a column of numbers, ``"what:text"`` one of text that may wrap, ``"a:name"`` one of names."""
    found = []
    for title in titles:
        if title.endswith("#"):
            found.append(Column(title[:-1], "number"))
        else:
            name, _, kind = title.partition(":")
            found.append(Column(name, kind))
    return found


@dataclass(frozen=True)
class Fact:
    """A number at the top of a page."""

    name: str
    value: str
    note: str = ""


def class_of(status: str) -> str:
    """A verdict or status as a class of style.css."""
    return status.replace(" ", "-")


def listed(words: Sequence[str], nothing: str = "nothing") -> str:
    return ", ".join(words) or nothing
