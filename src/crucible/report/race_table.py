"""A race for the eyes: the speed of light, the proofs, a table for every pass, and what may be claimed."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from crucible.race.environment import clocks_text
from crucible.race.names import AGAIN, TITLES
from crucible.race.record import Entry, Pass, Race, Row
from crucible.report.numbers import amount, gflop, milliseconds

VERDICTS = {
    "proven": ("PROVEN", "bold green"),
    "refuted": ("REFUTED", "bold red"),
    "unjudged": ("COULD NOT BE JUDGED", "bold yellow"),
    "unproven": ("UNPROVEN", "bold yellow"),
}
CLAIMS = {"faster": "green", "slower": "red", "same": "yellow"}
NAMES = {"copy": "copy {:.0f} GB/s", "fp32": "fp32 {:.4g}", "tf32": "TF32 {:.4g}", "fp16": "fp16 {:.4g} TFLOP/s"}


def show_light(race: Race, console: Console) -> None:
    """The table that needs no GPU: what must be moved and computed, and how long that takes at the least."""
    rates = ", ".join(NAMES[k].format(v) for k, v in race.ceilings.items() if k in NAMES)
    sizes = ", ".join("x".join(map(str, s)) for s in race.shapes if s)
    title = "measured in this run" if race.ceilings_source == "measured" else f"data sheet of {race.ceilings_source}"
    console.print(f"[bold]{escape(race.reference)}[/] {escape(f'{sizes}, {race.dtype}')}", highlight=False)
    console.print(f"[dim]speed of light ({escape(title)}):[/] {escape(rates)}", highlight=False)
    table = _table("pass", "bytes", "GFLOP", "floor", "bound by", "nothing is below")
    for what, light in race.light.items():
        table.add_row(
            what, amount(light["bytes"]), gflop(light["operations"]), milliseconds(light["floor"]), light["bound"],
            milliseconds(light["limit"]),
        )  # fmt: skip
    console.print(table, highlight=False)


def show(race: Race, console: Console) -> None:
    """The whole result, in the order of its page: verdicts, the speed of light, times, and what may be claimed."""
    said = [e for e in race.candidates if e.verdict != "unproven" or race.untimed is None]
    for entry in said:
        _entry(entry, console)
    if said:
        console.print()
    show_light(race, console)
    for done in race.passes:
        console.print()
        _pass(race, done, console)
    clocks = clocks_text(race.state)
    if clocks is not None:
        console.print(f"[dim]clocks at the starts of the rounds:[/] {clocks}", highlight=False)
    if race.mode != "as built":
        console.print("[yellow]note:[/] the Model draws random numbers: all were raced in evaluation", highlight=False)
    for text in race.warnings:
        console.print(f"[yellow]warning:[/] {escape(text)}", highlight=False)
    if race.untimed is not None:
        console.print(f"[bold yellow]{escape(race.untimed)}[/]", highlight=False)


def _entry(entry: Entry, console: Console) -> None:
    word, style = VERDICTS[entry.verdict]
    console.print(f"[{style}]{word}[/] {escape(entry.file)}", highlight=False, soft_wrap=True)
    if entry.reason is not None:
        console.print(f"  {escape(entry.reason)}", highlight=False)


def _pass(race: Race, done: Pass, console: Console) -> None:
    count = sum(len(s) for s in (done.rows[0].samples if done.rows else []))
    noise = f"noise {done.noise['part']:.1%} (eager against itself)" if done.noise else "noise unknown"
    console.print(f"[bold]{escape(done.what)}[/] [dim]{count} calls each, {noise}[/]", highlight=False)
    times = _table("", "median", "20 % to 80 %", "of the floor")
    rest = _table("", "error / eager's", "memory", "build", "first result")
    for row in done.rows:
        if row.contender != AGAIN or not row.has_times:
            _row(times, rest, row)
    console.print(times, highlight=False)
    console.print()
    console.print(rest, highlight=False)
    console.print()
    for row in done.rows:
        if row.has_times and row.kind == "candidate":
            console.print(_sentence(row), highlight=False)
        elif not row.has_times:
            style = "red" if row.status == "refuted" else "yellow"
            console.print(f"[{style}]{row.status}:[/] {escape(_name(row))}: {escape(row.note or '')}", highlight=False)


def _row(times: Table, rest: Table, row: Row) -> None:
    name = escape(_name(row)) + (" [yellow](unproven)[/]" if row.status == "unproven" else "")
    if row.times is None or not row.has_times:
        times.add_row(name, f"[red]{row.status}[/]", "", "")
        return
    span = f"{milliseconds(row.times.low)} to {milliseconds(row.times.high)}"
    reached = f"{row.of_floor:.0%}" if row.of_floor is not None else "-"
    times.add_row(name, milliseconds(row.times.median), span, reached)
    checked: dict[str, Any] = row.checked or {}
    error = f"{checked['error']:.1e} / {checked['eager']:.1e}" if checked else "not compared"
    memory = amount(row.peak["call"]) if row.peak else "-"
    rest.add_row(name, error, memory, _seconds(row.build_seconds), _seconds(row.first_result_seconds))


def _sentence(row: Row) -> str:
    """``new: 1.77 x eager (faster), 0.99 x torch.compile (within the noise)``."""
    parts = []
    for other, found in row.against.items():
        if other == AGAIN or other not in TITLES:
            continue
        word = "within the noise" if found["claim"] == "same" else found["claim"]
        parts.append(f"[{CLAIMS[found['claim']]}]{found['speedup']:.2f} x {escape(TITLES[other])}[/] ({word})")
    return f"{escape(_name(row))}: " + (", ".join(parts) if parts else "nobody to compare it with")


def _name(row: Row) -> str:
    return TITLES.get(row.contender, row.contender) if row.kind == "baseline" else row.contender


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for k, title in enumerate(columns):
        table.add_column(title, no_wrap=True, justify="left" if k == 0 else "right")
    return table


