"""The index of a sweep: a headline, what the rows add up to, and a table that can be sorted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from crucible.race.names import AGAIN, EAGER
from crucible.report.numbers import milliseconds
from crucible.report.page.plan_section import raced_passes
from crucible.report.page.proof_section import most_of_allowed
from crucible.report.page.subject import Collection, Subject
from crucible.report.page.tables import Cell, Fact, Table, class_of, columns
from crucible.sweep.summary import Summary, summarise, timed

ORDER = ("refuted", "failed", "time limit", "unjudged", "not fused", "unproven", "proven")


@dataclass
class Index:
    """Everything that index.html.j2 shows."""

    title: str
    headline: str
    style: str
    lead: str
    table: Table
    facts: list[Fact] = field(default_factory=list)
    versions: list[tuple[str, str]] = field(default_factory=list)


def index_of(collection: Collection, links: list[str]) -> Index:
    from crucible.report.page.write import place_of, versions

    rows = collection.rows
    summary = summarise(rows)
    others = ", ".join(f"{n} {status}" for status, n in summary.statuses.items() if status != "proven")
    style = "refuted" if "refuted" in summary.statuses else "proven" if not others else "unjudged"
    lead = ", ".join(x for x in (others, place_of(collection.subjects[0])) if x)
    table = _table(collection, links, list(summary.passes))
    found = Index(collection.title, f"{summary.proven} of {summary.total} proven", style, lead, table, _facts(summary))
    found.versions = versions(collection.subjects[-1])
    return found


def _facts(summary: Summary) -> list[Fact]:
    found = []
    for what, one in summary.passes.items():
        found.append(Fact(f"{what}: geometric mean", f"{one.geomean_eager:.2f} x eager" if one.geomean_eager else "-",
                          f"{one.timed} timed, {one.faster['1']} faster"))  # fmt: skip
        if one.geomean_compile:
            found.append(Fact(f"{what}: beside torch.compile", f"{one.geomean_compile:.2f} x",
                              f"{one.faster_than_compile} faster"))  # fmt: skip
        if one.geomean_best:
            found.append(Fact(f"{what}: beside the best other", f"{one.geomean_best:.2f} x"))
        if one.of_floor:
            found.append(Fact(f"{what}: of the floor", f"{one.of_floor:.0%}"))
    if not summary.passes:
        found.append(Fact("times", "none", "times need a GPU, and are never simulated"))
    return found


def _table(collection: Collection, links: list[str], passes: list[str]) -> Table:
    titles = ["problem:name", "verdict"]
    for what in passes:
        titles += [f"{what}#", "x eager#", "x best other#", "of the floor#"]
    titles += ["kernels#", "largest error#", "seconds#", "reason:text"]
    table = Table(f"{len(collection.rows)} problems; errors as a part of what is allowed", columns(*titles))
    for subject, row, link in zip(collection.subjects, collection.rows, links):
        cells = [Cell(subject.title, subject.title, link),
                 Cell(row["status"], ORDER.index(row["status"]), status=class_of(row["status"]))]  # fmt: skip
        lines = timed(row)
        for what in passes:
            cells += _times(lines.get(what))
        cells += [_kernels(subject), _error(subject), _seconds(row),
                  Cell(str(row["reason"] or "").partition("\n")[0][:160])]  # fmt: skip
        table.add(*cells)
    return table


def _times(line: dict[str, Any] | None) -> list[Cell]:
    if line is None:
        return [Cell("-", "")] * 4
    others = {n: a["speedup"] for n, a in line["against"].items() if n != AGAIN}
    best = min(others.values(), default=None)
    return [
        Cell(milliseconds(line["times"]["median"]), line["times"]["median"]),
        _cell(others.get(EAGER), "{:.2f}"), _cell(best, "{:.2f}"), _cell(line["of_floor"], "{:.0%}"),
    ]  # fmt: skip


def _cell(value: float | None, form: str) -> Cell:
    return Cell("-", "") if value is None else Cell(form.format(value), value)


def _kernels(subject: Subject) -> Cell:
    plans = [c.plan for c in subject.candidates if c.plan is not None]
    if not plans:
        return Cell("-", "")
    one = raced_passes(plans[0], "forward", False)[0]
    count = sum(n for kind, n in one["counts"].items() if kind != "torch")
    return Cell(str(count), count)


def _error(subject: Subject) -> Cell:
    parts = [most_of_allowed(c.proof) for c in subject.candidates if c.proof is not None]
    known = [p for p in parts if p is not None]
    return _cell(max(known) if known else None, "{:.2f}")


def _seconds(row: dict[str, Any]) -> Cell:
    total = sum(float(v) for v in (row.get("seconds") or {}).values() if v)
    return Cell(f"{total:.0f}", total)
