"""What the README and docs/results.md say of the gallery's races is what their records say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import make_gallery

pytestmark = pytest.mark.quick
ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
RESULTS = (ROOT / "docs" / "results.md").read_text()
RECORDS = sorted(make_gallery.GALLERY.glob("*/race.json"))
NAMES = {"channels_last": "channels-last", "compile": "torch.compile", "max_autotune": "max-autotune"}
OTHERS = ("eager", *NAMES)


def rows(page: str, title: str) -> dict[str, list[str]]:
    """The table under such a header, by the first cell of its rows."""
    table = re.search(rf"^{re.escape(title)}\n\|[-|]+\|\n((?:\|.*\|\n)+)", page, re.M)
    assert table, f"there is no table {title}"
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in table[1].splitlines()]
    return {first: rest for first, *rest in cells}


def raced(path: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The problem, its record, and each contender's row."""
    record = json.loads(path.read_text())
    (forward,) = (p for p in record["passes"] if p["what"] == "forward")
    return path.parent.name, record, {row["contender"]: row for row in forward["rows"]}


def medians(timed: dict[str, Any]) -> dict[str, float]:
    return {name: row["times"]["median"] for name, row in timed.items() if row["times"] is not None}


@pytest.mark.parametrize("path", RECORDS, ids=lambda p: p.parent.name)
def test_the_race_of_the_readme(path: Path) -> None:
    name, _, timed = raced(path)
    taken = medians(timed)
    best = min((n for n in OTHERS if n in taken), key=lambda n: taken[n])
    other = f"{taken[best]:.2f} {NAMES.get(best, best)}"
    ratio = f"{taken[best] / taken['model_new']:.2f}"
    found = rows(README, "| problem | eager | best other | fused | best other / fused |")[name]
    assert found == [f"{taken['eager']:.2f}", other, f"{taken['model_new']:.2f}", ratio]


@pytest.mark.parametrize("path", RECORDS, ids=lambda p: p.parent.name)
def test_the_race_of_the_results(path: Path) -> None:
    name, record, timed = raced(path)
    taken = medians(timed)
    best = min(taken[n] for n in OTHERS if n in taken)
    times = [f"{taken[n]:.3f}" if n in taken else "-" for n in (*OTHERS, "model_new")]
    noise = record["passes"][0]["noise"]["part"]
    title = "| problem | eager | channels-last | torch.compile | max-autotune | fused | best other / fused | noise |"
    assert rows(RESULTS, title)[name] == [*times, f"{best / taken['model_new']:.2f}", f"{100 * noise:.1f} %"]


@pytest.mark.parametrize("path", RECORDS, ids=lambda p: p.parent.name)
def test_what_was_reached(path: Path) -> None:
    name, record, timed = raced(path)
    fused, light = timed["model_new"], record["light"]["forward"]
    time, checked = fused["times"]["median"], fused["checked"]
    rates = [f"{light['operations'] / time / 1e9:.0f}", f"{light['bytes'] / time / 1e6:.0f}"]
    errors = [f"{checked[k]:.2e}" for k in ("error", "eager")]
    memory = [f"{timed[n]['peak']['call'] / 1e6:.0f}" for n in ("model_new", "eager")]
    title = "| problem | floor | reached | TFLOP/s | GB/s | error of fused | error of eager |"
    title += " MB of fused | MB of eager |"
    floor = f"{light['floor']:.3f} ({light['bound']})"
    assert rows(RESULTS, title)[name] == [floor, f"{100 * fused['of_floor']:.0f} %", *rates, *errors, *memory]


def test_all_ranges() -> None:
    """What is said of all of them in a sentence or a row is what the tables have."""
    all_rows = [raced(path)[2] for path in RECORDS]
    fused = [timed["model_new"] for timed in all_rows]
    best = [min(t for n, t in medians(timed).items() if n in OTHERS) for timed in all_rows]
    ratios = [b / row["times"]["median"] for b, row in zip(best, fused)]
    memory = [row["peak"]["call"] / timed["eager"]["peak"]["call"] for row, timed in zip(fused, all_rows)]
    assert f"{min(ratios):.1f} to {max(ratios):.1f} times faster" in RESULTS
    assert f"{min(memory):.2f} to {max(memory):.2f} of eager's" in RESULTS
    assert f"{min(memory):.2f} to {max(memory):.2f} of eager's memory" in README
    reached = [100 * row["of_floor"] for row in fused]
    assert f"| {min(reached):.0f} to {max(reached):.0f} % |" in RESULTS
