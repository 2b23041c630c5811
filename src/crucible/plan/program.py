"""A lowered graph: tensors whose elements are expressions, and the operations too large to be part of one.

A Tensor is lazy: asked for an element it gives a Value. Contractions and large reductions yield ``Result`` values;
a tensor that is *kept* has a buffer, and its elements are loads from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from crucible.plan.forms import Form
from crucible.plan.index import ZERO, Int, Var, below, product
from crucible.plan.value import Condition, Load, Value

Index = tuple[Int, ...]

# Storage types by the name torch has for them. A floating tensor of the file's own element type is "scalar".
STORAGE = {"scalar": "scalar", "int64": "int64_t", "int32": "int32_t", "int16": "int16_t", "int8": "int8_t",
           "uint8": "uint8_t", "bool": "bool", "accum": "accum",
           "float32": "float", "float64": "double", "float16": "__half", "bfloat16": "__nv_bfloat16"}  # fmt: skip
# Bytes of those that do not follow the element type, and of those that do.
BYTES = {"int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1}
SCALAR_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
COMPLEX_BYTES = {"complex64": 8, "complex128": 16}  # torch's operators alone read and write these


def item_bytes(dtype: str, element: str) -> int:
    """Bytes of a storage type when the file's element type is ``element``."""
    if dtype == "scalar":
        return SCALAR_BYTES[element]
    if dtype == "accum":
        return 8 if element == "float64" else 4
    return (BYTES | SCALAR_BYTES | COMPLEX_BYTES)[dtype]


def kind_of(dtype: str) -> str:
    if dtype in ("scalar", "accum") or dtype in SCALAR_BYTES:
        return "f"
    return "b" if dtype == "bool" else "l"


def loses(source: str, target: str) -> bool:
    """Whether a floating type cannot hold every number of another."""
    return source != target and (target not in ("float32", "float64") or source == "float64")


def flat(index: Sequence[Int], shape: Sequence[Int]) -> Int:
    """The position of an element in a contiguous tensor."""
    total = ZERO
    for i, s in zip(index, shape):
        total = total * s + i
    return total


def unflat(position: Int, shape: Sequence[Int]) -> Index:
    """The index of the element at a position."""
    index: list[Int] = []
    for s in reversed(shape):
        if s == 1:
            index.append(ZERO)
            continue
        index.append(position % s)
        position = position // s
    return tuple(reversed(index))


def reshaped(index: Index, shape: Index, source: Index) -> Index:
    """The index into ``source`` of the element at ``index`` of ``shape``; dimensions in common pass through."""
    head = 0
    while head < min(len(shape), len(source)) and shape[head] == source[head]:
        head += 1
    tail = 0
    while tail < min(len(shape), len(source)) - head and shape[-1 - tail] == source[-1 - tail]:
        tail += 1
    middle = slice(head, len(shape) - tail)
    inner = unflat(flat(index[middle], shape[middle]), source[head : len(source) - tail])
    return (*index[:head], *inner, *index[len(index) - tail :])


@dataclass
class Buffer:
    """Memory: an argument of the function, or something that a stage writes."""

    name: str
    shape: Index
    dtype: str
    role: str  # "parameter", "buffer", "input", "constant", "tangent", "made"

    @property
    def kind(self) -> str:
        return kind_of(self.dtype)

    @property
    def numel(self) -> Int:
        return product(self.shape)

    def load(self, index: Sequence[Int]) -> Value:
        return Load(self.name, flat(index, self.shape), self.kind)


@dataclass(eq=False)
class Pooled:
    """How a tensor comes from another by windows that lie side by side: over its last dimensions, whole ones only.

    Tensors that are computed from its elements one by one have it too: ``tensor`` is the pool's own result.
    """

    source: Tensor
    kernel: tuple[int, ...]
    reducer: str
    tensor: Tensor


@dataclass(eq=False)
class Tensor:
    """A tensor of the graph. ``cost`` is what one element costs to compute, ``folds`` whether that takes a loop."""

    name: str
    shape: Index
    dtype: str
    element: Callable[[Index], Value]
    cost: int = 0
    folds: bool = False
    buffer: Buffer | None = None
    results: frozenset[str] = frozenset()  # contractions and reductions it is computed from
    nodes: tuple[str, ...] = ()
    pooled: Pooled | None = None
    flat: Tensor | None = None  # one with the same elements in the same order, of the shape that they were computed in

    @property
    def kind(self) -> str:
        return kind_of(self.dtype)

    @property
    def numel(self) -> Int:
        return product(self.shape)

    def at(self, index: Sequence[Int]) -> Value:
        return self.buffer.load(index) if self.buffer is not None else self.element(tuple(index))


