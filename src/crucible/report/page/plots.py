"""The plots of a page: the race as bars, the roofline, errors beside eager's, and where a result is wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from crucible.report.numbers import milliseconds
from crucible.report.page.figure import BAD, DIM, GOOD, INK, PAPER, RULE, Picture, bare, cut, kernel_colour, picture

ROW = 46.0


@dataclass(frozen=True)
class Bar:
    """A contender with times in milliseconds: the median, and what a fifth of the samples are below and above."""

    name: str
    median: float
    low: float
    high: float
    ours: bool


def race_bars(name: str, bars: Sequence[Bar], floor: float | None) -> Picture:
    """A bar to the median, a whisker over the quantiles, and a line where the floor is."""
    most = max(b.high for b in bars) * 1.02

    def height(width: int) -> float:
        return len(bars) * ROW + 34

    def draw(figure: Any, width: int) -> None:
        from matplotlib.patches import Rectangle

        total = height(width)
        axes = bare(figure, width, total)
        scale = (width - 92) / most
        for k, bar in enumerate(bars):
            y = k * ROW
            axes.text(0, y + 12, cut(bar.name, width - 4), size=12, color=INK, va="center",
                      weight="bold" if bar.ours else "normal")  # fmt: skip
            axes.add_patch(Rectangle((0, y + 22), bar.median * scale, 15, color=kernel_colour(0) if bar.ours else DIM,
                                     alpha=1.0 if bar.ours else 0.45, linewidth=0))  # fmt: skip
            middle = y + 29.5
            axes.plot([bar.low * scale, bar.high * scale], [middle, middle], color=INK, linewidth=1.5)
            for edge in (bar.low, bar.high):
                axes.plot([edge * scale] * 2, [middle - 5, middle + 5], color=INK, linewidth=1.5)
            axes.text(bar.high * scale + 8, middle, milliseconds(bar.median), size=12, color=INK, va="center")
        if floor is not None:
            bottom = len(bars) * ROW
            axes.plot([floor * scale] * 2, [0, bottom + 4], color=GOOD, linewidth=1.5, linestyle=(0, (4, 3)))
            right = floor * scale > width / 2
            axes.text(floor * scale, bottom + 18, f"floor {milliseconds(floor)}", size=11, color=GOOD, va="center",
                      ha="right" if right else "left")  # fmt: skip

    said = "; ".join(f"{b.name} {milliseconds(b.median)}" for b in bars)
    return picture(name, f"Median times: {said}. The table below has the quantiles.", height, draw)


@dataclass(frozen=True)
class Point:
    """Something that moved bytes and did operations in a time."""

    label: str
    intensity: float  # operations a byte
    rate: float  # TFLOP/s
    colour: int | None = None  # the kernel's; None for a whole pass
    measured: bool = True


@dataclass(frozen=True)
class Roof:
    """What a chip reaches: bytes, and operations of some kind."""

    name: str
    bandwidth: float  # GB/s
    peak: float  # TFLOP/s


def roofline(name: str, points: Sequence[Point], roofs: Sequence[Roof]) -> Picture:
    """Roofs as lines, points with their number or name; hollow where a time is a bound and no measurement."""
    xs = [p.intensity for p in points] + [r.peak * 1e3 / r.bandwidth for r in roofs]
    ys = [p.rate for p in points] + [r.peak for r in roofs]
    left, right = min(xs) / 3, max(xs) * 4
    bottom, top = min(ys) / 3, max(ys) * 2.2

    def draw(figure: Any, width: int) -> None:
        axes = figure.add_axes((62 / width, 0.14, 1 - 76 / width, 0.82))
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(left, right)
        axes.set_ylim(bottom, top)
        axes.grid(True, color=RULE, linewidth=0.6, alpha=0.6)
        axes.set_axisbelow(True)
        axes.minorticks_off()
        axes.xaxis.set_major_formatter(_plain)
        axes.yaxis.set_major_formatter(_plain)
        axes.tick_params(labelsize=11)
        axes.set_xlabel("operations per byte", size=11)
        axes.set_ylabel("TFLOP/s", size=11)
        for k, roof in enumerate(roofs):
            knee = roof.peak * 1e3 / roof.bandwidth
            if k == 0:
                widest = max(r.peak for r in roofs) * 1e3 / roof.bandwidth
                axes.plot([left, widest], [left * roof.bandwidth / 1e3, widest * roof.bandwidth / 1e3], color=DIM,
                          linewidth=1.5)  # fmt: skip
            axes.plot([knee, right], [roof.peak, roof.peak], color=DIM, linewidth=1.5)
            above = roof.peak == max(r.peak for r in roofs)
            shift, side = (3, "bottom") if above else (-3, "top")
            axes.annotate(f"{roof.name} {roof.peak:.4g}", (right, roof.peak), (0, shift), size=10, color=DIM,
                          textcoords="offset points", ha="right", va=side)  # fmt: skip
        for point in points:
            _mark(axes, point)
        _names(axes, [p for p in points if p.colour is None])

    said = "; ".join(f"{p.label}: {p.rate:.3g} TFLOP/s at {p.intensity:.3g} operations a byte" for p in points)
    return picture(name, f"Roofline. {said}.", lambda w: 400 if w > 500 else 330, draw)


def _mark(axes: Any, point: Point) -> None:
    colour = INK if point.colour is None else kernel_colour(point.colour)
    shape = "D" if point.colour is None else "o"
    axes.plot([point.intensity], [point.rate], shape, markersize=8 if point.colour is None else 17, color=colour,
              markerfacecolor=colour if point.measured else PAPER, markeredgecolor=colour, markeredgewidth=1.8,
              clip_on=False, zorder=3)  # fmt: skip
    if point.colour is not None:
        axes.text(point.intensity, point.rate, str(point.colour + 1), size=10, ha="center", va="center", zorder=4,
                  color=PAPER if point.measured else INK, weight="bold")  # fmt: skip


def _names(axes: Any, points: Sequence[Point], apart: float = 14.0) -> None:
    """Names beside their points, moved along so that none lies on another; on the side that has room."""
    placed = sorted(((*axes.transData.transform((p.intensity, p.rate)), p) for p in points), key=lambda each: each[1])
    low, wanted = -math.inf, []
    for _, y, _ in placed:
        low = max(y, low + apart)
        wanted.append(low)
    middle = sum(axes.transAxes.transform((x, 0.5))[0] for x in (0, 1)) / 2
    for (x, y, point), at in zip(placed, wanted):
        left = x > middle
        axes.annotate(point.label, (point.intensity, point.rate), (-14 if left else 14, at - y), size=10.5, color=INK,
                      textcoords="offset points", va="center", ha="right" if left else "left", zorder=4,
                      arrowprops={"arrowstyle": "-", "color": RULE, "shrinkA": 1, "shrinkB": 4})  # fmt: skip


def _plain(value: float, _: object = None) -> str:
    return f"{value:g}" if 1e-3 <= value < 1e5 else f"{value:.0e}"


@dataclass(frozen=True)
class Measured:
    """How far a tensor of a trial is from float64, what is allowed, and how far eager is."""

    label: str
    error: float
    limit: float
    eager: float | None

    @property
    def part(self) -> float:
        return self.error / self.limit if self.limit else (0.0 if not self.error else math.inf)


def errors(name: str, rows: Sequence[Measured]) -> Picture:
    """On a logarithmic line each: the candidate's error as a dot, eager's as a ring, and a bar at what is allowed."""
    values = [v for r in rows for v in (r.error, r.limit, r.eager) if v and math.isfinite(v)]
    low, high = min(values, default=1e-8) / 2, max(values, default=1.0) * 2
    step = 40.0

    def height(width: int) -> float:
        return len(rows) * step + 44

    def draw(figure: Any, width: int) -> None:
        total = height(width)
        axes = bare(figure, width, total)

        def at(value: float) -> float:
            value = min(max(value, low), high)
            return 6 + (width - 14) * math.log(value / low) / math.log(high / low)

        bottom = len(rows) * step
        for exponent in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1):
            x = at(10.0**exponent)
            axes.plot([x, x], [0, bottom + 4], color=RULE, linewidth=0.7)
            axes.text(x, bottom + 16, f"1e{exponent}", size=10.5, color=DIM, ha="center", va="center")
        for k, row in enumerate(rows):
            y = k * step
            axes.text(0, y + 10, cut(row.label, width - 4, 11), size=11, color=DIM, va="center")
            line = y + 27
            axes.plot([6, width - 8], [line, line], color=RULE, linewidth=1)
            axes.plot([at(row.limit)] * 2, [line - 8, line + 8], color=BAD, linewidth=2.5)
            if row.eager:
                axes.plot([at(row.eager)], [line], "o", markersize=9, markerfacecolor=PAPER, markeredgecolor=DIM,
                          markeredgewidth=1.8)  # fmt: skip
            right = row.error <= row.limit
            axes.plot([at(row.error)], [line], "o", markersize=8, color=GOOD if right else BAD)

    said = "; ".join(f"{r.label}: {r.error:.1e} of {r.limit:.1e}" for r in rows)
    return picture(name, f"Relative L2 errors beside what is allowed: {said}.", height, draw)


def heat_map(name: str, grid: dict[str, Any], limit: float) -> Picture:
    """Cells that are further off than allowed, in colour by how far; the others stay empty."""
    cells = [[_number(v) for v in row] for row in grid["values"]]
    finite = [v for row in cells for v in row if math.isfinite(v)]
    top = max([v for v in finite if v > limit], default=max(limit, 1e-30) * 10)
    floor = max(limit, top * 1e-6, 1e-300)
    rows, columns = len(cells), len(cells[0])

    def height(width: int) -> float:
        return 74 + _tall(width, rows, columns)

    def draw(figure: Any, width: int) -> None:
        import matplotlib
        import numpy as np
        from matplotlib.colors import LinearSegmentedColormap, LogNorm

        total, tall = height(width), _tall(width, rows, columns)
        left = 46
        axes = figure.add_axes((left / width, 1 - (8 + tall) / total, _side(width, rows, columns) * columns / width,
                                tall / total))  # fmt: skip
        values = np.array([[min(v, top) if math.isfinite(v) else top for v in row] for row in cells])
        shown = np.ma.masked_where(values <= limit, values)
        # From yellow to purple: its dark end would be lost on a dark page.
        steps = matplotlib.colormaps["plasma"](np.linspace(1.0, 0.28, 64))
        colours = LinearSegmentedColormap.from_list("wrong", steps).with_extremes(bad=(0.5, 0.5, 0.5, 0.10))
        norm = LogNorm(floor, max(top, floor * 1.0001))
        image = axes.imshow(shown, cmap=colours, norm=norm, interpolation="none", aspect="auto",
                            extent=(0, grid["columns"]["size"], grid["rows"]["size"], 0))  # fmt: skip
        for spine in axes.spines.values():
            spine.set_visible(True)
            spine.set_color(RULE)
        axes.tick_params(labelsize=10)
        axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(6, integer=True))
        axes.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(6, integer=True))
        axes.set_xlabel(grid["columns"]["name"], size=11, labelpad=2)
        axes.set_ylabel(grid["rows"]["name"], size=11, labelpad=2)
        bar = figure.add_axes((left / width, 26 / total, 0.5 * (width - left) / width, 9 / total))
        figure.colorbar(image, cax=bar, orientation="horizontal")
        bar.tick_params(labelsize=10, size=2)
        bar.minorticks_off()
        bar.xaxis.set_major_locator(matplotlib.ticker.FixedLocator([floor, top]))
        bar.xaxis.set_major_formatter(lambda v, _: f"{v:.1e}")
        bar.spines[:].set_visible(False)

    return picture(name, f"Error over {grid['title']}: {share_text(cells, limit)}.", height, draw)


def _side(width: int, rows: int, columns: int) -> float:
    """The width of a cell in pixels: not larger than it need be, and a picture not much taller than wide."""
    return max(1.5, min((width - 60) / columns, 420 / rows, 26))


def _tall(width: int, rows: int, columns: int) -> float:
    return max(_side(width, rows, columns) * rows, 20.0 * min(rows, 4))


def share_text(cells: Sequence[Sequence[float]], limit: float) -> str:
    flat = [v for row in cells for v in row]
    wrong = sum(1 for v in flat if v > limit)
    return f"{wrong} of {len(flat)} cells hold an error above {limit:.1e}"


def worst_cells(grid: dict[str, Any], limit: float, most: int = 5) -> list[dict[str, Any]]:
    """The cells that are furthest off, with what they cover."""
    cells = [[_number(v) for v in row] for row in grid["values"]]
    found = [(v, r, c) for r, row in enumerate(cells) for c, v in enumerate(row) if v > limit]
    found.sort(key=lambda each: -each[0])
    return [
        {"rows": _span(r, len(cells), grid["rows"]["size"]), "error": v,
         "columns": _span(c, len(cells[0]), grid["columns"]["size"])}
        for v, r, c in found[:most]
    ]  # fmt: skip


def _span(part: int, parts: int, size: int) -> str:
    first, last = size * part // parts, size * (part + 1) // parts - 1
    return str(first) if last <= first else f"{first} to {last}"


def _number(value: Any) -> float:
    """Non-finite numbers are strings in JSON."""
    return float(value)
