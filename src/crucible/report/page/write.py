"""Subjects as pages: what goes where, rendered by the templates, and written in one piece."""

from __future__ import annotations

import functools
import hashlib
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from crucible import __version__
from crucible.prove.rerun import command_of
from crucible.race.names import EAGER, USUAL
from crucible.report.numbers import milliseconds
from crucible.report.page.listing import Part, listing
from crucible.report.page.plan_section import PlanPart, count_text, plan_part, raced_passes
from crucible.report.page.proof_section import (
    CheckPart,
    ErrorPart,
    WrongPart,
    check_part,
    error_part,
    marked_line,
    most_of_allowed,
    wrong_part,
)
from crucible.report.page.race_section import RacePart, RoofPart, light_table, race_parts, roof_parts
from crucible.report.page.subject import Candidate, Collection, Subject
from crucible.report.page.tables import Fact, Table, class_of

FOLDER = Path(__file__).resolve().parent
GENERATOR = '<meta name="generator" content="crucible '


@dataclass
class Reason:
    head: str
    text: str
    case: str = ""
    soft: bool = False


@dataclass
class Listing:
    title: str
    name: str
    text: str
    parts: list[Part]


@dataclass
class Page:
    """Everything that page.html.j2 shows."""

    title: str
    word: str
    style: str
    lead: str
    reasons: list[Reason] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    wrongs: list[WrongPart] = field(default_factory=list)
    plans: list[PlanPart] = field(default_factory=list)
    untimed: str | None = None
    passes: list[RacePart] = field(default_factory=list)
    light: Table | None = None
    roofs: list[RoofPart] = field(default_factory=list)
    errors: list[ErrorPart] = field(default_factory=list)
    checks: list[CheckPart] = field(default_factory=list)
    listings: list[Listing] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    versions: list[tuple[str, str]] = field(default_factory=list)


def page_of(subject: Subject, *, bodies: bool = True) -> Page:
    """What there is to say about a subject. Without ``bodies`` kernel bodies that files share are named, not shown."""
    page = Page(subject.title, subject.word, class_of(subject.verdict), _lead(subject))
    several = len(subject.candidates) > 1
    if subject.reason and not any(c.reason for c in subject.candidates):
        page.reasons.append(Reason("", subject.reason, soft=subject.verdict not in ("refuted", "failed")))
    for k, candidate in enumerate(subject.candidates):
        of, name = (f" of {candidate.name}" if several else ""), f"c{k}"
        page.reasons += _reason(candidate, several)
        page.wrongs += _some(wrong_part(candidate, name))
        page.plans += _some(plan_part(subject, candidate, of, name))
        page.errors += _some(error_part(candidate, of, name))
        page.checks += _some(check_part(candidate, of))
        page.listings += _some(_listing(candidate, bodies))
    if subject.reference_source is not None:
        text = "What the candidate is held against."
        page.listings.append(Listing("The Model", subject.reference, text, listing(subject.reference_source)))
    race = subject.race
    page.untimed = subject.untimed
    if race is not None:
        page.passes, page.light = race_parts(race, "r"), light_table(race)
        page.warnings = list(race.get("warnings") or [])
        if race.get("mode") == "evaluation":
            page.warnings.append("the Model draws random numbers: all were raced in evaluation")
    page.roofs = roof_parts(subject, "r")
    page.facts, page.commands = facts(subject), commands(subject)
    page.versions = versions(subject)
    return page


def _some(part: Any) -> list[Any]:
    return [] if part is None else [part]


def _lead(subject: Subject) -> str:
    names = ", ".join(c.file for c in subject.candidates)
    text = f"{names} against {subject.reference}" if names else subject.reference
    inside = [place_of(subject)]
    inside += [f"{subject.seconds:.0f} s"] if subject.seconds else []
    inside = [x for x in inside if x]
    return text + (f" ({', '.join(inside)})" if inside else "")


def place_of(subject: Subject) -> str:
    """The device that everything ran on, in words."""
    environment = subject.environment
    for found in (environment.get("gpu"), environment.get("device")):
        if isinstance(found, dict) and found.get("name"):
            return str(found["name"])
        if isinstance(found, str):
            return found
    proofs = [c.proof for c in subject.candidates if c.proof]
    if proofs:
        device = (proofs[0].get("environment") or {}).get("device") or {}
        return str(device.get("name") or proofs[0]["device"])
    return ""


def _reason(candidate: Candidate, several: bool) -> list[Reason]:
    reason = candidate.reason
    if reason is None:
        return []
    head = f"{reason['check']} / {reason['code']}" if reason["check"] else ""
    if several:
        head = f"{candidate.name}: {head}".rstrip(": ")
    return [Reason(head, reason["message"], str(candidate.evidence.get("case") or ""), candidate.verdict != "refuted")]


