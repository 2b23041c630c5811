"""Integers of index arithmetic: polynomials over sizes and loop variables, with floor division and remainder.

Everything is kept in one canonical form, so that two ways of writing an index compare equal and views cancel:
``((y*W + x) // W)`` is ``y`` because ``x`` is known to stay below ``W``. Variables and sizes are never negative.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Union

Atom = Union["Size", "Var", "Quotient", "Remainder"]
Monomial = tuple[Atom, ...]
IntLike = Union["Int", int]


@dataclass(frozen=True)
class Size:
    """A size that is known when the function is called; at least ``low``."""

    name: str
    low: int = 1

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Var:
    """A loop variable, from zero to below its extent."""

    name: str
    extent: Int

    def __str__(self) -> str:
        return self.name

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.extent))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True)
class Quotient:
    top: Int
    bottom: Int

    @cached_property
    def _text(self) -> str:
        return f"({self.top.factor()} / {self.bottom.factor()})"

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _hash(self) -> int:
        return hash(("/", self.top, self.bottom))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True)
class Remainder:
    top: Int
    bottom: Int

    @cached_property
    def _text(self) -> str:
        return f"({self.top.factor()} % {self.bottom.factor()})"

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _hash(self) -> int:
        return hash(("%", self.top, self.bottom))

    def __hash__(self) -> int:
        return self._hash


class Int:
    """A polynomial with integer coefficients in atoms. Immutable; prints as C++."""

    __slots__ = ("terms", "_key", "_hash", "_text")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = {m: c for m, c in terms.items() if c}
        self._key = frozenset(self.terms.items())
        self._hash = hash(self._key)
        self._text: str | None = None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            other = integer(other)
        return isinstance(other, Int) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    @property
    def constant(self) -> int | None:
        """The value, where it does not depend on anything."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    @property
    def atom(self) -> Atom | None:
        """The atom this is, where it is one and nothing else."""
        if len(self.terms) == 1:
            ((monomial, c),) = self.terms.items()
            if c == 1 and len(monomial) == 1:
                return monomial[0]
        return None

    def __add__(self, other: IntLike) -> Int:
        other = integer(other)
        if not other.terms:
            return self
        terms = dict(self.terms)
        for m, c in other.terms.items():
            terms[m] = terms.get(m, 0) + c
        return _recombined(Int(terms))

    __radd__ = __add__

    def __neg__(self) -> Int:
        return Int({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: IntLike) -> Int:
        return self + (-integer(other))

    def __rsub__(self, other: IntLike) -> Int:
        return integer(other) - self

    def __mul__(self, other: IntLike) -> Int:
        other = integer(other)
        terms: dict[Monomial, int] = {}
        for m1, c1 in self.terms.items():
            for m2, c2 in other.terms.items():
                m = tuple(sorted(m1 + m2, key=str))
                terms[m] = terms.get(m, 0) + c1 * c2
        return _recombined(Int(terms))

    __rmul__ = __mul__

    def __floordiv__(self, other: IntLike) -> Int:
        return _divide(self, integer(other))[0]

    def __mod__(self, other: IntLike) -> Int:
        return _divide(self, integer(other))[1]

    def atoms(self) -> set[Atom]:
        """Every atom in here, also those inside quotients and remainders."""
        found: set[Atom] = set()
        for monomial in self.terms:
            for atom in monomial:
                if atom not in found:
                    found.add(atom)
                    if isinstance(atom, (Quotient, Remainder)):
                        found |= atom.top.atoms() | atom.bottom.atoms()
        return found

    def variables(self) -> set[Var]:
        return {a for a in self.atoms() if isinstance(a, Var)}

    def sizes(self) -> set[Size]:
        found = {a for a in self.atoms() if isinstance(a, Size)}
        return found

    def substitute(self, values: Mapping[Atom, Int]) -> Int:
        """The same with atoms replaced."""
        total = ZERO
        for monomial, c in self.terms.items():
            product = integer(c)
            for atom in monomial:
                product = product * _substitute_atom(atom, values)
            total = total + product
        return total

    def slope(self, variable: Var) -> Int | None:
        """What one more of a variable adds; none where that depends on it."""
        terms: dict[Monomial, int] = {}
        for monomial, c in self.terms.items():
            rest = tuple(a for a in monomial if a != variable)
            if len(monomial) - len(rest) > 1 or variable in Int({rest: 1}).variables():
                return None
            if len(rest) < len(monomial):
                terms[rest] = c
        return Int(terms)

    def upper(self) -> Int | None:
        """A bound that this never exceeds, made of sizes alone; none where there is none in sight."""
        return self._bound(high=True)

    def lower(self) -> Int | None:
        """A bound that this never falls below, made of sizes alone; none where there is none in sight."""
        return self._bound(high=False)

    def _bound(self, *, high: bool) -> Int | None:
        total = ZERO
        for monomial, c in self.terms.items():
            if not any(of_atom(a).variables() for a in monomial):
                total = total + Int({monomial: c})
                continue
            if not all(_plain_atom(a) for a in monomial):
                return None
            if (c > 0) != high:
                continue  # at best (or worst) the variable is zero
            product = integer(c)
            for atom in monomial:
                bound = _upper_of(atom)
                if bound is None:
                    return None
                product = product * bound
            total = total + product
        return total

    def hint(self, hints: Mapping[str, int]) -> int:
        """The value for the sizes given by name."""
        total = 0
        for monomial, c in self.terms.items():
            for atom in monomial:
                c *= _hint_of(atom, hints)
            total += c
        return total

    def __str__(self) -> str:
        if self._text is None:
            self._text = self._print()
        return self._text

    __repr__ = __str__

    def _print(self) -> str:
        if not self.terms:
            return "0"
        parts: list[str] = []
        for monomial, c in sorted(self.terms.items(), key=lambda t: (t[1] < 0, -len(t[0]), [str(a) for a in t[0]])):
            names = " * ".join(str(a) for a in monomial)
            size = abs(c)
            body = names if size == 1 and names else f"{names} * {size}" if names else str(size)
            sign = ("-" if c < 0 else "") if not parts else (" - " if c < 0 else " + ")
            parts.append(sign + body)
        return "".join(parts)

    def python(self) -> str:
        """The text as Python has it."""
        return str(self).replace(" / ", " // ")

    def factor(self) -> str:
        """The text in parentheses where it needs them beside a product."""
        text = str(self)
        simple = self.atom is not None or (self.constant is not None and not text.startswith("-"))
        return text if simple else f"({text})"


def integer(value: IntLike) -> Int:
    return value if isinstance(value, Int) else _constant(value)


@lru_cache(4096)
def _constant(value: int) -> Int:
    return Int({(): int(value)})


ZERO = Int({})
ONE = Int({(): 1})


def of_atom(atom: Atom) -> Int:
    return Int({(atom,): 1})


def of_var(variable: Var) -> Int:
    """A variable's own value: zero where it has no other."""
    return ZERO if variable.extent == 1 else of_atom(variable)


def size(name: str, low: int = 1) -> Int:
    return of_atom(Size(name, low))


def var(name: str, extent: IntLike) -> Int:
    """A loop variable; one of extent one is zero."""
    return of_var(Var(name, integer(extent)))


def product(values: list[Int] | tuple[Int, ...]) -> Int:
    total = ONE
    for v in values:
        total = total * v
    return total


def _substitute_atom(atom: Atom, values: Mapping[Atom, Int]) -> Int:
    if atom in values:
        return values[atom]
    if isinstance(atom, Quotient):
        return atom.top.substitute(values) // atom.bottom.substitute(values)
    if isinstance(atom, Remainder):
        return atom.top.substitute(values) % atom.bottom.substitute(values)
    return of_atom(atom)


def _upper_of(atom: Atom) -> Int | None:
    if isinstance(atom, Var):
        return atom.extent - 1
    if isinstance(atom, Remainder):
        return atom.bottom - 1
    if isinstance(atom, Quotient):
        top = atom.top.upper()
        return None if top is None else top // atom.bottom
    return of_atom(atom)


def _hint_of(atom: Atom, hints: Mapping[str, int]) -> int:
    if isinstance(atom, Size):
        return hints[atom.name]
    if isinstance(atom, Var):
        return hints.get(atom.name, 0)
    top, bottom = atom.top.hint(hints), atom.bottom.hint(hints)
    return top // bottom if isinstance(atom, Quotient) else top % bottom


def nonnegative(value: Int) -> bool:
    """Whether this is provably at least zero for sizes at their smallest or above."""
    lowest = value.lower()
    if lowest is None:
        return False
    if all(c >= 0 for c in lowest.terms.values()):
        return True
    # Shift every size by its lower bound: what is then free of negative coefficients cannot be negative.
    shifted = lowest.substitute({a: size(a.name, 0) + a.low for a in lowest.atoms() if isinstance(a, Size) and a.low})
    return all(c >= 0 for c in shifted.terms.values())


def _plain_atom(atom: Atom) -> bool:
    """Whether an atom is never negative. A quotient of sizes is a size: where it is negative there is no element."""
    return not isinstance(atom, Quotient) or not atom.top.variables() or nonnegative(atom.top)


def below(value: Int, limit: Int) -> bool:
    """Whether ``0 <= value < limit`` is provable."""
    upper = value.upper()
    return upper is not None and nonnegative(limit - 1 - upper) and nonnegative(value)


@lru_cache(65536)
def _divide(top: Int, bottom: Int) -> tuple[Int, Int]:
    if bottom == 1:
        return top, ZERO
    if not bottom.terms:
        return ZERO, ZERO  # where an element would be of a tensor that has none
    a, b = top.constant, bottom.constant
    if a is not None and b is not None:
        return integer(a // b), integer(a % b)
    if top == bottom:
        return ONE, ZERO
    whole, rest = _split(top, bottom)
    if below(rest, bottom):
        return whole, rest
    if rest.constant is not None and b is not None:
        return whole + rest.constant // b, integer(rest.constant % b)
    if below(rest + bottom, bottom):
        return whole - 1, rest + bottom  # (h*w - 1) // w is h - 1: the last of a tensor's elements is in its last row
    if not nonnegative(rest):
        whole, rest = ZERO, top  # C++ rounds towards zero: what may be negative must not be divided
    quotient = _quotient(rest, bottom)
    return whole + quotient, of_atom(Remainder(rest, bottom))


def _quotient(top: Int, bottom: Int) -> Int:
    """Division that is not exact; a quotient of a quotient is one quotient."""
    atom = top.atom
    if isinstance(atom, Quotient):
        return _divide(atom.top, atom.bottom * bottom)[0]
    return of_atom(Quotient(top, bottom))


def _split(top: Int, bottom: Int) -> tuple[Int, Int]:
    """``top = whole * bottom + rest`` with every multiple of ``bottom`` that can be seen taken out."""
    whole, rest = ZERO, top
    if len(bottom.terms) == 1:
        ((factors, c),) = bottom.terms.items()
        kept: dict[Monomial, int] = {}
        taken: dict[Monomial, int] = {}
        for monomial, value in top.terms.items():
            left = list(monomial)
            for f in factors:
                if f not in left:
                    break
                left.remove(f)
            else:
                if c > 0 and value % c == 0:
                    taken[tuple(left)] = value // c
                    continue
            kept[monomial] = value
        return Int(taken), Int(kept)
    # A sum as divisor (a size such as W + 2): try to take out multiples by its first term.
    lead = max(bottom.terms, key=lambda m: (len(m), [str(a) for a in m]))
    for _ in range(8):
        for monomial, value in rest.terms.items():
            left = list(monomial)
            for f in lead:
                if f not in left:
                    break
                left.remove(f)
            else:
                if lead and value % bottom.terms[lead] == 0:
                    step = Int({tuple(left): value // bottom.terms[lead]})
                    candidate = rest - step * bottom
                    if len(candidate.terms) < len(rest.terms):
                        whole, rest = whole + step, candidate
                        break
        else:
            break
    return whole, rest


def _recombined(value: Int) -> Int:
    """``a*(x // b)*b + a*(x % b)`` is ``a*x``: what a reshape took apart, another puts together."""
    for monomial, c in value.terms.items():
        for i, atom in enumerate(monomial):
            if not isinstance(atom, Remainder):
                continue
            others = monomial[:i] + monomial[i + 1 :]
            scale = Int({others: c})
            quotient = _quotient(atom.top, atom.bottom)
            wanted = scale * quotient * atom.bottom
            if wanted.terms and all(value.terms.get(m) == k for m, k in wanted.terms.items()):
                terms = dict(value.terms)
                for m in wanted.terms:
                    del terms[m]
                del terms[monomial]
                return Int(terms) + scale * atom.top
    return value