@dataclass(eq=False)
class Sliding:
    """A contraction that is a window over an input: its form, and the input's element at a channel and a pixel."""

    form: Form
    extents: Index  # of the output, in the form's four dimensions
    limits: Index  # of the input
    channel: Var
    position: tuple[Var, ...]  # in the form's dimensions; elements are asked for inside the limits only
    source: Callable[[], Value]
    # Of the gradient of a weight: the other tensor's element, and its variables: row, pixel (inside the extents).
    plain: Callable[[], Value] | None = None
    pixel: tuple[Var, ...] = ()


@dataclass(frozen=True)
class Phases:
    """A strided transposed convolution: rows and batches are channels and phases, columns places (plan/phases.py).

    Some places of a phase lie outside the output, and nothing is stored there. A phase may lack some of the taps: what
    is multiplied with a tap that is not there must be no number of the input, which may be infinite.
    """

    count: int
    number: Int  # which, in terms of the rows and the last batch variable
    pixels: tuple[tuple[Var, Int], ...]  # of the result's place: each variable, and what it is
    taps: tuple[Condition, ...]  # that hold for taps that are there, in terms of the last batch variable and the depth
    share: tuple[int, int]  # taps that are there, of so many
    inside: int = 1  # groups, all of them, that are phases of one convolution and read the same input
    beside: int = 1  # neighbours among these whose elements lie beside each other in memory

    @property
    def ragged(self) -> bool:
        """Whether some places lie outside the output."""
        return not all(below(value, v.extent) for v, value in self.pixels)


@dataclass(eq=False)
class Contract:
    """``D[z, m, n] = sum over k of a(z, m, k) * b(z, n, k)``, placed at an index of the result."""

    name: str
    batch: tuple[Var, ...]  # of the variables of z
    rows: Var
    cols: Var
    depth: Var
    a: Callable[[], Value]  # in terms of the variables above
    b: Callable[[], Value]
    place: Index
    shape: Index
    a_along_k: bool
    b_along_k: bool
    rule: str  # whose precision switch applies: "conv" or "matmul"
    inputs: tuple[Tensor, ...]
    node: str
    sliding: Sliding | None = None
    phases: Phases | None = None
    result: Tensor = field(init=False)


@dataclass(eq=False)
class Reduce:
    """Results over ``inner`` for each ``outer``; ``body`` is the elements in terms of these variables."""

    name: str
    outer: tuple[Var, ...]
    inner: tuple[Var, ...]
    body: Callable[[Index, Index], tuple[Value, ...]]
    reducer: str
    inputs: tuple[Tensor, ...]
    node: str
    kept: tuple[int, ...]  # dimensions of the source that are not reduced
    source: Tensor
    results: list[Tensor] = field(default_factory=list)

    @property
    def outer_shape(self) -> Index:
        return tuple(v.extent for v in self.outer)


@dataclass(eq=False)
class Extern:
    """An operator that stays torch's: called on kept tensors, its results are kept too."""

    name: str
    node: fx.Node
    inputs: tuple[Tensor, ...]
    results: list[Tensor | None]
    reason: str
    arguments: Any = None


@dataclass(eq=False)
class Keep:
    """A tensor that must be in memory."""

    tensor: Tensor
    buffer: Buffer
    why: str


Operation = Contract | Reduce | Extern | Keep


@dataclass
class Program:
    """Everything lowered from one traced graph."""

    operations: list[Operation] = field(default_factory=list)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    sizes: dict[str, str] = field(default_factory=dict)  # sizes computed from others: name to Python text
    hints: dict[str, int] = field(default_factory=dict)
    reasons: list[tuple[str, str]] = field(default_factory=list)  # (node, why it was not fused)
    updates: list[Buffer] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)  # Buffer, or a constant
    gradients: list[Buffer | None] = field(default_factory=list)
    env: dict[fx.Node, Any] = field(default_factory=dict)  # what each node became
    own: str = ""  # the element type, where there are other floating types beside it: the file is for this one alone

    def hint(self, value: Int) -> int:
        return value.hint(self.hints)
