"""What tuning found: every alternative with its time, which one won, and which come after it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from crucible.plan.ways import Choices
from crucible.tune.bench import REFERENCE

DEFAULT = "default"
TRIES = 3  # files to prove before the default, should they be refuted


@dataclass(frozen=True)
class Row:
    """One alternative; times in milliseconds."""

    name: str
    engine: str  # empty for the reference
    choices: Choices = Choices()
    median: float | None = None
    low: float | None = None
    high: float | None = None
    error: float | None = None  # relative L2 distance from float64
    note: str = ""  # why it has no time
    refuted: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "choices": [list(p) for p in self.choices.picks]}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Row:
        picks = tuple((str(site), str(label)) for site, label in data["choices"])
        row = Row(**{**data, "choices": Choices(picks)})
        numbers = (row.median, row.low, row.high, row.error)
        if not all(isinstance(t, str) for t in (row.name, row.engine, row.note, row.refuted)) or not all(
            n is None or isinstance(n, (int, float)) for n in numbers
        ):
            raise ValueError(f"a row that is none: {data}")
        return row


@dataclass
class Tuning:
    """All rows, and the one that is to be used."""

    gpu: str
    element: str
    rows: list[Row]
    winner: str
    budget: float
    seconds: float = 0.0
    cut: bool = False  # the budget was spent before everything was tried
    cached: bool = False
    notes: list[str] = field(default_factory=list)

    def row(self, name: str) -> Row | None:
        return next((r for r in self.rows if r.name == name), None)

    @property
    def chosen(self) -> Row:
        found = self.row(self.winner)
        assert found is not None
        return found

    @property
    def reference_wins(self) -> bool:
        """Whether no file was faster than the Model's own operators."""
        reference, chosen = self.row(REFERENCE), self.row(self.winner)
        times = [r.median for r in (reference, chosen) if r is not None]
        return len(times) == 2 and None not in times and times[0] < times[1]  # type: ignore[operator]

    def order(self) -> list[Row]:
        """The files to prove until one is proven: the winner, the next fastest, and in the end the default."""
        files = [r for r in self.rows if r.engine and not r.refuted]
        timed = sorted((r for r in files if r.median is not None), key=lambda r: r.median or 0.0)
        first = [r for r in files if r.name == self.winner]
        tried = sum(1 for r in self.rows if r.refuted)
        ordered = list(dict.fromkeys([*first, *timed]))[: max(0, TRIES - tried)]
        return list(dict.fromkeys([*ordered, *(r for r in files if r.name == DEFAULT)]))

    def refute(self, name: str, why: str) -> None:
        """Take a file out of the running; the next one wins. The last one that is left stays."""
        left = [r for r in self.order() if r.name != name]
        self.rows = [replace(r, refuted=why or "refuted") if r.name == name else r for r in self.rows]
        if left:
            self.winner = left[0].name

    def to_json(self) -> dict[str, Any]:
        return {
            "gpu": self.gpu, "element": self.element, "winner": self.winner, "budget": self.budget,
            "seconds": round(self.seconds, 1), "cut": self.cut, "cached": self.cached, "notes": list(self.notes),
            "rows": [r.to_json() for r in self.rows],
        }  # fmt: skip

    @staticmethod
    def from_json(data: dict[str, Any]) -> Tuning:
        """Raises KeyError, TypeError or ValueError for what is no such document."""
        tuning = Tuning(**{**data, "rows": [Row.from_json(r) for r in data["rows"]]})
        if tuning.row(tuning.winner) is None or not isinstance(tuning.budget, (int, float)):
            raise ValueError(f"no row for the winner {tuning.winner!r}")
        return tuning
