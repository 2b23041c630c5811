"""Forward: the outputs of several trials against float64, within twice the yardstick."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from crucible.prove.cases import Spec
from crucible.prove.checks.diagnose import diagnose
from crucible.prove.checks.side_effects import judge_changes
from crucible.prove.compare import allclose
from crucible.prove.outcome import error_finding
from crucible.prove.proof import Check, Finding, Refutation
from crucible.prove.session import Refused, Session, Trial

NAME, TITLE = "forward", "Forward"
SLOW_CALL = 4.0  # seconds; a candidate this slow gets fewer trials


def specs(session: Session) -> Iterator[Spec]:
    """The main trials, most telling first. What is made later may depend on how the first went."""
    options = session.options
    grads = not options.forward_only
    shared = session.seed("shared")

    def spec(name: str, **values: Any) -> Spec:
        return Spec(name, session.seed(name), **{"sizes": session.small, "training": session.training, **values})

    if session.main_sizes != session.small:  # on a GPU: once as declared, everything else small
        yield spec("the declared size", values="normal", grads=grads, weights_seed=shared, sizes=session.main_sizes)
    if not session.heavy:
        yield spec("declared inputs, initial weights", weights="initial", grads=grads)
    yield spec("normal inputs, fresh weights", values="normal", grads=grads, weights_seed=shared)
    if not session.heavy:
        # Exact operands: no TF32 error to hide behind.
        yield spec("exact operands", values="grid", weights="grid", grads=grads)
    if options.quick:
        return
    yield spec("eval mode", training=False, weights_seed=shared)
    for i in range(options.trials - 2):
        slow = session.heavy or session.seconds_a_call > SLOW_CALL
        if slow and i > 0:
            return
        yield spec(f"declared inputs, fresh weights, trial {i + 1}", grads=grads and not slow, weights_seed=shared + i)


def run(session: Session, check: Check) -> None:
    worst, closest = 0.0, {"1e-4": True, "1e-2": True}
    mode: dict[str, Any] = {"device": {"profile": True}} if session.options.device == "cuda" else {}
    for spec, trial in session.run_all(specs(session), **mode):
        if isinstance(trial, Refused):
            if trial.memory:
                check.note(f"{spec.name}: left out, the reference does not fit the device's memory in float64")
                continue
            if not session.trials and spec.weights == "initial":
                raise Refutation(Finding("reference_error", f"the reference fails on its own inputs: {trial}"))
            check.note(f"{spec.name}: left out, the reference refuses it ({trial})")
            continue
        session.seconds_a_call = max(session.seconds_a_call, float(trial.reply.get("seconds", 0.0)))
        if _refuses_small(session, trial):
            check.note(f"refuses {spec.name}: {trial.error['type'] if trial.error else ''}")
            continue
        judge_outputs(session, trial)
        judge_changes(trial)
        session.trials.append(trial)
        for name in trial.output_names:
            judged = trial.judge(name)
            if judged is not None:
                worst = max(worst, judged.ratio)
            got = trial.got(name)
            if got is not None and got.is_floating_point():
                for key in closest:
                    closest[key] = closest[key] and allclose(trial.exact(name), got, float(key))
        record(check, trial, trial.output_names)
    if not session.trials:
        raise Refutation(Finding("reference_error", "the reference accepts none of the trials"))
    check.note(f"{len(session.trials)} trials against float64, at most {worst:.2f} of the permitted error")
    check.note(
        "allclose at 1e-4: "
        + ("yes" if closest["1e-4"] else "no")
        + ", at 1e-2: "
        + ("yes" if closest["1e-2"] else "no")
    )
    if any(t.truth["from_eager"] for t in session.trials):
        check.note("the reference does not run in float64: compared with eager itself")


def _refuses_small(session: Session, trial: Trial) -> bool:
    """On a GPU: right at the declared size, and an error at the small one. Everything else then runs as declared."""
    error = trial.error
    if (
        error is None
        or error.get("stage") == "backward"
        or trial.spec.sizes == session.main_sizes
        or not session.trials
    ):
        return False
    session.fixed_size = True
    return True


def settle_mode(session: Session) -> None:
    """A reference that draws random numbers in training can only be compared in eval mode."""
    draws = session.problem["draws_random"]
    if draws["eval"]:
        raise Refutation(
            Finding(
                "reference_error",
                "the reference draws random numbers in forward(), in eval mode too: there is no right answer",
            )
        )
    if draws["training"]:
        session.training = False
        session.limits.append("compared in eval mode only: the reference draws random numbers in training mode")


def judge_outputs(session: Session, trial: Trial) -> None:
    """Raise the finding for a main trial's outputs, if there is one."""
    error = trial.error
    if error is not None and error.get("stage") != "backward":
        raise Refutation(_raised(session, trial, error))
    finding = output_structure(trial)
    if finding is not None:
        raise Refutation(finding)
    for name in trial.output_names:
        judged = trial.judge(name)
        if judged is not None and not judged.ok:
            raise Refutation(diagnose(session, trial, name, judged))


