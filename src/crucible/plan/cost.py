"""What a stage costs at the sizes the Problem declares: bytes through memory, operations, and the least time for them.

Bytes count each buffer once, whatever a kernel reads twice: caches may serve the rest. Operations count each distinct
value once for each combination of the loop variables it depends on. So the time is a bound from below, not a forecast.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from crucible.plan import pointwise
from crucible.plan.gpus import Gpu
from crucible.plan.index import Int, Var
from crucible.plan.program import Program, item_bytes
from crucible.plan.stages import Call, Contraction, Map, Row, Stage, stores_of, values_of, written
from crucible.plan.value import Fold, Load, Local, Op, Value, walk

# Operations to take one more element into a reduction; one for those not named.
REDUCER_COST = {"moments": 6, "moments_of": 9, "argmax": 2, "argmin": 2, "argmax_window": 2}
# A matmul to the precision of float32 takes three products on TF32 units.
SPLIT_PRODUCTS = 3


@dataclass
class Cost:
    """Of one stage: bytes by buffer, operations of the contraction, operations of everything else."""

    reads: dict[str, int] = field(default_factory=dict)
    writes: dict[str, int] = field(default_factory=dict)
    contraction: int = 0
    rule: str = ""  # whose precision switch the contraction follows: "conv" or "matmul"
    pointwise: int = 0

    @property
    def bytes(self) -> int:
        return sum(self.reads.values()) + sum(self.writes.values())

    @property
    def operations(self) -> int:
        return self.contraction + self.pointwise


@dataclass(frozen=True)
class Bound:
    """The least time for a cost on a GPU, in seconds, and what sets it: "memory", "contraction" or "arithmetic"."""

    seconds: float
    by: str


def stage_cost(stage: Stage, program: Program, element: str = "float32") -> Cost:
    """What a stage costs at the sizes of ``program.hints``. An operator of torch's has bytes and no operations."""
    if isinstance(stage, Call):
        return _call_cost(stage, program, element)
    counter = _Counter(stage, program)
    cost = Cost()
    sizes = {name: item_bytes(b.dtype, element) for name, b in program.buffers.items()}
    for name, count in counter.loads().items():
        cost.reads[name] = min(count, program.hint(program.buffers[name].numel)) * sizes[name]
    for buffer in written(stage):
        full = program.hint(buffer.numel)
        count = sum(counter.times(s.index.variables()) for s in stores_of(stage) if s.buffer.name == buffer.name)
        cost.writes[buffer.name] = min(count or full, full) * sizes[buffer.name]
    cost.pointwise = counter.operations()
    if isinstance(stage, Contraction):
        c = stage.contract
        cost.contraction = 2 * counter.times([*c.batch, c.rows, c.cols, c.depth])
        if c.phases is not None:
            there, of = c.phases.share
            cost.contraction = cost.contraction * there // of
        cost.rule = c.rule
    return cost


def _call_cost(stage: Call, program: Program, element: str) -> Cost:
    def size(tensor: object) -> tuple[str, int] | None:
        buffer = getattr(tensor, "buffer", None)
        if buffer is None:
            return None
        return buffer.name, program.hint(buffer.numel) * item_bytes(buffer.dtype, element)

    reads = dict(filter(None, (size(t) for t in stage.extern.inputs)))
    writes = dict(filter(None, (size(t) for t in stage.extern.results)))
    return Cost(reads, writes)


