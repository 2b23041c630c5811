"""How the index of a tensor is made of a row's and of a place in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crucible.plan.index import ONE, ZERO, Int, Quotient, Var
from crucible.plan.program import Index


@dataclass
class Split:
    """How an index is made of a row's and the rest: a variable is a row's, a row's times q plus a rest, or a rest."""

    rows: dict[Var, tuple[int, Int]]  # variable to (position in the row index, q)
    inner: list[Var]  # variables with a rest
    rests: dict[Var, Var]

    def extent(self, v: Var) -> Int:
        return self.rests[v].extent

    def row_extent(self, at: int) -> Int | None:
        """Of the row index at a position, as far as the variables go; none where no variable is there."""
        return next((v.extent // q for v, (position, q) in self.rows.items() if position == at), None)

    def inner_vars(self, which: Sequence[Var]) -> list[Var]:
        return [self.rests[v] for v in which]

    def index(self, row: Sequence[Int], inner: dict[Var, Int], variables: Sequence[Var]) -> Index:
        out = []
        places = list(row)
        for v in variables:
            at = ZERO
            if v in self.rows:
                position, q = self.rows[v]
                at = places[position] * q
            if v in inner:
                at = at + inner[v]
            out.append(at)
        return tuple(out)


def rows_of(outer: Sequence[Int], variables: Sequence[Var]) -> Split | None:
    """Read an outer index as variables, or variables divided by a constant."""
    rows: dict[Var, tuple[int, Int]] = {}
    position = 0
    for o in outer:
        if o.constant == 0:
            continue
        atom = o.atom
        if isinstance(atom, Var) and atom in variables and atom not in rows:
            rows[atom] = position, ONE
        elif isinstance(atom, Quotient) and isinstance(atom.top.atom, Var) and atom.bottom.constant is not None:
            v = atom.top.atom
            if v not in variables or v in rows or (v.extent % atom.bottom) != 0:
                return None
            rows[v] = position, atom.bottom
        else:
            return None
        position += 1
    inner, rests = [], {}
    for v in variables:
        extent = rows[v][1] if v in rows else v.extent
        if extent != 1:
            inner.append(v)
            rests[v] = Var(f"{v.name}_rest", extent)
    return Split(rows, inner, rests)
