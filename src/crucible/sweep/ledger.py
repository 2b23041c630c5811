"""The books of a sweep: what is asked for each file, and the row that comes of the answers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from crucible.race.record import digest
from crucible.sweep.find import Found
from crucible.sweep.options import COUNTS, SweepOptions
from crucible.sweep.store import Store


@dataclass(frozen=True)
class Task:
    """A row to be made."""

    found: Found
    key: str


class Board(Protocol):
    """Who is told how a sweep gets on; calls may come from several threads."""

    def begin(self, total: int, kept: list[dict[str, Any]]) -> None: ...

    def started(self, title: str, step: str, where: str | None = None) -> None: ...

    def finished(self, row: dict[str, Any]) -> None: ...

    def note(self, text: str, title: str | None = None) -> None:
        """Something that is no row; what ``title`` was doing is over."""


class Runner(Protocol):
    """Who makes rows: their keys, and they are in the store."""

    def run(self, tasks: list[Task]) -> dict[str, dict[str, Any]]: ...


@dataclass
class Ledger:
    """Options, the store, the machine that rows are of, and who is told."""

    options: SweepOptions
    store: Store
    told: dict[str, Any]
    board: Board | None = None

    def fused(self, task: Task) -> Path:
        return self.store.files / (task.found.name.removesuffix(".py").replace("/", "__") + "_new.py")

    def candidate(self, task: Task) -> Path:
        return task.found.candidate or self.fused(task)

    def request(self, task: Task, step: str) -> dict[str, Any]:
        """For ``crucible.sweep.job``."""
        if step == "fuse":
            paths = {"problem": str(task.found.problem), "output": str(self.fused(task))}
        else:
            paths = {"problem": str(task.found.problem.resolve()), "candidate": str(self.candidate(task).resolve())}
        return {**asdict(self.options), "step": step, **paths}

    def started(self, task: Task, words: str, where: str | None = None) -> None:
        if self.board is not None:
            self.board.started(task.found.title, words, where)

    def note(self, text: str, task: Task | None = None) -> None:
        if self.board is not None:
            self.board.note(text, task.found.title if task is not None else None)

    def finish(
        self, task: Task, answer: dict[str, Any], step: str, plan: Any, nodes: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """The row of a task, kept unless the sweep was interrupted."""
        race = answer.get("race")
        if race is not None and plan is not None:
            race["candidates"][0]["plan"] = plan["plan"]
        seconds = {"fuse": plan["seconds"] if plan else None, "judge": None, step: answer["seconds"]}
        found = task.found
        candidate = self.candidate(task)
        row = {
            "key": task.key, "problem": found.name, "title": found.title, "digest": digest(found.problem),
            "candidate": str(candidate) if candidate.is_file() else None, "fused": found.candidate is None,
            "status": answer["status"], "reason": answer.get("reason"), "step": step, "seconds": seconds,
            "options": {k: v for k, v in asdict(self.options).items() if k in (*COUNTS, "seed")},
            "environment": self.told, "nodes": nodes, "race": race,
        }  # fmt: skip
        if row["status"] != "stopped":
            self.store.append(row)
            if self.board is not None:
                self.board.finished(row)
        return row
