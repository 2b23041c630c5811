"""The speed of light of a Problem: bytes that must move and products that must be formed, counted on its Graph.

Two times come of it. The *floor* is the target: every tensor that is used read once (twice in a training step), every
result written once, at the measured rate of a copy; the products of the rewritten graph at the best measured rate. A
better algorithm or a cache may beat it. The *limit* nothing can beat: only inputs that are certainly read as a whole
and results too large for the cache count, at the vendor's bandwidth. A time below the limit is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch.utils import flop_counter

from crucible.exact import copied
from crucible.plan.gpus import Gpu
from crucible.race.values import leaf, tensors, total
from crucible.switches import conv_tf32, matmul_tf32

CACHE_BYTES = 128 << 20  # at least the L2 of any GPU there is: results up to this may never reach memory
HEADROOM = 1.25  # of memory's own rate over the measured copy, where no data sheet is known
SPLIT = 3  # products on tensor cores for one in float32's own precision

_DENSE = (
    "mm bmm addmm baddbmm matmul linear mv dot sum mean amax amin var var_mean std prod max min argmax argmin "
    "logsumexp softmax _softmax log_softmax _log_softmax cumsum cumprod layer_norm group_norm native_layer_norm "
    "native_group_norm batch_norm instance_norm rms_norm norm linalg_vector_norm "
    "_native_batch_norm_legit_functional _native_batch_norm_legit _native_batch_norm_legit_no_training "
    "view reshape permute transpose t expand unsqueeze squeeze flatten clone contiguous _to_copy to alias cat stack "
    "conv_transpose1d conv_transpose2d conv_transpose3d"
).split()
_WINDOWS = ("conv1d", "conv2d", "conv3d", "convolution")  # with a stride they may skip elements
_CHOOSES = ("where", "masked_fill")  # what they do not choose need not be read


@dataclass(frozen=True)
class Work:
    """What a call costs at the least; ``weighted`` counts products in units of the fp16 rate."""

    bytes: int
    certain: int  # bytes that neither a cache nor another algorithm can save
    operations: int
    weighted: float
    source: str = "graph"  # "module": counted on the Model, which could not be captured


@dataclass(frozen=True)
class Light:
    """A Work with its times, in milliseconds."""

    bytes: int
    certain: int
    operations: int
    floor: float
    limit: float
    bound: str  # "memory" or "products"
    source: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def light(work: Work, found: dict[str, float], gpu: Gpu | None) -> Light:
    """The times of a Work at ceilings measured (or read off a data sheet); ``gpu``: the data sheet, where known."""
    memory = work.bytes / found["copy"] / 1e6
    products = work.weighted / found["fp16"] / 1e9
    rate = max(gpu.bandwidth if gpu is not None else HEADROOM * found["copy"], found["copy"])
    limit = work.certain / rate / 1e6
    bound = "memory" if memory >= products else "products"
    return Light(work.bytes, work.certain, work.operations, max(memory, products), limit, bound, work.source)


def work_of(model: torch.nn.Module, inputs: Sequence[Any], training: bool, sums: bool = False) -> Work:
    """Count a call of ``model`` (any device, no values are looked at) in the mode that it is in.

    ``training`` adds the backward pass; with ``sums`` its gradients come from ``out.sum()`` and are not read from
    memory.
    """
    try:
        return _of_graph(model, inputs, training, sums)
    except Exception:  # noqa: BLE001  torch.export raises many kinds; a Model that cannot be captured still has sizes
        return _of_module(model, inputs, training, sums)


# -- on the graph


def _of_graph(model: torch.nn.Module, inputs: Sequence[Any], training: bool, sums: bool) -> Work:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from crucible.fuse import without_memory
    from crucible.graph.capture import capture
    from crucible.graph.rewrites import run_all

    graph = capture(copied(model).to("meta"), without_memory(inputs))
    run_all(graph.module)
    flat = pytree.tree_leaves(tuple(inputs))
    known = {**dict(model.named_parameters()), **dict(model.named_buffers()), **graph.constants}
    used, whole = {n for n in graph.placeholders if n.users}, _read_as_a_whole(graph.module.graph)
    values: list[Any] = []
    read = certain = gradients = 0
    with FakeTensorMode(allow_non_fake_inputs=True):
        for node in graph.placeholders:
            source = graph.sources[node.name]
            value = flat[source.position] if source.kind == "input" else known[source.name]
            if not isinstance(value, torch.Tensor):
                values.append(value)
                continue
            values.append(torch.empty(value.shape, dtype=value.dtype))
            size = _bytes(value)
            read += size if node in used else 0
            certain += size if source.kind == "input" and node in whole else 0
            learned = source.kind in ("input", "parameter") and value.is_floating_point()
            gradients += size if learned and node in used else 0
        counted, out, updates = _run_graph(graph, values, training)
        written = sum(map(_bytes, out))
    certain += max(0, written - CACHE_BYTES)
    moved = read + written + sum(map(_bytes, updates))
    if training:
        moved += read + gradients + (0 if sums else written)
    operations, weighted = _weighed(counted, [*flat, *model.parameters()])
    return Work(moved, certain, operations, weighted)


def _run_graph(graph: Any, values: list[Any], training: bool) -> tuple[dict[Any, float], list[Any], list[Any]]:
    """Products by operator, outputs and updated buffers of a graph on tensors without memory."""
    if training:
        kinds = [graph.sources[n.name].kind for n in graph.placeholders]
        values = [leaf(v) if kind in ("input", "parameter") else v for v, kind in zip(values, kinds)]
    with _Counter() as counter, torch.set_grad_enabled(training):
        returned = list(fx.Interpreter(graph.module).run(*values, enable_io_processing=False))
        out = tensors(returned[len(graph.updates) :])
        counter.forward_is_over()
        if training and any(t.requires_grad for t in out):
            total(out).backward()
    return counter.counts(), out, tensors(returned[: len(graph.updates)])


def _read_as_a_whole(graph: fx.Graph) -> set[fx.Node]:
    """Nodes of which every element is needed for the outputs, as far as the operators on the way there tell."""
    whole: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output":
            whole |= set(node.all_input_nodes)
        elif node in whole and node.op == "call_function" and _dense(node):
            whole |= set(node.all_input_nodes)
    return whole


def _dense(node: fx.Node) -> bool:
    """Whether all elements of all operands are needed for all elements of the result."""
    if getattr(node.target, "__name__", "") == "getitem":
        return True
    packet = getattr(node.target, "overloadpacket", None)
    name = getattr(packet, "__name__", "")
    if name in _CHOOSES:
        return False
    if name in _WINDOWS:
        names = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
        given = {**dict(zip(names, node.args)), **node.kwargs}
        stride: Any = given.get("stride", 1)
        return set(stride if isinstance(stride, (list, tuple)) else [stride]) <= {1} or bool(given.get("transposed"))
    return name in _DENSE or torch.Tag.pointwise in getattr(node.target, "tags", ())


# -- on the Model, where there is no graph


def _of_module(model: torch.nn.Module, inputs: Sequence[Any], training: bool, sums: bool) -> Work:
    meta = copied(model).to("meta")
    given = [t.to("meta") if isinstance(t, torch.Tensor) else t for t in inputs]
    if training:
        given = [leaf(t) for t in given]
    with _Counter() as counter, torch.set_grad_enabled(training):
        out = meta(*given)
        counter.forward_is_over()
        if training:
            total(out).backward()
    read = [t for t in [*given, *meta.parameters()] if isinstance(t, torch.Tensor)]
    written = sum(map(_bytes, tensors(out)))
    moved = sum(map(_bytes, read)) + written
    if training:
        moved += sum(map(_bytes, read)) + (0 if sums else written)
        moved += sum(_bytes(t) for t in read if t.is_floating_point())
    operations, weighted = _weighed(counter.counts(), [*inputs, *model.parameters()])
    return Work(moved, max(0, written - CACHE_BYTES), operations, weighted, "module")


class _Counter(flop_counter.FlopCounterMode):
    """Products by operator. A product has two in the backward pass at most, whatever torch counts for groups."""

    def __init__(self) -> None:
        super().__init__(display=False)
        self.forward = 0.0

    def forward_is_over(self) -> None:
        self.forward = float(sum(self._found().values()))

    def counts(self) -> dict[Any, float]:
        found = self._found()
        every = sum(found.values())
        part = min(1.0, 3 * self.forward / every) if every else 1.0
        return {operator: count * part for operator, count in found.items()}

    def _found(self) -> dict[Any, int]:
        return dict(self.get_flop_counts().get("Global", {}))


def _weighed(counted: dict[Any, float], operands: Sequence[Any]) -> tuple[int, float]:
    """Products, and the same in units of the fp16 rate.

    Products that torch may round to TF32 count once (the same mantissa as half's), others in float32 three times.
    """
    single = any(t.dtype == torch.float32 for t in operands if isinstance(t, torch.Tensor))
    operations, weighted = 0.0, 0.0
    for operator, count in counted.items():
        convolution = "conv" in str(operator)
        permitted = conv_tf32() if convolution else matmul_tf32()
        operations += count
        weighted += count * (SPLIT if single and not permitted else 1)
    return round(operations), weighted


def _bytes(t: torch.Tensor) -> int:
    """Of memory: an expanded tensor has less than its shape says."""
    count = t.numel()
    for size, stride in zip(t.shape, t.stride()):
        if stride == 0 and size > 1:
            count //= size
    return count * t.element_size()