def _raised(session: Session, trial: Trial, error: dict[str, Any]) -> Finding:
    if session.options.device == "cuda":
        from crucible.prove.gpu_build import nvcc_finding

        compiled = nvcc_finding(error, session.scratch, session.file)
        if compiled is not None:
            return compiled
    code = "load_state_dict" if error.get("stage") == "load_state_dict" else "raises"
    finding = error_finding(error, session.file, code, "ModelNew raises in forward()")
    if finding.code == "raises" and session.main_sizes != session.declared and error.get("deliberate"):
        # It may accept the declared size only, which is too large to simulate.
        return Finding(
            "infrastructure",
            "the candidate refuses the small sizes at which it can be simulated, and so cannot "
            f"be judged without a GPU: {finding.message}",
            {**finding.evidence, "case": trial.spec.name},
        )
    finding.evidence["case"] = trial.spec.name
    return finding


def output_structure(trial: Trial) -> Finding | None:
    """Number, shape, dtype and device of the outputs."""
    want = [f"output{path}" for path, _ in trial.truth["outputs"]]
    rows = {f"output{r['path']}": r for r in trial.reply.get("outputs", [])}
    if list(rows) != want:
        return Finding(
            "wrong_shape",
            f"the candidate returns {_structure(list(rows))}, the reference {_structure(want)}",
            {"case": trial.spec.name},
        )
    for name, (_, is_tensor) in zip(want, trial.truth["outputs"], strict=True):
        row = rows[name]
        if not is_tensor:
            continue
        if "shape" not in row:
            return Finding("wrong_shape", f"{name} is a {row['type']}, the reference returns a tensor")
        expected = trial.row(name)["truth"]["shape"]
        if row["shape"] != expected:
            return Finding(
                "wrong_shape",
                f"{name} has shape {tuple(row['shape'])}, not {tuple(expected)}",
                {"case": trial.spec.name, "expected": expected, "got": row["shape"]},
            )
        if row["dtype"] != trial.row(name)["dtype"]:
            return Finding(
                "wrong_dtype", f"{name} is {row['dtype']}, not {trial.row(name)['dtype']}", {"case": trial.spec.name}
            )
        if row["device"] != trial.device_type:
            return Finding(
                "wrong_device",
                f"{name} is on {row['device']}, its inputs are on {trial.device_type}",
                {"case": trial.spec.name},
            )
    return None


def _structure(names: list[str]) -> str:
    return (
        "one tensor" if names == ["output"] else f"{len(names)} values ({', '.join(names[:4])})" if names else "nothing"
    )


def record(check: Check, trial: Trial, names: Sequence[str]) -> None:
    """Keep how far these tensors of a trial were off, beside what they may be and what the yardsticks were."""
    rows = check.data.setdefault("trials", [])
    tensors: dict[str, Any] = {}
    for name in names:
        judged = trial.judge(name)
        if judged is not None:
            tensors[name] = {
                "l2": judged.error.l2,
                "limit_l2": judged.limit_l2,
                "worst": judged.error.worst,
                "limit_worst": judged.limit_worst,
                "terms": trial.row(name)["terms"],
            }
    rows.append(
        {
            "name": trial.spec.name,
            "seed": trial.truth["seed"],
            "tensors": tensors,
            "seconds": trial.reply.get("seconds"),
        }
    )
