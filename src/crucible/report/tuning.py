"""What tuning found, for people: a sentence, and a table of the alternatives with their times."""

from __future__ import annotations

from crucible.tune.bench import REFERENCE
from crucible.tune.result import DEFAULT, Row, Tuning

SHOWN = 12


def sentence(tuning: Tuning) -> str:
    """The choice, and how it compares with the default and with the Model's own operators."""
    chosen = tuning.chosen
    if chosen.median is None:
        return f"nothing could be timed: {chosen.note or 'no time'}; the cost model's choice is kept"
    text = f"{chosen.name}, {chosen.median:.3f} ms"
    for name in (DEFAULT, REFERENCE):
        row = tuning.row(name)
        if row is not None and row is not chosen:
            text += f"; {name} {_time(row)}"
    if tuning.reference_wins:
        text += ". The reference's own operators are faster"
    how = "as measured before" if tuning.cached else f"{tuning.seconds:.0f} s"
    return f"{text} ({tuning.gpu}, {how}{', the budget was spent' if tuning.cut else ''})"


def lines(tuning: Tuning) -> list[str]:
    """The choice first, then the others by their time, then those that have none, with the reason."""
    chosen = tuning.chosen
    rest = [r for r in tuning.rows if r is not chosen]
    timed = sorted((r for r in rest if r.median is not None), key=lambda r: r.median or 0.0)
    untimed = [r for r in rest if r.median is None]
    listed = [chosen, *timed, *untimed]
    shown = [r for k, r in enumerate(listed) if k < SHOWN or r.name in (DEFAULT, REFERENCE)]
    out = [_line(r, tuning) for r in shown]
    if len(shown) < len(listed):
        out.append(f"and {len(listed) - len(shown)} more")
    return out


def _line(row: Row, tuning: Tuning) -> str:
    words = [row.name, _time(row)]
    if row.median is not None and row.low is not None and row.high is not None:
        words[1] += f" ({row.low:.3f} to {row.high:.3f})"
    if row.error is not None:
        words.append(f"error {row.error:.1e}")
    if row.name == tuning.winner:
        words.append("chosen")
    words += [f"refuted: {row.refuted}"] if row.refuted else []
    return ", ".join(words)


def _time(row: Row) -> str:
    return f"{row.median:.3f} ms" if row.median is not None else row.note or "not timed"
