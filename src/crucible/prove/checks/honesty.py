"""Honesty: each known way of looking right or fast without being so, tried and named.

Faults that show on any run (threads, streams, subclasses, replaced functions, hidden failures, buffers handed out
twice) are read off every run by ``outcome.py``; here are the ones that need a run of their own.
"""

from __future__ import annotations

from typing import Any

from crucible.prove.checks.diagnose import fresh_trial
from crucible.prove.checks.side_effects import judge_side_effects
from crucible.prove.execute import same_bits
from crucible.prove.outcome import launches_of
from crucible.prove.proof import Check, Finding, Refutation
from crucible.prove.session import Refused, Session, Trial

NAME, TITLE = "honesty", "Honesty"
DISGUISE = {
    "module": "model",
    "disguise": True,
}  # the same file name: messages of a build name it, so another would rebuild

# Parts of the names of kernels that come with torch, cuDNN and cuBLAS.
LIBRARIES = ("at::", "c10::", "cudnn", "cublas", "cutlass", "sm80_", "sm90_", "ampere_", "volta_", "turing_", "hopper_",
             "nchwToNhwc", "nhwcToNchw", "gemm", "Memcpy", "Memset", "xmma", "cask")  # fmt: skip

# Operators that are the substance of a model, by the beginning of their ATen names.
SUBSTANCE = (
    "convolution",
    "conv",
    "_convolution",
    "cudnn_convolution",
    "mkldnn_convolution",
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "matmul",
    "linear",
    "native_group_norm",
    "native_layer_norm",
    "native_batch_norm",
    "_native_batch_norm",
    "cudnn_batch_norm",
    "_batch_norm",
    "group_norm",
    "layer_norm",
    "batch_norm",
    "_softmax",
    "softmax",
    "_log_softmax",
    "max_pool",
    "avg_pool",
    "_scaled_dot",
    "gelu",
    "einsum",
    "cumsum",
    "scatter",
    "_fused",
    "adaptive",
    "upsample",
    "embedding",
    "lstm",
    "gru",
)


def run(session: Session, check: Check) -> None:
    launched = _kernels(session, check)
    trial = session.light_trial
    _aliases(session)
    _stale_results(session, trial)
    tried = ["same memory with new values", "same sums with other values"]
    if launched:
        _unused_results(session, trial)
        tried.append("launches dropped" if session.options.device == "sim" else "kernel results spoiled")
    if session.options.device == "cuda":
        _delayed_streams(session, trial)
        tried.append("delayed side streams")
    if not session.options.quick or session.scan.curious or session.scan.names_us:
        _in_disguise(session, trial)
        tried.append("another process, file name and caller")
    check.note(f"tried: {', '.join(tried)}")
    check.note(
        "on every run: replaced functions, threads, side streams, tensor subclasses, hidden failures, shared buffers"
    )
    _switches(session, trial)


def _kernels(session: Session, check: Check) -> bool:
    """Whether the candidate's own kernels ran, and whether torch did its work; returns whether any ran."""
    launches = [launch for t in session.trials for launch in launches_of(t.reply)]
    builds = [b for t in session.trials[-1:] for b in t.reply.get("facts", {}).get("builds", [])]
    compiled = sorted({k for b in builds if b.get("ok") for k in b.get("kernels", [])}) or session.scan.kernels
    if session.options.device == "cuda":
        called = any((t.reply.get("extension") or {}).get("called") for t in session.trials)
        own = [n for n in launches if _is_own(str(n.get("kernel")), session.scan.kernels, called)]
    else:
        own = launches
    names = sorted({_short(str(n.get("kernel"))) for n in own})
    if compiled and not own and session.options.device != "cpu":
        raise Refutation(
            Finding(
                "decoy_kernel",
                f"the candidate compiles {', '.join(compiled[:4])} and never launches "
                f"{'it' if len(compiled) == 1 else 'them'}",
                {"kernels": compiled, "ops": _ops(session)},
            )
        )
    wrapped = _wrapped(session)
    if names:
        check.note(f"kernels that ran: {', '.join(names[:8])}")
    if not own or wrapped:
        what = f"torch's own operators do the work: {', '.join(wrapped[:6])}" if wrapped else "no kernel of its own ran"
        finding = Finding(
            "torch_wrapper",
            what + ("" if own or not wrapped else "; no kernel of its own ran"),
            {"operators": wrapped, "kernels": names},
        )
        if session.options.strict:
            raise Refutation(finding)
        session.warnings.append(finding)
    return bool(own)


