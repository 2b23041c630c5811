"""Fuse a Problem's file into a file beside it, prove that, and write into its header what was proven."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crucible import __version__
from crucible.emit.file import MARK
from crucible.files import check_path
from crucible.fuse import DTYPES, Fused, FuseError, FuseOptions, fuse_problem
from crucible.plan.gpus import Gpu, chosen
from crucible.report.explain import Explanation, explain, explain_text
from crucible.report.sentence import UNDER_WAY, proof_sentence
from crucible.stamp import now_text, program_digest, texts_of
from crucible.tune import run as tune_run
from crucible.tune.run import Gauge, Tuned
from crucible.write import WriteError, write_atomically

if TYPE_CHECKING:
    from crucible.prove.proof import Proof

SCHEMA = 1
KIND = "fuse"
Say = Callable[[str, str], None]  # (step, what it is doing)


@dataclass
class FusedFile:
    """A written file: where it is, what it holds, how it was planned, and what the proof said."""

    path: Path
    fused: Fused
    gpu: Gpu
    proofs: list[Proof] = field(default_factory=list)
    model: Path | None = None  # the file that was fused

    @property
    def text(self) -> str:
        return self.fused.text

    @property
    def proof(self) -> Proof | None:
        """The proof that decides: the first that is not "proven", else the first; None where none was asked for."""
        return next((p for p in self.proofs if not p.ok), self.proofs[0] if self.proofs else None)

    @property
    def explanation(self) -> str:
        return explain_text(self.fused, self.gpu)

    @property
    def explained(self) -> Explanation:
        return explain(self.fused, self.gpu)

    @property
    def exit_code(self) -> int:
        """0 proven or no proof asked for, 1 refuted, 2 could not be judged."""
        return self.proof.exit_code if self.proof is not None else 0

    def to_json(self) -> dict[str, Any]:
        """Schema 1: the file, the plan (see Explanation.to_json) and the deciding proof (see Proof.to_json)."""
        return {
            "schema": SCHEMA,
            "kind": KIND,
            "model": str(self.model) if self.model is not None else None,
            "file": str(self.path),
            "environment": {"crucible": __version__, "program": program_digest(), "date": now_text()},
            "sources": {**(texts_of(reference=self.model) if self.model is not None else {}), "candidate": self.text},
            "plan": self.explained.to_json(),
            "proof": self.proof.to_json(sources=False) if self.proof is not None else None,
            "proofs": [{"dtype": p.options.get("dtype"), "verdict": p.verdict, "seed": p.seed} for p in self.proofs],
        }


def fuse_file(
    path: str | Path, output: str | Path | None = None, *, engine: str = "auto", precision: str = "torch",
    dtype: str | Sequence[str] | None = None, strict: bool = False, forward_only: bool = False, force: bool = False,
    prove: bool = True, gpu: str | None = None, tune: bool | None = None, tune_budget: float = 120.0,
    planned: Callable[[FusedFile], None] | None = None, progress: Say = lambda step, text: None,
    gauge: Gauge | None = None, **proof_options: Any,
) -> FusedFile:  # fmt: skip
    """Write the ModelNew of ``path`` to ``output`` (by default NAME_new.py beside it) and prove it.

    ``tune`` measures alternatives on the GPU of this machine for ``tune_budget`` seconds and takes the fastest that is
    proven; by default it does so where there is a GPU. ``proof_options`` are those of ``crucible.prove``; ``planned``
    is called once the file is there and before it is proven. Raises FuseError, CaptureError or ProblemError where no
    file can be made, ValueError for a senseless option.
    """
    dtypes = [] if dtype is None else dtype.split(",") if isinstance(dtype, str) else list(dtype)
    dtypes = [d.strip().removeprefix("torch.") for d in dtypes]
    options = FuseOptions(engine, precision, tuple(dtypes) or DTYPES, forward_only, strict, tune, tune_budget)
    target = chosen(gpu)
    tuning = tune_run.wanted(options, proof_options.get("device"))
    if prove:
        _check_proof_options(strict, forward_only, precision, dtypes, proof_options)
    source = check_path(Path(path), "the Model's file")
    destination = output_path(Path(path), output, force)
    fused = fuse_problem(source, options, lambda step: progress(step, ""))
    fused = tune_run.with_shipped(source, fused, target)
    tuned = None
    if tuning:
        tuned = _tuned(source, fused, gauge or (lambda step, spent, total, text: progress(step, text)), progress)
        fused = fused if tuned is None else tuned.fused

    def run(each: str | None) -> Proof:
        from crucible.prove.run import prove

        return prove(
            path, destination, progress=progress, dtype=each, strict=strict, forward_only=forward_only,
            precision=_proof_precision(precision), **proof_options,
        )  # fmt: skip

    while True:
        fused = fused.with_proof(UNDER_WAY if prove else proof_sentence([]))
        _write(destination, fused.text)
        made = FusedFile(destination, fused, target, model=Path(path))
        if planned is not None:
            planned(made)
        if not prove:
            return made
        for each in [None] if fused.mixed or not dtypes else dtypes:
            made.proofs.append(run(each))
            if not made.proofs[-1].ok:
                break
        made.fused = fused.with_proof(proof_sentence(made.proofs))
        _write(destination, made.fused.text)
        last = made.proofs[-1]
        if tuned is None or last.verdict != "refuted" or not tuned.refute(last.reason.message if last.reason else ""):
            return made
        progress("tuning", f"refuted; the next fastest is {tuned.tuning.winner}")
        fused = tuned.fused


def _tuned(source: Path, fused: Fused, gauge: Gauge, progress: Say) -> Tuned | None:
    """What tuning found. Where nobody asked for it, a failure costs nothing but the cost model's choice."""
    try:
        return tune_run.tune(source, fused, gauge)
    except Exception as error:
        if fused.options.tune:
            raise FuseError(f"tuning failed: {error}; --no-tune takes the cost model's choices") from error
        progress("tuning", f"failed ({error}); the cost model's choices are kept")
        return None


def _proof_precision(precision: str) -> str:
    return "fp32" if precision == "fp32" else "torch"


def _check_proof_options(
    strict: bool, forward_only: bool, precision: str, dtypes: Sequence[str], given: dict[str, Any]
) -> None:
    """Find a senseless option before the work, not after it."""
    from crucible.prove.options import Options

    known = {k: v for k, v in given.items() if v is not None}
    Options(strict=strict, forward_only=forward_only, precision=_proof_precision(precision),  # type: ignore[arg-type]
            dtype=dtypes[0] if dtypes else None, **known)  # fmt: skip


# -- where it goes


def output_path(source: Path, output: str | Path | None, force: bool) -> Path:
    """Where the file goes, or a FuseError: a file that is not ours is not written over unless ``force`` says so."""
    path = Path(output) if output is not None else source.with_name(f"{source.stem}_new.py")
    if path.is_dir():
        raise FuseError(f"{path} is a folder; give the name of the file to write")
    if not path.parent.is_dir():
        raise FuseError(f"{path} cannot be written: there is no folder {path.parent}")
    if path.resolve() == source.resolve():
        raise FuseError(f"{path} is the Model's own file; give another name to write to")
    if path.exists() and not force and not is_ours(path):
        raise FuseError(f"{path} exists and was not made by crucible; give another name with -o, or use --force")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise FuseError(f"{path} cannot be written: permission denied")
    return path


def is_ours(path: Path) -> bool:
    """Whether a file begins with the mark that every file of ours has."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(4096).lstrip().startswith(f'"""{MARK}')
    except OSError:
        return False


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, text)
    except WriteError as error:
        raise FuseError(str(error)) from None
