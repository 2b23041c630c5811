"""Architectures: the candidate's kernels compiled for each GPU generation, on request."""

from __future__ import annotations

import importlib

from crucible.prove.proof import Check, Finding
from crucible.prove.session import Session

NAME, TITLE = "architectures", "All architectures"


def run(session: Session, check: Check) -> None:
    if session.options.arch is None:
        check.status = "skipped"
        check.note("not asked for (--arch all)")
        return
    try:
        arch = importlib.import_module("crucible.prove.arch")
    except ImportError as error:
        check.status = "skipped"
        check.note(f"not available: {error}")
        return
    arch.check(session, check, Finding)
