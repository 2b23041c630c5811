"""The reference problems with other channels, strides and groups, each a problem file of its own, for races.

    python benchmarks/variants.py FOLDER        # writes FOLDER/NAME__c48.py, __c96, __s2, __g8

``c48`` and ``c96``: so many channels in and out. ``s2``: stride two, on an input of half the extents. ``g8``: eight
groups. Variants that a problem has already (or cannot have) are left out. Other batches and extents need no file:
``race.py`` takes them as ``--batch`` and ``--spatial``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PROBLEMS = Path(__file__).resolve().parent.parent / "problems"
SIZES = ("depth", "height", "width")


def _set(text: str, name: str, value: int) -> str:
    return re.sub(rf"^{name} = \d+$", f"{name} = {value}", text, flags=re.MULTILINE)


def channels(text: str, count: int) -> str | None:
    if not re.search(r"^in_channels = ", text, re.MULTILINE):
        return None
    return _set(_set(text, "in_channels", count), "out_channels", count)


def strided(text: str) -> str | None:
    """Where the stride is a constant of the file, an argument that is not given, or not given to the layer at all."""
    if re.search(r"^stride = 1$", text, re.MULTILINE):
        text = _set(text, "stride", 2)
    elif re.search(r"stride: int = 1", text):
        text = text.replace("stride: int = 1", "stride: int = 2")
    elif "nn.ConvTranspose" in text:
        text = re.sub(r"(nn\.ConvTranspose\dd\([^)]*?kernel_size)", r"\1, stride=2", text)
    else:
        return None
    for name in SIZES:
        found = re.search(rf"^{name} = (\d+)$", text, re.MULTILINE)
        if found:
            text = _set(text, name, int(found.group(1)) // 2)
    return text


def grouped(text: str) -> str | None:
    layer = re.search(r"nn\.ConvTranspose\dd\(.*?\)", text, re.DOTALL)
    if layer is None or "groups=" in layer.group(0) and "groups: int = 1" not in text:
        return None
    if "groups: int = 1" in text:
        return text.replace("groups: int = 1", "groups: int = 8")
    inner = layer.group(0)[:-1].rstrip().rstrip(",")
    return text.replace(layer.group(0), f"{inner}, groups=8)")


def made(problem: Path) -> dict[str, str]:
    """The variants of a problem, by tag."""
    text = problem.read_text()
    found = {"c48": channels(text, 48), "c96": channels(text, 96), "s2": strided(text), "g8": grouped(text)}
    return {tag: variant for tag, variant in found.items() if variant is not None and variant != text}


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for problem in sorted(PROBLEMS.glob("*.py")):
        for tag, text in made(problem).items():
            (folder / f"{problem.stem}__{tag}.py").write_text(text)
            print(folder / f"{problem.stem}__{tag}.py")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
