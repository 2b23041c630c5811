"""Determinism: the same call twice, and with the blocks and warps of its kernels in other orders."""

from __future__ import annotations

from crucible.exact import is_number, wide
from crucible.prove.compare import measure
from crucible.prove.execute import same_bits
from crucible.prove.proof import Check, Finding, Refutation
from crucible.prove.session import Session, Trial

NAME, TITLE = "determinism", "Determinism"
SCHEDULES = {1: "in descending order", 2: "in random order"}


def run(session: Session, check: Check) -> None:
    trial = _reference_trial(session)
    exact_names = trial.forward_names + [n for n in trial.truth["tensors"] if n.startswith("grad:")]
    again = _again(session, trial, exact_names)
    differences = _compare(trial, again, exact_names, "when it is simply made twice")
    orders = ["twice"]
    if session.options.device == "sim":
        schedules = [2] if session.options.quick or session.heavy else list(SCHEDULES)
        for schedule in schedules:
            other = session.execute(
                trial.spec, trial.case, trial.truth, device={"schedule": schedule, "seed": session.seed("schedule")}
            )
            found = _compare(trial, other, exact_names, f"when blocks and warps run {SCHEDULES[schedule]}")
            differences = {**differences, **found}
            orders.append(f"blocks {SCHEDULES[schedule]}")
            session.forget_reply(other)
    session.forget_reply(again)
    if differences:
        name, size = max(differences.items(), key=lambda item: item[1])
        check.note(f"not bit for bit: {name} varies by {size:.1e} (within its permitted error)")
    else:
        check.note(f"bit for bit the same: {', '.join(orders)}")


def _again(session: Session, trial: Trial, names: list[str]) -> Trial:
    """The same call, with torch's random generator in another state unless the reference uses it."""
    if trial.truth["drew_random"]:
        return session.execute(trial.spec, trial.case, trial.truth)
    again = session.execute(trial.spec, {**trial.case, "seed": trial.case["seed"] + 4711}, trial.truth)
    try:
        _compare(trial, again, names, "")
    except Refutation:
        same = session.execute(trial.spec, trial.case, trial.truth)
        _compare(trial, same, names, "when it is simply made twice")  # raises if the seed is not to blame
        raise Refutation(
            Finding(
                "seed_dependent",
                "the result depends on torch's random seed; the reference's does not",
                {"case": trial.spec.name},
            )
        ) from None
    return again


def _reference_trial(session: Session) -> Trial:
    """The trial to repeat: one with gradients, unless the problem is heavy."""
    trials = [t for t in session.trials if t.spec.sizes == session.small] or session.trials
    chosen = [t for t in trials if t.spec.grads != session.heavy]
    return (chosen or trials)[-1]


def _compare(first: Trial, second: Trial, names: list[str], words: str) -> dict[str, float]:
    """Raise where a repetition leaves the gate; else the relative differences of what is not bit for bit equal."""
    differing: dict[str, float] = {}
    for name in names:
        a, b = first.got(name), second.got(name)
        if a is None or b is None:
            if (a is None) != (b is None):
                raise Refutation(Finding("not_deterministic", f"{name} is there only sometimes, {words}"))
            continue
        if same_bits(a, b):
            continue
        judged = second.judge(name)
        distance = measure(wide(a), wide(b)).l2 if is_number(a) else 1.0
        if judged is None or not judged.ok:
            error = judged.error.l2 if judged else float("nan")
            raise Refutation(
                Finding(
                    "not_deterministic",
                    f"the same call gives other values of {name} {words}: relative "
                    f"difference {distance:.1e}, and the second is wrong (error {error:.1e}, allowed "
                    f"{judged.limit_l2 if judged else 0:.1e})",
                    {"tensor": name, "case": first.spec.name},
                )
            )
        differing[name] = distance
    return differing
