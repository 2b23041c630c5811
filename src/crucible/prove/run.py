"""The prove run: starts the workers, goes through the checks in order, and makes the verdict."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from crucible import __version__
from crucible.files import ProblemError, check_path
from crucible.prove.checks import all_checks, forward
from crucible.prove.options import Options
from crucible.prove.proof import Check, Finding, Proof, Refutation, plain
from crucible.prove.scan import scan_file
from crucible.prove.session import Session, fresh_seed
from crucible.stamp import now_text, program_digest, texts_of

Progress = Callable[[str, str], None]  # (check, what it is doing)


def prove(reference: str | Path, candidate: str | Path, *, progress: Progress | None = None, **options: Any) -> Proof:
    """Say whether ``ModelNew`` of one file computes what ``Model`` of another does, with evidence.

    Options as in ``crucible.prove.options.Options``; ``device`` defaults to a GPU if there is one, ``seed`` to a new
    one. Errors of the user (a missing file, a reference without Model) come back as an unjudged Proof, not as
    exceptions; an option that makes no sense raises ValueError.
    """
    options.setdefault("seed", fresh_seed())
    if options.get("device") is None:
        options["device"] = default_device()
    settings = Options(**options)
    proof = Proof(str(reference), str(candidate), settings.device, seed=settings.seed, options=_plain_options(settings))
    proof.environment.update(
        crucible=__version__, program=program_digest(), date=now_text(), platform=platform.platform(),
        machine=platform.machine(),
    )  # fmt: skip
    proof.sources = texts_of(reference=reference, candidate=candidate)
    say = progress or (lambda check, text: None)
    start = time.perf_counter()
    try:
        _run(proof, Path(reference), Path(candidate), settings, say)
    except Refutation as found:
        _conclude(proof, found.finding)
    proof.seconds = time.perf_counter() - start
    return proof


def default_device() -> str:
    """A GPU if torch sees one, the simulator otherwise."""
    import torch

    return "cuda" if torch.cuda.is_available() else "sim"


def _plain_options(options: Options) -> dict[str, Any]:
    result: dict[str, Any] = plain(asdict(options))
    return result


def _run(proof: Proof, reference: Path, candidate: Path, options: Options, say: Progress) -> None:
    try:
        reference = check_path(reference, "the reference")
        candidate = check_path(candidate, "the candidate")
    except ProblemError as error:
        raise Refutation(
            Finding("reference_error" if str(error).startswith("the reference") else "import_error", str(error))
        ) from None
    scan = scan_file(candidate)
    checks = all_checks()
    if scan.finding is not None:
        proof.checks.append(Check(checks[0].NAME, checks[0].TITLE))
        raise Refutation(scan.finding)
    if options.device == "sim":
        _prepare_simulator(say)
    current = {"check": "loads"}
    with Session(reference, candidate, options, lambda text: say(current["check"], text)) as session:
        session.scan = scan
        say("loads", "starting both processes")
        opened = session.start_reference()
        try:
            session.start_candidate()
            proof.environment.update(session.environment)
            for module in checks:
                if module.NAME == "interface":
                    say("loads", "looking at the reference")
                    session.problem = opened.result()
                    proof.sizes = _sizes(session)
                    proof.environment["tf32"] = session.problem["tf32"]
                    forward.settle_mode(session)
                    session.prefetch(next(forward.specs(session)))
                current["check"] = module.NAME
                say(module.NAME, "")
                _one_check(proof, module, session)
        finally:
            proof.limits, proof.warnings = session.limits, session.warnings
            opened.cancel()
    proof.verdict = "proven"


def _one_check(proof: Proof, module: ModuleType, session: Session) -> None:
    check = Check(module.NAME, module.TITLE)
    proof.checks.append(check)
    start = time.perf_counter()
    try:
        module.run(session, check)
    except Refutation:
        check.status = "stopped"
        raise
    finally:
        check.seconds = time.perf_counter() - start


def _conclude(proof: Proof, finding: Finding) -> None:
    """End with a finding: it may belong to another check than the one that ran into it."""
    proof.verdict, proof.reason = finding.verdict, finding
    check = proof.check(finding.check)
    if check is None:
        titles = {m.NAME: m.TITLE for m in all_checks()}
        check = Check(finding.check, titles.get(finding.check, finding.check.capitalize()))
        proof.checks.append(check)
    check.status = "failed"
    check.findings.append(finding)


def _prepare_simulator(say: Progress) -> None:
    """Build the simulator's libraries if they are not in the cache yet: the candidate's process cannot."""
    from crucible.build.errors import BuildError

    try:
        from crucible.build import toolchain
        from crucible.build.extension import glue_library
        from crucible.build.runtime import runtime_library

        if toolchain.torch_has_cuda():
            raise Refutation(
                Finding(
                    "infrastructure",
                    "the simulator needs the CPU build of PyTorch, and this one is built for "
                    "CUDA: use --device cuda, or an environment with the CPU build",
                )
            )
        say("loads", "preparing the simulator (built once, then cached)")
        runtime_library()
        glue_library()
    except BuildError as error:
        raise Refutation(Finding("infrastructure", f"the simulator cannot be built: {error}")) from None


def _sizes(session: Session) -> dict[str, Any]:
    problem = session.problem
    return {
        "declared": [d["shape"] if d else None for d in problem["declared"]],
        "small": problem["small_shapes"],
        "free": [{"dimensions": f["members"], "declared": f["declared"], "small": f["small"]} for f in problem["free"]],
        "main": "declared" if session.main_sizes == session.declared else "small",
        "multiply_adds": problem["multiply_adds"],
    }
