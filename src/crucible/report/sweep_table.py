"""A sweep for the eyes: a table that grows while it runs, the summary, and what has changed."""

from __future__ import annotations

import threading
import time
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from crucible.race.names import AGAIN, EAGER
from crucible.report.numbers import milliseconds
from crucible.sweep.run import Sweep
from crucible.sweep.summary import Change, Summary, summarise, timed

STYLES = {"proven": "green", "refuted": "red", "unjudged": "yellow", "not fused": "yellow", "failed": "yellow",
          "time limit": "yellow"}  # fmt: skip
KINDS = {"regression": "bold red", "improvement": "green", "new": "dim", "gone": "yellow", "not comparable": "dim"}
SHOWN = 12  # of the last rows on a terminal


class LiveBoard:
    """On a terminal a table that changes, elsewhere a line for every row. A context manager."""

    def __init__(self, console: Console) -> None:
        self.console, self.lock = console, threading.Lock()
        self.total, self.done = 0, 0
        self.counts: dict[str, int] = {}
        self.running: dict[str, tuple[str, str | None, float]] = {}
        self.last: list[str] = []
        self.live = Live(get_renderable=self._table, console=console, transient=True, refresh_per_second=4)

    def __enter__(self) -> LiveBoard:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def begin(self, total: int, kept: list[dict[str, Any]]) -> None:
        with self.lock:
            self.total, self.done = total, len(kept)
            for row in kept:
                self.counts[row["status"]] = self.counts.get(row["status"], 0) + 1
        if not self.console.is_terminal:
            self.console.print(f"{total} rows, {len(kept)} of them known from an earlier run", highlight=False)

    def started(self, title: str, step: str, where: str | None = None) -> None:
        """``where`` is the node of a cluster."""
        with self.lock:
            self.running[title] = (step, where, time.monotonic())

    def note(self, text: str, title: str | None = None) -> None:
        """Something that is no row; what ``title`` was doing is over."""
        with self.lock:
            if title is not None:
                self.running.pop(title, None)
            self.last.append(f"[yellow]{escape(text)}[/]")
        if not self.console.is_terminal:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def finished(self, row: dict[str, Any]) -> None:
        with self.lock:
            self.running.pop(row["title"], None)
            self.done += 1
            self.counts[row["status"]] = self.counts.get(row["status"], 0) + 1
            self.last.append(row_text(row))
            done = self.done
        if not self.console.is_terminal:
            line = Text.from_markup(row_text(row)).plain
            self.console.print(f"[{done}/{self.total}] {line}", markup=False, highlight=False, soft_wrap=True)

    def _table(self) -> Group:
        with self.lock:
            counts = ", ".join(f"{n} {status}" for status, n in self.counts.items())
            head = Table.grid(padding=(0, 1))
            bar = ProgressBar(total=max(self.total, 1), completed=self.done, width=30)
            head.add_row(bar, f"{self.done} of {self.total}", counts)
            now = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
            for title, (step, where, began) in self.running.items():
                place = [f"on {escape(where)}"] if where is not None else []
                now.add_row(escape(title), f"[dim]{step}[/]", *place, f"{time.monotonic() - began:.0f} s")
            return Group(*(Text.from_markup(line, overflow="ellipsis") for line in self.last[-SHOWN:]), head, now)


def row_text(row: dict[str, Any]) -> str:
    """``model.py: proven, forward 3.861 ms, 1.38 x eager (faster)``, with markup."""
    style = STYLES.get(row["status"], "")
    text = f"{escape(row['title'])}: [{style}]{row['status']}[/]" if style else f"{row['title']}: {row['status']}"
    if row["status"] != "proven" and row["reason"]:
        text += f", {escape(str(row['reason']).splitlines()[0][:160])}"
    for what, line in timed(row).items():
        text += f", {what} {milliseconds(line['times']['median'])}"
        eager = line["against"].get(EAGER)
        if eager is not None:
            word = "within the noise" if eager["claim"] == "same" else eager["claim"]
            text += f", {eager['speedup']:.2f} x eager ({word})"
    return text


def show(sweep: Sweep, changes: list[Change], console: Console, compared: str | None) -> None:
    """As on its page: what the rows add up to, all rows, and the changes since another sweep."""
    _summary(summarise(sweep.rows), console)
    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for k, title in enumerate(("problem", "verdict", "pass", "median", "of the floor", "x eager", "x best other")):
        table.add_column(title, no_wrap=k == 0, justify="right" if k > 2 else "left")
    for row in sweep.rows:
        _rows(table, row)
    console.print(table, highlight=False)
    for row in sweep.rows:
        if row["status"] != "proven":
            first = str(row["reason"] or "").splitlines()
            reason = escape(first[0] if first else "")
            console.print(f"[{STYLES.get(row['status'], '')}]{row['status']}:[/] {escape(row['title'])}: {reason}",
                          highlight=False)  # fmt: skip
    if sweep.left_out:
        listed = ", ".join(sweep.left_out[:5]) + (", ..." if len(sweep.left_out) > 5 else "")
        console.print(f"[dim]left out (no Model, or no candidate): {len(sweep.left_out)}: {escape(listed)}[/]",
                      highlight=False)  # fmt: skip
    console.print(f"[dim]rows:[/] {escape(sweep.store)}", highlight=False, soft_wrap=True)
    if compared is not None:
        _changes(changes, console, compared)


def _rows(table: Table, row: dict[str, Any]) -> None:
    status = f"[{STYLES.get(row['status'], 'dim')}]{row['status']}[/]"
    lines = timed(row)
    if not lines:
        table.add_row(escape(row["title"]), status, *[""] * 5)
    for k, (what, line) in enumerate(lines.items()):
        others = {n: a for n, a in line["against"].items() if n != AGAIN}
        best = min((a["speedup"] for a in others.values()), default=None)
        table.add_row(
            escape(row["title"]) if k == 0 else "", status if k == 0 else "", what,
            milliseconds(line["times"]["median"]), f"{line['of_floor']:.0%}" if line["of_floor"] else "-",
            f"{others[EAGER]['speedup']:.2f}" if EAGER in others else "-", f"{best:.2f}" if best else "-",
        )  # fmt: skip


def _summary(summary: Summary, console: Console) -> None:
    others = ", ".join(f"{n} {status}" for status, n in summary.statuses.items() if status != "proven")
    console.print(f"[bold]{summary.proven} of {summary.total} proven[/]" + (f", {others}" if others else ""),
                  highlight=False)  # fmt: skip
    for what, one in summary.passes.items():
        parts = [f"{n} by {step} x" if step != "1" else f"{n} faster" for step, n in one.faster.items()]
        console.print(
            f"{what}: {one.timed} timed; than eager {', '.join(parts)}; than torch.compile {one.faster_than_compile} "
            f"faster; geometric means {_times(one.geomean_eager)} eager, {_times(one.geomean_compile)} torch.compile, "
            f"{_times(one.geomean_best)} the best other, {one.of_floor or 0:.0%} of the floor",
            highlight=False,
        )
    if not summary.passes:
        console.print("[yellow]no times[/]: times need a GPU, and are never simulated", highlight=False)


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} x"


def _changes(changes: list[Change], console: Console, compared: str) -> None:
    console.print(f"\n[bold]since {escape(compared)}:[/]" + ("" if changes else " nothing changed beyond the noise"),
                  highlight=False)  # fmt: skip
    for change in sorted(changes, key=lambda c: list(KINDS).index(c.kind)):
        console.print(f"[{KINDS[change.kind]}]{change.kind}:[/] {escape(change.title)}: {escape(change.text)}",
                      highlight=False)  # fmt: skip