def facts(subject: Subject) -> list[Fact]:
    """The few numbers that matter, for the top of a page."""
    found = []
    race = subject.race
    for candidate in subject.candidates:
        of = f" of {candidate.name}" if len(subject.candidates) > 1 else ""
        for done in (race or {}).get("passes") or []:
            row = next((r for r in done["rows"] if r["contender"] == candidate.name and r["times"]), None)
            if row is not None:
                eager = row["against"].get(EAGER)
                beside = f"{eager['speedup']:.2f} x eager" if eager else ""
                floor = f"{row['of_floor']:.0%} of the floor" if row["of_floor"] else ""
                note = ", ".join(x for x in (beside, floor) if x)
                found.append(Fact(f"{done['what']}{of}", milliseconds(row["times"]["median"]), note))
        if candidate.plan is not None:
            one = raced_passes(candidate.plan, "forward", False)[0]
            first, _, rest = count_text(one).partition(" (")
            found.append(Fact(f"forward{of}", first, rest.replace(")", "", 1)))
        part = most_of_allowed(candidate.proof) if candidate.proof else None
        if part is not None:
            found.append(Fact(f"largest error{of}", f"{part:.2f}", "of what is allowed"))
        wrong = candidate.evidence
        if wrong.get("error_l2") is not None and wrong.get("limit_l2"):
            found.append(Fact(f"relative L2 error{of}", f"{float(wrong['error_l2']):.1e}",
                              f"allowed {float(wrong['limit_l2']):.1e}"))  # fmt: skip
        if candidate.proof is not None:
            done = [c for c in candidate.proof["checks"] if c["status"] in ("passed", "limited")]
            quick = ", a quick proof" if (candidate.proof.get("options") or {}).get("quick") else ""
            # Beside times of a GPU nobody would think of it.
            where = " in the simulator" if candidate.proof.get("device") == "sim" and subject.race else ""
            found.append(Fact(f"checks{of}", f"{len(done)} passed", f"seed {candidate.proof['seed']}{quick}{where}"))
    return found


def _listing(candidate: Candidate, bodies: bool) -> Listing | None:
    if candidate.source is None:
        return None
    parts = listing(candidate.source, marked_line(candidate))
    if not bodies:
        parts = [Part(p.language, p.first, p.lines, Markup(""), True) if p.folded else p for p in parts]
    has = "CUDA and the Python around it" if any(p.language == "cuda" for p in parts) else "Python"
    name = Path(candidate.file).name
    title = "The generated CUDA" if candidate.plan is not None else "The candidate"
    return Listing(title, name, f"{name}: {has}, {len(candidate.source.splitlines())} lines.", parts)


# -- how to do it again


def commands(subject: Subject) -> list[str]:
    found = []
    race = subject.race
    for candidate in subject.candidates:
        if candidate.plan is not None:
            found.append(shlex.join(["crucible", "fuse", subject.reference, "-o", candidate.file]))
        proof = candidate.proof
        if proof is not None and not (race and race.get("passes")):
            settings = proof["device"], proof["seed"], proof["options"]
            found.append(command_of(subject.reference, candidate.file, *settings))
    if race is not None:
        found.append(race_command(race))
    return found


def race_command(race: dict[str, Any]) -> str:
    """The command line that makes a race again."""
    options = race.get("options") or {}
    parts = ["crucible", "race", race["reference"], *(c["file"] for c in race["candidates"])]
    against = options.get("against")
    if against and tuple(against) != USUAL:
        parts += ["--against", ",".join(against)]
    for key, usual in (("rounds", 7), ("samples", 3), ("warm", 2), ("dtype", None), ("precision", "torch")):
        if options.get(key) not in (None, usual):
            parts += [f"--{key}", str(options[key])]
    parts += [f"--{k.replace('_', '-')}" for k in ("train", "quick", "forward_only", "unproven") if options.get(k)]
    return shlex.join([*map(str, parts), "--seed", str(race["seed"])])


def versions(subject: Subject) -> list[tuple[str, str]]:
    """What the record says about where it was made, as pairs."""
    return _flat(subject.environment, ("crucible", "program", "torch", "cuda", "driver", "python", "date"))


def _flat(environment: dict[str, Any], first: tuple[str, ...]) -> list[tuple[str, str]]:
    titles = {"program": "code", "lag_milliseconds": "lag in ms", "memory_bytes": "memory in bytes"}
    found: list[tuple[str, str]] = []
    for key in [*first, *(k for k in environment if k not in first)]:
        value = environment.get(key)
        if value is None or value == "":
            continue
        if isinstance(value, dict):
            value = ", ".join(f"{titles.get(k, k)} {v}" for k, v in value.items() if v is not None)
        found.append((titles.get(key, key), f"{value:.4g}" if isinstance(value, float) else str(value)))
    return found


# -- rendering


@functools.cache
def _environment() -> Any:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER / "templates"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip


@functools.cache
def templates_digest() -> str:
    """Of everything that decides how a page looks, which files.py does not."""
    found = hashlib.sha256()
    files = [*FOLDER.glob("*.py"), *(FOLDER / "templates").iterdir(), FOLDER.parent / "numbers.py"]
    for path in sorted(p for p in files if p.is_file() and p.name != "files.py"):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def render(template: str, **values: Any) -> str:
    text = (FOLDER / "templates" / "style.css").read_text(encoding="utf-8")
    script = (FOLDER / "templates" / "sort.js").read_text(encoding="utf-8")
    made: str = _environment().get_template(template).render(
        version=__version__, templates=templates_digest(), style=Markup(text), script=Markup(script), **values
    )
    return re.sub(r"\n{2,}", "\n", made)


def page_html(subject: Subject, *, index: str | None = None, bodies: bool = True) -> str:
    """One self-contained page; ``index`` is where its link back goes."""
    return render("page.html.j2", page=page_of(subject, bodies=bodies), index=index)


def index_html(collection: Collection, links: list[str]) -> str:
    from crucible.report.page.index import index_of

    return render("index.html.j2", page=index_of(collection, links))
