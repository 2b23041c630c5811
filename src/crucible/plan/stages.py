"""Stages: kernels as data. Load, contract (optional), expression, sinks."""

from __future__ import annotations

from dataclasses import dataclass, field

from crucible.plan.boxes import WindowTile
from crucible.plan.gradients import GradientTile
from crucible.plan.index import ONE, ZERO, Int, Var
from crucible.plan.program import Buffer, Contract, Extern, Index, Pooled, Reduce
from crucible.plan.tiles import Tile
from crucible.plan.value import Load, Value, walk
from crucible.plan.ways import Site


@dataclass(frozen=True)
class Store:
    """A value and the element of a buffer it goes to."""

    buffer: Buffer
    index: Int
    value: Value
    below: int | None = None  # of the elements that a row stores, one each: rows from this number on have none


@dataclass
class Map:
    """One thread an element: computes and stores."""

    name: str
    element: Var
    stores: list[Store] = field(default_factory=list)
    several: bool = False  # a thread takes several neighbours at once (plan/vectors.py)
    nodes: list[str] = field(default_factory=list)


@dataclass
class Pass:
    """One walk over a row: reductions that go on at once, then (in a last walk of its own) stores."""

    inner: Var
    shape: Index
    reduces: list[tuple[Reduce, tuple[Value, ...]]] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    by: Int | None = None  # the row is so many elements several times: two loops, and no division by this
    warps: bool = False  # each warp takes some of these times alone
    several: bool = False  # a thread takes several neighbours at once (plan/vectors.py)

    @property
    def length(self) -> Int:
        """Of what the threads share."""
        return self.inner.extent if self.by is None else self.by

    @property
    def repeats(self) -> Int | None:
        """How many times a row is the same stretch of places, where those are a loop of their own."""
        return None if self.by is None else self.inner.extent // self.by


@dataclass
class Row:
    """A group of threads a row: walks over it, reducing, then storing what depends on the results."""

    name: str
    row: Var
    shape: Index
    passes: list[Pass] = field(default_factory=list)
    finals: list[tuple[int, Store]] = field(default_factory=list)  # one element a row, after this many passes
    lanes: int = 256
    split: bool = False
    sliced: bool = False  # the last walk has a launch of its own: long, and without reductions
    held: bool = False  # a contraction may do it all in its own launch (plan/held.py)
    nodes: list[str] = field(default_factory=list)


@dataclass
class Statistics:
    """Moments of each tile's columns (or of each group of them), for every row of a contraction."""

    reduce: Reduce
    value: Value
    parts: dict[str, Buffer]  # "count", "mean", "m2": those that are read somewhere
    index: Int  # of the partial result, with the tile as a variable
    tile: Var
    group: int = 0  # columns of one statistic; 0 for a tile's
    outer: Index = ()  # of an element's group, in terms of the element's place


@dataclass
class Partial:
    """A reduction along the rows of a contraction, tile by tile: the elements, and a buffer for each of its results."""

    reduce: Reduce
    values: tuple[Value, ...]
    buffers: tuple[Buffer, ...]


@dataclass
class Tail:
    """What follows when statistics of groups are known: elements that need them, and reductions along rows."""

    stores: list[Store] = field(default_factory=list)
    partials: list[Partial] = field(default_factory=list)
    tile: Var | None = None  # of columns
    index: Int = ZERO  # of a tile's partial result, in terms of the place of the row and of the tile


@dataclass
class Pool:
    """Windows of a contraction's pixels, side by side: a reduction of each whole one, and where its result goes."""

    window: tuple[int, ...]  # in the form's four dimensions
    pooled: Pooled
    value: Value  # one element
    cols: Var  # the place of a window among all
    stores: list[Store] = field(default_factory=list)


@dataclass
class Contraction:
    """A contraction with what follows it in registers."""

    name: str
    contract: Contract
    a: Value
    b: Value
    tile: Tile | WindowTile | GradientTile
    source: Value | None = None  # the input's element, where the tile is a box of pixels
    plain: Value | None = None  # and the other tensor's, for the gradient of a weight
    stores: list[Store] = field(default_factory=list)
    statistics: Statistics | None = None
    tail: Tail | None = None
    pool: Pool | None = None
    splits: Int = ONE
    box: Int = ZERO  # which of Hopper's boxes: the first, or the number of a narrower one
    packed: bool = False  # on Hopper, for its own instructions (kernels/contract_wgmma.cuh)
    site: Site | None = None  # what the tile was chosen for
    held: Row | None = None  # the walk that may follow in the same launch (plan/held.py)
    nodes: list[str] = field(default_factory=list)


@dataclass
class Call:
    """An operator that stays torch's."""

    name: str
    extern: Extern
    nodes: list[str] = field(default_factory=list)


Stage = Map | Row | Contraction | Call


def stores_of(stage: Stage) -> list[Store]:
    if isinstance(stage, Row):
        return [s for p in stage.passes for s in p.stores] + [s for _, s in stage.finals]
    if isinstance(stage, Contraction):
        more = [part.stores for part in (stage.pool, stage.tail) if part is not None]
        return [*stage.stores, *(s for stores in more for s in stores)]
    return [] if isinstance(stage, Call) else stage.stores


def written(stage: Stage) -> list[Buffer]:
    """The buffers that a stage writes."""
    made = [s.buffer for s in stores_of(stage)]
    if isinstance(stage, Contraction) and stage.statistics is not None:
        made += stage.statistics.parts.values()
    if isinstance(stage, Contraction) and stage.tail is not None:
        made += [b for p in stage.tail.partials for b in p.buffers]
    return list({b.name: b for b in made}.values())


def values_of(stage: Stage) -> list[Value]:
    values = [s.value for s in stores_of(stage)]
    if isinstance(stage, Row):
        values += [v for p in stage.passes for _, vs in p.reduces for v in vs]
    elif isinstance(stage, Contraction):
        values += [stage.a, stage.b]
        if stage.statistics is not None:
            values.append(stage.statistics.value)
        if stage.pool is not None:
            values.append(stage.pool.value)
        if stage.tail is not None:
            values += [v for p in stage.tail.partials for v in p.values]
    return values


def read(stage: Stage) -> list[str]:
    """The buffers that a stage reads."""
    if isinstance(stage, Call):
        return [t.buffer.name for t in stage.extern.inputs if t.buffer is not None]
    return sorted({v.buffer for value in values_of(stage) for v in walk(value) if isinstance(v, Load)})
