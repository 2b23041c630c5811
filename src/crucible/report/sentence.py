"""A Proof in a sentence or two: what the header of a generated file says about itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from crucible.prove.proof import Proof

NOT_TRIED = "Not proven: no proof was asked for. `crucible prove` makes one."
UNDER_WAY = "Not proven: the proof had not ended when this was written. `crucible prove` makes one."
WORDS = {"forward": "forward", "gradients": "gradients", "side_effects": "side effects", "honesty": "honesty",
         "determinism": "determinism", "memory": "memory"}  # fmt: skip


def proof_sentence(proofs: Sequence[Proof]) -> str:
    """What was proven, with which program, on which device and from which seed; or that it was not, and why."""
    return " ".join(_one(p) for p in proofs) if proofs else NOT_TRIED


def _one(proof: Proof) -> str:
    torch = proof.environment.get("torch")
    program = f"crucible {proof.environment.get('crucible', '')}" + (f", torch {torch}" if torch else "")
    dtype = f" in {proof.options['dtype']}" if proof.options.get("dtype") else ""
    where = f"{Path(proof.reference).name} {place(proof)}{dtype}, {program}"
    if proof.verdict == "proven":
        quick = " (quick)" if proof.options.get("quick") else ""
        limits = f" Limits: {'; '.join(_first(x) for x in proof.limits)}." if proof.limits else ""
        return _clean(f"Proven against {where}{quick}: {', '.join(_seen(proof))}; seed {proof.seed}.{limits}")
    word = "refuted" if proof.verdict == "refuted" else "could not be judged"
    reason = f": {proof.reason.check} / {proof.reason.code}: {_first(proof.reason.message)}" if proof.reason else ""
    return _clean(f"NOT PROVEN: {word} against {where}; seed {proof.seed}{reason}")


def place(proof: Proof) -> str:
    """Where it ran, in words."""
    device = proof.environment.get("device") or {}
    name = device.get("name", proof.device) if isinstance(device, dict) else proof.device
    return "in the simulator" if proof.device == "sim" else f"on {name}"


def _seen(proof: Proof) -> list[str]:
    """The checks that passed; sizes and ranges with how many were right."""
    found = []
    for check in proof.checks:
        if check.status not in ("passed", "limited"):
            continue
        if check.name in WORDS:
            found.append(WORDS[check.name])
        elif check.name in ("sizes", "ranges"):
            right = next((n for n in check.evidence if n.startswith("right ")), "")
            number = right.count(", ") + 1 if right else 0
            if number:
                found.append(f"{number} {'other sizes and layouts' if check.name == 'sizes' else 'ranges'}")
        elif check.name == "architectures":
            found += check.evidence[:1]
    return found


def _first(text: str) -> str:
    return (text.splitlines() or [""])[0].rstrip(".")


def _clean(text: str) -> str:
    """Fit for a docstring."""
    return text.replace("\\", "/").replace('"""', "'''")
