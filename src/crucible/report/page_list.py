"""The pages that were written, for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from crucible import __version__
from crucible.report.page.files import Written

SCHEMA = 1
KIND = "report"
STYLES = {"proven": "bold green", "refuted": "bold red"}
SHOWN = 20


def show(pages: Sequence[Written], console: Console) -> None:
    """A line each: what it says first, and where it is; of a large sweep the index and what is not proven."""
    listed = list(pages) if len(pages) <= SHOWN else [pages[0], *(p for p in pages[1:] if p.verdict != "proven")]
    for page in listed:
        style = STYLES.get(page.verdict, "bold yellow")
        console.print(f"[{style}]{page.word}[/] {escape(page.title)}: {escape(str(page.path))}", highlight=False,
                      soft_wrap=True)  # fmt: skip
    if len(listed) < len(pages):
        console.print(f"[dim]and {len(pages) - len(listed)} pages of what is proven[/]", highlight=False)


def document(pages: Sequence[Written]) -> dict[str, Any]:
    """The document of ``--json``; ``schema`` counts up when a key changes its meaning."""
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "crucible": __version__,
        "pages": [{"file": str(p.path), "title": p.title, "verdict": p.verdict, "word": p.word} for p in pages],
    }
