"""A race from start to end: the speed of light, the proofs, the contenders in turns, and what may be said of it."""

from __future__ import annotations

import contextlib
import functools
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from crucible.files import ProblemError, check_path
from crucible.plan import gpus
from crucible.problem import Problem, error_line, load_problem
from crucible.prove.proof import Proof
from crucible.prove.scan import scan_file
from crucible.prove.session import fresh_seed
from crucible.race import environment
from crucible.race.ceilings import of_data_sheet
from crucible.race.claims import conclude
from crucible.race.heats import Grid, Say, one_pass
from crucible.race.lanes import Gone
from crucible.race.light import Work, light, work_of
from crucible.race.names import AGAIN, BASELINES, EAGER
from crucible.race.options import RaceOptions
from crucible.race.record import Entry, Race, digest
from crucible.stamp import texts_of

NO_GPU = "no times: a race needs a CUDA GPU, and torch finds none here. Times are never simulated"


def race(
    reference: str | Path, candidates: Sequence[str | Path], *, progress: Say | None = None,
    proofs: Mapping[str, Proof | dict[str, Any]] | None = None, **options: Any,
) -> Race:  # fmt: skip
    """Time candidates beside the reference, eager and compiled, on the GPU of this machine.

    ``options`` are those of RaceOptions. ``proofs`` are such as were made already, or documents of them, by the
    digest of the candidate.
    Raises RaceError or ProblemError for a user's mistake; what a candidate does wrong is in the result.
    """
    options.setdefault("seed", fresh_seed())
    settings = RaceOptions(**options)
    say = progress or (lambda step, text: None)
    start = time.monotonic()
    source = check_path(Path(reference), "the reference")
    files = [check_path(Path(c), "the candidate") for c in candidates]
    say("speed of light", "")
    problem = load_problem(source)
    model = _built(problem)
    works = _works(problem, model, settings)
    result = _begin(reference, problem, model, settings, candidates, files)
    _shine(result, works, of_data_sheet(gpus.chosen(settings.gpu)), gpus.chosen(settings.gpu).title)
    for entry in result.candidates:
        if proofs and entry.digest in proofs:
            _adopt(entry, proofs[entry.digest])
    device = settings.device or _device()
    if device is None:
        result.untimed = NO_GPU
    else:
        _prove_all(result, source, files, settings, device, say)
        if any(c.may_race for c in result.candidates):
            _run(result, source, files, settings, device, works, say)
        else:
            result.untimed = "no times: no candidate is proven (--unproven races them all the same)"
    result.seconds = time.monotonic() - start
    return result


def _device() -> str | None:
    import torch

    return "cuda" if torch.cuda.is_available() else None


# -- before anything runs


def _built(problem: Problem) -> Any:
    try:
        return problem.build(0)
    except ProblemError:
        raise
    except Exception as error:  # noqa: BLE001  a Model may raise anything
        where = error_line(error, problem.path)
        text = f"{type(error).__name__}: {error}{where}"
        raise ProblemError(f"Model of {problem.path.name} cannot be made: {text}") from error


def _works(problem: Problem, model: Any, options: RaceOptions) -> dict[str, Work]:
    """What every pass must do at the least, in the type of the race."""
    import torch

    from crucible.exact import typed

    wanted = getattr(torch, options.dtype) if options.dtype else None

    def placed(t: Any) -> Any:
        real = isinstance(t, torch.Tensor) and t.is_floating_point()
        return t.to("meta", wanted) if real and wanted is not None else t

    model = typed(model, wanted) if wanted is not None else model
    inputs = problem.arguments([placed(t) for t in problem.declared])
    try:
        return {what: work_of(model, inputs, what == "training") for what in options.passes}
    except Exception as error:  # noqa: BLE001  forward() itself fails
        where = error_line(error, problem.path)
        raise ProblemError(f"Model of {problem.path.name} fails: {type(error).__name__}: {error}{where}") from error


