"""Fuse every problem with other versions of torch than the pinned one, and look at what comes out.

    python tools/other_torches.py 2.7.1 2.11.0     # also: make torches TORCH="2.7.1 2.11.0"

Each version has an environment of its own below .scratch/torches, which takes up to 6 GB and stays for the next time;
a GPU is not needed. Every problem is fused there, if that version can, and what differs from the pinned version's text
in more than names and order is proven in the simulator here. The gallery's files are run on the host there
(tests/emit/host_alone.py). Exit code 1 where anything fails.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from crucible.torch_version import OLDEST_TO_FUSE, number  # noqa: E402

HOME = ROOT / ".scratch" / "torches"
SEED = 7


def problems() -> dict[str, Path]:
    return {p.stem: p for folder in ("problems", "problems/gallery") for p in sorted((ROOT / folder).glob("*.py"))}


def python_of(version: str) -> Path:
    """The interpreter of an environment that has this version, made where there is none."""
    folder = HOME / version
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        print(f"torch {version}: making {folder.relative_to(ROOT)}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        old = ["numpy<2"] if number(version) < (2, 3) else ["numpy"]
        wanted = [f"torch=={version}", *old, "setuptools<81", "ninja", "typer", "rich"]
        subprocess.run([str(python), "-m", "pip", "install", "-q", *wanted], check=True)
        (folder / "ready").touch()
    return python


def run(python: Path | str, *words: str) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([str(python), *words], capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    return done.returncode, (done.stdout + done.stderr).strip()


def write(folder: Path) -> None:
    """The text of every problem, or what was wrong; run in the environment of a version."""
    from crucible.fuse import fuse_problem

    folder.mkdir(parents=True, exist_ok=True)
    for name, path in problems().items():
        for old in (folder / f"{name}.py", folder / f"{name}.error"):
            old.unlink(missing_ok=True)
        try:
            (folder / f"{name}.py").write_text(fuse_problem(path).text)
        except Exception as error:  # noqa: BLE001  one that fails is told, and the others are tried
            (folder / f"{name}.error").write_text(f"{type(error).__name__}: {error}")


def plain(text: str) -> list[str]:
    """What is left of a text without the names of nodes, and the order in which things are named; sizes are called by
    the argument and the dimension that they are of."""
    text = text.split('"""', 2)[2]
    names = re.findall(r"^ +((?:\w+, )*\w+),? = (\w+)\.shape$", text, re.M)
    sizes = {s: f"{tensor}_of_{d}_" for listed, tensor in names for d, s in enumerate(listed.split(", "))}
    text = re.sub(r"\bs\d+\b", lambda found: sizes.get(found[0], found[0]), text)
    text = re.sub(r"crucible_[0-9a-f]{12}_|\b([a-z][a-z_0-9]*?)_\d+\b", r"\1", text)
    lines = (line for line in text.splitlines() if not line.strip().startswith("//"))
    return sorted(" ".join(sorted(re.findall(r"\w+|[^\w\s]", line))) for line in lines)


def proven(job: tuple[Path, Path]) -> str:
    """Nothing, or what is wrong with a text."""
    problem, text = job
    code, said = run(
        sys.executable, "-m", "crucible", "prove", str(problem), str(text), "--device", "sim", "--quick",
        "--seed", str(SEED),
    )  # fmt: skip
    return "" if code == 0 else said


def look_at(version: str, pinned: Path, known: dict[tuple[str, ...], str]) -> list[str]:
    """What is wrong with a version; ``known`` has what came of texts like those of versions before it."""
    start, python, wrong = time.monotonic(), python_of(version), []
    files = sorted(map(str, (ROOT / "gallery").glob("*/model_new.py")))
    code, said = run(python, str(ROOT / "tests" / "emit" / "host_alone.py"), *files)
    if code:
        wrong.append(f"the gallery's files do not run with torch {version}: {said.splitlines()[-1]}")
    else:
        print(f"torch {version}: {len(files)} files of the gallery ran on the host", flush=True)
    if number(version) < OLDEST_TO_FUSE:
        return wrong
    folder = HOME / f"texts-{version}"
    code, said = run(python, __file__, "--write", str(folder))
    if code:
        return [*wrong, f"torch {version} could not fuse: {said[-1000:]}"]
    errors = sorted(folder.glob("*.error"))
    wrong += [f"torch {version}, {e.stem}: {e.read_text()}" for e in errors]
    texts = {p.stem: p for p in sorted(folder.glob("*.py"))}
    other = [n for n, p in texts.items() if plain(p.read_text()) != plain((pinned / p.name).read_text())]
    said = f"{len(texts)} of {len(texts) + len(errors)} problems are fused, {len(other)} in another way"
    print(f"torch {version}: {said} ({time.monotonic() - start:.0f} s)", flush=True)
    kept = {n: (n, *plain(texts[n].read_text())) for n in other}
    new = [n for n in other if kept[n] not in known]
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2)) as pool:
        for name, fault in zip(new, pool.map(proven, [(problems()[n], texts[n]) for n in new])):
            known[kept[name]] = fault
            print(f"torch {version}, {name}: {'NOT proven' if fault else 'proven'}", flush=True)
    if len(new) < len(other):
        print(f"torch {version}: {len(other) - len(new)} texts are like those of a version before it", flush=True)
    wrong += [f"torch {version}, {n}:\n{known[kept[n]]}" for n in other if known[kept[n]]]
    print(f"torch {version}: {time.monotonic() - start:.0f} s", flush=True)
    return wrong


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", help="such as 2.7.1")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.write:
        write(given.write)
        return 0
    if not given.versions:
        parser.error("which versions of torch? Name some, such as 2.7.1 2.11.0")
    pinned = HOME / "texts-pinned"
    write(pinned)
    known: dict[tuple[str, ...], str] = {}
    wrong = [fault for version in given.versions for fault in look_at(version, pinned, known)]
    print("\n".join(wrong) or "nothing is wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
