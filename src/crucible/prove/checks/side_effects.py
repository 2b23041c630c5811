"""Side effects: buffers after the call, inputs and parameters left alone, random state as the reference leaves it."""

from __future__ import annotations

from crucible.prove import hints, tensors
from crucible.prove.execute import same_bits
from crucible.prove.proof import Check, Finding, Refutation
from crucible.prove.session import Session, Trial

NAME, TITLE = "side_effects", "Side effects"


def run(session: Session, check: Check) -> None:
    buffers: set[str] = set()
    for trial in session.trials:
        judge_side_effects(session, trial)
        buffers |= {n.removeprefix("buffer:") for n in trial.truth["tensors"] if n.startswith("buffer:")}
    changed = (
        "inputs changed as the reference does" if session.trials[0].truth["inputs_changed"] else "inputs untouched"
    )
    check.note(f"{changed}, parameters untouched, random state as the reference leaves it")
    if buffers:
        check.note(f"buffers agree: {', '.join(sorted(buffers))}")


def judge_side_effects(session: Session, trial: Trial) -> None:
    """Raise the finding for what a trial did beside returning its result."""
    judge_changes(trial)
    if any(trial.reply.get("random_changed", [])) and not trial.truth["drew_random"]:
        raise Refutation(
            Finding(
                "rng_state",
                "forward() draws from torch's random generator; the reference does not, so "
                "everything random after it changes",
                {"case": trial.spec.name},
            )
        )
    for name in trial.truth["tensors"]:
        if name.startswith("buffer:"):
            _judge_buffer(session, trial, name)
        elif name.startswith("input:"):
            _judge_input(session, trial, int(name.removeprefix("input:")))


def judge_changes(trial: Trial) -> None:
    """Raise the finding for a changed input or parameter: the cause of much that is wrong in later calls."""
    where = {"case": trial.spec.name}
    allowed = set(trial.truth["inputs_changed"])
    for row in trial.reply.get("inputs_changed", []):
        if row["input"] in allowed:
            continue
        if row["constant"]:
            raise Refutation(
                Finding(
                    "input_tampering",
                    f"the candidate overwrites input {row['input']} with the constant "
                    f"{row['value']:g}: whoever computes with it next gets an easier answer",
                    {**where, **row},
                )
            )
        raise Refutation(
            Finding(
                "input_modified",
                f"the candidate changes input {row['input']} in place ({row['elements']} of "
                f"{row['of']} elements); the reference does not",
                {**where, **row},
            )
        )
    changed = trial.reply.get("parameters_changed") or []
    if changed:
        raise Refutation(
            Finding("parameter_modified", f"forward() changes parameters: {', '.join(changed[:4])}", where)
        )


def _judge_buffer(session: Session, trial: Trial, name: str) -> None:
    short = name.removeprefix("buffer:")
    got, judged = trial.got(name), trial.judge(name)
    if got is None or judged is None:
        raise Refutation(Finding("buffers_wrong", f"buffer {short} is missing or has the wrong shape after forward()"))
    if judged.ok:
        return
    exact = trial.exact(name)
    info = trial.case["state"]["tensors"].get(short)
    before = tensors.load(info, session.cases / trial.case["state"]["folder"]) if info else None
    text, evidence = hints.describe(f"buffer {short}", exact, got, judged)
    evidence["case"] = trial.spec.name
    if before is not None and same_bits(before, got):
        raise Refutation(
            Finding(
                "buffers_not_updated", f"forward() does not update buffer {short}, the reference does: {text}", evidence
            )
        )
    raise Refutation(Finding("buffers_wrong", f"after forward() {text}", evidence))


def _judge_input(session: Session, trial: Trial, number: int) -> None:
    """What the reference writes into an input is written."""
    name = f"input:{number}"
    got, judged = trial.got(name), trial.judge(name)
    if got is None or judged is None:
        raise Refutation(Finding("inputs_wrong", f"input {number} is missing or has the wrong shape after forward()"))
    if judged.ok:
        return
    text, evidence = hints.describe(f"input {number}", trial.exact(name), got, judged)
    evidence["case"] = trial.spec.name
    before = tensors.decode(trial.case["inputs"][number], session.cases / trial.case["folder"])
    if same_bits(before, got):
        raise Refutation(
            Finding(
                "inputs_not_updated", f"forward() leaves input {number} alone, the reference writes: {text}", evidence
            )
        )
    raise Refutation(Finding("inputs_wrong", f"after forward() {text}", evidence))
