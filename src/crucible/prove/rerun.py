"""The command line that makes a proof again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from crucible.prove.options import Options
from crucible.prove.proof import Proof


def rerun_command(proof: Proof) -> str:
    """The command line that repeats this run."""
    return command_of(proof.reference, proof.candidate, proof.device, proof.seed, proof.options)


def command_of(reference: str, candidate: str, device: str, seed: int, options: Mapping[str, Any]) -> str:
    """The same, from what a record has."""
    parts = ["crucible", "prove", reference, candidate, "--device", device, "--seed", str(seed)]
    defaults = asdict(Options())
    for key in ("dtype", "trials", "timeout", "arch", "precision"):
        value = options.get(key)
        if value is not None and value != defaults[key]:
            parts += [f"--{key}", str(value)]
    parts += [f"--{k.replace('_', '-')}" for k in ("quick", "strict", "forward_only", "sanitize") if options.get(k)]
    return shlex.join(parts)
