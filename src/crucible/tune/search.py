"""The search: engines first, then the tiles of one contraction after another, the dearest first, while time is left.

The default and the reference are always in the table. A candidate is timed only after its error was compared with
theirs, always beside the best so far, and takes its place only if it is faster by more than noise.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from crucible.build.cache import content_key
from crucible.emit.host import Mode
from crucible.fuse import Fused
from crucible.plan.boxes import WindowTile
from crucible.plan.cost import stage_cost
from crucible.plan.stages import Contraction
from crucible.plan.ways import Choices, Site, Way, ways
from crucible.tune.bench import REFERENCE, Bench, Candidate, Checked
from crucible.tune.machine import Machine, grades
from crucible.tune.result import DEFAULT, Row, Tuning
from crucible.tune.store import Store

MARGIN = 0.99  # of the time to beat
SLACK = 2.0  # times the error of the reference, or of the default
ULPS = {"float32": 2.0**-21, "float64": 2.0**-50, "float16": 2.0**-9, "bfloat16": 2.0**-6}
CHECKING = 0.7  # of the time that is left, for building and checking
SMALL = 4e9  # operations; beyond, ordinary cores have no chance against tensor cores

Remake = Callable[[str, Choices], Fused]  # engine and choices to a file
Say = Callable[[float, str], None]  # seconds spent, and what is being done


@dataclass(frozen=True)
class _File:
    """An alternative on its way."""

    row: Row
    fused: Fused

    @property
    def name(self) -> str:
        return self.row.name


class Search:
    def __init__(
        self, fused: Fused, remake: Remake, bench: Bench, store: Store, budget: float, *,
        say: Say = lambda spent, text: None, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.fused, self.remake, self.bench, self.store, self.budget = fused, remake, bench, store, budget
        self.machine: Machine = store.machine
        self.grades = grades(fused.element, fused.options.precision)
        self.parts = problem_parts(fused, self.grades)
        self._say, self.clock = say, clock
        self.began = clock()
        self.rows: dict[str, Row] = {}
        self.texts: set[str] = set()
        self.limit: float | None = None  # of errors
        self.cut = False

    def run(self) -> Tuning:
        """What was found, now or before."""
        known = self.store.problem(self.parts)
        if known is not None and not (known.cut and known.budget < self.budget):
            known.cached = True
            return known
        try:
            best = self._engines()
            if best is not None:
                for site, name in sites(best.fused):
                    best = self._tiles(best, site, name)
        finally:
            self.bench.close()
        winner = best.name if best is not None else DEFAULT
        tuning = Tuning(
            self.machine.gpu, self.fused.element, list(self.rows.values()), winner, self.budget,
            self.clock() - self.began, self.cut,
        )  # fmt: skip
        if tuning.chosen.median is not None:
            self.store.keep_problem(self.parts, tuning)
        return tuning

    def refute(self, tuning: Tuning, name: str, why: str) -> None:
        """A file that was refuted does not win again, and its tiles are nobody's choice."""
        row = tuning.row(name)
        tuning.refute(name, why)
        if row is None:
            return
        picked = dict(row.choices.picks)
        for site, _ in sites(self.remake(row.engine, row.choices)) if picked else []:
            if site.text in picked:
                self.store.forget_site(site, *self._class(site, row.engine))
        self.store.keep_problem(self.parts, tuning)

    # -- time

    def left(self) -> float:
        return self.budget - (self.clock() - self.began)

    def say(self, text: str) -> None:
        self._say(self.clock() - self.began, text)

    # -- engines

    def _engines(self) -> _File | None:
        """The default against the reference, other engines, and tiles that were found to be fast before."""
        default = _File(Row(DEFAULT, self.fused.options.engine, self.fused.options.choices), self.fused)
        self.texts.add(self.fused.text)
        self.rows[DEFAULT] = default.row
        made = [default]
        known = self._known_tiles(default)
        if known.picks:
            made += self._made("tiles as found before", default.row.engine, known)
        if default.row.engine == "auto" and sites(self.fused):
            if self.machine.hopper:
                made += self._made("engine mma", "mma", Choices())
            if self._simt_may_win():
                made += self._made("engine simt", "simt", Choices())
        return self._fastest(made, None)

    def _known_tiles(self, file: _File) -> Choices:
        choices = file.row.choices
        for site, _ in sites(file.fused):
            label = self.store.site(site, *self._class(site, file.row.engine))
            if label is not None and label in {w.label for w in self._ways(site, file.row.engine)[1:]}:
                choices = choices.taking(site.text, label)
        return choices

    def _simt_may_win(self) -> bool:
        if self.machine.capability < (8, 0) or self.fused.element == "float64":
            return False  # the same kernels
        small = sum(_work(self.fused, site) for site, _ in sites(self.fused)) <= SMALL
        split = all(self.grades[s.rule] == "fp32" for s, _ in sites(self.fused))
        return small or (split and not self.machine.hopper)

    def _hopper(self, engine: str) -> bool:
        return engine == "auto" and self.machine.hopper

    def _class(self, site: Site, engine: str) -> tuple[str, str, bool]:
        return self.fused.element, self.grades[site.rule], self._hopper(engine)

    def _ways(self, site: Site, engine: str) -> list[Way]:
        """Ways that make a difference in this precision: boxes have no kernel for some, and only one packs."""
        grade = self.grades[site.rule]
        first, *others = ways(site, self._hopper(engine))
        if grade not in ("tf32", "native"):
            others = [w for w in others if not isinstance(w.tile, WindowTile)]
        if grade != "fp32":
            others = [w for w in others if not w.packed and w != replace(first, packed=False)]
        return [first, *others]

    # -- tiles

    def _tiles(self, best: _File, site: Site, name: str) -> _File:
        """The best way for one contraction, with all others as they are."""
        engine = best.row.engine
        kind = self._class(site, engine)
        if self.store.site(site, *kind) is not None:
            return best
        if self.left() <= 0:
            self.cut = True
            return best
        options = self._ways(site, engine)
        current = best.row.choices.label(site) or options[0].label
        made: list[_File] = []
        label_of = {best.name: current}
        for way in options:
            if way.label != current:
                new = self._made(f"{name}: {way.label}", engine, best.row.choices.taking(site.text, way.label))
                label_of.update((f.name, way.label) for f in new)
                made += new
        if not made:
            return best
        before = self.cut
        self.cut = False
        found = self._fastest(made, best) or best
        if not self.cut:
            rows = [(label, self.rows[n]) for n, label in label_of.items()]
            times = {label: row.median for label, row in rows if row.median is not None}
            self.store.keep_site(site, *kind, label_of[found.name], times)
        self.cut = self.cut or before
        return found

    # -- candidates

    def _made(self, name: str, engine: str, choices: Choices) -> list[_File]:
        """The file for an alternative; none where it is one that was tried already, or there is no time for it."""
        if self.left() <= 0:
            self.cut = True
            return []
        self.say(f"writing {name}")
        row = Row(name, engine, choices)
        try:
            fused = self.remake(engine, choices)
        except Exception as error:  # noqa: BLE001  one alternative that cannot be written is no reason to stop
            self.rows[name] = replace(row, note=f"{type(error).__name__}: {error}")
            return []
        if fused.text in self.texts:
            return []
        self.texts.add(fused.text)
        self.rows[name] = row
        return [_File(row, fused)]

    def _fastest(self, files: Sequence[_File], best: _File | None) -> _File | None:
        """Check, time, and compare with the best so far; without one, with the reference in the table too."""
        candidates = [Candidate(f.name, f.fused.text, _elements(f.fused)) for f in files]
        if best is None:
            self.rows[REFERENCE] = Row(REFERENCE, "")
            candidates.append(Candidate(REFERENCE, None))
        names = [c.name for c in candidates]
        if self.left() <= 0:
            return self._stopped(names, best)
        self.say(f"building {len(candidates)} alternatives")
        checked = self.bench.check(candidates, CHECKING * self.left())
        if best is None:
            self._set_limit(checked)
        fine = [n for n in names if self._passed(n, checked.get(n, Checked(None, "not checked")))]
        if self.left() <= 0:
            return self._stopped(fine, best)
        self.say(f"timing {len(fine)} of {len(candidates)}")
        beside = [best.name] if best is not None else []
        times = self.bench.time([*beside, *fine], self.left())
        for name, t in times.items():
            if t.median is not None or self.rows[name].median is None:
                late = t.failed if t.median is None else ""
                self.rows[name] = replace(self.rows[name], median=t.median, low=t.low, high=t.high, note=late)
                self.cut = self.cut or "no time was left" in late
        found = self._winner(files, best, {n: t.median for n, t in times.items() if t.median is not None})
        self.bench.keep([found.name] if found is not None else [])
        return found

    def _stopped(self, names: Sequence[str], best: _File | None) -> _File | None:
        self.cut = True
        for name in names:
            self.rows[name] = replace(self.rows[name], note="not timed: the budget was spent")
        return best

    def _set_limit(self, checked: dict[str, Checked]) -> None:
        """Errors that are allowed: some more than the reference has, or the default, which is proven afterwards."""
        errors = [checked[n].error for n in (REFERENCE, DEFAULT) if n in checked]
        known = [e for e in errors if e is not None and math.isfinite(e)]
        self.limit = SLACK * max([*known, ULPS[self.fused.element] / SLACK]) if known else None

    def _passed(self, name: str, checked: Checked) -> bool:
        note = checked.failed
        error = checked.error
        if error is not None and name != REFERENCE and (self.limit is None or not error <= self.limit):
            allowed = "nothing to compare it with" if self.limit is None else f"allowed {self.limit:.1e}"
            note = f"error {error:.1e}, {allowed}"
        finite = error if error is not None and math.isfinite(error) else None
        self.rows[name] = replace(self.rows[name], error=finite, note=note)
        self.cut = self.cut or "no time was left" in note or "not built after" in note
        return not note

    def _winner(self, files: Sequence[_File], best: _File | None, times: dict[str, float]) -> _File | None:
        """The fastest, if it beats the best so far (or the default) by more than noise."""
        timed = [f for f in files if f.name in times]
        held = best if best is not None else next((f for f in timed if f.name == DEFAULT), None)
        fastest = min(timed, key=lambda f: times[f.name], default=None)
        if held is None or held.name not in times:
            # What cannot be timed any more cannot be compared.
            return held if held is not None else fastest
        if fastest is None or times[fastest.name] > MARGIN * times[held.name]:
            return held
        return fastest


