"""The loops of a walk that takes several neighbours at once: vectors, and the few single elements beside them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from crucible.emit.writer import Block, Writer, indented, pointer
from crucible.plan.index import ONE, ZERO, Int, of_atom
from crucible.plan.program import STORAGE
from crucible.plan.stages import Pass
from crucible.plan.value import Load, Op, Value
from crucible.plan.vectors import LANE, Vectors


@dataclass(frozen=True)
class Dealing:
    """How threads share a walk: a thread's first vector, how far the next is, and where it goes on after those."""

    first: str
    each: str
    turn: str  # nothing where all vectors are a thread's first ones
    single: str  # a thread's first single element
    step: str  # and how far the next is
    ahead: str = "IN_FLIGHT"  # so many vectors are asked for before the first is used


Run = tuple[str, Int]
# What is written for an element: the walk, further values of its element, where it stands, and which place it keeps.
Body = Callable[[Pass, Sequence[Value], Block, str], None]


def begins(w: Writer, v: Vectors, block: Block) -> dict[Run, str]:
    """Where runs have their element of place 0."""
    return {
        (buffer, index): f"&{pointer(buffer)}[{w.int(index.substitute({v.place: ZERO}), block)}]"
        for buffer, index in v.runs
    }


def distance(w: Writer, v: Vectors, starts: Sequence[str], block: Block) -> str:
    """How far place 0 is from where a vector may begin, or -1."""
    together = f"alike({', '.join(starts)})"
    if not v.placed:
        return together
    numbers = [w.factor(n, block) for n in v.whole]
    number = f"({' | '.join(numbers)})" if len(numbers) > 1 else "".join(numbers)
    whole = f"{number} % VECTOR == 0 && " if number else ""
    return f"{whole}{together} == 0 ? 0 : -1"


class Loops:
    """Of a walk: over vectors, and over single elements.

    ``name``: of the place along the walk; ``last``: buffers of which no element is needed again.
    ``outer`` has what is needed to ask for elements, ``middle`` what is not, and comes later, with ``results``.
    """

    def __init__(
        self, w: Writer, v: Vectors, outer: Block, middle: Block, dealing: Dealing, name: str, last: frozenset[str],
        results: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.w, self.v, self.outer, self.middle, self.dealing, self.name = w, v, outer, middle, dealing, name
        self.last, self.results = last, results
        self.places = "run"
        self.starts: dict[Run, str] = {}
        for run, text in begins(w, v, outer).items():
            self.starts[run] = text
            if run in (*v.loads, *v.stores) and run[1].slope(v.place) == ONE:
                self.starts[run] = w.fresh("at")
                constant = "const " if run[0] not in w.written else ""
                outer.lines.append(f"{constant}{self._storage(run)}* const {self.starts[run]} = {text};")

    def stretch(self, start: str, end: str) -> str:
        """A statement: which places go by vectors."""
        self.places = self.w.fresh("run")
        far = distance(self.w, self.v, list(self.starts.values()), self.outer)
        return f"const Stretch {self.places} = stretch({start or 0}, {end}, {far});"

    def text(self, body: Body, unroll: Callable[[Block], bool]) -> list[str]:
        """All that follows ``outer``, with ``middle``."""
        for load in self._steady():
            self.w.value(load, self.middle)
        self.middle.lines += self.results
        several, single = self._several(body), self._single(body, unroll)
        before, after = several
        if not self.dealing.turn:
            return [*before, *self.middle.lines, *after, *single]
        middle = self.middle.lines if self.middle is not self.outer else []
        head = f"for (Index k = {self.dealing.first}; k < {self.places}.vectors; k += {self.dealing.turn}) {{"
        return [*middle, head, *indented([*before, *after]), "}", *single]

    def _steady(self) -> Iterator[Value]:
        """Elements that are the same all along: asked for before anything waits."""
        p = self.v.single
        todo = [v for _, values in p.reduces for v in values] + [s.value for s in p.stores]
        while todo:
            value = todo.pop(0)
            if isinstance(value, Load) and self.v.place not in value.free and not value.dynamic:
                yield value
            elif isinstance(value, Op):  # what a condition guards stays with it
                todo = [*value.args, *todo]

    def _storage(self, run: Run) -> str:
        return STORAGE[self.w.buffers[run[0]].dtype]

    def _address(self, run: Run, block: Block) -> str:
        text = self.starts[run]
        return f"&{pointer(run[0])}[{self.w.int(run[1], block)}]" if text.startswith("&") else f"{text} + {self.name}"

    def _several(self, body: Body) -> tuple[list[str], list[str]]:
        """Asking for vectors, and what is done with them."""
        w, v, runs = self.w, self.v, self.places
        fetch, vector = Block(self.outer, [v.place]), Block(self.middle, [v.place])
        fetch.names[v.place] = vector.names[v.place] = self.name
        each = Block(vector, [LANE])
        each.names[LANE] = "u"
        declared, stored = [], []
        for run in v.loads:
            x = w.fresh("x")
            declared.append(f"Vector<{self._storage(run)}> {x}[{self.dealing.ahead}];")
            fetch.lines.append(f"{x}[d] = read_vector{self._hint(run)}({self._address(run, fetch)});")
            w.at_hand[run[0], run[1] + of_atom(LANE)] = f"{x}[d][u]"
        for run in v.stores:
            y = w.fresh("y")
            vector.lines.append(f"Vector<{self._storage(run)}> {y};")
            stored.append(f"write_vector{self._hint(run)}({self._address(run, vector)}, {y});")
            w.at_hand[run[0], run[1] + of_atom(LANE)] = f"{y}[u]"
        body(v.several, v.also_several, each, f"{runs}.begin + u * {runs}.vectors + kk")
        w.at_hand.clear()
        lines = [
            *vector.lines, "#pragma unroll", "for (int u = 0; u < VECTOR; ++u) {", *indented(each.lines), "}", *stored,
        ]  # fmt: skip
        k = "k" if self.dealing.turn else self.dealing.first
        number = f"const Index kk = {k} + d * {self.dealing.each};"
        place = f"const Index {self.name} = {runs}.begin + kk * VECTOR;"
        placed = [place] if any(re.search(rf"\b{self.name}\b", line) for line in lines) else []
        turns = ["#pragma unroll", f"for (int d = 0; d < {self.dealing.ahead}; ++d) {{", f"  {number}"]
        asked = [f"if (kk < {runs}.vectors) {{", *indented([place, *fetch.lines]), "}"]
        before = [*declared, *turns, *indented(asked), "}"] if v.loads else []
        return before, [*turns, *indented([f"if (kk >= {runs}.vectors) break;", *placed, *lines]), "}"]

    def _hint(self, run: Run) -> str:
        return "<true>" if run[0] in self.last else ""

    def _single(self, body: Body, unroll: Callable[[Block], bool]) -> list[str]:
        w, v = self.w, self.v
        alone = Block(self.middle, [v.place])
        alone.names[v.place] = self.name
        for run in (*v.loads, *v.stores):
            if not self.starts[run].startswith("&"):
                element = f"{self.starts[run]}[{self.name}]"
                w.at_hand[run] = element if run in v.stores else f"read({element})"
        body(v.single, v.also_single, alone, self.name)
        w.at_hand.clear()
        return [
            *(["#pragma unroll 4"] if unroll(alone) else []),
            f"for (int64_t k = {self.dealing.single}; k < {self.places}.singles(); k += {self.dealing.step}) {{",
            f"  const Index {self.name} = {self.places}.single(k);", *indented(alone.lines), "}",
        ]  # fmt: skip
