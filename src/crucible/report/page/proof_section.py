"""The sections of a page on a proof: where a result is wrong, errors beside eager's, and the checks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from crucible.report.page.figure import Picture
from crucible.report.page.listing import highlighted
from crucible.report.page.plots import Measured, errors, heat_map, share_text, worst_cells
from crucible.report.page.subject import Candidate
from crucible.report.page.tables import Cell, Table, columns

MARKS = {"passed": "ok", "failed": "FAILED", "limited": "limited", "skipped": "-", "stopped": "stopped"}
STYLES = {"passed": "proven", "failed": "refuted", "limited": "unjudged", "skipped": "dim", "stopped": "dim"}
SHOWN = 14  # rows of the picture of errors; the table has all
AROUND = 6  # lines before and after the one that a finding names


@dataclass
class MapPart:
    picture: Picture
    caption: str
    table: Table
    share: float  # of cells that are wrong


@dataclass
class Place:
    """Some lines of the candidate with one of them marked."""

    text: str
    first: int
    html: Markup


@dataclass
class WrongPart:
    sentence: str
    maps: list[MapPart] = field(default_factory=list)
    place: Place | None = None


@dataclass
class ErrorPart:
    of: str
    text: str
    picture: Picture | None
    table: Table
    caption: str = "Filled: the candidate. Ring: eager on the same inputs. Bar: the most that is allowed."


@dataclass
class CheckPart:
    of: str
    table: Table
    limits: list[str]
    sizes: str


def wrong_part(candidate: Candidate, name: str) -> WrongPart | None:
    """Where a refuted candidate is wrong; None where nothing more is known than the reason says."""
    evidence = candidate.evidence
    maps = evidence.get("maps") or []
    place = place_of(candidate)
    if not maps and place is None:
        return None
    limit = float(evidence.get("limit_worst") or 0.0)
    part = WrongPart(_sentence(evidence), place=place)
    for k, grid in enumerate(maps):
        cells = [[float(v) for v in row] for row in grid["values"]]
        table = Table("The cells that are furthest off", columns(
            grid["rows"]["name"] or "part", grid["columns"]["name"], "largest error#",
        ))  # fmt: skip
        for cell in worst_cells(grid, limit):
            table.add(cell["rows"], cell["columns"], f"{cell['error']:.2e}")
        caption = f"{grid['title'][0].upper()}{grid['title'][1:]}: {share_text(cells, limit)}. Grey: near enough."
        share = sum(v > limit for row in cells for v in row) / sum(map(len, cells))
        part.maps.append(MapPart(heat_map(f"{name}-map{k}", grid, limit), caption, table, share))
    part.maps.sort(key=lambda m: m.share)  # an error that is somewhere says more than one that is everywhere
    return part


def _sentence(evidence: dict[str, Any]) -> str:
    worst = evidence.get("worst")
    if not worst:
        return ""
    index = ", ".join(map(str, worst["index"]))
    return (
        f"The worst element of {evidence.get('tensor', 'the output')} is [{index}]: expected {worst['expected']}, "
        f"got {worst['got']}. An error is relative to the element plus the root mean square of the truth."
    )


def marked_line(candidate: Candidate) -> int | None:
    """The line of the candidate's own file that the reason names."""
    report = candidate.evidence.get("report") or {}
    own = Path(candidate.file).name
    if report.get("line") and Path(str(report.get("file") or own)).name == own:
        return int(report["line"])
    if isinstance(candidate.evidence.get("line"), int):
        return int(candidate.evidence["line"])
    message = (candidate.reason or {}).get("message", "")
    found = re.search(rf"{re.escape(own)}(?::|, line )(\d+)", message)
    return int(found.group(1)) if found else None


