"""Forward and backward of a captured Model in one graph of primitive operators.

The captured graph is run under autograd with fake tensors and traced; what torch can express by simpler operators is
decomposed, except where this program has an operator of its own for it. Normalisations are written out here, with
derivatives that subtract means before they multiply: torch's own formulas for them cancel when means are large.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils._sympy.functions import Max, Min

from crucible.exact import is_number
from crucible.graph import complex_numbers
from crucible.graph.asked import within_torch
from crucible.graph.capture import Graph
from crucible.graph.origins import Origins, origin_of
from crucible.graph.reach import computed_from
from crucible.switches import agreeing

aten = torch.ops.aten

# Operators that the planner takes as they are, although torch could take them apart.
KEPT = (
    "silu hardswish hardswish_backward hardsigmoid softplus log_sigmoid_forward elu leaky_relu gelu gelu_backward mish "
    "mish_backward hardtanh sigmoid convolution_backward square"
).split()

# Those that look at the elements of another tensor in another way; of the first the shape says all.
RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
VIEWS = (
    *RESHAPES, aten.permute.default, aten.transpose.int, aten.t.default, aten.expand.default, aten.unsqueeze.default,
    aten.squeeze.dim, aten.squeeze.dims, aten.slice.Tensor, aten.select.int,
)  # fmt: skip

# Operators outside torch's core table that are better taken apart.
EXTRA = (
    "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data nll_loss_forward nll_loss_backward "
    "nll_loss2d_forward nll_loss2d_backward mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward "
    "huber_loss huber_loss_backward binary_cross_entropy binary_cross_entropy_backward "
    "binary_cross_entropy_with_logits threshold_backward hardtanh_backward leaky_relu_backward elu_backward "
    "sigmoid_backward tanh_backward "
    "softplus_backward log_sigmoid_backward hardsigmoid_backward silu_backward logsumexp addcmul addcdiv lerp "
    "baddbmm addmv mv dot glu glu_backward tril triu unfold_backward slice_backward select_backward "
    "linalg_vector_norm std var_mean_backward soft_margin_loss soft_margin_loss_backward trace logit xlogy "
    "masked_fill dist frac prelu rsub norm native_dropout_backward aminmax logaddexp logaddexp2 heaviside "
    "embedding_dense_backward split_with_sizes_copy hypot deg2rad rad2deg special_log_ndtr special_xlog1py isposinf "
    "isneginf"
).split()


@dataclass
class Joint:
    """The traced graph. Its outputs are (updates, outputs, gradients); a gradient may be None."""

    graph: fx.Graph
    primals: list[fx.Node]
    tangents: list[fx.Node]
    updates: list[Any]
    outputs: list[Any]
    gradients: list[Any]  # beside the primals that want one, in order
    wanted: list[int]  # positions of those primals
    tangible: list[int]  # positions of the outputs that have a tangent
    guards: list[Any] = field(default_factory=list)  # what torch assumed of the sizes (sympy) beyond their equality
    reach: list[list[int]] = field(default_factory=list)  # beside ``tangible``: the wanted primals that each comes from


def trace(graph: Graph, *, backward: bool = True) -> Joint:
    """Trace forward, and backward too unless only the forward is wanted or there is nothing to differentiate."""
    placeholders = graph.placeholders
    wanted = [i for i, n in enumerate(placeholders) if backward and _differentiable(graph, n)]
    likely = [i for i, o in enumerate(graph.outputs) if wanted and _depends(o, {placeholders[i] for i in wanted})]
    joint, tangible = _trace(graph, wanted, likely)
    return joint if tangible == likely else _trace(graph, wanted, tangible)[0]


def _trace(graph: Graph, wanted: list[int], tangible: list[int]) -> tuple[Joint, list[int]]:
    """With gradients of these outputs; and which of them have one at all, as others are detached, or compared."""
    placeholders = graph.placeholders
    fakes = [_on_cpu(n.meta["val"]) for n in placeholders]
    runner = _Forms(graph.module)
    wanted = wanted if tangible else []
    count = len(graph.updates)
    seen: list[int] = []
    with torch.no_grad():
        tangents = [_on_cpu(torch.empty_like(graph.outputs[i].meta["val"])) for i in tangible]

    def joint(primals: Sequence[Any], tangents: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        leaves = [p.detach().requires_grad_(i in wanted) if torch.is_tensor(p) else p for i, p in enumerate(primals)]
        with torch.set_grad_enabled(bool(wanted)):
            returned = list(runner.run(*leaves, enable_io_processing=False))
        gradients: list[Any] = []
        if wanted:
            outputs = [returned[count + i] for i in tangible]
            live = [(o, t) for o, t in zip(outputs, tangents) if o.requires_grad]
            seen[:] = [i for i, o in zip(tangible, outputs) if o.requires_grad]
            if not live:
                return returned[:count], returned[count:], [None for _ in wanted]
            gradients = list(
                torch.autograd.grad(
                    [o for o, _ in live], [leaves[i] for i in wanted], [t for _, t in live], allow_unused=True
                )
            )
        runner.origins.finish()
        return returned[:count], returned[count:], gradients

    with agreeing(), _without_mkldnn():  # operators of the CPU alone do not belong in the graph
        traced = _traced(joint, fakes, tangents)
        if any(_mutates(n) for n in traced.graph.nodes):  # some of torch's derivatives work in place
            with torch.no_grad():
                traced = _traced(torch.func.functionalize(traced, remove="mutations"), fakes, tangents)
    traced.graph.eliminate_dead_code()
    complex_numbers.write_out(traced.graph)
    _share(traced.graph)
    holders = [n for n in traced.graph.nodes if n.op == "placeholder"]
    (last,) = [n for n in traced.graph.nodes if n.op == "output"]
    updates, outputs, gradients = _regroup(last.args[0], count, len(graph.outputs))
    reach = [[k for k in wanted if _depends(graph.outputs[i], {placeholders[k]})] for i in tangible]
    made = Joint(
        traced.graph, holders[: len(fakes)], holders[len(fakes) :], updates, outputs, gradients, wanted, tangible,
        _guards(fakes, graph.asked), reach,
    )  # fmt: skip
    return made, seen


def forward_of(joint: Joint) -> Joint:
    """The forward alone, out of a graph that has both."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(joint.graph, copies)

    def copied(values: list[Any]) -> list[Any]:
        return list(fx.map_arg(values, copies.__getitem__))

    updates, outputs = copied(joint.updates), copied(joint.outputs)
    graph.output((updates, outputs, []))
    graph.eliminate_dead_code()
    for tangent in joint.tangents:
        graph.erase_node(copies[tangent])
    return Joint(graph, [copies[p] for p in joint.primals], [], updates, outputs, [], [], [], joint.guards)


