"""Figures as SVG that belongs to its page: text stays text, colours are the page's own, in two widths.

matplotlib draws with stand-in colours, which are replaced by CSS variables; so one drawing serves light, dark and
paper. A figure is drawn twice, for wide windows and for phones, because text must not shrink with the picture.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

WIDE, NARROW = 960, 340
# Stand-ins, and the variables of style.css that they become.
INK, DIM, RULE, PAPER, GOOD, BAD, WARN, SOFT = (f"#0a0b{k:02x}" for k in range(16, 24))
KERNELS = tuple(f"#0a0c{k:02x}" for k in range(16, 24))
VARIABLES = {
    INK: "--ink", DIM: "--dim", RULE: "--rule", PAPER: "--paper", GOOD: "--good", BAD: "--bad", WARN: "--warn",
    SOFT: "--soft", **{c: f"--kernel{k}" for k, c in enumerate(KERNELS)},
}  # fmt: skip
SETTINGS: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "crucible", "font.family": "DejaVu Sans", "font.size": 12.0,
    "text.color": INK, "axes.edgecolor": RULE, "axes.labelcolor": DIM, "xtick.color": DIM, "ytick.color": DIM,
    "axes.facecolor": "none", "figure.facecolor": "none", "savefig.facecolor": "none", "axes.linewidth": 1.0,
    "axes.spines.top": False, "axes.spines.right": False, "xtick.major.size": 4.0, "ytick.major.size": 4.0,
    "axes.unicode_minus": False, "path.simplify": False, "text.parse_math": False,
}  # fmt: skip
Draw = Callable[[Any, int], None]  # onto a figure of a width in pixels


@dataclass(frozen=True)
class Picture:
    """Two drawings of the same, and what they show in words for who cannot see them."""

    wide: Markup
    narrow: Markup
    label: str


def kernel_colour(number: int) -> str:
    return KERNELS[number % len(KERNELS)]


def picture(name: str, label: str, height: Callable[[int], float], draw: Draw) -> Picture:
    """Both drawings; ``height`` gives the height in pixels for a width."""
    wide, narrow = (_drawn(f"{name}-{w}", label, w, height(w), draw) for w in (WIDE, NARROW))
    return Picture(wide, narrow, label)


def _drawn(name: str, label: str, width: int, height: float, draw: Draw) -> Markup:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        draw(figure, width)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return Markup(tidy(out.getvalue(), name, label))


def tidy(svg: str, name: str, label: str) -> str:
    """Inline SVG: no prologue, no fixed size, names of its own, the page's colours and font."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.S)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{_attribute(label)}"', 1)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    svg = re.sub(r"font: ((?:bold |italic |\d+ )*)([\d.]+)px [^;\"]*", _font, svg)
    return re.sub(r"\n\s*", "\n", svg).strip()


def _font(found: re.Match[str]) -> str:
    bold = "; font-weight: 600" if "bold" in found.group(1) or "700" in found.group(1) else ""
    return f"font-size: {found.group(2)}px{bold}"


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


def bare(figure: Any, width: int, height: float) -> Any:
    """Axes over the whole figure in pixels, the origin at the top left, without ticks or frame."""
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.axis("off")
    return axes


def cut(text: str, pixels: float, size: float = 12.0) -> str:
    """As much of a text as has room, by a generous estimate of its width."""
    room = max(3, int(pixels / (0.58 * size)))
    return text if len(text) <= room else text[: room - 1] + "…"
