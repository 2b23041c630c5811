"""A sweep from start to end: what is to be done, who does it where, and rows that are kept as they come."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from crucible.build.cache import content_key
from crucible.race.record import digest
from crucible.sweep.find import Found, SweepError, problems, with_candidates
from crucible.sweep.ledger import Board, Ledger, Runner, Task
from crucible.sweep.local import LocalRunner
from crucible.sweep.options import COUNTS, SweepOptions
from crucible.sweep.place import machine
from crucible.sweep.store import Store

DONE = ("proven", "refuted", "unjudged", "not fused", "failed", "time limit")


@dataclass
class Sweep:
    """The rows of all tasks in their order, and what was left out."""

    folder: str
    store: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # Python files without a Model, Problems without a candidate
    kept: int = 0  # rows of an earlier run


def sweep(
    folder: str | Path, store: str | Path, *, candidates: str | Path | None = None, board: Board | None = None,
    **options: Any,
) -> Sweep:  # fmt: skip
    """Fuse, prove and race every Problem of a folder, or prove and race the ``candidates`` beside them.

    Rows that ``store`` has already are not made again. Raises SweepError, StoreError or RaceError for a user's mistake;
    whatever a file does costs its own row.
    """
    settings = SweepOptions(**options)
    found, left_out = problems(Path(folder), without=Path(store))
    if candidates is not None:
        found, without = with_candidates(found, Path(folder), Path(candidates))
        left_out = without
    kept = Store(Path(store))
    with _workers(settings) as (placed, told, runner):
        tasks = [Task(f, _key(f, placed, told)) for f in found]
        before = kept.latest()
        have = {t.key: before[t.key] for t in tasks if _is_done(before.get(t.key), placed.retry)}
        if board is not None:
            board.begin(len(tasks), list(have.values()))
        made = runner(Ledger(placed, kept, told, board)).run([t for t in tasks if t.key not in have])
    rows = {**have, **made}
    return Sweep(str(folder), str(store), [rows[t.key] for t in tasks], left_out, len(have))


def _is_done(row: dict[str, Any] | None, retry: bool) -> bool:
    return row is not None and (row["status"] == "proven" if retry else row["status"] in DONE)


@contextlib.contextmanager
def _workers(options: SweepOptions) -> Iterator[tuple[SweepOptions, dict[str, Any], Callable[[Ledger], Runner]]]:
    """Where candidates are judged, what machine that is, and who does the work: this machine or a cluster."""
    if options.ray is None:
        placed, gpus = _placed(options)
        yield placed, machine(placed.device), lambda ledger: LocalRunner(ledger, gpus)
        return
    from crucible.sweep.ray_cluster import connected
    from crucible.sweep.ray_runner import RayRunner, ask_machine, placed_on

    with connected(options.ray) as cluster:
        placed = placed_on(cluster, options)
        told = ask_machine(cluster, placed) if placed.device == "cuda" else machine(placed.device)
        yield placed, told, lambda ledger: RayRunner(ledger, cluster)


def _placed(options: SweepOptions) -> tuple[SweepOptions, list[str]]:
    """Where candidates are judged, and the GPUs: one process each."""
    import torch

    gpus: list[str] = []
    if options.device in ("auto", "cuda"):
        gpus = [str(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
        listed = [x.strip() for x in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if x.strip()]
        gpus = listed[: len(gpus)] if listed else gpus
        if options.device == "cuda" and not gpus:
            raise SweepError("torch finds no GPU here")
    return replace(options, device=("cuda" if gpus else "sim") if options.device == "auto" else options.device), gpus


def _key(found: Found, options: SweepOptions, told: dict[str, Any]) -> str:
    from crucible.tune.machine import planner_digest

    given = {k: v for k, v in asdict(options).items() if k in COUNTS}
    own = digest(found.candidate) if found.candidate is not None else f"fused {planner_digest()}"
    place = {k: told[k] for k in ("torch", "gpu", "switches")}
    return content_key(found.name, digest(found.problem), own, json.dumps(given), json.dumps(place, sort_keys=True))
