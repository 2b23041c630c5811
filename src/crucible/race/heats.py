"""The contenders in their processes, and the rounds in which they take turns."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crucible.race import environment, stats
from crucible.race.contenders import makes_sense
from crucible.race.lanes import Cheated, Gone, Lane
from crucible.race.names import AGAIN, BASELINES, EAGER, TITLES
from crucible.race.options import RaceOptions
from crucible.race.record import Entry, Pass, Race, Row
from crucible.race.worker import CANDIDATE

Say = Callable[[str, str], None]  # step, what is being done


@dataclass
class Starter:
    """A contender on the grid: its process and what is known of it."""

    name: str
    lane: Lane
    entry: Entry | None
    first_result: float
    build: float

    @property
    def title(self) -> str:
        return TITLES.get(self.name, self.name)

    @property
    def kind(self) -> str:
        return "candidate" if self.entry is not None else "baseline"

    def row(self) -> Row:
        file = self.entry.file if self.entry else None
        return Row(self.name, self.kind, file, build_seconds=self.build, first_result_seconds=self.first_result)


class Grid:
    """Starts contenders; those that cannot start are rows that say why.

    The processes of all others start at once, while nobody is timed; then each builds and is called once, alone.
    """

    def __init__(
        self, result: Race, source: Path, options: RaceOptions, device: str, root: Path, stack: contextlib.ExitStack,
        say: Say,
    ) -> None:  # fmt: skip
        self.result, self.source, self.options, self.device = result, source, options, device
        self.root, self.stack, self.say = root, stack, say
        self.random = random.Random(result.seed)
        self.starters: list[Starter] = []
        self.failed: list[Row] = []
        self.evaluating = False

    @property
    def eager(self) -> Starter:
        return self.starters[0]

    def open_eager(self) -> bool:
        try:
            lane = self._lane(EAGER, EAGER, None)
            lane.ready()
            self._open(lane, None)
        except Gone as gone:
            self.result.untimed = f"no times: the reference itself cannot be run: {gone}"
            return False
        return True

    def open_others(self, files: Sequence[Path]) -> None:
        wanted: list[tuple[str, str, Path | None, Entry | None]] = [(AGAIN, AGAIN, None, None)]
        shapes = self.result.shapes
        wanted += [(n, n, None, None) for n in BASELINES[1:] if n in self.options.against and makes_sense(n, shapes)]
        pairs = zip(self.result.candidates, files)
        wanted += [(e.name, CANDIDATE, file, e) for e, file in pairs if e.may_race]
        self.say("starting", "a process for each contender")
        lanes: list[tuple[Lane, Entry | None]] = []
        ready: list[tuple[Lane, Entry | None]] = []
        for name, kind, given, entry in wanted:
            with self._failing(name, entry):
                lanes.append((self._lane(name, kind, given), entry))
        for lane, entry in lanes:
            with self._failing(lane.name, entry):
                lane.ready()
                ready.append((lane, entry))
        for lane, entry in ready:
            with self._failing(lane.name, entry):
                self._open(lane, entry)

    @contextlib.contextmanager
    def _failing(self, name: str, entry: Entry | None) -> Iterator[None]:
        """Who fails within this is a row that says why."""
        try:
            yield
        except Gone as gone:
            row = Row(name, "candidate" if entry else "baseline", entry.file if entry else None)
            row.end(*_how(gone))
            self.failed.append(row)

    def let_go(self, done: Pass) -> None:
        """Who failed in one pass does not start in the next."""
        out = {r.contender: r for r in done.rows if r.status != "timed"}
        for starter in self.starters:
            if starter.name in out:
                self.failed.append(out[starter.name])
                starter.lane.close()  # others may want its memory
        self.starters = [s for s in self.starters if s.name not in out]

    def _lane(self, name: str, kind: str, file: Path | None) -> Lane:
        lane = Lane(name, kind, file, self.root, self.options.timeout, self.device == "cuda")
        self.stack.callback(lane.close)
        return lane

    def _open(self, lane: Lane, entry: Entry | None) -> None:
        self.say("starting", TITLES.get(lane.name, lane.name))
        try:
            self._build(lane, entry)
        except Gone:
            lane.close()
            raise

    def _build(self, lane: Lane, entry: Entry | None) -> None:
        """Load, build and call it once."""
        opened = lane.ask(
            "open", problem=str(self.source), kind=lane.kind, file=str(lane.file) if lane.file else None,
            device=self.device, dtype=self.options.dtype, shapes=self.result.shapes, seed=self.result.seed,
            switches=self.result.environment["switches"],
        )  # fmt: skip
        if lane.kind == EAGER:
            self._note(opened)
            self.evaluating = bool(lane.ask("spread", seed=self.random.getrandbits(30))["random"])
            if self.evaluating:
                self.result.mode = "evaluation"
        built = lane.ask("build", evaluating=self.evaluating)
        first = lane.ask("first", what="forward", seed=self.random.getrandbits(30))
        seconds = built["seconds"] + first["seconds"]
        self.starters.append(Starter(lane.name, lane, entry, lane.seconds(), seconds))

    def _note(self, opened: dict[str, Any]) -> None:
        told = {k: opened.get(k) for k in ("torch", "cuda", "python", "gpu")}
        self.result.environment.update(told, lag_milliseconds=opened["lag"])
        if self.device == "cuda":
            self.result.environment["driver"] = environment.driver()


def _how(gone: Gone) -> tuple[str, str]:
    return ("refuted" if isinstance(gone, Cheated) else "failed"), str(gone)


def one_pass(grid: Grid, what: str, say: Say) -> Pass:
    """All rounds of a pass: everybody takes a turn in every round, in another order each time."""
    done = Pass(what, [*(s.row() for s in grid.starters), *grid.failed])
    rows = {s.name: done.row(s.name) for s in grid.starters}
    running = [s for s in grid.starters if _prepared(grid, s, what, rows[s.name], say)]
    worst: dict[str, stats.Checked] = {}
    for number in range(grid.options.rounds):
        state = environment.gpu_state() if grid.device == "cuda" else None
        grid.result.state.append({"pass": what, "round": number, "gpu": state})
        seeds = [grid.random.getrandbits(30) for _ in range(grid.options.samples)]
        check = grid.random.randrange(len(seeds))  # the same call of all: its truth is found once
        looked: dict[str, dict[str, Any]] = {}
        turn = number % len(running) if running else 0
        for starter in running[turn:] + running[:turn]:
            say(f"racing, {what}", f"round {number + 1} of {grid.options.rounds}, {starter.title}")
            row = rows[starter.name]
            assert row is not None
            try:
                looked[starter.name] = _turn(grid, starter, what, seeds, check, row)
            except Gone as gone:
                row.end(*_how(gone))
                starter.lane.close()
        running = [s for s in running if s.name in looked]
        if not running or running[0].name != EAGER:
            break
        _check_round(grid, what, looked, rows, worst)
        running = [s for s in running if rows[s.name].status == "timed"]  # type: ignore[union-attr]
    if grid.device == "cuda":
        for starter in running:
            _divide(grid, starter, what, rows[starter.name], say)
    grid.let_go(done)
    return done


def _divide(grid: Grid, starter: Starter, what: str, row: Row | None, say: Say) -> None:
    """How the time of a candidate divides among its kernels. A failure here costs no time that was taken."""
    assert row is not None
    if row.kind != "candidate" or row.status != "timed":
        return
    say(f"racing, {what}", f"the kernels of {starter.title}")
    try:
        reply = starter.lane.ask("kernels", what=what, seed=grid.random.getrandbits(30))
    except Gone as gone:
        grid.result.warnings.append(f"the kernels of {starter.title} were not timed one by one: {gone}")
        return
    row.kernels = reply["kernels"]
    if reply["note"]:
        grid.result.warnings.append(f"the kernels of {starter.title} were not timed one by one: {reply['note']}")


def _prepared(grid: Grid, starter: Starter, what: str, row: Row | None, say: Say) -> bool:
    """The first call of this pass, with its peak of memory."""
    assert row is not None
    say(f"racing, {what}", f"first call of {starter.title}")
    try:
        reply = starter.lane.ask("first", what=what, seed=grid.random.getrandbits(30))
    except Gone as gone:
        row.end(*_how(gone))
        return False
    row.peak = reply["peak"]
    if what == "training":
        row.build_seconds, row.first_result_seconds = reply["seconds"], None
    return True


def _turn(grid: Grid, starter: Starter, what: str, seeds: list[int], check: int, row: Row) -> dict[str, Any]:
    reply = starter.lane.ask("turn", what=what, seeds=seeds, warm=grid.options.warm, check=check)
    row.samples.append([float(t) for t in reply["times"]])
    row.left_threads = row.left_threads or bool(reply["threads"])
    found: dict[str, Any] = reply["check"]
    return found


def _check_round(
    grid: Grid, what: str, looked: dict[str, dict[str, Any]], rows: dict[str, Row | None],
    worst: dict[str, stats.Checked],
) -> None:  # fmt: skip
    """Hold what the timed calls of a round returned against float64."""
    names = list(looked)
    places = [looked[n]["places"] for n in names]
    try:
        told = grid.eager.lane.ask("truth", what=what, seed=looked[EAGER]["seed"], places=places)
    except Gone as gone:
        grid.result.warnings.append(f"the outputs of a round of {what} were not compared: {gone}")
        return
    for k, name in enumerate(names):
        row = rows[name]
        assert row is not None
        truth, eager, other = (told[key][k] for key in ("truth", "eager", "other"))
        found = stats.check(looked[name]["values"], truth, eager, other, told["source"], grid.result.dtype)
        if name not in worst or not found.right or found.error > worst[name].error:
            worst[name] = found
            row.checked = found.to_json()
        if not found.right:
            status = "refuted" if row.kind == "candidate" else "failed"
            row.end(status, f"wrong in a timed call: {found.where} is off by {found.error:.2e}, eager by "
                            f"{found.eager:.2e}")  # fmt: skip