class _Counter:
    """How often things happen in a stage: a value is computed once for each combination of the variables it needs."""

    def __init__(self, stage: Map | Row | Contraction, program: Program) -> None:
        self.stage = stage
        self.program = program
        self.known: dict[Value, frozenset[Var]] = {}
        self.made: dict[Var, set[Var]] = {}  # variables that others are computed from
        if isinstance(stage, Contraction):
            c = stage.contract
            self.whole = frozenset([*c.batch, c.rows, c.cols])
            self.made = {v: value.variables() for v, value in c.phases.pixels} if c.phases is not None else {}
        else:
            self.whole = frozenset([stage.row if isinstance(stage, Row) else stage.element])

    def times(self, variables: Iterable[Var]) -> int:
        total = 1
        for v in set().union(*(self.made.get(v, {v}) for v in variables)):
            total *= self._extent(v.extent)
        return total

    def _extent(self, extent: Int) -> int:
        return self.program.hint(extent)

    def needs(self, value: Value) -> frozenset[Var]:
        """The loop variables a value depends on; results that the kernel holds depend on their whole row or tile."""
        if value not in self.known:
            found: set[Var] = set(self.whole) if isinstance(value, Local) else set()
            for index in value.indices:
                found |= index.variables()
            for child in value.children:
                found |= self.needs(child)
            self.known[value] = frozenset(found - value.bound)
        return self.known[value]

    def loads(self) -> dict[str, int]:
        """Elements asked for, by buffer."""
        counts: dict[str, int] = {}
        seen: set[Value] = set()
        for root in values_of(self.stage):
            for v in walk(root, seen):
                if isinstance(v, Load):
                    counts[v.buffer] = counts.get(v.buffer, 0) + self.times(self.needs(v))
        return dict(sorted(counts.items()))

    def operations(self) -> int:
        total = 0
        seen: set[Value] = set()
        for root in values_of(self.stage):
            for v in walk(root, seen):
                if isinstance(v, Op):
                    row = pointwise.TABLE.get(v.name)
                    total += (row.cost if row else 1) * self.times(self.needs(v))
                elif isinstance(v, Fold) and v.part == 0:
                    each = self.times([*self.needs(v), *v.vars])
                    total += REDUCER_COST.get(v.reducer, 1) * each
        if isinstance(self.stage, Row):
            for p in self.stage.passes:
                each = self.times([self.stage.row, p.inner])
                total += sum(REDUCER_COST.get(r.reducer, 1) for r, _ in p.reduces) * each
        elif isinstance(self.stage, Contraction):
            partials = [] if self.stage.tail is None else self.stage.tail.partials
            taken = [p.reduce.reducer for p in partials] + ["moments"] * (self.stage.statistics is not None)
            total += sum(REDUCER_COST.get(r, 1) for r in taken) * self.times(self.whole)
        return total


HOPPER = (9, 0)  # the compute capability that has wgmma


def contraction_rate(gpu: Gpu, rule: str, engine: str, precision: str, element: str) -> float:
    """TFLOP/s that a contraction can reach: by engine, element type, and what the precision permits."""
    if element == "float64":
        return gpu.fp64
    if engine == "simt" or not gpu.tensor_cores or gpu.tf32 is None or gpu.fp16 is None:
        return gpu.fp32
    if element != "float32":
        return gpu.fp16
    # As torch's switches stand when nobody has touched them: TF32 for convolutions, not for matmuls.
    tf32 = precision == "tf32" or (precision == "torch" and rule == "conv")
    # Half has TF32's mantissa: on Hopper scaled operands take its rate.
    rate = gpu.fp16 if engine == "auto" and gpu.capability == HOPPER else gpu.tf32
    return rate if tf32 else max(gpu.fp32, rate / SPLIT_PRODUCTS)


def bound(cost: Cost, gpu: Gpu, engine: str = "mma", precision: str = "torch", element: str = "float32") -> Bound:
    """The speed of light: memory, tensor cores and ordinary cores all busy at once, none ever waiting."""
    cores = gpu.fp64 if element == "float64" else gpu.fp32
    rate = contraction_rate(gpu, cost.rule, engine, precision, element)
    times = {"memory": cost.bytes / (gpu.bandwidth * 1e9)}
    if cost.contraction:
        times["contraction"] = cost.contraction / (rate * 1e12)
    if cost.pointwise:
        times["arithmetic"] = cost.pointwise / (cores * 1e12)
    by = max(times, key=lambda k: times[k])
    return Bound(times[by], by)
