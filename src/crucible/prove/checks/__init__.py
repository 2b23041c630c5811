"""The checks of a prove run, one a file. ``all_checks`` says in which order they run."""

from __future__ import annotations

from types import ModuleType


def all_checks() -> list[ModuleType]:
    """Cheap and telling ones first, causes before effects (an input changed in place also spoils gradients).

    Each has NAME, TITLE and run(session, check).
    """
    from crucible.prove.checks import (
        architectures,
        determinism,
        forward,
        gradients,
        honesty,
        interface,
        loads,
        memory,
        ranges,
        side_effects,
        sizes,
    )

    return [
        loads,
        interface,
        forward,
        side_effects,
        gradients,
        honesty,
        sizes,
        ranges,
        determinism,
        memory,
        architectures,
    ]