def _is_own(name: str, kernels: list[str], called: bool) -> bool:
    """Whether a kernel that the profiler saw is the candidate's: by its name, else by not looking like a library's."""
    if any(k in name for k in kernels):
        return True
    return called and not kernels and not any(mark in name for mark in LIBRARIES)


def _short(name: str) -> str:
    return name.split("<")[0].split("(")[0].strip()


def _ops(session: Session) -> list[str]:
    found: set[str] = set()
    for t in session.trials:
        for key in ("forward_device", "backward_device"):
            found |= set(t.reply.get(key, {}).get("ops", {}))
    return sorted(found)


def _wrapped(session: Session) -> list[str]:
    """Operators of substance that ran in the candidate's forward()."""
    found: set[str] = set()
    for t in session.trials:
        for name in t.reply.get("forward_device", {}).get("ops", {}):
            base = name.removeprefix("aten::")
            if base.startswith(SUBSTANCE) and "backward" not in base:
                found.add(name)
    return sorted(found)


def _aliases(session: Session) -> None:
    for trial in session.trials:
        allowed = trial.truth["aliases"]
        for i, row in enumerate(trial.reply.get("outputs", [])):
            extra = [n for n in row.get("aliases", []) if i >= len(allowed) or n not in allowed[i]]
            if extra:
                raise Refutation(
                    Finding(
                        "aliased_output",
                        f"output{row['path']} shares its memory with input {extra[0]}: "
                        "writing to one changes the other",
                        {"case": trial.spec.name},
                    )
                )


def _judge(session: Session, trial: Trial, earlier: Trial | None, code: str, words: str) -> None:
    """A special run must be as right as the ordinary ones were."""
    if trial.error is not None:
        raise Refutation(
            Finding(
                code,
                f"{words} the candidate raises {trial.error['type']}: {str(trial.error['message'])[:200]}",
                {"error": trial.error},
            )
        )
    for name in trial.result_names:
        judged = trial.judge(name)
        if judged is None or judged.ok:
            continue
        got, old = trial.got(name), earlier.got(name) if earlier else None
        stale = (
            " (it is the earlier result, bit for bit)"
            if got is not None and old is not None and same_bits(got, old)
            else ""
        )
        raise Refutation(
            Finding(
                code,
                f"{words} {_words(name)} is wrong{stale}: relative L2 error {judged.error.l2:.1e}, allowed "
                f"{judged.limit_l2:.1e}",
                {"tensor": name, "error_l2": judged.error.l2},
            )
        )


def _words(name: str) -> str:
    return f"the gradient of {name.removeprefix('grad:')}" if name.startswith("grad:") else "the result"


def _forward_only(case: dict[str, Any]) -> dict[str, Any]:
    return {**case, "cotangents": None, "requires_grad": []}


def _stale_results(session: Session, trial: Trial) -> None:
    """A fresh input, then the same numbers in another order in the same memory: a cache by pointer, shape, sum or a few
    elements answers with the old result."""
    spec = trial.spec.but(
        name="new values",
        seed=session.seed("new values"),
        values="normal",
        grads=False,
        steady=False,
        brief=False,
        weights_seed=_weights_seed(trial),
    )
    try:
        first = session.run(spec)
        second = session.run(spec.but(name="same memory, reordered values", values="swapped"), inplace=True)
    except Refused:
        return
    _judge(session, first, trial, "cached_result", "with new values")
    _judge(session, second, first, "cached_result", "when its inputs' memory holds the same numbers in another order")
    judge_side_effects(session, second)
    session.forget(first)
    session.forget(second)


