"""A Proof for the eyes: verdict, reason, the checks with their evidence, limits, sizes, how to repeat it."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from crucible.prove.proof import Check, Finding, Proof
from crucible.prove.rerun import rerun_command

VERDICTS = {
    "proven": ("PROVEN", "bold green"),
    "refuted": ("REFUTED", "bold red"),
    "unjudged": ("COULD NOT BE JUDGED", "bold yellow"),
}
MARKS = {
    "passed": ("ok", "green"),
    "failed": ("FAILED", "red"),
    "limited": ("limited", "yellow"),
    "skipped": ("-", "dim"),
    "stopped": ("stopped", "dim"),
}


def show(proof: Proof, console: Console) -> None:
    """Print a proof to a console (standard output, as the command's result)."""
    word, style = VERDICTS[proof.verdict]
    console.print(f"[{style}]{word}[/] {escape(proof.candidate)} against {escape(proof.reference)}{_where(proof)}")
    if proof.reason is not None:
        _finding(console, proof.reason)
    console.print()
    console.print(_table(proof.checks))
    for limit in proof.limits:
        _paragraph(console, "limit", "yellow", limit)
    for warning in proof.warnings:
        _paragraph(console, "warning", "yellow", f"{warning.code}: {warning.message}")
    _sizes(console, proof)
    console.print(f"[dim]again:[/] {escape(rerun_command(proof))}", soft_wrap=True, highlight=False)


def _where(proof: Proof) -> str:
    device = proof.environment.get("device") or {}
    name = device.get("name", proof.device)
    dtype = f", {proof.options['dtype']}" if proof.options.get("dtype") else ""
    return f" [dim]({escape(str(name))}{dtype}, {proof.seconds:.0f} s)[/]"


def _finding(console: Console, finding: Finding) -> None:
    first, *rest = finding.message.splitlines() or [""]
    console.print(f"  [bold]{finding.check} / {finding.code}[/]: {escape(first)}", highlight=False)
    for line in rest:
        console.print(f"    {escape(line)}", highlight=False)
    case = finding.evidence.get("case")
    if case:
        console.print(f"  [dim]in the trial:[/] {escape(str(case))}", highlight=False)


def _table(checks: list[Check]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column("check", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("evidence", overflow="fold")
    for check in checks:
        mark, style = MARKS[check.status]
        lines = list(check.evidence)
        lines += [f"{f.code}: {f.message.splitlines()[0]}" for f in check.findings]
        table.add_row(escape(check.title), f"[{style}]{mark}[/]", escape("\n".join(lines)))
    return table


def _paragraph(console: Console, label: str, style: str, text: str) -> None:
    console.print(Padding(f"[{style}]{label}:[/] {escape(text)}", (0, 0)), highlight=False)


def _sizes(console: Console, proof: Proof) -> None:
    if not proof.sizes:
        return
    declared = ", ".join(str(tuple(s)) for s in proof.sizes["declared"] if s)
    small = ", ".join(str(tuple(s)) for s in proof.sizes["small"] if s)
    if proof.sizes["main"] == "declared":
        text = f"run at the declared {declared}" + (f" and at {small}" if small != declared else "")
    else:
        text = f"run at {small}; the problem declares {declared}"
    console.print(f"[dim]sizes:[/] {escape(text)}", highlight=False)
