"""Pages on the disk: one file for a record, an index with a folder of pages for a sweep."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from crucible.report.page.subject import Collection, RecordError, read
from crucible.report.page.write import GENERATOR, index_html, page_html

DEFAULT = Path("report.html")


@dataclass(frozen=True)
class Written:
    """A page that was written, and what it says first."""

    path: Path
    title: str
    verdict: str
    word: str


def report(
    record: Path, output: Path | None = None, *, force: bool = False, progress: Callable[[str], None] = lambda _: None
) -> list[Written]:
    """Write the page of a record, or the index of a sweep and the pages beside it; the first is the one to open.

    Raises RecordError where the record cannot be read or the place cannot be written.
    """
    place = output or DEFAULT
    _check_place(place, force)
    progress(f"reading {record}")
    found = read(record)
    try:
        if isinstance(found, Collection):
            return _collection(found, place, force, progress)
        progress(found.title)
        _write(place, page_html(found))
        return [Written(place, found.title, found.verdict, found.word)]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, StopIteration) as error:
        raise RecordError(f"{record} cannot be shown: a part of it is missing or broken: {error!r}") from error


def _collection(found: Collection, place: Path, force: bool, progress: Callable[[str], None]) -> list[Written]:
    folder = place.with_name(f"{place.stem}_pages")
    names = slugs([s.title for s in found.subjects])
    for name in names:
        _check_place(folder / f"{name}.html", force, parent=False)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise RecordError(f"{folder} cannot be made: {error.strerror}") from None
    made = []
    for subject, name in zip(found.subjects, names):
        progress(subject.title)
        path = folder / f"{name}.html"
        _write(path, page_html(subject, index=f"../{place.name}"))
        made.append(Written(path, subject.title, subject.verdict, subject.word))
    _write(place, index_html(found, [f"{folder.name}/{name}.html" for name in names]))
    good = sum(w.verdict == "proven" for w in made)
    verdict = "refuted" if any(w.verdict == "refuted" for w in made) else "proven" if good == len(made) else "unjudged"
    return [Written(place, found.title, verdict, f"{good} of {len(made)} proven"), *made]


def slugs(titles: list[str]) -> list[str]:
    """Names of files, no two of them alike."""
    found: list[str] = []
    for title in titles:
        name = base = re.sub(r"[^\w.-]+", "_", title).strip("_.") or "page"
        number = 2
        while name in found:
            name, number = f"{base}_{number}", number + 1
        found.append(name)
    return found


def _check_place(path: Path, force: bool, parent: bool = True) -> None:
    if path.is_dir():
        raise RecordError(f"{path} is a folder; give the name of the page to write with -o")
    if parent and not path.parent.is_dir():
        raise RecordError(f"{path} cannot be written: there is no folder {path.parent}")
    if path.exists() and not force and not is_ours(path):
        raise RecordError(f"{path} exists and is no page of crucible's; give another name with -o, or use --force")


def is_ours(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return GENERATOR in file.read(2048)
    except OSError:
        return False


def _write(path: Path, text: str) -> None:
    from crucible.write import WriteError, write_atomically

    try:
        write_atomically(path, text)
    except WriteError as error:
        raise RecordError(str(error)) from None
