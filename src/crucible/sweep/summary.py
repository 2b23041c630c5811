"""What the rows of a sweep add up to, and what has changed since an earlier one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from crucible.race.names import AGAIN, EAGER

SCHEMA = 1
STEPS = (1.0, 1.5, 2.0)  # times as fast as eager
COMPILED = "compile"


@dataclass
class PassSummary:
    """Forward or training step, over all rows that have times."""

    timed: int = 0
    faster: dict[str, int] = field(default_factory=lambda: {f"{s:g}": 0 for s in STEPS})  # than eager, by so much
    faster_than_compile: int = 0
    geomean_eager: float | None = None
    geomean_compile: float | None = None
    geomean_best: float | None = None  # beside the fastest of the others in each row
    of_floor: float | None = None  # geometric mean


@dataclass
class Summary:
    """Counts by status, and a PassSummary by pass."""

    total: int
    statuses: dict[str, int]
    passes: dict[str, PassSummary]

    @property
    def proven(self) -> int:
        return self.statuses.get("proven", 0)


@dataclass(frozen=True)
class Change:
    """A difference between two sweeps."""

    title: str
    kind: str  # "regression", "improvement", "new", "gone" or "not comparable"
    text: str


def summarise(rows: Sequence[dict[str, Any]]) -> Summary:
    found: dict[str, PassSummary] = {}
    numbers: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        for what, own in timed(row).items():
            one = found.setdefault(what, PassSummary())
            lists = numbers.setdefault(what, {"eager": [], "compile": [], "best": [], "floor": []})
            _count(one, lists, own)
    for what, one in found.items():
        one.geomean_eager, one.geomean_compile = geomean(numbers[what]["eager"]), geomean(numbers[what]["compile"])
        one.geomean_best, one.of_floor = geomean(numbers[what]["best"]), geomean(numbers[what]["floor"])
    return Summary(len(rows), dict(Counter(r["status"] for r in rows)), found)


def _count(one: PassSummary, lists: dict[str, list[float]], own: dict[str, Any]) -> None:
    one.timed += 1
    against = {name: a for name, a in own["against"].items() if name != AGAIN}
    eager, compiled = against.get(EAGER), against.get(COMPILED)
    if eager is not None:
        lists["eager"].append(eager["speedup"])
        for step in STEPS:  # "1" is faster at all, beyond the noise
            one.faster[f"{step:g}"] += eager["claim"] == "faster" and eager["speedup"] >= step
    if compiled is not None:
        lists["compile"].append(compiled["speedup"])
        one.faster_than_compile += compiled["claim"] == "faster"
    if against:
        lists["best"].append(min(a["speedup"] for a in against.values()))
    if own["of_floor"]:
        lists["floor"].append(own["of_floor"])


def timed(row: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The candidate's line of every pass that has a time."""
    race = row.get("race")
    if race is None or row["status"] != "proven":
        return {}
    lines = {p["what"]: r for p in race["passes"] for r in p["rows"] if r["kind"] == "candidate"}
    return {what: r for what, r in lines.items() if r["times"] is not None}


def geomean(values: Iterable[float]) -> float | None:
    logs = [math.log(v) for v in values if v > 0]
    return math.exp(sum(logs) / len(logs)) if logs else None


# -- since an earlier sweep


def compare(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[Change]:
    """What changed, by title; of several old rows with one title the last counts."""
    before = {r["title"]: r for r in old}
    after = {r["title"]: r for r in new}
    changes = []
    for title, row in after.items():
        if title not in before:
            changes.append(Change(title, "new", f"{row['status']}, was not in the earlier sweep"))
        else:
            changes += _changes(title, before[title], row)
    changes += [Change(t, "gone", f"was {r['status']}") for t, r in before.items() if t not in after]
    return changes


def _changes(title: str, old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    if old["status"] != new["status"]:
        text = f"{old['status']} before, {new['status']} now" + (f": {new['reason']}" if new["reason"] else "")
        if "proven" not in (old["status"], new["status"]):
            return [Change(title, "not comparable", text)]
        return [Change(title, "improvement" if new["status"] == "proven" else "regression", text)]
    if old["environment"].get("gpu") != new["environment"].get("gpu"):
        gpus = f"{old['environment'].get('gpu')} and {new['environment'].get('gpu')}"
        return [Change(title, "not comparable", f"other GPUs: {gpus}")] if timed(old) and timed(new) else []
    lines = timed(old), timed(new)
    return [c for what in lines[1] if what in lines[0] for c in _slower(title, what, old, new)]


def _slower(title: str, what: str, old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    """Held against eager of the same run: clocks and neighbours differ from one day to the next."""
    pair = [timed(r)[what]["against"].get(EAGER) for r in (old, new)]
    if None in pair:
        return []
    before, now = (p["speedup"] for p in pair)
    noise = _noise(old, what) + _noise(new, what)
    text = f"{what}: {before:.2f} x eager before, {now:.2f} x now (noise of both {noise:.1%})"
    if now * (1 + noise) < before:
        return [Change(title, "regression", text)]
    return [Change(title, "improvement", text)] if now > before * (1 + noise) else []


def _noise(row: dict[str, Any], what: str) -> float:
    found = next((p["noise"] for p in row["race"]["passes"] if p["what"] == what), None)
    return float(found["part"]) if found is not None else math.inf  # "inf" is how JSON has it


def exit_code(rows: Sequence[dict[str, Any]], changes: Sequence[Change]) -> int:
    """0 all proven and nothing slower, 1 something is refuted or a regression, 2 something could not be judged."""
    statuses = {r["status"] for r in rows}
    if "refuted" in statuses or any(c.kind == "regression" for c in changes):
        return 1
    return 0 if statuses <= {"proven"} else 2


def document(sweep: Any, changes: Sequence[Change]) -> dict[str, Any]:
    """The JSON of ``--json``: the summary, and what is in every row's first line; the rows are in the store."""
    keys = ("key", "problem", "title", "candidate", "status", "reason", "seconds")
    return {
        "schema": SCHEMA,
        "kind": "sweep",
        "exit_code": exit_code(sweep.rows, changes),
        "folder": sweep.folder,
        "store": sweep.store,
        "summary": asdict(summarise(sweep.rows)),
        "rows": [{**{k: r[k] for k in keys}, "times": _brief(r)} for r in sweep.rows],
        "changes": [asdict(c) for c in changes],
        "left_out": sweep.left_out,
    }


def _brief(row: dict[str, Any]) -> dict[str, Any]:
    return {w: {"times": r["times"], "against": r["against"], "of_floor": r["of_floor"]} for w, r in timed(row).items()}