def _weights_seed(trial: Trial) -> int:
    seed = trial.spec.weights_seed
    return int(trial.truth["seed"]) if seed is None else seed


def _unused_results(session: Session, trial: Trial) -> None:
    """The same call without its kernels' results: what comes out unchanged never came from them.

    The simulator drops every launch; on a GPU whatever the extension's functions return or write is filled with nan.
    """
    kernels = sorted({str(n.get("kernel")) for n in _launches_forward(trial)})
    if not kernels:
        return
    without: dict[str, Any] = (
        {"device": {"drop_launches": True}} if session.options.device == "sim" else {"spoil": True}
    )
    dropped = session.execute(trial.spec, _forward_only(trial.case), trial.truth, tolerate=True, **without)
    if dropped.error is not None:
        return
    same = [n for n in trial.forward_names if _equal(trial.got(n), dropped.got(n))]
    unwritten = any(r.get("unwritten") for r in dropped.reply.get("outputs", []))
    if len(same) == len(trial.forward_names) and not unwritten:
        names = ", ".join(_short(k) for k in kernels[:4])
        raise Refutation(
            Finding(
                "unused_kernel_result",
                f"{names} ran and the result does not depend on it: with every launch dropped the outputs are the same",
                {"kernels": kernels, "ops": _ops(session)},
            )
        )
    session.forget_reply(dropped)


def _launches_forward(trial: Trial) -> list[dict[str, Any]]:
    return launches_of({"forward_device": trial.reply.get("forward_device", {})})


def _equal(a: Any, b: Any) -> bool:
    return a is not None and b is not None and same_bits(a, b)


def _delayed_streams(session: Session, trial: Trial) -> None:
    late = session.execute(trial.spec, _forward_only(trial.case), trial.truth, delay_streams=True)
    _judge(session, late, None, "side_stream", "when side streams are slow")
    session.forget_reply(late)


def _in_disguise(session: Session, trial: Trial) -> None:
    """The same call in a process that does not look like a test.

    Forward only, unless that is torch's own: then the kernels to be seen are those of backward().
    """
    case = _forward_only(trial.case) if _launches_forward(trial) else trial.case
    case_free = Trial(trial.spec, case, trial.truth, {}, trial.truths, trial.scratch, trial.device_type)
    other = fresh_trial(session, case_free, **DISGUISE)
    habits = f" ({session.scan.curious[0]})" if session.scan.curious else ""
    if other is None:
        raise Refutation(
            Finding("detects_test", f"under another name and caller the candidate does not even load{habits}")
        )
    _judge(session, other, None, "detects_test", f"in a process that does not look like a test{habits}")
    if not other.reply.get("outputs"):
        raise Refutation(
            Finding("detects_test", f"in a process that does not look like a test nothing comes out{habits}")
        )
    if launches_of(trial.reply) and not launches_of(other.reply):
        raise Refutation(
            Finding(
                "detects_test", f"in a process that does not look like a test the candidate launches no kernel{habits}"
            )
        )
    for habit in session.scan.curious:
        if "environment" not in habit:  # a setting read from there is common, and harmless alone
            session.warnings.append(
                Finding("detects_test", f"it could tell a test from use: {habit}; it behaved the same in a disguise")
            )


def _switches(session: Session, trial: Trial) -> None:
    changed = trial.reply.get("facts", {}).get("switches", {})
    for name, (before, now) in changed.items():
        session.warnings.append(
            Finding(
                "patched_harness",
                f"the candidate changes a global setting of torch: {name} from {before} to {now}",
                {"switch": name},
            )
        )
