"""All that docs/results.md has of races, other sizes and scaling, and proofs of Models, step by step, on a GPU.

    python benchmarks/everything.py build/measured               # goes on where a run of the same commit ended
    python benchmarks/everything.py build/measured --minutes 9   # begins no step that would not end in time
    python benchmarks/everything.py build/measured --only races scaling --problems gelu
    python benchmarks/everything.py --list                       # the steps, and what each is expected to take
    python benchmarks/everything.py build/measured --take        # its rows and races become the committed ones

Each step is a process with a limit of time, whose output is FOLDER/STEP.log; FOLDER/steps.json has how each ended, at
which commit (and with which changes since), and how long it took. What failed is told, and done again by the next run.
The files are the gallery's; those of other channels, strides and groups are fused by the step that races them. The exit
code is 0 when all that was asked for is done, 1 if a step failed, 3 if the time was not enough.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import measuring  # noqa: E402
import variants  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TABLES = ("race.csv", "no_tf32.csv", "scaling.csv")
SHORT = ["--what", "forward", "--samples", "5"]
USUAL = ["--contenders", "eager", "channels_last", "compile", "ModelNew"]
EXACT = ["--no-tf32", "--contenders", "eager", "channels_last", "ModelNew", "--what", "forward", "--samples", "3"]
TRAINED = ["--contenders", "eager", "compile", "ModelNew", "--what", "training", "--samples", "7"]
HELD = "gelu_group_norm"  # in the names of problems that one kernel on Hopper is for
# Tests that prove Models of every kind, in the simulator as a rule.
PROVEN = (
    "complex_numbers differentiated_once matrices mixed_types picked_indices returned sizes_that_vary tensor_names "
    "updated_buffers whole_models written_arguments"
).split()
LONGER = 2.0  # a step may take this many times what is expected, and a minute


@dataclass(frozen=True)
class Step:
    """Commands that are run one after another, on one problem or one of its variants."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    seconds: float  # as it is expected to take, where no earlier run says

    @property
    def kind(self) -> str:
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class Done:
    commit: str
    ok: bool
    seconds: float
    why: str = ""


def images(problem: str) -> bool:
    return problem.startswith("conv")


def steps(folder: Path, problems: Sequence[str]) -> list[Step]:
    """In the order in which they matter: what may not be shown without a look at memory and races comes first."""
    python, fused = sys.executable, folder / "fused"
    pairs = {p: (str(ROOT / "problems" / f"{p}.py"), str(fused / f"{p}.py")) for p in problems}
    tables = {name: ("--table", str(folder / name)) for name in TABLES}

    def script(path: str, *words: str) -> tuple[str, ...]:
        return (python, str(ROOT / path), *words)

    def race(problem: str, table: str, *words: str) -> tuple[str, ...]:
        return script("benchmarks/race.py", *pairs[problem], *words, *tables[table])

    found: list[Step] = []
    for p in problems:
        words = ["--dtypes", "float32", "--limit", "200"]
        if HELD in p:  # samples as they are, which small images do not stand for, and a part of them
            parts = [["--whole", "2"], ["--whole", "8", "--spatial", "0.25"], ["--whole", "8", "--spatial", "0.5"]]
        else:
            parts = [[]]
        commands = tuple(script("tests/gpu/sanitize_fused.py", pairs[p][1], *words, *part) for part in parts)
        found.append(Step(f"sanitizer.{p}", commands, 60.0 * len(parts)))
    for p in problems:
        words = ["--race", str(folder / "races"), "--simulated", "--rounds", "5"]
        found.append(Step(f"races.{p}", (script("tools/make_gallery.py", p, *words),), 120.0))
    for p in problems:
        commands = (script("benchmarks/scaling.py", *pairs[p], "--samples", "5", *tables["scaling.csv"]),)
        found.append(Step(f"scaling.{p}", commands, 40.0))
    proofs = [str(ROOT / "tests" / "fuse" / f"test_{name}.py") for name in PROVEN]
    found.append(Step("models.proven", ((python, "-m", "pytest", *proofs, "--on-gpu", "-q"),), 300.0))
    for p in filter(images, problems):
        factors = ("0.5", "2") if HELD in p else ("1",)
        account = [script("benchmarks/account.py", *pairs[p], "--spatial", factor) for factor in factors]
        found.append(Step(f"account.{p}", tuple(account), 45.0 * len(account)))
    for p in problems:
        sizes = [["--batch", "1"]] + [["--spatial", "0.5"], ["--spatial", "2"]] * images(p)
        commands = tuple(race(p, "race.csv", *SHORT, *USUAL, *size) for size in sizes)
        found.append(Step(f"sizes.{p}", commands, 45.0 * len(sizes)))
    for p in filter(images, problems):
        for tag in variants.made(ROOT / "problems" / f"{p}.py"):
            reference, new = folder / "variants" / f"{p}__{tag}.py", fused / f"{p}__{tag}.py"
            fuse = (python, "-m", "crucible", "fuse", str(reference), "-o", str(new), "--no-prove", "--no-tune")
            timed = script("benchmarks/race.py", str(reference), str(new), *SHORT, *USUAL, *tables["race.csv"])
            found.append(Step(f"variants.{p}.{tag}", (fuse, timed), 60.0))
    for p in filter(images, problems):
        found.append(Step(f"no_tf32.{p}", (race(p, "no_tf32.csv", *EXACT),), 60.0))
    for p in problems:
        found.append(Step(f"training.{p}", (race(p, "race.csv", *TRAINED),), 90.0))
    return found


