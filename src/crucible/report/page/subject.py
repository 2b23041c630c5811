"""What a page is about: any record of this program, read into one form.

Records are the documents of ``--json`` (proof, fuse, race, sweep) and the folder of a sweep. Texts that they carry are
used where they are; an older record without them gives a page without a listing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crucible.sweep.store import KIND as ROW_KIND
from crucible.sweep.store import Store, StoreError

WORDS = {
    "proven": "PROVEN",
    "refuted": "REFUTED",
    "unjudged": "COULD NOT BE JUDGED",
    "unproven": "UNPROVEN",
    "not fused": "NOT FUSED",
    "failed": "FAILED",
    "time limit": "TIME LIMIT",
}
WORST = ("refuted", "failed", "time limit", "unjudged", "not fused", "unproven", "proven")


class RecordError(Exception):
    """The record cannot be read; the message says why and what would do."""


@dataclass
class Candidate:
    """One file that was judged."""

    name: str
    file: str
    verdict: str
    reason: dict[str, Any] | None = None  # a finding: "check", "code", "message", "evidence"
    proof: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None
    source: str | None = None

    @property
    def word(self) -> str:
        return WORDS[self.verdict]

    @property
    def evidence(self) -> dict[str, Any]:
        return (self.reason or {}).get("evidence") or {}


@dataclass
class Subject:
    """One Problem with its candidates, and their race where there was one."""

    title: str
    reference: str
    candidates: list[Candidate]
    reference_source: str | None = None
    race: dict[str, Any] | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    untimed: str | None = None  # why there are no times, in words
    seconds: float | None = None
    status: str | None = None  # of a sweep's row; a verdict otherwise
    reason: str | None = None  # where there is no candidate to speak of

    @property
    def verdict(self) -> str:
        found = [self.status] if self.status else [c.verdict for c in self.candidates]
        return min(found, key=WORST.index) if found else "unjudged"

    @property
    def word(self) -> str:
        return WORDS[self.verdict]


@dataclass
class Collection:
    """A sweep: its subjects in order, with the rows they came from."""

    title: str
    subjects: list[Subject]
    rows: list[dict[str, Any]]


NO_RACE = "no times: this is a record of a proof; crucible race measures on a GPU"


def read(path: Path) -> Subject | Collection:
    """The subject of a record, or all of a sweep's."""
    if path.is_dir():
        return _store(path)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise RecordError(f"{path} is no JSON; give what fuse, prove, race or sweep wrote with --json") from None
    return of_document(document, path)


def of_document(document: Any, path: Path) -> Subject | Collection:
    """The subject of a document; ``path`` is where it was found."""
    kind = kind_of(document)
    try:
        if kind == "sweep":
            return _store(_beside(Path(str(document["store"])), path))
        return {"race": _race, "proof": _proof, "fuse": _fuse, "plan": _plan, ROW_KIND: of_row}[kind](document)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise RecordError(f"{path} is a {kind} record, but a part of it is missing or broken: {error!r}") from None


def kind_of(document: Any) -> str:
    """What kind of record this is; those of before ``kind`` was written are known by their keys."""
    if not isinstance(document, dict) or document.get("schema") != 1:
        raise RecordError("this is no record of crucible, or of another schema than 1, which is all that is known here")
    kind = document.get("kind")
    if kind is None:
        kind = "proof" if "checks" in document else "fuse" if "plan" in document else "plan"
    if kind not in ("race", "sweep", "proof", "fuse", "plan", ROW_KIND):
        raise RecordError(f"a record of kind {kind!r}; a page can be made of a proof, a fuse, a race or a sweep")
    return str(kind)


def _beside(store: Path, document: Path) -> Path:
    """The folder of a sweep: as written, or beside the document that names it."""
    near = document.parent / store.name
    return store if store.is_dir() or not near.is_dir() else near


def _store(folder: Path) -> Collection:
    try:
        rows = list(Store(folder, create=False).latest().values())
    except StoreError as error:
        raise RecordError(f"{error}; give the folder that crucible sweep --store wrote, or a JSON file") from None
    if not rows:
        raise RecordError(f"{folder} has no rows yet")
    last = {row["title"]: row for row in rows}  # of several runs the newest
    rows = [last[title] for title in sorted(last)]
    return Collection(folder.resolve().name, [of_row(r) for r in rows], rows)


# -- one kind each


def _proof(document: dict[str, Any]) -> Subject:
    sources = document.get("sources") or {}
    file = str(document["candidate"])
    candidate = Candidate(Path(file).stem, file, document["verdict"], document["reason"], document,
                          source=sources.get("candidate"))  # fmt: skip
    return Subject(
        Path(document["reference"]).stem, str(document["reference"]), [candidate], sources.get("reference"),
        environment=document.get("environment") or {}, untimed=NO_RACE, seconds=document.get("seconds"),
    )  # fmt: skip


def _fuse(document: dict[str, Any]) -> Subject:
    sources, proof = document.get("sources") or {}, document.get("proof")
    file = str(document["file"])
    verdict = proof["verdict"] if proof else "unproven"
    candidate = Candidate(Path(file).stem, file, verdict, proof["reason"] if proof else None, proof, document["plan"],
                          sources.get("candidate"))  # fmt: skip
    reference = str(document.get("model") or document["plan"]["model"])
    environment = {**(document.get("environment") or {}), **((proof or {}).get("environment") or {})}
    return Subject(
        Path(reference).stem, reference, [candidate], sources.get("reference"), environment=environment,
        untimed=NO_RACE, seconds=proof["seconds"] if proof else None,
    )  # fmt: skip


def _plan(document: dict[str, Any]) -> Subject:
    name = str(document["model"])
    candidate = Candidate(Path(name).stem, name, "unproven", plan=document)
    return Subject(Path(name).stem, name, [candidate], untimed=NO_RACE)


def _race(document: dict[str, Any]) -> Subject:
    found = []
    for entry in document["candidates"]:
        verdict, proof = entry["verdict"], entry.get("proof")
        reason = (proof or {}).get("reason")
        if reason is None and entry.get("reason"):
            reason = {"check": "", "code": verdict, "message": entry["reason"], "evidence": {}}
        for row in _rows_of(document, entry["name"]):
            if row["status"] == "refuted" and verdict != "refuted":
                verdict = "refuted"
                reason = {"check": "race", "code": "refuted", "message": row["note"] or "", "evidence": {}}
            elif row["status"] == "failed" and verdict in ("proven", "unproven"):
                verdict = "failed"
                reason = {"check": "race", "code": "failed", "message": row["note"] or "", "evidence": {}}
        found.append(Candidate(entry["name"], entry["file"], verdict, reason, proof, entry.get("plan"),
                               entry.get("source")))  # fmt: skip
    return Subject(
        Path(document["reference"]).stem, str(document["reference"]), found, document.get("source"), document,
        document.get("environment") or {}, document.get("untimed"), document.get("seconds"),
    )  # fmt: skip


def of_row(row: dict[str, Any]) -> Subject:
    """The subject of a sweep's row."""
    if row.get("race"):
        subject = _race(row["race"])
        subject.title = str(row["title"]).removesuffix(".py")
        subject.status, subject.reason = row["status"], row.get("reason")
        return subject
    return Subject(
        str(row["title"]).removesuffix(".py"), str(row["problem"]), [], environment=row.get("environment") or {},
        status=row["status"], reason=row.get("reason"), untimed="no times: there was nothing to race",
    )  # fmt: skip


def _rows_of(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [r for p in document.get("passes") or [] for r in p["rows"] if r["contender"] == name]
