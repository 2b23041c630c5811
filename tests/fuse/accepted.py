"""What fusing each problem gave when it was last accepted: the explanation, and the text without the kernel bodies.

``python tests/fuse/accepted.py`` accepts what is generated now (``make accept``).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crucible.fuse import Fused

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "accepted"


def problems() -> list[Path]:
    return sorted([*(ROOT / "problems").glob("*.py"), *(ROOT / "problems" / "gallery").glob("*.py")])


def generated(path: Path, fused: Fused | None = None) -> str:
    """The explanation for an H200, then the generated file with the kernel bodies and the unchanging parts left out."""
    from crucible.emit.file import LIBRARY_BEGIN, LIBRARY_END
    from crucible.fuse import fuse_problem
    from crucible.plan import gpus
    from crucible.report.explain import explain_text

    fused = fused or fuse_problem(path)
    text = re.sub(rf"{re.escape(LIBRARY_BEGIN)}.*?{re.escape(LIBRARY_END)}", "// kernel bodies", fused.text, flags=re.S)
    text = re.sub(
        r"\n_SCALARS = .*?\n(?=def _model_forward|def _training_forward|def _evaluation_forward)",
        "\n",
        text,
        flags=re.S,
    )
    text = text.split('"""', 2)[2]  # the header repeats the explanation
    return explain_text(fused, gpus.find("h200")) + "\n" + "-" * 118 + "\n" + text.strip() + "\n"


def accepted(path: Path) -> Path:
    return FOLDER / f"{path.stem}.txt"


def main() -> None:
    sys.path.insert(0, str(ROOT / "src"))
    FOLDER.mkdir(exist_ok=True)
    wanted = set()
    for path in problems():
        file = accepted(path)
        wanted.add(file)
        new = generated(path)
        if not file.exists() or file.read_text() != new:
            file.write_text(new)
            print(f"accepted {path.stem}")
    for file in set(FOLDER.glob("*.txt")) - wanted:
        file.unlink()
        print(f"removed {file.stem}")


if __name__ == "__main__":
    main()