def identity(commit: str | None) -> str:
    """The commit, and where the checkout has changes of its own which: a kernel that is being worked on is another."""
    if not str(commit).endswith("+"):
        return str(commit)
    changes = subprocess.run(["git", "diff", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    return f"{commit}{hashlib.sha256(changes).hexdigest()[:8]}"


def lay_out(folder: Path, problems: Sequence[str]) -> None:
    """The gallery's files and the variants, named as the scripts want them."""
    (folder / "fused").mkdir(parents=True, exist_ok=True)
    (folder / "variants").mkdir(exist_ok=True)
    for problem in problems:
        new = ROOT / "gallery" / problem / "model_new.py"
        if not new.exists():
            raise SystemExit(f"{new} is not there: make gallery writes it")
        shutil.copyfile(new, folder / "fused" / f"{problem}.py")
        for tag, text in variants.made(ROOT / "problems" / f"{problem}.py").items():
            (folder / "variants" / f"{problem}__{tag}.py").write_text(text)


def known(folder: Path) -> dict[str, Done]:
    kept = folder / "steps.json"
    return {k: Done(**v) for k, v in json.loads(kept.read_text()).items()} if kept.exists() else {}


def keep(folder: Path, done: dict[str, Done]) -> None:
    """In one move: a run that is killed leaves what there was."""
    fresh = folder / "steps.json.new"
    fresh.write_text(json.dumps({k: asdict(v) for k, v in done.items()}, indent=1) + "\n")
    fresh.replace(folder / "steps.json")


def perform(step: Step, folder: Path, commit: str, limit: float) -> Done:
    """Run a step's commands. Its tables' rows count only if all of them end well: others would stand there twice."""
    tables = {name: (folder / name).read_bytes() if (folder / name).exists() else None for name in TABLES}
    path = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    start, why = time.monotonic(), ""
    with (folder / f"{step.name}.log").open("w", encoding="utf-8") as log:
        for command in step.commands:
            log.write("$ " + " ".join(command) + "\n")
            log.flush()
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=ROOT,
                start_new_session=True,
            )  # fmt: skip
            try:
                status = child.wait(max(limit - (time.monotonic() - start), 0.001))
            except subprocess.TimeoutExpired:
                why = f"still running after {limit:.0f} s"
            else:
                why = f"exit code {status}" if status else ""
            finally:
                _end(child)
            if why:
                break
    if why:
        for name, before in tables.items():
            if before is None:
                (folder / name).unlink(missing_ok=True)
            else:
                (folder / name).write_bytes(before)
    return Done(commit, not why, round(time.monotonic() - start, 1), why)


def _end(child: subprocess.Popen[bytes]) -> None:
    """A step's own children go with it: a contender that hangs would keep the GPU from the next step."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()


def go_through(
    todo: Sequence[Step], folder: Path, commit: str, seconds: float | None, say: Callable[[str], object] = print
) -> tuple[list[str], list[str]]:
    """The names of steps that failed, and of those for which there was no time."""
    done, start, failed, left = known(folder), time.monotonic(), [], []
    for number, step in enumerate(todo, 1):
        before = done.get(step.name)
        if before is not None and before.ok and before.commit == commit:
            continue
        expected = before.seconds if before is not None and before.ok else step.seconds
        limit = LONGER * expected + 60
        if seconds is not None:
            rest = seconds - (time.monotonic() - start)
            if rest < expected:
                left.append(step.name)
                continue
            limit = min(limit, rest)
        say(f"[{number}/{len(todo)}] {step.name}, about {expected:.0f} s")
        done[step.name] = found = perform(step, folder, commit, limit)
        keep(folder, done)
        if not found.ok:
            failed.append(step.name)
            say(f"    failed, {found.why}: {folder / f'{step.name}.log'}")
    return failed, left


def take(folder: Path) -> int:
    """Rows of the folder's tables go to the committed ones, each once, and its races into the gallery."""
    for name in TABLES:
        path = folder / name
        if not path.exists():
            continue
        rows = list(csv.DictReader(path.open(newline="", encoding="utf-8")))
        there = RESULTS / name
        old = list(csv.DictReader(there.open(newline="", encoding="utf-8"))) if there.exists() else []
        fresh = [row for row in rows if row not in old]
        if fresh:
            measuring.append(there, [dict(row) for row in fresh])
        print(f"{there.relative_to(ROOT)}: {len(fresh)} rows more, {len(rows) - len(fresh)} were there")
    races = folder / "races"
    if not races.exists():
        return 0
    return subprocess.run(
        [sys.executable, str(ROOT / "tools" / "make_gallery.py"), "--records", str(races)], check=False
    ).returncode


def chosen(all_steps: Iterable[Step], kinds: Sequence[str], words: Sequence[str]) -> list[Step]:
    return [
        s for s in all_steps
        if (not kinds or s.kind in kinds) and (not words or any(w in s.name.split(".", 1)[1] for w in words))
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="for logs, tables, races, and what is done")
    parser.add_argument("--minutes", type=float, help="begin no step that would not end by then [default: no limit]")
    parser.add_argument("--only", nargs="+", default=[], metavar="KIND", help="of steps: the word before the dot")
    parser.add_argument("--problems", nargs="+", default=[], metavar="WORD", help="that have a word in their names")
    parser.add_argument("--list", action="store_true", help="print the steps")
    parser.add_argument("--take", action="store_true", help="into the committed tables and the gallery")
    given = parser.parse_args()
    if given.folder is None and not given.list:
        parser.error("where to? Name a folder, such as build/measured")
    folder = (given.folder or Path("build/measured")).absolute()
    problems = sorted(p.stem for p in (ROOT / "problems").glob("*.py"))
    every = steps(folder, problems)
    kinds = list(dict.fromkeys(s.kind for s in every))
    unknown = [k for k in given.only if k not in kinds]
    if unknown:
        parser.error(f"there is no step {unknown[0]!r}; there are {', '.join(kinds)}")
    todo = chosen(every, given.only, given.problems)
    if not todo:
        parser.error(f"no problem has {' or '.join(given.problems)} in its name; there are {', '.join(problems)}")
    if given.list:
        for s in todo:
            print(f"{s.name:75} about {s.seconds:4.0f} s")
        return 0
    if given.take:
        return take(folder)
    import torch

    if not torch.cuda.is_available():
        parser.error("this needs a GPU")
    lay_out(folder, problems)
    told = measuring.environment()
    print(", ".join(f"{k} {v}" for k, v in told.items()), flush=True)
    minutes = None if given.minutes is None else given.minutes * 60
    failed, left = go_through(todo, folder, identity(told["commit"]), minutes, lambda line: print(line, flush=True))
    print(f"{len(todo) - len(failed) - len(left)} of {len(todo)} steps are done, in {folder}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    if left:
        print(f"no time for: {', '.join(left)}. The same command goes on with them")
    return 1 if failed else 3 if left else 0


if __name__ == "__main__":
    sys.exit(main())
