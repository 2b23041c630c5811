"""Memory: every access of every run above was checked; here the index arithmetic at sizes too large to compute."""

from __future__ import annotations

from typing import Any

from crucible.prove.outcome import launches_of, memory_finding, reports_of
from crucible.prove.proof import Check, Refutation
from crucible.prove.session import Session

NAME, TITLE = "memory", "Memory"
PROBE = {"sample_blocks": 6, "block_accesses": 20_000}
BEYOND = 1 << 31
LARGEST_BYTES = 1 << 38


def run(session: Session, check: Check) -> None:
    launches = sum(
        int(t.reply.get("forward_device", {}).get("launch_count", 0))
        + int(t.reply.get("backward_device", {}).get("launch_count", 0))
        for t in session.trials
    )
    if session.options.device == "cuda":
        _sanitize(session, check)
        return
    if session.options.device != "sim":
        check.status = "skipped"
        check.note("no device, nothing to check")
        return
    if not launches:
        check.status = "skipped"
        check.note("no kernel of the candidate ran")
        return
    check.note("every access of every run: bounds, initialisation, races, barriers, alignment, index overflow")
    if session.options.quick:
        return
    _probe(session, check)


def _probe(session: Session, check: Check) -> None:
    """A few blocks of each launch at the declared size, and beyond 2^31 elements."""
    free = session.problem["free"]
    if not free:
        return
    operators = _touching(session)
    if any(trial.truth["inputs_changed"] for trial in session.trials):
        check.note("index arithmetic at full size not checked: arguments are written, which a copy may do, all of them")
        return
    if operators:
        check.note(f"index arithmetic at full size not checked, torch would touch it all ({', '.join(operators[:3])})")
        return
    if session.declared != session.small:
        reply = _ask(session, _shapes(session, session.declared))
        if reply is None:
            check.note("index arithmetic at full size not checked: the simulator offers no lazy memory")
            return
        if _telling(reply):
            finding = memory_finding(_telling(reply)[0])
            shapes = _words(session, session.declared)
            raise Refutation(
                type(finding)(finding.code, f"at the declared size {shapes}: {finding.message}", finding.evidence)
            )
        if reply.get("error") and not reports_of(reply):
            message = str(reply["error"].get("message", "")).splitlines()
            check.note(f"at the declared size the candidate raises: {message[0][:120] if message else ''}")
            return
        check.note(
            f"index arithmetic at the declared size {_words(session, session.declared)}: sampled blocks of "
            f"{len(launches_of(reply))} launches"
        )
    _beyond(session, check)


def _beyond(session: Session, check: Check) -> None:
    """More than 2^31 elements, by the first free dimension: 32-bit indices do not survive that, and may say so."""
    free = session.problem["free"]
    index = next((i for i, f in enumerate(free) if f["batch"]), 0)
    base = list(session.declared)
    largest = max(_elements(session, base), 1)
    if largest >= BEYOND or base[index] == 0:
        return
    base[index] = base[index] * (BEYOND // largest + 2)
    if _elements(session, base) * 4 > LARGEST_BYTES:
        return
    reply = _ask(session, _shapes(session, tuple(base)))
    if reply is None:
        return
    words = _words(session, tuple(base))
    if _telling(reply):
        report = _telling(reply)[0]
        session.limits.append(
            f"32-bit indices: not for inputs of 2^31 elements or more (tried {words}: {report.get('message')})"
        )
        check.status = "limited"
    elif reply.get("error") and not reports_of(reply):
        check.note(f"refuses {words}")
    else:
        check.note(f"index arithmetic beyond 2^31 elements {words}")


def _telling(reply: dict[str, Any]) -> list[dict[str, Any]]:
    """Reports about addresses. Sampled blocks leave most of an intermediate unwritten, so reading that says nothing."""
    return [r for r in reports_of(reply) if r.get("code") not in ("uninitialised_read", "kernel_time")]


def _touching(session: Session) -> list[str]:
    """Torch operators in forward(): on lazy memory they would commit and compute all of it."""
    found: set[str] = set()
    for trial in session.trials:
        found |= set(trial.reply.get("forward_device", {}).get("ops", {}))
    return sorted(found)


def _elements(session: Session, sizes: Any) -> int:
    """Elements of the largest input at these sizes."""
    largest = 0
    for row in _shapes(session, tuple(sizes)):
        if row is not None:
            count = 1
            for n in row["shape"]:
                count *= n
            largest = max(largest, count)
    return largest


def _shapes(session: Session, sizes: tuple[int, ...]) -> list[dict[str, Any] | None]:
    rows = [dict(d, shape=list(d["shape"])) if d else None for d in session.problem["declared"]]
    for free, size in zip(session.problem["free"], sizes, strict=True):
        for i, dim in free["members"]:
            row = rows[i]
            assert row is not None
            row["shape"][dim] = size
    if session.options.dtype:
        for row in rows:
            if row is not None and "float" in row["dtype"]:
                row["dtype"] = session.options.dtype
    return rows


def _words(session: Session, sizes: tuple[int, ...]) -> str:
    return ", ".join(str(tuple(row["shape"])) for row in _shapes(session, sizes) if row is not None)


def _ask(session: Session, shapes: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    if any(row is None or "float" not in row["dtype"] for row in shapes):
        return None  # an index input needs real values
    reply = session.candidate({"op": "probe", "case": session.trials[-1].case, "inputs": shapes, "options": PROBE})
    return None if reply.get("unavailable") else reply


def _sanitize(session: Session, check: Check) -> None:
    from crucible.prove.sanitize import sanitize

    if not session.options.sanitize:
        check.note("outputs poisoned before each run; --sanitize adds compute-sanitizer")
        return
    sanitize(session, check)
