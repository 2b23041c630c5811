"""Values as C++ statements: each computed once, as far out of loops as it can be."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from crucible.plan import pointwise, reducers
from crucible.plan.index import Atom, Int, Quotient, Remainder, Size, Var, of_atom
from crucible.plan.program import SCALAR_BYTES, STORAGE, Buffer
from crucible.plan.value import (
    Condition,
    Const,
    Fold,
    IndexValue,
    Inside,
    Kept,
    Load,
    Local,
    Masked,
    Multiple,
    Op,
    SizeText,
    Value,
    walk,
)

TYPES = {"f": "accum", "l": "int64_t", "b": "bool"}


def pointer(buffer: str) -> str:
    """The functor's member that points to a buffer."""
    return f"p_{buffer}"


class Block:
    """Statements at one level of loops and conditions, and the names that are known there."""

    def __init__(self, parent: Block | None = None, own: Iterable[Var] = (), *, mask: bool = False) -> None:
        self.parent = parent
        self.own = frozenset(own)
        self.mask = mask
        self.lines: list[str] = []
        self.names: dict[object, str] = {}

    def lookup(self, key: object) -> str | None:
        block: Block | None = self
        while block is not None:
            if key in block.names:
                return block.names[key]
            block = block.parent
        return None

    def home(self, free: frozenset[Var]) -> Block:
        """The outermost block in which something that depends on ``free`` can stand."""
        block = self
        while block.parent is not None and not block.mask and not (block.own & free):
            block = block.parent
        return block


