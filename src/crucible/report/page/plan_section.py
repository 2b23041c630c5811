"""The section of a page on a plan: a picture and a table for every pass, and what stayed torch's."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from crucible.report.numbers import amount, gflop, least, milliseconds
from crucible.report.page.figure import Picture
from crucible.report.page.plan_picture import lines_of, plan_picture
from crucible.report.page.subject import Candidate, Subject
from crucible.report.page.tables import Cell, Table, columns, listed

PLURALS = {"contraction": "contractions", "walk": "walks", "map": "maps"}
LARGE, MOST = 0.02, 4  # a tensor is named when it is so much of the bytes, and so many are
DIRECTIONS = {"forward": "forward", "backward": "backward", "inference": "forward without gradients"}


@dataclass
class PassPart:
    title: str
    text: str
    picture: Picture | None = None
    caption: str = ""
    table: Table | None = None


@dataclass
class PlanPart:
    of: str
    text: str
    passes: list[PassPart] = field(default_factory=list)
    unfused: list[str] = field(default_factory=list)
    rewrites: list[str] = field(default_factory=list)


def plan_part(subject: Subject, candidate: Candidate, of: str, name: str) -> PlanPart | None:
    plan = candidate.plan
    if plan is None:
        return None
    gpu = plan["gpu"]
    shapes = ", ".join(f"{t['name']} {tuple(t['shape'])}" for t in plan["inputs"])
    rates = f"{gpu['bandwidth']:g} GB/s, {gpu['fp32']:g} TFLOP/s in float32"
    text = (
        f"Engine {plan['engine']}, precision {plan['precision']}; {shapes or 'no tensors'}, in {plan['element']}. "
        f"Times marked “at least” are the speed of light of {gpu['title']} ({rates}): bounds, not measurements."
    )
    part = PlanPart(of, text, unfused=[f"{u['operator']}: {u['reason']}" for u in plan["unfused"]],
                    rewrites=list(plan["rewrites"]))  # fmt: skip
    modes = {p["mode"] for p in plan["passes"]}
    for k, one in enumerate(plan["passes"]):
        title = DIRECTIONS[one["direction"]] + (f" ({one['mode']})" if len(modes) > 1 else "")
        times = kernel_times(subject, candidate, one)
        same = one["direction"] == "inference" and not times and _same_work(plan, one)
        total = f"{gflop(one['operations'])} GFLOP, {amount(one['bytes'])}, at least {least(one['seconds'])}"
        said = f"{count_text(one)}, {total}."
        if same:
            part.passes.append(PassPart(title, f"{said} As forward, with nothing kept for a backward pass."))
            continue
        part.passes.append(PassPart(
            title, said, plan_picture(f"{name}-plan{k}", plan, one, times), _caption(one), _table(plan, one, times),
        ))  # fmt: skip
    return part


def _caption(one: dict[str, Any]) -> str:
    text = "A ribbon goes from a line of the Model to every kernel that computes a part of it."
    if one["direction"] == "backward":
        text += " Pale ribbons: computed again instead of being kept."
    return text


def _table(plan: dict[str, Any], one: dict[str, Any], times: dict[str, float]) -> Table:
    titles = ["kernel:name", "lines of the Model:lines", "GFLOP#", "bytes#", "at least#", "bound by"]
    titles += ["measured#"] if times else []
    titles += ["reads:text", "writes:text"]
    direction = DIRECTIONS[one["direction"]]
    table = Table(f"Kernels of {direction}: what each absorbs, moves and costs", columns(*titles))
    lines = lines_of(plan, one["mode"])
    for k, kernel in enumerate(one["kernels"]):
        ours = kernel["kind"] != "torch"
        touched = {*(kernel.get("operators") or ()), *(kernel.get("gradients") or ())}
        texts = [line.text for line in lines if touched & set(line.operators)] or list(kernel["absorbs"])
        notes = [kernel["kind"]] + (["small"] if kernel["small"] else []) if ours else [kernel["operator"]]
        cells: list[Cell | str] = [
            Cell(f"{kernel['name']} ({', '.join(notes)})", chip=k if ours else None), "; ".join(texts),
            Cell(gflop(kernel["operations"]) if ours else "-", kernel["operations"]),
            Cell(amount(kernel["bytes"]), kernel["bytes"]),
            Cell(least(kernel["seconds"]) if ours else "-", kernel["seconds"]), kernel["bound"] or "-",
        ]  # fmt: skip
        if times:
            taken = times.get(kernel["name"])
            cells.append(Cell(milliseconds(taken), taken if taken is not None else ""))
        table.add(*cells, _tensors(kernel["reads"]), _tensors(kernel["writes"]))
    return table


def _tensors(tensors: list[dict[str, Any]]) -> str:
    """The large ones by name, the rest as a number."""
    total = sum(t["bytes"] for t in tensors)
    ordered = sorted(tensors, key=lambda t: -t["bytes"])
    large = [t for k, t in enumerate(ordered) if k == 0 or (k < MOST and t["bytes"] > LARGE * total)]
    text = listed([f"{t['name']} {amount(t['bytes'])}" for t in large])
    rest = ordered[len(large) :]
    return text + (f" and {len(rest)} more, {amount(sum(t['bytes'] for t in rest))}" if rest else "")


def count_text(one: dict[str, Any]) -> str:
    """As ``--explain`` has it: ``2 kernels (1 contraction, 1 walk), 1 small``."""
    ours = {k: n for k, n in one["counts"].items() if k != "torch"}
    total = sum(ours.values())
    kinds = [f"{n} {k if n == 1 else PLURALS[k]}" for k, n in ours.items()]
    text = f"{total} kernel{'' if total == 1 else 's'}" + (f" ({', '.join(kinds)})" if kinds else "")
    text += f", {len(one['small'])} small" if one["small"] else ""
    left = one["counts"].get("torch", 0)
    return text + (f", {left} operator{'' if left == 1 else 's'} left to torch" if left else "")


def _same_work(plan: dict[str, Any], one: dict[str, Any]) -> bool:
    forward: dict[str, Any] = next(p for p in plan["passes"] if (p["mode"], p["direction"]) == (one["mode"], "forward"))

    def work(kernels: list[dict[str, Any]]) -> list[Any]:
        return [(k["kind"], sorted(re.sub(r"_\d+$", "", n) for n in k["absorbs"])) for k in kernels]

    return work(forward["kernels"]) == work(one["kernels"])


# -- what a race measured


def raced_passes(plan: dict[str, Any], what: str, evaluating: bool) -> list[dict[str, Any]]:
    """The passes of a plan that a call of this kind runs."""
    modes = list(dict.fromkeys(p["mode"] for p in plan["passes"]))
    mode = "evaluation" if evaluating and "evaluation" in modes else modes[0]
    own = {p["direction"]: p for p in plan["passes"] if p["mode"] == mode}
    if what == "training":
        return [own[d] for d in ("forward", "backward") if d in own]
    return [own.get("inference") or own["forward"]]


def kernel_times(subject: Subject, candidate: Candidate, one: dict[str, Any]) -> dict[str, float]:
    """Measured milliseconds of the kernels of a pass, by name. The name of a stage is in those of its kernels.

    Two passes of one call may both have a stage of some name: those are left out.
    """
    race, plan = subject.race, candidate.plan
    if race is None or plan is None:
        return {}
    for done in race.get("passes") or []:
        ran = raced_passes(plan, done["what"], race.get("mode") == "evaluation")
        row = next((r for r in done["rows"] if r["contender"] == candidate.name), None)
        if row is None or not row.get("kernels") or one not in ran:
            continue
        names = [k["name"] for p in ran for k in p["kernels"]]
        found = {}
        for name in {k["name"] for k in one["kernels"] if k["kind"] != "torch"}:
            own = [r["milliseconds"] for r in row["kernels"] if re.search(rf"\b{re.escape(name)}\b", r["name"])]
            if own and names.count(name) == 1:
                found[name] = float(sum(own))
        return found
    return {}
