"""A plan for the eyes: a paragraph that sums it up, and the table of kernels that ``--explain`` prints."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from crucible.report import tuning
from crucible.report.explain import Explanation, Kernel, count_text, tensors_text, title
from crucible.report.numbers import amount, gflop, least


def show_summary(e: Explanation, console: Console) -> None:
    """How many kernels, the least time for them, what torch keeps and what was rewritten: a line each."""
    shapes = ", ".join(f"{t.name} {t.shape}" for t in e.inputs)
    sizes = f"{shapes}, {e.element}" if shapes else e.element
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column("what", no_wrap=True, style="dim")
    table.add_column("text", overflow="fold")
    for p in e.passes:
        if p.direction != "inference":
            time = f", at least {least(p.seconds)}" if any(k.ours for k in p.kernels) else ""
            table.add_row(title(p, len(e.modes)), escape(count_text(p) + time))
    table.add_row("speed of light", escape(f"{e.gpu.title}, {sizes}"))
    table.add_row("left to torch", escape("; ".join(name for name, _ in e.unfused) or "nothing"))
    if e.fixed:
        table.add_row("made for", escape(", ".join(e.fixed)))
    table.add_row("rewrites", escape(f"{len(e.rewrites)}" if e.rewrites else "none"))
    if e.tuning is not None:
        table.add_row("tuned", escape(tuning.sentence(e.tuning)))
    console.print(table, highlight=False)


def show_plan(e: Explanation, console: Console) -> None:
    """The table of kernels, then what was not fused and why, then the rewrites."""
    for p in e.passes:
        heading = f"[bold]{escape(title(p, len(e.modes)))}[/]: {escape(count_text(p))}"
        if p.kernels:
            heading += f", {gflop(p.operations)} GFLOP, {amount(p.bytes)}, at least {least(p.seconds)}"
        console.print(heading, highlight=False)
        if p.direction != "inference":
            console.print(_kernels(p.kernels), highlight=False)
        console.print()
    _listed(console, "not fused", [f"{name}: {reason}" for name, reason in e.unfused])
    _listed(console, "rewrites", list(e.rewrites))
    if e.tuning is not None:
        console.print(f"[bold]tuned[/]: {escape(tuning.sentence(e.tuning))}", highlight=False)
        for line in tuning.lines(e.tuning):
            console.print(f"  {escape(line)}", highlight=False)
    small = [f"{title(p, len(e.modes))} {k.name}, {least(k.seconds)}" for p in e.passes for k in p.small
             if p.direction != "inference"]  # fmt: skip
    if small:
        _listed(console, "small kernels, which start or finish another's work", small)
    console.print(f"[dim]least times: {escape(e.gpu.title)}, every buffer moved once at {e.gpu.bandwidth:g} GB/s[/]",
                  highlight=False)  # fmt: skip


def _kernels(kernels: tuple[Kernel, ...]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("kernel", no_wrap=True)
    table.add_column("absorbs, reads, writes", overflow="fold")
    table.add_column("GFLOP", justify="right", no_wrap=True)
    table.add_column("MB", justify="right", no_wrap=True)
    table.add_column("at least", justify="right", no_wrap=True)
    for k in kernels:
        style = "" if k.ours and not k.small else "dim" if k.ours else "yellow"
        what = escape(", ".join(k.absorbs))
        what += f"\n[dim]reads[/] {escape(tensors_text(k.reads))}\n[dim]writes[/] {escape(tensors_text(k.writes))}"
        what += f"\n[dim]({escape(k.beside)})[/]" if k.beside else ""
        table.add_row(
            k.name, what, gflop(k.operations) if k.ours else "", f"{k.bytes / 1e6:.1f}",
            least(k.seconds) if k.ours else "", style=style,
        )  # fmt: skip
    return table


def _listed(console: Console, heading: str, lines: list[str]) -> None:
    console.print(f"[bold]{heading}[/]: none" if not lines else f"[bold]{heading}[/]:", highlight=False)
    for line in lines:
        console.print(f"  {escape(line)}", highlight=False)
