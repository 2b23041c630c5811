"""The functor of a stage: a struct of its expressions, and the function that launches it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from crucible.emit.writer import Writer, indented, pointer
from crucible.plan.index import Int
from crucible.plan.program import SCALAR_BYTES, STORAGE, Buffer
from crucible.plan.stages import Stage, read, written

# How a launcher names the stream that it is given.
STREAM = "reinterpret_cast<cudaStream_t>(stream)"
# What kernels/mixed.cuh has, where another floating type than the file's own is met.
MIXED = {"widened", *(f"f_as_{name}" for name in SCALAR_BYTES)}
WITHIN = {"i_within"}  # and what kernels/within.cuh has


@dataclass
class Functor:
    """The text of a stage's functor and launcher, and the arguments that the launcher takes, in order."""

    name: str
    text: str
    pointers: list[str]
    sizes: list[str]
    extra: list[str]  # "parts", "splits", "packed", "pieces": further arguments of the launcher
    launcher: str
    functions: set[str] = field(default_factory=set)
    structs: set[str] = field(default_factory=set)
    templates: set[str] = field(default_factory=set)
    columns: set[int] = field(default_factory=set)  # of Hopper's matrix instructions
    tf32: set[int] = field(default_factory=set)  # the same, of those that are needed in kind Tf32 alone
    across: set[int] = field(default_factory=set)  # the same, of operands that lie across
    kept: set[int] = field(default_factory=set)  # the same, with weights in registers
    asks: tuple[str, ...] = ()  # those of which packed_NAME(sizes), pieces_NAME(sizes) say how many bytes they have
    fill: str = ""  # the struct's members, from the arguments


class Parts:
    """Collects the member functions of a functor and what they need."""

    def __init__(
        self, stage: Stage, buffers: Mapping[str, Buffer], later: frozenset[str] = frozenset(),
        same: Mapping[str, str] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """``later``: buffers that stages after this one read; ``same``: see plan/same_place.py."""
        self.stage = stage
        self.buffers = buffers
        self.last = frozenset(buffers) - later
        self.writers: list[Writer] = []
        self.sizes: set[str] = set()
        made, used = {b.name for b in written(stage)}, set(read(stage))
        self.shared = frozenset(n for new, old in same.items() if new in made and old in used for n in (new, old))
        self.written = frozenset(made) | self.shared

    def writer(self, fields: Mapping[object, str] | None = None) -> Writer:
        made = Writer(self.buffers, fields, self.written)
        self.writers.append(made)
        return made

    def extent(self, value: Int) -> str:
        """A size as text, on the host or the device."""
        w = self.writer()
        text = w.int(value, w.top)
        assert not w.top.lines or value.sizes(), value
        if w.top.lines:
            return str(value)  # divisions written in place
        return text

    def once(self, places: Int) -> frozenset[str]:
        """Buffers that later stages do not read, with an element for each of so many places: all are met once."""
        return frozenset(b for b in self.last if self.buffers[b].numel == places)

    def need(self, value: Int) -> None:
        self.sizes |= {s.name for s in value.sizes()}

    def members(self) -> tuple[list[str], list[str], list[str]]:
        """Declarations, pointers and sizes."""
        out = self.written
        loads = sorted(set().union(*(w.loads for w in self.writers)) - out) if self.writers else []
        sizes = sorted(self.sizes.union(*(w.sizes for w in self.writers)))
        lines = [f"const {STORAGE[self.buffers[b].dtype]}* __restrict__ {pointer(b)};" for b in loads]
        for b in sorted(out):
            alone = "" if b in self.shared else "__restrict__ "
            lines.append(f"{STORAGE[self.buffers[b].dtype]}* {alone}{pointer(b)};")
        if sizes:
            lines.append(f"Index {', '.join(sizes)};")
        return lines, [*loads, *sorted(out)], sizes

    def used(self) -> tuple[set[str], set[str]]:
        return (
            set().union(*(w.functions for w in self.writers)),
            set().union(*(w.structs for w in self.writers)),
        )


def assemble(
    parts: Parts,
    name: str,
    comment: Iterable[str],
    body: list[str],
    launch: str,
    extra: list[str],
    templates: set[str],
    memory: Mapping[str, str] = MappingProxyType({}),
) -> Functor:
    """``memory``: arguments whose bytes depend on sizes or on the build, and the body of a function that says them."""
    members, pointers, sizes = parts.members()
    buffers = parts.buffers
    lines = [f"// {c}" for c in comment]
    lines += [f"struct {name} {{", *indented(members), "", *indented(body), "};"]
    arguments = [f"uint64_t {pointer(b)}" for b in pointers] + [f"int64_t {s}" for s in sizes]
    arguments += [f"{'int' if e == 'splits' else 'uint64_t'} {e}" for e in extra]
    arguments.append("uint64_t stream")
    fill = []
    for b in pointers:
        const = "const " if b not in parts.written else ""
        fill.append(f"reinterpret_cast<{const}{STORAGE[buffers[b].dtype]}*>({pointer(b)})")
    fill += [f"static_cast<Index>({s})" for s in sizes]
    lines += [
        "",
        f"void run_{name}({', '.join(arguments)}) {{",
        f"  const {name} stage{{{', '.join(fill)}}};",
        *indented(launch.splitlines()),
        "}",
    ]
    for asked, text in memory.items():
        nothing = ["nullptr"] * len(pointers) + [f"static_cast<Index>({s})" for s in sizes]
        lines += [
            "",
            f"int64_t {asked}_{name}({', '.join(f'int64_t {s}' for s in sizes)}) {{",
            f"  const {name} stage{{{', '.join(nothing)}}};",
            *indented(text.splitlines()),
            "}",
        ]
    functions, structs = parts.used()
    if functions & MIXED or any(buffers[b].dtype in SCALAR_BYTES for b in pointers):
        templates = templates | {"mixed.cuh"}
    if functions & WITHIN:
        templates = templates | {"within.cuh"}
    made = Functor(
        name, "\n".join(_wrapped(lines)), pointers, sizes, extra, f"run_{name}", functions, structs, templates
    )
    made.asks = tuple(memory)
    made.fill = ", ".join(fill)
    return made


def _wrapped(lines: list[str]) -> list[str]:
    return [line.rstrip() for line in lines]