def _guards(fakes: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """Conditions under which the graph was traced: equations, whatever the Model itself asks of its sizes, and others.

    The rest is torch's own and concerns strides (where sizes stand inside Max; from torch 2.10 to 2.12 inside Min) and
    algorithms, not results.
    """
    sizes: list[Any] = [s for f in fakes if torch.is_tensor(f) for s in f.shape if isinstance(s, torch.SymInt)]
    env: Any = next((s.node.shape_env for s in sizes), None)
    found: dict[Any, None] = {}
    for guard in env.guards if env is not None else ():
        condition = env.replace(guard.expr)
        place = str(guard.sloc.framework_loc)
        if not condition.is_Relational or condition.has(Max) or condition.has(Min) and "check_contiguous" in place:
            continue
        if condition.func is sympy.Eq or not within_torch(place):
            found[condition] = None
    if env is not None:
        found |= dict.fromkeys(c for c in map(env.replace, others) if c.is_Relational)
    return [c for c in found if c.free_symbols]


@contextlib.contextmanager
def _without_mkldnn() -> Iterator[None]:
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def _traced(function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[torch.Tensor]) -> fx.GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    table = decompositions()
    tracer = make_fx(function, decomposition_table=table, tracing_mode="symbolic", _allow_non_fake_inputs=True)
    return tracer(primals, tangents)


def _share(graph: fx.Graph) -> None:
    """One view for several alike: what reads them would have a copy of the same elements for each.

    Three projections of one tensor look at it through three views, say. Results stay apart, as a caller may write into
    one of them, and so do the forward and its derivatives.
    """
    first: dict[tuple[str, ...], fx.Node] = {}
    for node in list(graph.nodes):
        size = isinstance(node.meta.get("val"), (int, torch.SymInt))
        if node.target not in VIEWS and not size or node.op != "call_function":
            continue
        if any(user.op == "output" for user in node.users):
            continue
        origin = origin_of(node)
        gradient = origin is not None and origin.gradient and not size
        what = str(node.target), repr(node.args), repr(node.kwargs)
        if node.target in RESHAPES:  # sizes may have been written in another way
            what = "reshaped", repr(node.args[0]), str(tuple(node.meta["val"].shape))
        same = first.setdefault((*what, str(gradient)), node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)


def _mutates(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _on_cpu(value: Any) -> Any:
    """A fake tensor off the meta device: there, composite operators lose their derivatives (torch 2.13)."""
    if not torch.is_tensor(value) or value.device.type != "meta":
        return value
    mode: Any = value.fake_mode  # type: ignore[attr-defined]  # of a FakeTensor
    with mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")


def _regroup(returned: Any, updates: int, outputs: int) -> tuple[list[Any], list[Any], list[Any]]:
    import torch.utils._pytree as pytree

    flat = pytree.tree_leaves(returned, is_leaf=lambda x: x is None)
    return flat[:updates], flat[updates : updates + outputs], flat[updates + outputs :]


def _differentiable(graph: Graph, node: fx.Node) -> bool:
    value = node.meta["val"]
    kind = graph.sources[node.name].kind
    return is_number(value) and kind in ("parameter", "input")


def _depends(node: Any, roots: set[fx.Node]) -> bool:
    """Whether an output is a tensor of numbers that is computed from one of the roots."""
    if not isinstance(node, fx.Node) or not is_number(node.meta.get("val")):
        return False
    return computed_from(node, roots, _passes_gradients)


def _passes_gradients(node: fx.Node) -> bool:
    """Whether a result may have a gradient at all; what has several results may."""
    value = node.meta.get("val")
    return node.target is not aten.detach.default and (not torch.is_tensor(value) or is_number(value))


def decompositions() -> dict[Any, Callable[..., Any]]:
    from torch._decomp import core_aten_decompositions, get_decompositions

    table = dict(core_aten_decompositions().items())
    packets = [getattr(aten, name) for name in EXTRA if hasattr(aten, name)]
    table.update(get_decompositions(packets))
    kept = {getattr(aten, name) for name in KEPT if hasattr(aten, name)}
    return {op: f for op, f in table.items() if getattr(op, "overloadpacket", op) not in kept}


class _Normalise(torch.autograd.Function):
    """(x - mean) / sqrt(variance + eps) over ``dims``; also mean and biased variance, which carry no gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dims: list[int], eps: float) -> Any:
        variance, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
        rstd = torch.rsqrt(variance + eps)
        ctx.save_for_backward(x, mean, rstd)
        ctx.dims = dims
        ctx.mark_non_differentiable(mean, variance)
        return (x - mean) * rstd, mean, variance

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, *_: Any) -> Any:
        x, mean, rstd = ctx.saved_tensors
        unit = (x - mean) * rstd
        along = torch.mean(g, ctx.dims, keepdim=True)
        across = torch.mean(g * unit, ctx.dims, keepdim=True)
        return (g - along - unit * across) * rstd, None, None


def _affine(y: torch.Tensor, weight: Any, bias: Any, shape: list[int]) -> torch.Tensor:
    if weight is not None:
        y = y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


def _channels(x: torch.Tensor) -> list[int]:
    return [1, x.shape[1], *[1] * (x.dim() - 2)]


def _group_norm(x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, _: bool = True) -> Any:
    n, c = x.shape[:2]
    grouped = x.reshape(n, groups, c // groups, *x.shape[2:])
    y, _mean, _variance = _Normalise.apply(grouped, list(range(2, grouped.dim())), eps)
    return _affine(y.reshape(x.shape), weight, bias, _channels(x))


def _layer_norm(
    x: Any, shape: list[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, _: bool = True
) -> Any:
    y, _mean, _variance = _Normalise.apply(x, list(range(x.dim() - len(shape), x.dim())), eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _rms_norm(x: Any, shape: list[int], weight: Any = None, eps: float | None = None) -> Any:
    dims = list(range(x.dim() - len(shape), x.dim()))
    if eps is None:  # of the type that torch computes in
        eps = torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps
    y = x * torch.rsqrt(torch.mean(x * x, dims, keepdim=True) + eps)
    return y if weight is None else y * weight


def _moving(old: torch.Tensor, new: torch.Tensor, momentum: float, count: Any) -> torch.Tensor:
    """The running statistic after a batch; an empty batch changes nothing."""
    moved = old * (1 - momentum) + new.detach().reshape(old.shape) * momentum
    return torch.where(torch.full((), count, dtype=torch.int64, device=old.device) > 0, moved, old)


def _batch_norm(x: Any, weight: Any, bias: Any, rm: Any, rv: Any, training: bool, momentum: float, eps: float) -> Any:
    dims = [0, *range(2, x.dim())]
    if not training:
        shape = _channels(x)
        rstd = torch.rsqrt(rv + eps).reshape(shape)
        y = _affine((x - rm.reshape(shape)) * rstd, weight, bias, shape)
        return y, x.new_zeros(0), x.new_zeros(0), rm, rv
    y, mean, variance = _Normalise.apply(x, dims, eps)
    count = x.numel() // x.shape[1]
    y = _affine(y, weight, bias, _channels(x))
    new_rm = rm if rm is None else _moving(rm, mean, momentum, count)
    new_rv = rv if rv is None else _moving(rv, variance * (count / (count - 1)), momentum, count)
    return y, mean.reshape(-1), variance.reshape(-1), new_rm, new_rv


def _batch_norm_plain(x: Any, w: Any, b: Any, training: bool, momentum: float, eps: float) -> Any:
    return _batch_norm(x, w, b, None, None, training, momentum, eps)[:3]


def _batch_norm_eval(x: Any, w: Any, b: Any, rm: Any, rv: Any, momentum: float, eps: float) -> Any:
    return _batch_norm(x, w, b, rm, rv, False, momentum, eps)[:3]


def _batch_norm_any(
    x: Any, w: Any, b: Any, rm: Any, rv: Any, training: bool, momentum: float, eps: float, _: bool = True
) -> Any:
    return _batch_norm(x, w, b, rm, rv, training, momentum, eps)[0]


def _instance_norm(
    x: Any, w: Any, b: Any, rm: Any, rv: Any, use_input: bool, momentum: float, eps: float, _: bool = True
) -> Any:
    if not use_input:
        return _batch_norm(x, w, b, rm, rv, False, momentum, eps)[0]
    y, _mean, _variance = _Normalise.apply(x, list(range(2, x.dim())), eps)
    return _affine(y, w, b, _channels(x))


def _copied(target: Any, source: Any, _: bool = False) -> Any:
    return source.to(target.dtype).expand(target.shape)


def _attention(
    q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0.0, causal: bool = False, *, scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Attention written out: torch's own choice among its kernels depends on the device."""
    if enable_gqa:
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    scores = torch.matmul(q, k.transpose(-2, -1)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        rows, cols = (torch.arange(n, device=q.device) for n in scores.shape[-2:])
        mask = rows[:, None] >= cols[None, :]
    if mask is not None and mask.dtype == torch.bool:
        scores = torch.where(mask, scores, float("-inf"))
    elif mask is not None:
        scores = scores + mask
    weights = torch.softmax(scores, -1)
    return torch.matmul(torch.dropout(weights, dropout, True) if dropout else weights, v)


def _upsampled(x: Any, size: Any, align: bool, factors: Any) -> torch.Tensor:
    """Linear interpolation of the last dimensions, neighbours weighed as torch's kernels do.

    Its own decomposition takes their difference, which is nan where both are infinite.
    """
    scales = [None] * (x.dim() - 2) if factors is None else list(factors)
    if size is None:
        size = [n * int(f) if f == int(f) else torch.sym_int(n * f) for n, f in zip(x.shape[2:], factors)]
    corners, weights = [], []
    for dim, (length, scale) in enumerate(zip(size, scales), 2):
        before = x.shape[dim]
        places = torch.arange(length, device=x.device).to(x.dtype)
        if align:
            at = places * ((before - 1) / (length - 1) if length > 1 else 0.0)
        else:
            at = ((places + 0.5) * (before / length if scale is None else 1.0 / scale) - 0.5).clamp(min=0.0)
        at = at.reshape(-1, *[1] * (x.dim() - dim - 1))
        low = at.to(torch.int64)
        corners.append((low, (low + 1).clamp(max=before - 1)))
        weights.append((at - low).clamp(0.0, 1.0))
    values = [torch.ops.aten._unsafe_index(x, [None, None, *corner]) for corner in itertools.product(*corners)]
    for part in reversed(weights):
        values = [one * (1.0 - part) + other * part for one, other in zip(values[::2], values[1::2])]
    return values[0]


def _viewed(x: Any, size: list[Any]) -> Any:
    """A view that the Model takes of what torch lays out in another way than our forms do: copied where it must be."""
    return torch.reshape(x, size)


def _floor_divide(a: Any, b: Any) -> Any:
    return torch.div(a, b, rounding_mode="floor")


def _global_max_pool(x: Any, size: list[int]) -> Any:
    if any(s != 1 for s in size):
        return getattr(aten, f"adaptive_max_pool{len(size)}d").default(x, size)
    values, indices = x.flatten(-len(size)).max(-1)
    shape = [*values.shape, *size]
    return values.reshape(shape), indices.reshape(shape)


def _of_dense(operator: Any) -> Callable[..., Any]:
    """Of a matrix or its transpose, as torch finds it in memory; what a file gives torch is dense."""
    return lambda matrix, *args, **kwargs: operator(matrix.contiguous(), *args, **kwargs)


# Operators whose derivative asks how their argument lies.
DETERMINANTS = [
    getattr(aten, name).default
    for name in "det linalg_det _linalg_det slogdet linalg_slogdet _linalg_slogdet logdet".split()
]
FORMS: dict[Any, Callable[..., Any]] = {
    **{operator: _of_dense(operator) for operator in DETERMINANTS},
    **complex_numbers.FORMS,
    aten.scaled_dot_product_attention.default: _attention,
    aten.upsample_linear1d.vec: _upsampled,
    aten.upsample_bilinear2d.vec: _upsampled,
    aten.upsample_trilinear3d.vec: _upsampled,
    aten.view.default: _viewed,
    aten.floor_divide.default: _floor_divide,  # torch has no derivative (zero) for it
    aten.floor_divide.Scalar: _floor_divide,
    aten.adaptive_max_pool1d.default: _global_max_pool,
    aten.adaptive_max_pool2d.default: _global_max_pool,
    aten.adaptive_max_pool3d.default: _global_max_pool,
    aten.copy.default: _copied,  # torch has no derivative for the functional form
    aten.group_norm.default: _group_norm,
    aten.layer_norm.default: _layer_norm,
    aten.rms_norm.default: _rms_norm,
    aten.instance_norm.default: _instance_norm,
    aten.batch_norm.default: _batch_norm_any,
    aten._native_batch_norm_legit_functional.default: _batch_norm,
    aten._native_batch_norm_legit.no_stats: _batch_norm_plain,
    aten._native_batch_norm_legit_no_training.default: _batch_norm_eval,
}


def _of_types(made: Any, captured: Any) -> Any:
    """What a form made, in the types that the operator gives: weights of a norm may be wider than its input."""
    if isinstance(made, (tuple, list)):
        return type(made)(_of_types(m, c) for m, c in zip(made, captured, strict=True))
    return made.to(captured.dtype) if torch.is_tensor(made) and made.dtype != captured.dtype else made


class _Forms(fx.Interpreter):
    """Runs the captured graph with our own forms of some operators, and remembers which node came from which."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.origins = Origins()

    def run_node(self, n: fx.Node) -> Any:
        if n.op != "call_function":
            return super().run_node(n)
        self.origins.begin(n.name)
        result = super().run_node(n)
        if n.target in FORMS:
            result = _of_types(result, n.meta["val"])
        self.origins.follow(n.name, result)
        return result

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs.get("device") == torch.device("meta"):
            kwargs = {**kwargs, "device": torch.device("cpu")}
        form = FORMS.get(target)
        return form(*args, **kwargs) if form is not None else super().call_function(target, args, kwargs)