def _begin(
    reference: str | Path, problem: Problem, model: Any, options: RaceOptions, names: Sequence[str | Path],
    files: Sequence[Path],
) -> Race:  # fmt: skip
    import torch

    tensors = [t for t in [*problem.declared, *model.parameters()] if isinstance(t, torch.Tensor)]
    real = [t for t in tensors if t.is_floating_point()]
    dtype = options.dtype or (str(real[0].dtype).removeprefix("torch.") if real else "float32")
    shapes = [list(s) if s is not None else None for s in problem.shapes]
    told = asdict(options)
    result = Race(str(reference), digest(problem.path), dtype, shapes, told.pop("seed"), told)
    result.source = texts_of(reference=problem.path).get("reference")
    result.environment = {**environment.environment(), "switches": environment.switches()}
    titles = _names([Path(n) for n in names])
    result.candidates = [
        Entry(t, str(n), digest(f), source=texts_of(candidate=f).get("candidate"))
        for t, n, f in zip(titles, names, files)
    ]
    for entry, file in zip(result.candidates, files):
        found = scan_file(file).finding
        if found is not None:
            entry.verdict, entry.reason = found.verdict, found.message
    return result


def _names(files: Sequence[Path]) -> list[str]:
    """Stems, or whole paths where stems are alike or are those of a baseline."""
    stems = [f.stem for f in files]
    taken = {*BASELINES, AGAIN}
    return [s if stems.count(s) == 1 and s not in taken else str(f) for s, f in zip(stems, files)]


def _shine(result: Race, works: dict[str, Work], found: dict[str, float], source: str) -> None:
    """The speed of light at these ceilings."""
    name = (result.environment.get("gpu") or {}).get("name")
    sheet = gpus.known_as(name) if name else gpus.chosen(result.options["gpu"]) if source != "measured" else None
    result.ceilings, result.ceilings_source = found, source
    result.light = {what: light(work, found, sheet).to_json() for what, work in works.items()}


# -- proofs


def _prove_all(
    result: Race, source: Path, files: Sequence[Path], options: RaceOptions, device: str, say: Say
) -> None:
    if options.unproven:
        return
    from crucible.prove.run import prove

    for entry, file in zip(result.candidates, files):
        if entry.verdict == "unproven":
            proof = prove(
                source, file, device=device, dtype=options.dtype, seed=result.seed, timeout=options.timeout,
                quick=options.quick, forward_only=options.forward_only, precision=options.precision,
                progress=functools.partial(_proving, say, entry.name),
            )  # fmt: skip
            _adopt(entry, proof)


def _adopt(entry: Entry, proof: Proof | dict[str, Any]) -> None:
    found = proof if isinstance(proof, dict) else proof.to_json(sources=False)
    entry.verdict, entry.proof, reason = found["verdict"], found, found["reason"]
    entry.reason = f"{reason['code']}: {reason['message']}" if reason else None


def _proving(say: Say, name: str, check: str, text: str) -> None:
    say(f"proving {name}: {check}", text)


# -- the race itself


def _run(
    result: Race, source: Path, files: Sequence[Path], options: RaceOptions, device: str, works: dict[str, Work],
    say: Say,
) -> None:  # fmt: skip
    import torch

    if device == "cuda":
        torch.cuda.empty_cache()  # what a proof compared here goes back before others want the memory
    with _folder() as root, contextlib.ExitStack() as stack:
        grid = Grid(result, source, options, device, root, stack, say)
        if not grid.open_eager():
            return
        if device == "cuda":
            say("ceilings", "copy and matrix products of this GPU")
            try:
                _shine(result, works, grid.eager.lane.ask("ceilings")["ceilings"], "measured")
            except Gone as gone:
                result.warnings.append(f"ceilings could not be measured ({gone}): those of the data sheet stand")
        grid.open_others(files)
        for what in options.passes:
            if not grid.starters or grid.eager.name != EAGER:
                result.warnings.append(f"{what} was not raced: the reference itself failed before")
                break
            result.passes.append(one_pass(grid, what, say))
            conclude(result, result.passes[-1])
        held = environment.throttled(result.state)
        result.warnings += [held] if held is not None else []


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="crucible-race-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
