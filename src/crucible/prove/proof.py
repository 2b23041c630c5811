"""What a prove run hands back: findings, checks with their evidence, and the Proof that holds them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from crucible.prove.codes import CHECK_OF, Verdict, verdict_of

SCHEMA = 1
KIND = "proof"
EXIT_CODES: dict[Verdict, int] = {"proven": 0, "refuted": 1, "unjudged": 2}
Status = Literal["passed", "failed", "limited", "skipped", "stopped"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong (or worth a warning), in a sentence or two, with the numbers behind it."""

    code: str
    message: str
    evidence: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.code not in CHECK_OF:
            raise ValueError(f"unknown finding code {self.code!r}")

    @property
    def check(self) -> str:
        return CHECK_OF[self.code]

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.code)

    def to_json(self) -> dict[str, Any]:
        return {"check": self.check, "code": self.code, "message": self.message, "evidence": self.evidence}


class Refutation(Exception):
    """Raised anywhere below the orchestration to end the run with a finding as its reason."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        super().__init__(finding.message)


@dataclass
class Check:
    """One row of the verdict: what was looked at, and what was seen."""

    name: str
    title: str
    status: Status = "passed"
    evidence: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def note(self, text: str) -> None:
        self.evidence.append(text)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "status": self.status,
            "evidence": self.evidence,
            "findings": [f.to_json() for f in self.findings],
            "data": self.data,
            "seconds": round(self.seconds, 3),
        }


@dataclass
class Proof:
    """The verdict on one candidate, with everything that was seen on the way to it."""

    reference: str
    candidate: str
    device: str
    verdict: Verdict = "unjudged"
    reason: Finding | None = None
    limits: list[str] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    sizes: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    seconds: float = 0.0
    sources: dict[str, str] = field(default_factory=dict)  # the texts of "reference" and "candidate", where readable

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    @property
    def ok(self) -> bool:
        return self.verdict == "proven"

    def check(self, name: str) -> Check | None:
        return next((c for c in self.checks if c.name == name), None)

    def to_json(self, *, sources: bool = True) -> dict[str, Any]:
        """The document of ``--json``; without ``sources`` for a document around it that has the texts already."""
        return {
            "schema": SCHEMA,
            "kind": KIND,
            "verdict": self.verdict,
            "reason": self.reason.to_json() if self.reason else None,
            "reference": self.reference,
            "candidate": self.candidate,
            "device": self.device,
            "seed": self.seed,
            "sizes": self.sizes,
            "limits": self.limits,
            "warnings": [w.to_json() for w in self.warnings],
            "checks": [c.to_json() for c in self.checks],
            "environment": self.environment,
            "options": self.options,
            "seconds": round(self.seconds, 3),
            **({"sources": self.sources} if sources else {}),
        }

    def to_text(self) -> str:
        """The JSON document, as ``--json`` writes it (non-finite numbers become strings: plain JSON has none)."""
        return json.dumps(plain(self.to_json()), indent=2, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """``value`` with only what JSON knows: non-finite floats and foreign objects become strings."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if value is None or isinstance(value, (str, bool, int)):
        return value
    return str(value)
