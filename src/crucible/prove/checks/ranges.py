"""Ranges: large, tiny and mixed magnitudes, constants, zeros, a large mean, inf and nan."""

from __future__ import annotations

from typing import Any

from crucible.prove import hints
from crucible.prove.cases import Spec
from crucible.prove.checks.forward import output_structure
from crucible.prove.outcome import error_finding
from crucible.prove.proof import Check, Finding, Refutation
from crucible.prove.session import Refused, Session

NAME, TITLE = "ranges", "Ranges"

# (words, values, weights), most telling first
CASES: tuple[tuple[str, str, str], ...] = (
    ("a large mean before a normalisation", "normal", "offset"),
    ("inputs with mean 1e4", "offset", "fresh"),
    ("inputs and sums with a large mean", "grid_offset", "level"),
    ("tiny inputs", "tiny", "fresh"),
    ("huge inputs", "huge", "fresh"),
    ("mixed magnitudes", "mixed", "fresh"),
    ("samples of different magnitude", "samples", "fresh"),
    ("inf and nan", "special", "fresh"),
    ("all zeros", "zeros", "fresh"),
    ("constant inputs", "constant", "fresh"),
)
QUICK = {"a large mean before a normalisation", "inputs with mean 1e4", "mixed magnitudes", "inf and nan"}
HEAVY = {"a large mean before a normalisation", "inputs with mean 1e4", "tiny inputs", "inf and nan"}


def run(session: Session, check: Check) -> None:
    has_float = any(d and "float" in d["dtype"] for d in session.problem["declared"])
    if not has_float:
        check.status = "skipped"
        check.note("no floating-point inputs")
        return
    passed = []
    for spec, trial in session.run_all(_specs(session), tolerate=True):
        if isinstance(trial, Refused):
            continue
        if _nothing_left(trial):
            continue
        if trial.error is not None:
            fault = session.fault(trial.reply) or error_finding(
                trial.error, session.file, "range_values", f"with {spec.name} forward() raises"
            )
            raise Refutation(fault)
        finding = _judge(session, spec, trial)
        if finding is not None:
            raise Refutation(finding)
        passed.append(spec.name)
        session.forget(trial)
    check.note(f"right with: {', '.join(passed)}")


def _specs(session: Session) -> list[Spec]:
    chosen = [c for c in CASES if not session.options.quick or c[0] in QUICK]
    if session.heavy:
        chosen = [c for c in CASES if c[0] in HEAVY]
    if not _has_contraction_bias(session):
        chosen = [c for c in chosen if c[2] != "offset"]
    specs = []
    for words, values, weights in chosen:
        options: dict[str, Any] = {"values": values, "weights": weights}
        specs.append(
            Spec(
                words,
                session.seed(words),
                session.small,
                training=session.training,
                classes=values == "mixed",
                weights_seed=session.seed("shared"),
                steady=False,
                **options,
            )
        )
    return specs


def _has_contraction_bias(session: Session) -> bool:
    shapes = {name: shape for name, shape, _, _ in session.problem["state"]}
    return any(n.endswith("bias") and len([m for m in shapes.get(n[:-4] + "weight", []) if m > 1]) >= 2 for n in shapes)


def _nothing_left(trial: Any) -> bool:
    """Whether eager itself is lost everywhere: then there is nothing to hold the candidate to."""
    masks = [trial.mask(n) for n in trial.output_names]
    return bool(masks) and all(m is not None and bool((m == 1).all()) for m in masks)


def _judge(session: Session, spec: Spec, trial: Any) -> Finding | None:
    fault = session.fault(trial.reply)
    if fault is not None:
        return Finding(fault.code, f"with {spec.name}: {fault.message}", {**fault.evidence, "case": spec.name})
    structure = output_structure(trial)
    if structure is not None:
        return structure
    for name in trial.forward_names:
        judged = trial.judge(name)
        if judged is not None and not judged.ok:
            exact, got = trial.exact(name), trial.got(name)
            assert got is not None
            text, evidence = hints.describe(name.replace("input:", "input "), exact, got, judged)
            evidence["case"] = spec.name
            hint = hints.guess(exact, got, judged) if judged.demanded is None else None
            if spec.values in ("offset", "grid_offset") or spec.weights == "offset":
                hint = (
                    "a variance computed as E[x^2] - E[x]^2 loses everything to cancellation here"
                    if (judged.error.l2 > 10 * judged.limit_l2)
                    else hint
                )
            return Finding(
                "range_values", f"with {spec.name}: {text}" + (f"\n  hint: {hint}" if hint else ""), evidence
            )
    return None
