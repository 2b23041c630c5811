"""Outputs are wrong: find out in what way, from the cheap guesses to the ones that need another run."""

from __future__ import annotations

from typing import Any

import torch

from crucible.prove import hints, tensors
from crucible.prove.compare import Judgement
from crucible.prove.execute import same_bits
from crucible.prove.proof import Finding, Refutation
from crucible.prove.session import Session, Trial

MATCH = 0.05  # a variant explains a failure if the candidate is twenty times nearer to it than to the truth


def diagnose(session: Session, trial: Trial, name: str, judged: Judgement) -> Finding:
    """The finding for a main trial's output that failed its gate."""
    exact, got = trial.exact(name), trial.got(name)
    assert got is not None
    text, evidence = hints.describe(name, exact, got, judged)
    evidence["case"] = trial.spec.name
    flat = got.reshape(-1)
    if flat.numel() > 1 and bool((flat == flat[0]).all()) and not bool((exact == exact.reshape(-1)[0]).all()):
        return Finding(
            "constant_output", f"every element of {name} is {flat[0].item():g}, whatever the input", evidence
        )
    repeated = _same_as_before(session, trial, name, got)
    if repeated is not None:
        evidence["same_as"] = repeated
        return Finding(
            "cached_result",
            f"{name} is bit for bit the result of an earlier call with other inputs ({repeated}); {text}",
            evidence,
        )
    again = _again(session, trial, name, got)
    if again is not None:
        return Finding(again[0], f"{again[1]}; {text}", evidence)
    if not trial.spec.training and session.training and session.trials:
        return Finding("eval_mode", f"right in training mode, wrong in eval mode: {text}", evidence)
    if session.trials and _right_when_fresh(session, trial, name):
        return Finding(
            "cached_result",
            "the result is right in a fresh process and wrong after other calls: something is "
            f"kept between calls that depends on inputs or weights; {text}",
            evidence,
        )
    variant = _variant(session, trial, name, exact, got)
    if variant is not None:
        evidence["hint"] = variant["text"]
        return Finding(variant["code"], f"{text}\n  hint: this is what one gets with {variant['text']}", evidence)
    hint = hints.guess(exact, got, judged)
    if hint is None and session.trials:
        hint = f"right in: {', '.join(t.spec.name for t in session.trials)}"
    if hint:
        evidence["hint"] = hint
        text += f"\n  hint: {hint}"
    return Finding("wrong_values", text, evidence)


def _same_as_before(session: Session, trial: Trial, name: str, got: torch.Tensor) -> str | None:
    for earlier in session.trials:
        if earlier.case["folder"] != trial.case["folder"] and name in earlier.truth["tensors"]:
            other = earlier.got(name)
            if other is not None and same_bits(other, got) and got.numel() > 1:
                return earlier.spec.name
    return None


def _again(session: Session, trial: Trial, name: str, got: torch.Tensor) -> tuple[str, str] | None:
    """Run the same case again: with the same seed, then with another one."""
    if session.seconds_a_call > 20:
        return None
    same = session.execute(trial.spec, trial.case, trial.truth, tolerate=True)
    first = same.got(name)
    if first is None:
        return None
    other_seed = {**trial.case, "seed": trial.case["seed"] + 17}
    other = session.execute(trial.spec, other_seed, trial.truth, tolerate=True).got(name)
    if not same_bits(first, got):
        judged = same.judge(name)
        if judged is not None and judged.ok:
            return "not_deterministic", "the same call gives another result the second time, and a right one"
        return None
    if other is not None and not same_bits(other, first):
        return "seed_dependent", "the result depends on torch's random seed; the reference's does not"
    return None


def _right_when_fresh(session: Session, trial: Trial, name: str) -> bool:
    try:
        fresh = fresh_trial(session, trial)
    except Refutation:
        return False
    judged = fresh.judge(name) if fresh is not None else None
    return judged is not None and judged.ok


def fresh_trial(session: Session, trial: Trial, **extra: Any) -> Trial | None:
    """The same case as the first call of a new process; judged at once, because its files go with the process."""
    with session.second_worker(str(extra.pop("file", session.file)), **extra) as (child, scratch):
        loaded = session.candidate({"op": "load"}, child)
        if not loaded.get("ok"):
            return None
        session.candidate({"op": "construct", "init": session.problem["init"], "seed": 1, "save": False}, child)
        result = session.execute(trial.spec, trial.case, trial.truth, child=child, scratch=scratch, tolerate=True)
        for name in result.result_names:
            result.judge(name)
        result.kept = {n: result.got(n) for n in result.result_names}
        return result


def _variant(
    session: Session, trial: Trial, name: str, exact: torch.Tensor, got: torch.Tensor
) -> dict[str, Any] | None:
    """A plausible mistake that gives what the candidate gave."""
    if name != trial.output_names[0]:
        return None
    folder = trial.case["folder"]
    reply = session.reference({"op": "variants", "case": folder, "id": f"variants-{folder}"})
    base = (got.double() - exact).norm().item()
    best: dict[str, Any] | None = None
    nearest = MATCH * base
    for row in reply["variants"]:
        value = tensors.load(row["tensor"], session.truths / reply["folder"])
        if value.shape == got.shape:
            distance = (got.double() - value).norm().item()
            if distance < nearest:
                best, nearest = row, distance
    return best
