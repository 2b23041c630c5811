"""Gradients: of every input and parameter, for a random incoming gradient, within twice the yardstick."""

from __future__ import annotations

import textwrap
from typing import Any

from crucible.prove import hints
from crucible.prove.checks.forward import record
from crucible.prove.compare import LOST
from crucible.prove.outcome import error_finding
from crucible.prove.proof import Check, Finding, Refutation
from crucible.prove.session import Session, Trial

NAME, TITLE = "gradients", "Gradients"
TIED = 0.01  # a yardstick above this comes from ties, where a comparison element by element says little


def run(session: Session, check: Check) -> None:
    if session.options.forward_only:
        check.status = "skipped"
        check.note("not checked (--forward-only)")
        session.limits.append("forward only: gradients were not checked (--forward-only)")
        return
    trials = [t for t in session.trials if t.spec.grads]
    if not any(any(t.truth["differentiable"]) for t in trials):
        for trial in trials:
            judge_gradients(session, trial)  # nor may the candidate's have one
        check.status = "skipped"
        check.note("the reference's outputs have no gradient")
        return
    worst, names = 0.0, set()
    for trial in trials:
        worst = max(worst, judge_gradients(session, trial))
        record(check, trial, [n for n in trial.truth["tensors"] if n.startswith("grad:")])
        names |= {n.removeprefix("grad:") for n in trial.truth["tensors"] if n.startswith("grad:")}
    check.note(f"{', '.join(sorted(names))}: {len(trials)} trials, at most {worst:.2f} of the permitted error")
    _say_of_further_gradients(session, trials, check)


def _say_of_further_gradients(session: Session, trials: list[Trial], check: Check) -> None:
    """A penalty on gradients, a Hessian: what a candidate has of them is told, and not judged."""
    if not session.problem["twice"]:
        return
    trial = next((t for t in trials if t.spec.sizes == session.small), trials[-1])
    again = session.execute(trial.spec, trial.case, trial.truth, tolerate=True, twice=True, save=False)
    found = again.reply.get("twice")
    lost = [name for name in session.problem["twice"] if isinstance(found, list) and name not in found]
    if isinstance(found, str):
        check.note(f"of gradients: an error, {textwrap.shorten(found, 240, placeholder=' ...')}")
    elif lost:
        check.note(f"of gradients: none at {', '.join(lost)}, without an error: what comes back counts as a constant")
    session.forget_reply(again)


def judge_gradients(session: Session, trial: Trial) -> float:
    """Raise the finding for a trial's gradients if there is one; else the largest share of the permitted error."""
    where = {"case": trial.spec.name}
    if trial.error is not None and trial.error.get("stage") == "backward":
        raise Refutation(error_finding(trial.error, session.file, "grad_raises", "backward() raises"))
    rows = {f"output{r['path']}": r for r in trial.reply.get("outputs", [])}
    for (path, _), differentiable in zip(trial.truth["outputs"], trial.truth["differentiable"], strict=True):
        name = f"output{path}"
        if differentiable and not rows[name].get("requires_grad"):
            raise Refutation(
                Finding(
                    "no_grad",
                    f"{name} does not require grad, the reference's does: the candidate cannot "
                    "be trained (use --forward-only if it is for inference only)",
                    where,
                )
            )
        if not differentiable and rows[name].get("requires_grad"):
            raise Refutation(Finding("extra_grad", f"{name} requires grad, the reference's does not", where))
    grads = trial.reply.get("grads") or {}
    expected = [n for n in trial.truth["tensors"] if n.startswith("grad:")]
    missing = [n.removeprefix("grad:") for n in expected if grads.get(n.removeprefix("grad:")) is None]
    if missing:
        raise Refutation(
            Finding("missing_grad", f"no gradient arrives at {', '.join(missing)}", {**where, "missing": missing})
        )
    others = [n for n, found in grads.items() if found is not None and f"grad:{n}" not in expected]
    _judge_others(session, trial, others, where)
    wrong, worst, right = [], 0.0, []
    for name in expected:
        judged = trial.judge(name)
        if judged is None:
            raise Refutation(
                Finding("wrong_grad", f"the gradient of {name.removeprefix('grad:')} has the wrong shape", where)
            )
        if not judged.ok:
            wrong.append((name, judged))
        else:
            right.append(name.removeprefix("grad:"))
            worst = max(worst, judged.ratio)
    if not wrong:
        _judge_ties(trial, expected)
    if wrong:
        name, judged = wrong[0]
        exact, got = trial.exact(name), trial.got(name)
        assert got is not None
        text, evidence = hints.describe(f"the gradient of {name.removeprefix('grad:')}", exact, got, judged)
        names = [n.removeprefix("grad:") for n, _ in wrong]
        evidence.update(where, wrong=names, right=right)
        hint = hints.guess(exact, got, judged)
        also = f"\n  also wrong: {', '.join(names[1:])}" if len(names) > 1 else ""
        fine = f"\n  right: {', '.join(right)}" if right else ""
        if hint:
            evidence["hint"] = hint
        raise Refutation(Finding("wrong_grad", text + also + fine + (f"\n  hint: {hint}" if hint else ""), evidence))
    return worst


def _judge_others(session: Session, trial: Trial, names: list[str], where: dict[str, Any]) -> None:
    """Where the reference has no gradient, one of zeros is as good as none; any other trains what must not be."""
    for name in names:
        got = trial.got(f"grad:{name}")
        if got is not None and bool((got != 0).any()):
            why = "has none in the reference: there it is detached, or used under torch.no_grad()"
            if name in session.problem["tied"]:
                why = f"is the same tensor as {session.problem['tied'][name]} in the reference, and none of its own"
            message = f"a gradient arrives at {name} (largest element {got.abs().max().item():.3g}), which {why}"
            raise Refutation(Finding("extra_grad", message, {**where, "extra": name}))


def _judge_ties(trial: Trial, expected: list[str]) -> None:
    """Where elements tie, the gradient may go to any of them but only once: its sum over each sample is known."""
    for name in expected:
        sums = f"sum:{name.removeprefix('grad:')}"
        terms = {k: v for k, v in trial.row(name)["terms"].items() if k not in ("tf32", "tensor cores")}
        if sums not in trial.truth["tensors"] or not TIED < max(terms.values(), default=0.0) < LOST:
            continue
        judged = trial.judge(sums)
        if judged is not None and not judged.ok:
            got = trial.got(sums)
            assert got is not None
            text, evidence = hints.describe(
                f"the sum of the gradient of {name.removeprefix('grad:')}", trial.exact(sums), got, judged
            )
            evidence["case"] = trial.spec.name
            raise Refutation(
                Finding(
                    "wrong_grad", f"{text}\n  hint: where elements tie, does more than one get the gradient?", evidence
                )
            )
