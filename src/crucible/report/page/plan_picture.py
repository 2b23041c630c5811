"""The plan as a picture: lines of the Model on the left, kernels on the right, ribbons where one ate the other."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from crucible.report.numbers import amount, least, milliseconds
from crucible.report.page.figure import DIM, INK, RULE, SOFT, Picture, bare, cut, kernel_colour, picture

LINE, KERNEL, GAP, TOP = 46.0, 66.0, 14.0, 28.0


@dataclass
class Line:
    """A line of the Model's file, and the operators that it became."""

    text: str
    number: int | None
    operators: list[str] = field(default_factory=list)

    @property
    def short(self) -> str:
        """Without what is the same in most lines."""
        return re.sub(r"^(?:return |\w+ = )?(?:self\.)?", "", self.text)


def lines_of(plan: dict[str, Any], mode: str) -> list[Line]:
    """The Model's lines in the order of its operators; an operator without a line stands for itself."""
    found: list[Line] = []
    for each in plan.get("operators") or []:
        if each["mode"] != mode:
            continue
        text, number = each["code"] or each["name"], each["line"]
        if found and number is not None and found[-1].number == number:
            found[-1].operators.append(each["name"])
        else:
            found.append(Line(text, number, [each["name"]]))
    return found


def plan_picture(name: str, plan: dict[str, Any], one: dict[str, Any], times: dict[str, float]) -> Picture | None:
    """One pass. ``times`` are measured milliseconds by kernel. None where a record does not say what came from what."""
    lines = lines_of(plan, one["mode"])
    kernels = one["kernels"]
    backward = one["direction"] == "backward"
    links = _links(lines, kernels, backward)
    if not lines or not links:
        return None
    used = sorted({line for line, _, _ in links}, reverse=backward)
    place = {line: k for k, line in enumerate(used)}
    shown = [lines[k] for k in used]
    links = [(place[line], kernel, pale) for line, kernel, pale in links]

    def height(width: int) -> float:
        return TOP + max(len(shown) * (LINE + GAP), len(kernels) * (KERNEL + GAP)) + 4

    def draw(figure: Any, width: int) -> None:
        total = height(width)
        axes = bare(figure, width, total)
        left, right = (0.40, 0.56) if width > 500 else (0.36, 0.54)
        left_edge, right_edge = left * width, right * width
        tops = _spread(len(shown), LINE, total), _spread(len(kernels), KERNEL, total)
        head = "gradients of the Model's lines" if backward else "lines of the Model"
        axes.text(0, 12, cut(head, left_edge, 11.5), size=11.5, color=DIM, va="center")
        axes.text(right_edge, 12, cut("kernels, in order", width - right_edge, 11.5), size=11.5, color=DIM, va="center")
        _ribbons(axes, links, tops, left_edge, right_edge)
        for line, top in zip(shown, tops[0]):
            _box(axes, 0, top, left_edge, LINE, RULE, SOFT)
            text = line.text if width > 500 else line.short
            axes.text(10, top + 16, cut(text, left_edge - 14, 12.5), size=12.5, color=INK, va="center")
            said = ", ".join(line.operators) + (f" · line {line.number}" if line.number and width > 500 else "")
            axes.text(10, top + 33, cut(said, left_edge - 14, 11), size=11, color=DIM, va="center")
        for k, (kernel, top) in enumerate(zip(kernels, tops[1])):
            _kernel(axes, kernel, k, right_edge, top, width, times.get(kernel["name"]))

    names = ", ".join(k["name"] for k in kernels)
    return picture(name, f"Which kernel computes which line of the Model: {names}. The table below says the same.",
                   height, draw)  # fmt: skip


def _links(lines: list[Line], kernels: list[dict[str, Any]], backward: bool) -> list[tuple[int, int, bool]]:
    """(line, kernel, pale) for every pair with something in common; pale is what a backward computes again."""
    found = []
    for k, kernel in enumerate(kernels):
        own, again = set(kernel.get("operators") or ()), set(kernel.get("gradients") or ())
        if not backward:
            own, again = own | again, set()
        for n, line in enumerate(lines):
            listed = set(line.operators)
            if backward and listed & again:
                found.append((n, k, False))
            elif listed & own:
                found.append((n, k, backward))
    return found


def _spread(count: int, each: float, total: float) -> list[float]:
    """Tops of boxes that share the height evenly."""
    step = (total - TOP) / count
    return [TOP + k * step + (step - each) / 2 for k in range(count)]


def _box(axes: Any, x: float, y: float, width: float, height: float, edge: str, face: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    axes.add_patch(FancyBboxPatch((x + 1, y), width - 2, height, boxstyle="round,pad=0,rounding_size=5", linewidth=1,
                                  edgecolor=edge, facecolor=face, mutation_aspect=1))  # fmt: skip


def _kernel(axes: Any, kernel: dict[str, Any], k: int, x: float, y: float, width: int, taken: float | None) -> None:
    from matplotlib.patches import Rectangle

    room = width - x
    ours = kernel["kind"] != "torch"
    _box(axes, x, y, room, KERNEL, kernel_colour(k) if ours else RULE, SOFT)
    axes.add_patch(Rectangle((x + 1, y + 5), 5, KERNEL - 10, color=kernel_colour(k) if ours else DIM, linewidth=0))
    name = kernel["name"] if ours else f"left to torch: {kernel['operator']}"
    axes.text(x + 14, y + 16, cut(f"{k + 1}  {name}", room - 18, 13), size=13, color=INK, va="center", weight="bold")
    kind = f"{kernel['kind']}, {amount(kernel['bytes'])}" if ours else amount(kernel["bytes"])
    axes.text(x + 14, y + 35, cut(kind, room - 18, 11.5), size=11.5, color=DIM, va="center")
    said = f"at least {least(kernel['seconds'])}" if ours else ""
    if taken is not None:
        said = f"{milliseconds(taken)}, {said}" if width > 500 else milliseconds(taken)
    axes.text(x + 14, y + 52, cut(said, room - 18, 11.5), size=11.5, color=DIM, va="center")


def _ribbons(axes: Any, links: list[tuple[int, int, bool]], tops: tuple[list[float], list[float]], left: float,
             right: float) -> None:  # fmt: skip
    """Bands that leave a box below each other, in the order of where they go."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    leaving = {line: [k for n, k, _ in links if n == line] for line, _, _ in links}
    coming = {kernel: sorted({n for n, k, _ in links if k == kernel}) for _, kernel, _ in links}
    for line, kernel, pale in links:
        one, other = LINE / len(leaving[line]), KERNEL / len(coming[kernel])
        a = tops[0][line] + leaving[line].index(kernel) * one
        b = tops[1][kernel] + coming[kernel].index(line) * other
        bend = (right - left) * 0.5
        points = [(left, a), (left + bend, a), (right - bend, b), (right, b), (right, b + other),
                  (right - bend, b + other), (left + bend, a + one), (left, a + one), (left, a)]  # fmt: skip
        codes = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3, Path.CLOSEPOLY]
        axes.add_patch(PathPatch(Path(points, codes), facecolor=kernel_colour(kernel), alpha=0.16 if pale else 0.5,
                                 linewidth=0))  # fmt: skip