class Writer:
    """Writes the body of one function of a functor. ``fields`` maps integers and variables to members at hand."""

    def __init__(
        self, buffers: Mapping[str, Buffer], fields: Mapping[object, str] | None = None,
        written: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        self.buffers = buffers
        self.written = written  # by the same kernel: loads must wait for stores
        self.top = Block()
        self.top.names.update(fields or {})
        self.uses: Counter[Value] = Counter()
        self.counter = 0
        self.loads: set[str] = set()
        self.sizes: set[str] = set()
        self.functions: set[str] = set()
        self.structs: set[str] = set()
        self.hoist: frozenset[Var] | None = None  # variables of a row or column that is decoded once
        self.hoisted: dict[Int, str] = {}
        self.at_hand: dict[tuple[str, Int], str] = {}  # elements of buffers that are in registers, by their index

    def expect(self, values: Iterable[Value]) -> None:
        """Count uses beforehand: what is used once need not have a name."""
        seen: set[Value] = set()
        for value in values:
            self.uses[value] += 1
            for v in walk(value, seen):
                for child in v.children:
                    self.uses[child] += 1

    def fresh(self, stem: str) -> str:
        self.counter += 1
        return f"{stem}{self.counter}"

    # -- integers

    def int(self, value: Int, block: Block) -> str:
        if self.hoist is not None:
            fixed = Int({m: c for m, c in value.terms.items() if self._is_fixed(m)})
            if any(m for m in fixed.terms) and (
                len(fixed.terms) > 1 or _has_division(fixed) or len(next(iter(fixed.terms))) > 1
            ):
                if fixed not in self.hoisted:
                    self.hoisted[fixed] = f"c{len(self.hoisted)}"
                name = f"at.{self.hoisted[fixed]}"
                rest = value - fixed
                if not rest.terms:
                    return name
                text = self._sum(rest, block)
                return f"{name} - {text[1:]}" if text.startswith("-") else f"{name} + {text}"
        return self._sum(value, block)

    def _is_fixed(self, monomial: tuple[Atom, ...]) -> bool:
        assert self.hoist is not None
        variables = set().union(*(of_atom(a).variables() for a in monomial)) if monomial else set()
        return variables <= self.hoist

    def _sum(self, value: Int, block: Block) -> str:
        if not value.terms:
            return "0"
        parts: list[str] = []
        for monomial, c in sorted(value.terms.items(), key=lambda t: (t[1] < 0, -len(t[0]), [str(a) for a in t[0]])):
            names = " * ".join(self.atom(a, block) for a in monomial)
            size = abs(c)
            body = names if size == 1 and names else f"{names} * {size}" if names else str(size)
            sign = ("-" if c < 0 else "") if not parts else (" - " if c < 0 else " + ")
            parts.append(sign + body)
        return "".join(parts)

    def factor(self, value: Int, block: Block) -> str:
        text = self.int(value, block)
        plain = text.replace("_", "").replace(".", "").isalnum()
        return text if plain else f"({text})"

    def atom(self, atom: Atom, block: Block) -> str:
        if isinstance(atom, Size):
            self.sizes.add(atom.name)
            return atom.name
        known = block.lookup(atom)
        if known is not None:
            return known
        if isinstance(atom, Var):
            raise KeyError(f"variable {atom.name} is not at hand")
        home = block.home(frozenset(of_atom(atom).variables()))
        sign = "/" if isinstance(atom, Quotient) else "%"
        name = self.fresh("q" if isinstance(atom, Quotient) else "e")
        text = f"const Index {name} = {self.factor(atom.top, home)} {sign} {self.factor(atom.bottom, home)};"
        home.lines.append(text)
        home.names[atom] = name
        return name

    # -- values

    def value(self, value: Value, block: Block) -> str:
        """An expression for the value, valid in this block; statements it needs are written before."""
        if isinstance(value, Const):
            return self._constant(value)
        if isinstance(value, (Kept, Local)):
            return value.name
        known = block.lookup(value)
        if known is not None:
            return known
        home = block.home(value.free)
        text = self._text(value, home)
        if isinstance(value, (Masked, Fold)):
            return text  # has a name already
        if home is block and self.uses[value] <= 1 and len(text) < 60:
            return text
        name = self.fresh("v")
        home.lines.append(f"const {TYPES[value.kind]} {name} = {_bare(text)};")
        home.names[value] = name
        return name

    def _constant(self, value: Const) -> str:
        if value.kind == "b":
            return "true" if value.value else "false"
        if value.kind == "l":
            return f"int64_t({value.value})"
        number = float(value.value)
        if math.isnan(number):
            return "accum(NAN)"
        if math.isinf(number):
            return "accum(INFINITY)" if number > 0 else "accum(-INFINITY)"
        return (
            f"accum({int(number)})"
            if number == int(number) and abs(number) < 1e6 and str(number)[0] != "-"
            else f"accum({number!r})"
        )

    def _text(self, value: Value, block: Block) -> str:
        if isinstance(value, IndexValue):
            return f"int64_t({self.int(value.index, block)})"
        if isinstance(value, SizeText):
            for s in value.sizes:
                self.int(s, block)
            return value.text
        if isinstance(value, Load):
            return self._load(value, block)
        if isinstance(value, Op):
            return self._op(value, block)
        if isinstance(value, Masked):
            return self._masked(value, block)
        assert isinstance(value, Fold)
        return self._fold(value, block)

    def _load(self, value: Load, block: Block) -> str:
        buffer = self.buffers[value.buffer]
        self.loads.add(value.buffer)
        element = self.at_hand.get((value.buffer, value.index), "")
        if not element:
            index = self.int(value.index, block)
            for part, stride in value.dynamic:
                index += f" + static_cast<Index>({self.value(part, block)}) * {self.factor(stride, block)}"
            element = self.element(value.buffer, index)
        if buffer.dtype == "scalar":
            return f"to_accum({element})"
        if buffer.dtype in SCALAR_BYTES:
            self.functions.add("widened")
            return f"widened({element})"
        return f"int64_t({element})" if buffer.kind == "l" and buffer.dtype != "int64" else element

    def element(self, buffer: str, index: str) -> str:
        """An element as text; what the kernel does not write is read past its stores."""
        text = f"{pointer(buffer)}[{index}]"
        return text if buffer in self.written else f"read({text})"

    def _op(self, value: Op, block: Block) -> str:
        args = [self.value(a, block) for a in value.args]
        if value.name.startswith("to_"):
            kind = value.name[3:]
            return f"({args[0]} != 0)" if kind == "b" else f"{TYPES[kind]}({args[0]})"
        row = pointwise.TABLE[value.name]
        kind = value.args[-1].kind if value.args else value.kind
        text = {"f": row.real, "l": row.whole, "b": row.logical or row.whole}[kind]
        assert text is not None, value.name
        made = text.format(*args)
        for word in _words(text):
            self.functions.add(word)
        return made

    def _masked(self, value: Masked, block: Block) -> str:
        name = self.fresh("v")
        conditions = [c for c in (self.condition(c, block) for c in value.conditions) if c]
        other = self.value(value.other, block)
        block.lines.append(f"{TYPES[value.kind]} {name} = {_bare(other)};")
        inner = Block(block, mask=True)
        body = self.value(value.body, inner)
        inner.lines.append(f"{name} = {_bare(body)};")
        head = f"if ({' && '.join(conditions) or 'true'})"
        if len(inner.lines) == 1:
            block.lines.append(f"{head} {inner.lines[0]}")
        else:
            block.lines.extend([f"{head} {{", *_indented(inner.lines), "}"])
        block.names[value] = name
        return name

    def condition(self, c: Condition, block: Block) -> str:
        if isinstance(c, Multiple):
            return f"{self.factor(c.value, block)} % {self.factor(c.step, block)} == 0"
        assert isinstance(c, Inside)
        text = self.int(c.value, block)
        limit = self.int(c.limit, block)
        if all(k >= 0 for k in c.value.terms.values()):
            return f"{text} < {limit}"
        return f"inside({text}, {limit})"

    def _fold(self, value: Fold, block: Block) -> str:
        """All parts of one loop come from the same accumulator."""
        row = reducers.TABLE[value.reducer]
        key = ("fold", value.reducer, value.vars, value.body)
        acc = block.lookup(key)
        if acc is None:
            acc = self.fresh("fold")
            self.structs.add(row.struct)
            block.lines.append(f"{row.struct} {acc};")
            inner = block
            heads: list[str] = []
            for v in value.vars:
                inner = Block(inner, [v])
                inner.names[v] = v.name
                heads.append(f"for (Index {v.name} = 0; {v.name} < {self.int(v.extent, block)}; ++{v.name}) {{")
            blocks = [inner]
            while blocks[0].parent is not block:
                parent = blocks[0].parent
                assert parent is not None
                blocks.insert(0, parent)
            args = [_bare(self.value(b, inner)) for b in value.body]
            inner.lines.append(f"{acc}.step({', '.join(args)});")
            lines = inner.lines
            for level, (b, head) in enumerate(zip(reversed(blocks), reversed(heads))):
                body = lines if level == 0 else [*b.lines, *lines]
                lines = [head, *_indented(body), "}"]
            block.lines.extend(lines)
            block.names[key] = acc
        name = f"{acc}.{row.results[value.part][1]}()"
        block.names[value] = name
        return name

    # -- statements

    def store(self, buffer: Buffer, index: Int, value: Value, block: Block, where: str = "", to: str = "") -> None:
        """`where`: a condition under which it happens; `to`: a function that does it, or does not."""
        text = self.value(value, block)
        if buffer.dtype == "scalar":
            text = f"to_scalar({_bare(text)})"
        elif buffer.dtype in SCALAR_BYTES:
            self.functions.add("widened")
            text = f"to_{buffer.dtype}({_bare(text)})"
        elif buffer.kind == "l" and buffer.dtype != "int64":
            text = f"static_cast<{STORAGE[buffer.dtype]}>({text})"
        element = self.at_hand.get((buffer.name, index), "")
        if not element:
            element = f"{pointer(buffer.name)}[{self.int(index, block)}]"
        done = f"{to}(&{element}, {_bare(text)});" if to else f"{element} = {_bare(text)};"
        block.lines.append(f"if ({where}) {done}" if where else done)


def _has_division(value: Int) -> bool:
    return any(isinstance(a, (Quotient, Remainder)) for m in value.terms for a in m)


def _words(text: str) -> list[str]:
    word, out = "", []
    for ch in text + " ":
        if ch.isalnum() or ch == "_":
            word += ch
        else:
            if word.startswith(("f_", "i_")):
                out.append(word)
            word = ""
    return out


def _bare(text: str) -> str:
    """Without the parentheses around the whole."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for i, ch in enumerate(text):
        depth += (ch == "(") - (ch == ")")
        if depth == 0 and i < len(text) - 1:
            return text
    return text[1:-1]


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


indented = _indented
