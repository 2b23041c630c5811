"""The sections of a page on a race: bars, claims in words, the speed of light, and the roofline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from crucible.race.names import AGAIN, EAGER, TITLES
from crucible.report.numbers import amount, gflop, milliseconds
from crucible.report.page.figure import Picture
from crucible.report.page.plan_section import DIRECTIONS, kernel_times, raced_passes
from crucible.report.page.plots import Bar, Point, Roof, race_bars, roofline
from crucible.report.page.subject import Candidate, Subject
from crucible.report.page.tables import Cell, Table, class_of, columns

ROOFS = (("fp32", "fp32"), ("tf32", "TF32"), ("fp16", "fp16"))


@dataclass
class RacePart:
    title: str
    text: str
    claims: list[str] = field(default_factory=list)
    picture: Picture | None = None
    caption: str = "Bars end at the median; whiskers span the middle three fifths of the samples."
    table: Table | None = None
    notes: list[str] = field(default_factory=list)  # why somebody has no time


@dataclass
class RoofPart:
    title: str
    picture: Picture
    caption: str
    table: Table


def name_of(row: dict[str, Any]) -> str:
    return TITLES.get(row["contender"], row["contender"]) if row["kind"] == "baseline" else str(row["contender"])


def race_parts(race: dict[str, Any], name: str) -> list[RacePart]:
    return [_one(race, done, f"{name}-race{k}") for k, done in enumerate(race["passes"])]


def _one(race: dict[str, Any], done: dict[str, Any], name: str) -> RacePart:
    rows = [r for r in done["rows"] if r["contender"] != AGAIN or r["times"] is None]
    count = sum(len(s) for s in (done["rows"][0]["samples"] if done["rows"] else []))
    noise = done.get("noise")
    said = f"noise {float(noise['part']):.1%} (eager against itself)" if noise else "noise unknown"
    floor = (race["light"].get(done["what"]) or {}).get("floor")
    timed = [r for r in rows if r["times"] is not None]
    part = RacePart(done["what"], f"{count} calls each, {said}.", [claim(r) for r in timed if r["kind"] == "candidate"])
    if timed:
        bars = [
            Bar(name_of(r), r["times"]["median"], r["times"]["low"], r["times"]["high"], r["kind"] == "candidate")
            for r in timed
        ]
        part.picture = race_bars(name, bars, floor)
    part.table = _table(done["what"], rows)
    part.notes = [f"{r['status']}: {name_of(r)}: {r['note'] or ''}" for r in rows if r["times"] is None]
    return part


def claim(row: dict[str, Any]) -> str:
    """``new: 1.77 x eager (faster), 0.99 x torch.compile (within the noise)``."""
    parts = []
    for other, found in row["against"].items():
        if other == AGAIN or other not in TITLES:
            continue
        word = "within the noise" if found["claim"] == "same" else found["claim"]
        parts.append(f"{found['speedup']:.2f} x {TITLES[other]} ({word})")
    return f"{name_of(row)}: {', '.join(parts) or 'nobody to compare it with'}"


def _table(what: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(f"Times of {what}", columns(
        "contender:name", "median#", "20 %#", "80 %#", "of the floor#", "x eager#", "error / eager's#", "memory#",
        "build#", "first result#",
    ))  # fmt: skip
    for row in rows:
        ours = row["kind"] == "candidate"
        times = row["times"]
        if times is None:
            table.add(name_of(row), Cell(row["status"], status=class_of(row["status"])), *[""] * 8, ours=ours)
            continue
        mark = " (unproven)" if row["status"] == "unproven" else ""
        checked = row.get("checked") or {}
        error = f"{float(checked['error']):.1e} / {float(checked['eager']):.1e}" if checked else "not compared"
        eager = row["against"].get(EAGER)
        table.add(
            name_of(row) + mark, *(Cell(milliseconds(times[k]), times[k]) for k in ("median", "low", "high")),
            Cell(f"{row['of_floor']:.0%}", row["of_floor"]) if row["of_floor"] else "-",
            Cell(f"{eager['speedup']:.2f}", eager["speedup"]) if eager else "-", error,
            Cell(amount(row["peak"]["call"]), row["peak"]["call"]) if row.get("peak") else "-",
            *(_seconds(row.get(k)) for k in ("build_seconds", "first_result_seconds")), ours=ours,
        )  # fmt: skip
    return table


def _seconds(value: float | None) -> Cell:
    return Cell("-", "") if value is None else Cell(f"{value:.1f} s", value)


def light_table(race: dict[str, Any]) -> Table | None:
    if not race.get("light"):
        return None
    sheet = race["ceilings_source"]
    source = "measured in this run" if sheet == "measured" else f"data sheet of {sheet}"
    table = Table(f"Speed of light ({source}): {rates_text(race['ceilings'])}", columns(
        "pass", "bytes#", "GFLOP#", "floor#", "bound by", "nothing is below#",
    ))  # fmt: skip
    for what, light in race["light"].items():
        floor, limit = milliseconds(light["floor"]), milliseconds(light["limit"])
        table.add(what, amount(light["bytes"]), gflop(light["operations"]), floor, light["bound"], limit)
    return table


def rates_text(ceilings: dict[str, float]) -> str:
    parts = [f"copy {ceilings['copy']:.0f} GB/s"] if "copy" in ceilings else []
    return ", ".join(parts + [f"{title} {ceilings[k]:.4g} TFLOP/s" for k, title in ROOFS if ceilings.get(k)])


# -- the roofline


def roof_parts(subject: Subject, name: str) -> list[RoofPart]:
    """For every pass that was raced one; without a race one of the plan's bounds."""
    found = []
    race = subject.race
    for number, candidate in enumerate(subject.candidates):
        if candidate.plan is None and not (race and race["passes"]):
            continue
        of = f", {candidate.name}" if len(subject.candidates) > 1 else ""
        if race and race["passes"]:
            for k, done in enumerate(race["passes"]):
                part = _raced(subject, candidate, race, done, f"{name}-roof{number}{k}", of)
                found += [part] if part is not None else []
        elif candidate.plan is not None:
            part = _bounds(candidate.plan, f"{name}-roof{number}", of)
            found += [part] if part is not None else []
    return found