# -- what is looked at


def timed_mode(fused: Fused) -> Mode:
    """The pass that is timed: forward without gradients, as the Model is made."""
    mode = fused.modes[0]
    return mode.inference or mode


def _stages(fused: Fused) -> list[Contraction]:
    stages = timed_mode(fused).plan.forward_stages
    return [s for s in stages if isinstance(s, Contraction) and s.site is not None]


def _work(fused: Fused, site: Site) -> int:
    program = timed_mode(fused).plan.program
    return sum(stage_cost(s, program, fused.element).contraction for s in _stages(fused) if s.site == site)


def sites(fused: Fused) -> list[tuple[Site, str]]:
    """The contractions of the timed pass with the operators they are, the dearest first."""
    named: dict[Site, list[str]] = {}
    for stage in _stages(fused):
        assert stage.site is not None
        named.setdefault(stage.site, []).append(stage.contract.node)
    listed = [(site, ", ".join(dict.fromkeys(nodes))) for site, nodes in named.items()]
    return sorted(listed, key=lambda s: -_work(fused, s[0]))


def _elements(fused: Fused) -> int:
    program = timed_mode(fused).plan.program
    return max((program.hint(b.numel) for b in program.buffers.values()), default=0)


def problem_parts(fused: Fused, how: dict[str, str]) -> tuple[str, ...]:
    """What a Problem's entry depends on beside the machine: the default file, the sizes, type and precision."""
    program = timed_mode(fused).plan.program
    shapes = [f"{b.name}{[program.hint(s) for s in b.shape]}" for b in program.buffers.values() if b.role == "input"]
    body = fused.text.split('"""', 2)[-1]  # the header has the proof
    options = fused.options
    return (content_key(body), *shapes, fused.element, options.engine, *sorted(f"{k}={v}" for k, v in how.items()))
