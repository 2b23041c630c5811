"""What a race hands back, as dataclasses and as the versioned JSON document that docs/racing.md describes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from crucible.prove.proof import plain
from crucible.race.stats import Quantiles

SCHEMA = 1
# "timed" and "unproven" rows have times; "failed" and "refuted" ones have none.
STATUSES = ("timed", "unproven", "failed", "refuted")


@dataclass
class Row:
    """One contender in one pass; times in milliseconds."""

    contender: str
    kind: str  # "baseline" or "candidate"
    file: str | None = None
    status: str = "timed"
    note: str | None = None
    times: Quantiles | None = None
    samples: list[list[float]] = field(default_factory=list)  # by round
    checked: dict[str, Any] | None = None  # of the timed calls looked at, the one furthest off
    peak: dict[str, int] | None = None  # bytes of torch's allocator: of a call, and with weights and inputs
    build_seconds: float | None = None  # importing, constructing, and the first call
    first_result_seconds: float | None = None  # from the start of its process
    against: dict[str, dict[str, Any]] = field(default_factory=dict)  # name: {"speedup", "claim"}
    of_floor: float | None = None
    left_threads: bool = False
    kernels: list[dict[str, Any]] | None = None  # on a GPU: name, launches and milliseconds of each in one call

    @property
    def has_times(self) -> bool:
        return self.times is not None and self.status in ("timed", "unproven")

    def end(self, status: str, note: str) -> None:
        """Out of the race: times of something that failed or is wrong are not shown."""
        self.status, self.note = status, note
        self.times, self.samples, self.against, self.of_floor = None, [], {}, None


@dataclass
class Pass:
    """Forward or training step: rows of all contenders, and how much of a difference is noise."""

    what: str
    rows: list[Row] = field(default_factory=list)
    noise: dict[str, Any] | None = None

    def row(self, contender: str) -> Row | None:
        return next((r for r in self.rows if r.contender == contender), None)


@dataclass
class Entry:
    """A candidate with its proof."""

    name: str  # its rows are called so
    file: str
    digest: str
    verdict: str = "unproven"  # as a proof's, or "unproven" where none was asked for
    reason: str | None = None
    proof: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None  # of what crucible fused itself
    source: str | None = None  # its text

    @property
    def may_race(self) -> bool:
        return self.verdict in ("proven", "unproven")


@dataclass
class Race:
    """Everything that was found out about one Problem and its candidates."""

    reference: str
    digest: str
    dtype: str
    shapes: list[Any]
    seed: int
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    ceilings: dict[str, float] = field(default_factory=dict)
    ceilings_source: str = "measured"  # or the name of the data sheet
    light: dict[str, dict[str, Any]] = field(default_factory=dict)  # by pass
    state: list[dict[str, Any]] = field(default_factory=list)  # of the GPU, at the start of every round
    passes: list[Pass] = field(default_factory=list)
    candidates: list[Entry] = field(default_factory=list)
    mode: str = "as built"  # "evaluation": the Model draws random numbers, and dropout is off for all
    untimed: str | None = None  # why there are no times at all
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    source: str | None = None  # the text of the reference

    @property
    def exit_code(self) -> int:
        """0 every candidate was proven and raced, 1 one of them is refuted, 2 something could not be judged."""
        rows = [r for p in self.passes for r in p.rows if r.kind == "candidate"]
        if any(c.verdict == "refuted" for c in self.candidates) or any(r.status == "refuted" for r in rows):
            return 1
        unjudged = any(not c.may_race for c in self.candidates) or any(r.status == "failed" for r in rows)
        return 2 if unjudged or self.untimed is not None else 0

    def to_json(self) -> dict[str, Any]:
        """The document of ``--json``; ``schema`` counts up when a key changes its meaning."""
        document = {"schema": SCHEMA, "kind": "race", "exit_code": self.exit_code, **asdict(self)}
        found: dict[str, Any] = plain(document)
        return found

    def to_text(self) -> str:
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