def _roofs(rates: dict[str, Any], bandwidth: float) -> list[Roof]:
    return [Roof(title, bandwidth, rates[k]) for k, title in ROOFS if rates.get(k)]


def _raced(
    subject: Subject, candidate: Candidate, race: dict[str, Any], done: dict[str, Any], name: str, of: str
) -> RoofPart | None:
    light = race["light"].get(done["what"])
    points = []
    for row in done["rows"]:
        mine = row["kind"] == "baseline" or row["contender"] == candidate.name
        if row["times"] is not None and row["contender"] != AGAIN and mine and light and light["operations"]:
            rate = light["operations"] / float(row["times"]["median"]) / 1e9
            points.append(Point(name_of(row), light["operations"] / light["bytes"], rate))
    plan, measured = candidate.plan, False
    if plan is not None:
        for one in raced_passes(plan, done["what"], race.get("mode") == "evaluation"):
            times = kernel_times(subject, candidate, one)
            measured = measured or bool(times)
            points += [p for p in _kernels(one, times) if p.measured]
    if not points:
        return None
    caption = "Diamonds: the whole pass, at the bytes and operations that it needs at the least."
    if measured:
        caption += " Numbers: kernels, with the bytes and operations of the plan and the time that the profiler saw."
    return RoofPart(f"{done['what']}{of}", roofline(name, points, _roofs(race["ceilings"], race["ceilings"]["copy"])),
                    caption, _point_table(points))  # fmt: skip


def _bounds(plan: dict[str, Any], name: str, of: str) -> RoofPart | None:
    one = raced_passes(plan, "forward", False)[0]
    points = list(_kernels(one, {}))
    if not points:
        return None
    caption = (
        f"Kernels of {DIRECTIONS[one['direction']]} at the speed of light of {plan['gpu']['title']}: hollow, because "
        "nothing was measured. A kernel below a roof has work of several kinds."
    )
    drawn = roofline(name, points, _roofs(plan["gpu"], plan["gpu"]["bandwidth"]))
    return RoofPart(f"{DIRECTIONS[one['direction']]}{of}", drawn, caption, _point_table(points))


def _kernels(one: dict[str, Any], times: dict[str, float]) -> list[Point]:
    found = []
    for k, kernel in enumerate(one["kernels"]):
        if kernel["kind"] == "torch" or not kernel["operations"] or not kernel["bytes"] or kernel["small"]:
            continue
        taken = times.get(kernel["name"])
        seconds = kernel["seconds"] if taken is None else taken / 1e3
        if seconds:
            found.append(Point(kernel["name"], kernel["operations"] / kernel["bytes"],
                               kernel["operations"] / seconds / 1e12, k, taken is not None))  # fmt: skip
    return found


def _point_table(points: list[Point]) -> Table:
    table = Table("Points of the roofline", columns("what:name", "operations per byte#", "TFLOP/s#", "time"))
    for p in points:
        table.add(Cell(p.label, chip=p.colour), f"{p.intensity:.3g}", f"{p.rate:.3g}",
                  "measured" if p.measured else "at the speed of light")  # fmt: skip
    return table

