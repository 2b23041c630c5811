"""A pass (forward, inference or backward of a mode) as text: one C++ function that launches all of its kernels, a
Python function that finds out what depends on sizes alone, and the one that is called, which has little left to do.

The host's time counts where kernels are short, and Python is slow: shapes are checked, memory is laid out and kernels
are chosen once for all calls with the same shapes, types, device and switches. Stages have numbers within their pass,
and sets of stages are integers with a bit for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from crucible.emit.engines import TF32, held, window_words
from crucible.emit.functor import STREAM, Functor
from crucible.emit.host import (
    DTYPES,
    ITEMS,
    SMALL,
    Mode,
    call_text,
    largest,
    python,
    shape_text,
    times,
)
from crucible.emit.writer import pointer
from crucible.plan.boxes import WindowTile
from crucible.plan.held import WORDS
from crucible.plan.index import ZERO, product
from crucible.plan.program import STORAGE, Buffer
from crucible.plan.stages import Call, Contraction, Row, Stage, read, written

PART_BYTES = 8  # no field of a partial result is larger
PART_FIELDS = 4  # and none has more
SEGMENT = 60  # stages of one C++ function: a set of them must fit into 64 bits


@dataclass
class Pass:
    """Stages that run one after another on one stream."""

    mode: Mode
    name: str  # of its functions: "model_inference"
    part: str  # of the file's CUDA source
    stages: Sequence[Stage]
    given: Sequence[str]  # tensors that it gets
    kept: Sequence[str]  # buffers that it returns
    guards: Mapping[str, str] = field(default_factory=dict)  # Python conditions, by stage; others always run
    updates: Sequence[tuple[str, Buffer]] = ()  # given tensors, and what they become at the end

    # -- which buffer lies where

    @cached_property
    def calls(self) -> bool:
        """Whether there are operators in it that stay torch's."""
        return any(isinstance(s, Call) for s in self.stages)

    @cached_property
    def same(self) -> dict[str, str]:
        """Buffers that are written where a given tensor lies, and which."""
        return {b.name: target for target, b in self.updates if self.mode.same.get(b.name) == target}

    @cached_property
    def copied(self) -> list[tuple[str, Buffer]]:
        """Updates that are copied in the end."""
        return [(target, b) for target, b in self.updates if b.name not in self.same]

    @cached_property
    def users(self) -> dict[str, int]:
        """The stages that use a buffer; copying updates comes after the last of them."""
        found: dict[str, int] = {}
        for number, stage in enumerate(self.stages):
            names = [*read(stage), *_results(stage)] if isinstance(stage, Call) else self.functor(stage).pointers
            for name in names:
                found[name] = found.get(name, 0) | 1 << number
        for _, b in self.copied:
            found[b.name] |= 1 << len(self.stages)
        return found

    @cached_property
    def tensors(self) -> dict[str, Buffer]:
        """Buffers that must be tensors of their own: they are returned, or torch's own operators read them.

        Beside such operators a large one is let go when nothing needs it any more.
        """
        seen = {name for s in self.stages if isinstance(s, Call) for name in read(s)}
        found: dict[str, Buffer] = {}
        for stage in self.stages:
            if isinstance(stage, Call):
                continue
            for b in written(stage):
                large = self.calls and 8 * self.mode.plan.program.hint(b.numel) > SMALL
                if b.name in self.same:
                    continue
                if b.name not in self.given and (b.name in self.kept or b.name in seen or large):
                    found[b.name] = b
        return found

    @cached_property
    def room(self) -> dict[str, tuple[str, int]]:
        """All other memory, which kernels alone see: bytes as Python, and the stages that use it."""
        found: dict[str, tuple[str, int]] = {}
        for number, stage in enumerate(self.stages):
            if isinstance(stage, Call):
                continue
            for b in written(stage):
                if b.name not in self.given and b.name not in self.tensors and b.name not in self.same:
                    found[b.name] = times(b.numel, ITEMS[b.dtype]), self.users[b.name]
            # A walk that follows in the same launch stores while the contraction still reads.
            together = 3 if isinstance(stage, Contraction) and stage.held is not None else 1
            for name, count in self._extra(stage).items():
                found[name] = count, together << number
        return found

    def _extra(self, stage: Stage) -> dict[str, str]:
        """What a launcher wants beside the plan's buffers, with its bytes."""
        f = self.functor(stage)
        found = {}
        if "parts" in f.extra:
            assert isinstance(stage, Row)
            rows, fields = python(product(list(stage.shape))), PART_FIELDS * sum(len(p.reduces) for p in stage.passes)
            splits = f" * splits_{stage.name}" if "splits" in f.extra else ""
            found[f"parts_{stage.name}"] = f"({rows}) * {fields * PART_BYTES}{splits}"
        for asked in f.asks:
            found[f"{asked}_{stage.name}"] = f"kernels.{asked}_{self.label(stage)}({', '.join(f.sizes)})"
        if "packed" in f.extra and not f.asks:
            assert isinstance(stage, Contraction) and isinstance(stage.tile, WindowTile)
            moments = 0 if stage.held is None else WORDS  # of all blocks, behind the weights
            found[f"packed_{stage.name}"] = str(4 * (window_words(stage, stage.tile) + moments))
        return found

    @cached_property
    def splits(self) -> dict[str, str]:
        """Into how many parts rows are cut, by the name of the number."""
        found = {}
        for s in self.stages:
            if isinstance(s, Row) and "splits" in self.functor(s).extra:
                p = s.passes[0]
                given = [product(list(s.shape)), p.length, *([] if p.repeats is None else [p.repeats])]
                rows, *others = map(python, given)
                text = f"_splits({rows}, {s.lanes}, {', '.join(others)})"
                found[f"splits_{s.name}"] = text
        return found

    @cached_property
    def sizes(self) -> list[str]:
        """The numbers that kernels get."""
        used = {n for s in self.stages if not isinstance(s, Call) for n in self.functor(s).sizes}
        return [*sorted(used), *self.splits]

    @property
    def _boxes(self) -> list[str]:
        """Names of the numbers that say which boxes a contraction takes."""
        found = [s.box.python() for s in self.stages if isinstance(s, Contraction) and s.box != ZERO]
        return list(dict.fromkeys(found))

    def functor(self, stage: Stage) -> Functor:
        return self.mode.functors[stage.name]

    def label(self, stage: Stage) -> str:
        return self.mode.labels[stage.name]

    # -- C++

    @cached_property
    def segments(self) -> list[list[int]]:
        """Numbers of stages that one C++ function launches: torch's own operators come between."""
        found: list[list[int]] = []
        for number, stage in enumerate(self.stages):
            if isinstance(stage, Call):
                continue
            if not found or found[-1][-1] != number - 1 or len(found[-1]) == SEGMENT:
                found.append([])
            found[-1].append(number)
        return found

    @cached_property
    def straight(self) -> bool:
        """Whether a forward is one C++ function and no more: it can be given all tensors as they come."""
        return self.part == "forward" and len(self.segments) == 1 and not self.calls

    def function(self, segment: int) -> str:
        return self.name if len(self.segments) == 1 else f"{self.name}_{segment + 1}"

    def _pointers(self, segment: int) -> list[str]:
        """Tensors that a segment's kernels use, in the order of their first use; or all that are given, then others."""
        if self.straight:
            return [*self.given, *self.tensors]
        names = dict.fromkeys(n for k in self.segments[segment] for n in self.functor(self.stages[k]).pointers)
        return [n for n in names if n not in self.room]

    def signatures(self) -> dict[str, list[str]]:
        """The parameters of each C++ function."""
        found = {}
        for segment in range(len(self.segments)):
            addresses = [pointer(n) for n in self._pointers(segment)] + (["memory"] if self.room else [])
            numbers = [f"{word}_{n}" for n in self.room for word in ("in", "at")] + self.sizes
            found[self.function(segment)] = [
                "uint64_t stages", *(f"uint64_t {a}" for a in addresses), *(f"int64_t {n}" for n in numbers),
                "uint64_t stream",
            ]  # fmt: skip
        return found

    def cuda(self) -> list[str]:
        """The C++ functions."""
        together = [self._together(s, s.held) for s in self.stages if isinstance(s, Contraction) and s.held is not None]
        return together + [
            "\n".join([
                "// One after another, those that are asked for.",
                f"void run_{name}({', '.join(parameters)}) {{",
                *(f"  {line}" for line in self._launches(segment)),
                "}",
            ])
            for segment, (name, parameters) in enumerate(self.signatures().items())
        ]  # fmt: skip

    def _together(self, stage: Contraction, then: Row) -> str:
        """A function that runs a contraction and the walk after it as one kernel, where that can be."""
        f, g = self.functor(stage), self.functor(then)
        pointers, sizes = _of_both(f, g)
        arguments = [f"uint64_t {pointer(b)}" for b in pointers] + [f"int64_t {s}" for s in sizes]
        name, label = self._held(stage), self.label(stage)
        box = [] if stage.box == ZERO else [f"if ({stage.box} != 0) return false;"]
        return "\n".join([
            f"// {label} and {self.label(then)} as one kernel, where that can be: whether it was.",
            f"bool {name}({', '.join([*arguments, 'uint64_t packed', 'uint64_t stream'])}) {{",
            f"#if CRUCIBLE_HOPPER && CRUCIBLE_{stage.contract.rule.upper()} == {TF32}",
            *(f"  {line}" for line in box),
            f"  using Stage = {label};",
            f"  const Stage stage{{{f.fill}}};",
            f"  const {self.label(then)} then{{{g.fill}}};",
            "  bool done = false;",
            f'  check({held(stage, STREAM)}, "{label}");',
            "  return done;",
            "#else",
            "  return false;",
            "#endif",
            "}",
        ])  # fmt: skip

    def _held(self, stage: Contraction) -> str:
        return f"held_{self.name}_{self.label(stage)}"

    @property
    def _hosts(self) -> list[str]:
        """Tensors in which other buffers may lie before they are written."""
        return [] if self.calls or not self.room or len(self.segments) > 1 else list(self.tensors)

    def _launches(self, segment: int) -> list[str]:
        lines = []
        if self.room:
            lines.append(f"const uint64_t holders[] = {{{', '.join(['memory', *map(pointer, self._hosts)])}}};")
            lines += [f"const uint64_t {_own(n)} = holders[in_{n}] + at_{n};" for n in self.room]
        for bit, number in enumerate(self.segments[segment]):
            stage = self.stages[number]
            f = self.functor(stage)
            if isinstance(stage, Contraction) and stage.held is not None and number + 1 in self.segments[segment]:
                both, sizes = _of_both(f, self.functor(stage.held))
                given = [_own(b) if b in self.room else pointer(self.same.get(b, b)) for b in both]
                given += [*sizes, f"packed_{stage.name}", "stream"]
                pair = _bit(bit) + " | " + _bit(bit + 1)
                call = f"{self._held(stage)}({', '.join(given)})"
                lines.append(f"if ((stages & ({pair})) == ({pair}) && {call}) stages &= ~uint64_t({pair});")
            arguments = [_own(b) if b in self.room else pointer(self.same.get(b, b)) for b in f.pointers] + f.sizes
            for e in f.extra:
                name = f"{e}_{stage.name}"
                arguments.append(f"static_cast<int>({name})" if e == "splits" else name)
            lines.append(f"if (stages & {_bit(bit)}) run_{self.label(stage)}({', '.join([*arguments, 'stream'])});")
        if self.copied and segment == len(self.segments) - 1:
            each = ", ".join(
                f"{{{_own(b.name) if b.name in self.room else pointer(b.name)}, {pointer(target)}, "
                f"{b.numel.constant} * sizeof({STORAGE[b.dtype]})}}"
                for target, b in self.copied
            )
            bit = len(self.segments[segment])
            lines.append(f"const Copies<{len(self.copied)}> updates{{{{{each}}}}};")
            lines.append(
                f'if (stages & {_bit(bit)}) check(launch_copies(updates, reinterpret_cast<cudaStream_t>(stream)), '
                '"updates");'
            )
        return lines

    @property
    def templates(self) -> set[str]:
        return {"copies.cuh"} if self.copied else set()

    # -- Python: what depends on sizes alone

    def plan(self, parameters: str, head: Sequence[str], *, sizes: str = "") -> str:
        """The function that makes the plan of a call; ``head`` binds sizes, ``dtype`` and ``device``."""
        lines = list(head)
        if self.segments:
            given = [f'"{self.part}"', "dtype", "device", largest(self.mode.plan), *self._boxes]
            lines.append(f"kernels = _kernels({', '.join(given)})")
        body = [f"{name} = {text}" for name, text in self.splits.items()]
        if self.guards:
            body.append(f"stages = {self._wanted()}")
        if self.tensors:
            body.append(f"specs = [{', '.join(self._spec(b) for b in self.tensors.values())}]")
        stages = "stages" if self.guards else _set(self._all())
        buffers = ", ".join(f"({count}, {_set(users)})" for count, users in self.room.values())
        if self.room:
            users = ", ".join(_set(self.users[n]) for n in self._hosts)
            body.append(f"room, places = _laid_out({stages}, [{buffers}]{f', zip(specs, [{users}])' if users else ''})")
        if any(DTYPES["accum"] in line for line in body):
            lines.append(f"{DTYPES['accum']} = _accumulated(dtype)")
        lines += body
        counts = ", ".join([*(["*places"] if self.room else []), *self.sizes])
        values = {"kernels": "kernels" if self.segments else "None", "index": "device.index", "counts": f"({counts},)"}
        values["sizes"] = sizes
        lines.append(f"return {', '.join(values.get(n, n) for n in self.planned(sizes=bool(sizes)))}")
        return _function(f"_{self.name}_plan({parameters})", lines)

    def planned(self, *, sizes: bool = False) -> list[str]:
        """The names of what the plan has, in its order."""
        names = ["kernels", "index", *(["dtype", "device"] if self.calls else []), *(["stages"] if self.guards else [])]
        names += [*(["specs"] if self.tensors else []), *(["room"] if self.room else [])]
        return [*names, *(["counts"] if self.room or self.sizes else []), *(["sizes"] if sizes else [])]

    def _spec(self, b: Buffer) -> str:
        text = f"_spec({shape_text(b.shape)}, {DTYPES[b.dtype]})"
        if not self.guards:
            return text
        made = sum(1 << k for k, s in enumerate(self.stages) if not isinstance(s, Call) and b in written(s))
        return f"{text} if stages & {_set(made)} else None"

    def _all(self) -> int:
        return (1 << len(self.stages) + bool(self.copied)) - 1

    def _wanted(self) -> str:
        """The set of stages to run, as Python."""
        terms: dict[str, int] = {}
        for number, stage in enumerate(self.stages):
            guard = self.guards.get(stage.name, "True")
            terms[guard] = terms.get(guard, 0) | 1 << number
        always = terms.pop("True", 0) | (1 << len(self.stages) if self.copied else 0)
        parts = [f"({_set(which)} if {guard} else 0)" for guard, which in terms.items()]
        return " | ".join([*([_set(always)] if always or not parts else []), *parts])

    # -- Python: a call

    def elsewhere(self, again: str) -> list[str]:
        """The same call once more, where another device is the current one."""
        return [
            "if _current_device() != index:",
            "    with torch.cuda.device(index):",
            f"        return {again}",
        ]

    def body(self) -> list[str]:
        """Statements that allocate and launch."""
        lines: list[str] = []
        if self.guards and self.calls:
            made = [n for s in self.stages if isinstance(s, Call) for n in _results(s)]
            lines += [f"{' = '.join(made)} = None"]
        if not self.calls:
            lines += [self._new(n) for n in self.tensors]
        if self.room:
            apart = f"alone, counts = _apart(memory, counts, {len(self.room)})"
            lines += ["memory = _new(*room)", "if _SIMULATED:", f"    {apart}"]
        return lines + self._steps()

    def _new(self, name: str) -> str:
        k = list(self.tensors).index(name)
        made = f"_new(*specs[{k}])"
        return f"{name} = specs[{k}] and {made}" if self.guards else f"{name} = {made}"

    def _steps(self) -> list[str]:
        """Segments and torch's own operators in order; beside those, memory comes late and goes early."""
        lines: list[str] = []
        made = set() if self.calls else set(self.tensors)
        starts = {s[0]: k for k, s in enumerate(self.segments)}
        held = {*self.tensors, *(n for s in self.stages if isinstance(s, Call) for n in _results(s))}
        for number, stage in enumerate(self.stages):
            last = number
            if isinstance(stage, Call):
                guard = self.guards.get(stage.name)
                text = call_text(self.mode, stage)
                lines += [f"if {guard}:", *(f"    {line}" for line in text)] if guard else text
                made |= set(_results(stage))
            elif number in starts:
                segment = starts[number]
                last = self.segments[segment][-1]
                fresh = [n for n in self._pointers(segment) if n in self.tensors and n not in made]
                lines += [*map(self._new, fresh), self._launch(segment)]
                made |= set(fresh)
            else:
                continue
            gone = [n for n in made & held if self.users[n] >> last + 1 == 0 and n not in self.kept]
            if self.calls and gone and last < len(self.stages) - 1:
                lines.append(f"del {', '.join(sorted(gone))}")
                held -= set(gone)
        return lines

    def _launch(self, segment: int) -> str:
        numbers = self.segments[segment]
        whole = (1 << len(numbers) + bool(self.copied)) - 1
        stages = _set(whole)
        if self.guards:
            stages = "stages" if len(self.segments) == 1 else f"stages >> {numbers[0]} & {_set(whole)}"
        addresses = [self._address(n) for n in self._pointers(segment)]
        if self.straight:
            addresses = ["*map(_pointer, dense)", *(f"{n}.data_ptr()" for n in self.tensors)]
        arguments = [stages, *addresses, *(["memory.data_ptr()"] if self.room else [])]
        arguments += ["*counts"] if self.room or self.sizes else []
        return f"kernels.{self.function(segment)}({', '.join([*arguments, '_raw_stream(index)'])})"

    def _address(self, name: str) -> str:
        """Under guards what is not made has no address."""
        return f"_address({name})" if self.guards and name not in self.given else f"{name}.data_ptr()"


def _of_both(f: Functor, g: Functor) -> tuple[list[str], list[str]]:
    """Pointers and sizes of two functors that are launched together."""
    return list(dict.fromkeys([*f.pointers, *g.pointers])), list(dict.fromkeys([*f.sizes, *g.sizes]))


def _results(stage: Call) -> list[str]:
    return [t.buffer.name for t in stage.extern.results if t is not None and t.buffer is not None]


def _own(name: str) -> str:
    """A piece of the pass's own memory as C++; the names of what launchers want beside buffers are plain."""
    return name if name.startswith(("parts_", "packed_", "pieces_")) else pointer(name)


def _bit(number: int) -> str:
    return f"{1 << number}ull" if number >= 31 else str(1 << number)


def _set(stages: int) -> str:
    return bin(stages)


def _function(head: str, lines: Sequence[str]) -> str:
    return "\n".join([f"def {head}:", *(f"    {line}" for line in lines)])
