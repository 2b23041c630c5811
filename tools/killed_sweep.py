"""Sweeps that are killed at random and go on: do they end with the table of an undisturbed one?

    python tools/killed_sweep.py problems --every 10            killed three times (SIGKILL), each time started again
    python tools/killed_sweep.py problems --every 10 --nodes 3  and on a Ray cluster of three nodes here, one killed
    python tools/killed_sweep.py problems --kills 0 --nodes 3   on the cluster alone

Exit code 0 if the tables are the same, 1 if not. What follows -- goes to every `crucible sweep`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SRC = Path(__file__).resolve().parents[1] / "src"
SHOWN = ("title", "problem", "candidate", "status", "reason")  # of a row; seconds differ from run to run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of Problems")
    parser.add_argument("--every", type=int, default=1, metavar="K", help="take every K-th file only")
    parser.add_argument("--kills", type=int, default=3, help="of the whole sweep, at random moments; 0: no such sweep")
    parser.add_argument("--nodes", type=int, default=0, help="of a Ray cluster on which it runs too, and loses one")
    parser.add_argument("--seed", type=int, default=None, help="of the moments")
    given = sys.argv[1:]
    cut = given.index("--") if "--" in given else len(given)
    asked, options = parser.parse_args(given[:cut]), given[cut + 1 :]
    seed = asked.seed if asked.seed is not None else random.randrange(10**6)
    with tempfile.TemporaryDirectory(prefix="killed-sweep-") as scratch:
        return compare(asked, options, seed, Path(scratch))


def compare(asked: argparse.Namespace, options: list[str], seed: int, scratch: Path) -> int:
    chance = random.Random(seed)
    folder = taken(asked.folder, asked.every, scratch / "problems")
    began = time.monotonic()
    whole = start(folder, scratch / "whole", options)
    code = whole.wait()
    seconds = time.monotonic() - began
    expected = table(scratch / "whole.json")
    say(f"undisturbed: {len(expected)} rows in {seconds:.0f} s, exit code {code}; moments drawn with seed {seed}")
    same = True
    if asked.kills:
        again = killed(folder, scratch / "killed", options, asked.kills, chance, seconds)
        same = agrees("killed", expected, code, table(scratch / "killed.json"), again)
    if asked.nodes:
        again = on_ray(folder, scratch / "ray", options, asked.nodes, chance, seconds)
        same = agrees("on Ray", expected, code, table(scratch / "ray.json"), again) and same
    return 0 if same else 1


def agrees(how: str, expected: list[dict[str, Any]], code: int, found: list[dict[str, Any]], again: int) -> bool:
    for row in found:
        say(f"  {row['title']}: {row['status']}" + (f", {row['reason'].splitlines()[0]}" if row["reason"] else ""))
    other = [(a, b) for a, b in zip(expected, found) if a != b]
    for a, b in other:
        say(f"differs: {a}\n     now: {b}")
    same = not other and len(expected) == len(found) and code == again
    say(f"{how}: {'the same table' if same else 'ANOTHER TABLE'}, {len(found)} rows, exit code {again}")
    return same


def killed(folder: Path, store: Path, options: list[str], kills: int, chance: random.Random, seconds: float) -> int:
    """A sweep that is killed so many times, somewhere in what an undisturbed one would have left to do."""
    for k in range(kills):
        process = start(folder, store, options)
        wait = chance.uniform(0.05, 1.0) * seconds / (kills - k + 1)
        try:
            process.wait(wait)
            say(f"kill {k + 1} came too late: the sweep was done within {wait:.0f} s")
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            say(f"kill {k + 1} after {wait:.1f} s: {count(store)} rows are there")
    return start(folder, store, options).wait()


def on_ray(folder: Path, store: Path, options: list[str], nodes: int, chance: random.Random, seconds: float) -> int:
    """A sweep on a cluster of nodes with a processor each, one of which is killed while it works."""
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", PYTHONPATH=str(SRC))
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 80 * 1024 * 1024}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small})
    try:
        workers = [cluster.add_node(num_cpus=1, node_name=f"node-{k}", **small) for k in range(nodes)]
        process = start(folder, store, [*options, "--ray", cluster.address])
        wait = chance.uniform(0.2, 0.6) * seconds
        try:
            process.wait(wait)
            say(f"the kill came too late: the sweep was done within {wait:.0f} s")
        except subprocess.TimeoutExpired:
            doomed = chance.randrange(nodes)
            cluster.remove_node(workers[doomed], allow_graceful=False)
            say(f"node-{doomed} of {nodes} killed after {wait:.1f} s: {count(store)} rows are there")
        return process.wait()
    finally:
        cluster.shutdown()


def start(folder: Path, store: Path, options: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "crucible", "sweep", str(folder), "--store", str(store),
               "--json", str(store.with_suffix(".json")), *options]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(SRC)})


def taken(folder: Path, every: int, place: Path) -> Path:
    """Every so many of the files of a folder, copied with their places in it."""
    for path in sorted(folder.rglob("*.py"))[::every]:
        copy = place / path.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    return place


def table(summary: Path) -> list[dict[str, Any]]:
    """The rows without what may differ: seconds, and in which store a fused file lies."""
    rows = json.loads(summary.read_text(encoding="utf-8"))["rows"]
    stores = (str(summary.with_suffix("")), "STORE")
    return [{k: v.replace(*stores) if isinstance(v := row[k], str) else v for k in SHOWN} for row in rows]


def count(store: Path) -> int:
    return len(list((store / "rows").glob("[0-9]*.json")))


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
