"""The pictures of docs/pictures: a problem, a refuted candidate and a sweep, at the widths of a phone and a desk.

    python tools/screenshots.py [--only NAME]

The proven problem and the index are the gallery's; the refuted candidate is proven in the simulator for the purpose.
Needs Chromium.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import chromium

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
WIDTHS = (400, 1600)
# (file, pixels of its top that are shown at either width, dark)
SHOWN = {"problem": (2600, 1960, False), "refuted": (2000, 1500, False), "sweep": (1100, 900, False),
         "dark": (1500, 1300, True)}  # fmt: skip
PROBLEM = "conv_transpose2d_gelu_group_norm"


def pages(folder: Path, wanted: list[str]) -> dict[str, Path]:
    gallery = ROOT / "gallery"
    found = {"problem": gallery / PROBLEM / "report.html", "sweep": gallery / "index.html"}
    found["dark"] = found["problem"]
    if "refuted" in wanted:
        found["refuted"] = refuted(folder)
    return {name: found[name] for name in wanted}


def refuted(folder: Path) -> Path:
    """A convolution that leaves out the last row of its input."""
    from crucible.prove.run import prove
    from crucible.report.page.files import report

    source = (ROOT / "examples" / "proven" / f"{PROBLEM}.py").read_text()
    line = "ty / g.stride >= g.in_h)"
    assert line in source, "the example has changed: this picture needs another way to break it"
    os.chdir(folder)
    Path("one_row_short.py").write_text(source.replace(line, "ty / g.stride >= g.in_h - 1)"))
    Path(f"{PROBLEM}.py").write_text((ROOT / "problems" / f"{PROBLEM}.py").read_text())
    proof = prove(f"{PROBLEM}.py", "one_row_short.py", device="sim", seed=7)
    Path("proof.json").write_text(proof.to_text())
    return folder / report(Path("proof.json"))[0].path


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", action="append", choices=list(SHOWN), help="some of them")
    wanted = parser.parse_args().only or list(SHOWN)
    program = chromium.find()
    if program is None:
        print("screenshots: no Chromium; install it, or name it with CHROMIUM=...", file=sys.stderr)
        return 2
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium.Browser(program) as browser:
        for name, page in pages(Path(folder), wanted).items():
            for width, height in zip(WIDTHS, SHOWN[name]):
                browser.open(page, width, dark=SHOWN[name][2])
                browser.screenshot(PICTURES / f"{name}-{width}.png", height)
                print(f"{name}-{width}.png")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    sys.exit(main())