def place_of(candidate: Candidate) -> Place | None:
    line, text = marked_line(candidate), candidate.source
    if line is None or text is None:
        return None
    lines = text.splitlines()
    if not 1 <= line <= len(lines):
        return None
    first = max(1, line - AROUND)
    some = "\n".join(lines[first - 1 : line + AROUND]) + "\n"
    html = highlighted(some, "cuda" if re.search(r"__\w+__|threadIdx|;\s*$", some, re.M) else "python", line - first)
    report = candidate.evidence.get("report") or {}
    where = f", in kernel {report['kernel']}" if report.get("kernel") else ""
    spot = ""
    if report.get("block") is not None and report.get("thread") is not None:
        spot = f", block {tuple(report['block'])}, thread {tuple(report['thread'])}"
    return Place(f"{Path(candidate.file).name}, line {line}{where}{spot}", first, html)


# -- errors


def measured(proof: dict[str, Any]) -> Iterator[tuple[str, str, Measured]]:
    """(check, trial, error) for every tensor that was compared in the main trials."""
    for check in proof["checks"]:
        if check["name"] not in ("forward", "gradients"):
            continue
        for trial in check["data"].get("trials") or []:
            for tensor, row in trial["tensors"].items():
                eager = (row.get("terms") or {}).get("eager")
                label = f"{tensor.removeprefix('grad:')}: {trial['name']}"
                if check["name"] == "gradients":
                    label = f"gradient of {label}"
                yield check["name"], trial["name"], Measured(
                    label, float(row["l2"]), float(row["limit_l2"]), None if eager is None else float(eager)
                )


def error_part(candidate: Candidate, of: str, name: str) -> ErrorPart | None:
    if candidate.proof is None:
        return None
    rows = [m for _, _, m in measured(candidate.proof)]
    if not rows:
        return None
    table = Table("Relative L2 errors against float64", columns(
        "tensor and trial:name", "error#", "eager's#", "allowed#", "part of it#",
    ))  # fmt: skip
    for row in rows:
        table.add(row.label, Cell(f"{row.error:.2e}", row.error), f"{row.eager:.2e}" if row.eager is not None else "-",
                  Cell(f"{row.limit:.2e}", row.limit), f"{row.part:.2f}")  # fmt: skip
    most = sorted(rows, key=lambda r: -r.part)[:SHOWN]
    shown = [r for r in rows if r in most]
    text = (
        "Truth is the Model in float64. Allowed is twice the error of an honest implementation on the same data, "
        "which may use TF32 where torch's switches permit it."
    )
    if len(shown) < len(rows):
        text += f" The picture has the {len(shown)} that come nearest to it, the table all {len(rows)}."
    return ErrorPart(of, text, errors(f"{name}-errors", shown), table)


def most_of_allowed(proof: dict[str, Any]) -> float | None:
    parts = [m.part for _, _, m in measured(proof)]
    return max(parts) if parts else None


# -- checks


def check_part(candidate: Candidate, of: str) -> CheckPart | None:
    proof = candidate.proof
    if proof is None:
        return None
    table = Table("Checks in order, with what was seen", columns("check", "result", "evidence:text"))
    for check in proof["checks"]:
        lines = list(check["evidence"]) + [f"{f['code']}: {f['message'].splitlines()[0]}" for f in check["findings"]]
        table.add(check["title"], Cell(MARKS[check["status"]], status=STYLES[check["status"]]), "; ".join(lines))
    limits = [f"limit: {text}" for text in proof["limits"]]
    limits += [f"warning: {w['code']}: {w['message']}" for w in proof["warnings"]]
    return CheckPart(of, table, limits, _sizes(proof.get("sizes") or {}))


def _sizes(sizes: dict[str, Any]) -> str:
    if not sizes:
        return ""
    declared = ", ".join(str(tuple(s)) for s in sizes["declared"] if s)
    small = ", ".join(str(tuple(s)) for s in sizes["small"] if s)
    if sizes["main"] == "declared":
        return f"Sizes: run at the declared {declared}" + (f" and at {small}." if small != declared else ".")
    return f"Sizes: run at {small}; the problem declares {declared}."
