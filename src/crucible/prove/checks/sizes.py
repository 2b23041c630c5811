"""Other sizes and layouts: a refusal in words is a limit, a wrong answer is a refutation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from crucible.prove import hints
from crucible.prove.cases import Layout, Spec
from crucible.prove.checks.forward import output_structure
from crucible.prove.checks.gradients import judge_gradients
from crucible.prove.checks.side_effects import judge_side_effects
from crucible.prove.outcome import launches_of, reports_of
from crucible.prove.proof import Check, Finding, Refutation
from crucible.prove.session import Refused, Session, Trial

NAME, TITLE = "sizes", "Other sizes and layouts"
LAYOUTS: tuple[Layout, ...] = ("transposed", "channels_last", "sliced", "expanded")


def size_specs(session: Session) -> Iterator[tuple[str, Spec]]:
    """(what it is in words, the spec): batch 1, odd batch, empty batch, odd and tiny spatial sizes."""
    free, small = session.problem["free"], list(session.small)
    batch = next((i for i, f in enumerate(free) if f["batch"]), None)
    others = [i for i in range(len(free)) if i != batch]

    def spec(words: str, sizes: list[int], **values: Any) -> tuple[str, Spec]:
        return words, Spec(
            words,
            session.seed(words),
            tuple(sizes),
            values="normal",
            training=session.training,
            weights_seed=session.seed("shared"),
            **values,
        )

    def changed(**sizes: int) -> list[int]:
        return [sizes.get(f"d{i}", n) for i, n in enumerate(small)]

    grads = not session.options.forward_only and not session.heavy
    if others:
        odd = {f"d{i}": n for i, n in odd_sizes(free, small, others).items()}
        odd_batch = {} if batch is None else {f"d{batch}": 3}
        yield spec("odd sizes, batch 3" if batch is not None else "odd sizes", changed(**odd, **odd_batch), grads=grads)
    elif batch is not None:
        yield spec("batch 3", changed(**{f"d{batch}": 3 if small[batch] != 3 else 5}), grads=grads)
    if batch is not None:
        yield spec("batch 1", changed(**{f"d{batch}": 1}))
    if session.options.quick:
        return
    if others:
        # Doubling one size at a time finds what was fixed to the size of the main trials.
        yield spec("tiny sizes", changed(**{f"d{i}": 1 for i in others}))
        yield spec("sizes of two", changed(**{f"d{i}": 2 for i in others}))
    if batch is not None:
        yield spec("empty batch", changed(**{f"d{batch}": 0}))


def odd_sizes(free: Sequence[dict[str, Any]], small: Sequence[int], which: Sequence[int]) -> dict[int, int]:
    """For each of these dimensions an odd number near its small size, never that itself; no input has one twice."""
    found: dict[int, int] = {}
    for i in which:
        inputs = {member[0] for member in free[i]["members"]}
        taken = {n for k, n in found.items() if inputs & {member[0] for member in free[k]["members"]}} | {small[i]}
        near = small[i] - 1 if small[i] > 8 else small[i] + 1
        found[i] = next(n for n in count(near | 1, 2) if n not in taken)
    return found


def run(session: Session, check: Check) -> None:
    passed: list[str] = []
    refused: dict[str, str] = {}
    seen = {session.small}
    pairs = []
    for words, spec in size_specs(session):
        if spec.sizes not in seen:
            seen.add(spec.sizes)
            pairs.append((words, spec))
    layouts = [] if session.options.quick or session.heavy else _layout_specs(session)
    layout_words = {words for words, _ in layouts}
    words_of = {spec: words for words, spec in [*pairs, *layouts]}
    for spec, trial in session.run_all(list(words_of), tolerate=True):
        words = words_of[spec]
        if isinstance(trial, Refused):
            continue
        code = "wrong_for_layout" if words in layout_words else "wrong_at_other_size"
        refusal = judge_elsewhere(session, trial, words, code)
        if refusal is None:
            passed.append(words)
        else:
            refused[words] = refusal
        session.forget(trial)
    if passed:
        check.note(f"right at: {', '.join(passed)}")
    for words, refusal in refused.items():
        check.note(f"refuses {words}: {refusal}")
    if refused:
        check.status = "limited"
        session.limits.append(_limit(session, passed, refused, layout_words))
    if not passed and not refused:
        check.status = "skipped"
        check.note("the reference accepts no other sizes")


def _limit(session: Session, passed: list[str], refused: dict[str, str], layouts: set[str]) -> str:
    sizes = [w for w in refused if w not in layouts]
    if sizes and not [w for w in passed if w not in layouts]:
        shapes = ", ".join(str(tuple(s)) for s in session.problem["small_shapes"] if s)
        return f"correct only at the sizes it was run at ({shapes}): it refuses {', '.join(refused)}"
    return f"it refuses {', '.join(refused)} (with an error)"


def _layout_specs(session: Session) -> list[tuple[str, Spec]]:
    found = []
    ranks = [len(d["shape"]) for d in session.problem["declared"] if d and "float" in d["dtype"]]
    for layout in LAYOUTS:
        if layout == "channels_last" and not any(r in (4, 5) for r in ranks):
            continue
        if not ranks or max(ranks) == 0:
            continue
        words = {
            "transposed": "non-contiguous",
            "channels_last": "channels-last",
            "sliced": "every other element",
            "expanded": "expanded (stride 0)",
        }[layout]
        grads = layout != "sliced" and not session.options.forward_only
        found.append(
            (
                words,
                Spec(
                    words,
                    session.seed(words),
                    session.small,
                    values="normal",
                    layout=layout,
                    grads=grads,
                    training=session.training,
                    weights_seed=session.seed("shared"),
                ),
            )
        )
    return found


def judge_elsewhere(session: Session, trial: Trial, words: str, code: str) -> str | None:
    """None where the trial is right, the refusal where the candidate refuses; raises where it is silently wrong."""
    error = trial.error
    if error is not None:
        if error.get("exited"):
            raise Refutation(Finding("exited", f"at {words} the candidate ends its process with {error['exited']}"))
        empty = any(n == 0 for n in trial.spec.sizes)
        bad = reports_of(trial.reply)
        launch_errors = [launch for launch in launches_of(trial.reply) if launch.get("error")]
        if not bad and error.get("stage") != "backward" and (not launch_errors or empty):
            first = str(error.get("message", "")).strip().splitlines()
            return f"{error['type']}: {first[0][:160] if first else ''}"
    empty_launch = any(n == 0 for n in trial.spec.sizes)
    fault = session.fault(trial.reply)
    if fault is not None and not (empty_launch and fault.code == "launch_error"):
        fault.evidence["case"] = words
        raise Refutation(Finding(fault.code, f"at {words}: {fault.message}", fault.evidence))
    structure = output_structure(trial)
    if structure is not None:
        raise Refutation(Finding(code, f"at {words}: {structure.message}", {**structure.evidence, "case": words}))
    for name in trial.output_names:
        judged = trial.judge(name)
        if judged is not None and not judged.ok:
            exact, got = trial.exact(name), trial.got(name)
            assert got is not None
            text, evidence = hints.describe(name, exact, got, judged)
            hint = hints.guess(exact, got, judged)
            evidence.update(case=words, sizes=list(trial.spec.sizes))
            raise Refutation(
                Finding(
                    code,
                    f"at {words} the result is wrong, without an error: {text}" + (f"\n  hint: {hint}" if hint else ""),
                    evidence,
                )
            )
    try:
        judge_side_effects(session, trial)
        if trial.spec.grads and any(trial.truth["differentiable"]):
            judge_gradients(session, trial)
    except Refutation as found:
        finding = found.finding
        raise Refutation(
            Finding(finding.code, f"at {words}: {finding.message}", {**finding.evidence, "case": words})
        ) from None
    return None
