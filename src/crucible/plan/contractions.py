"""Matrix products and convolutions, and their derivatives, all as one form: sums over k of a(z, m, k) * b(z, n, k).

For a convolution the rows are output channels of a group and the columns output pixels; ``b`` gathers the input under
the window. The derivative by the input is the transposed convolution, the derivative by the weight a contraction whose
depth runs over samples and pixels. A transposed convolution gathers too: each output pixel looks up the inputs that
reach it. With a stride, its phases are plain convolutions that share one contraction (plan/phases.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from crucible.plan.forms import Form
from crucible.plan.index import ZERO, Int, Var, integer, of_atom, of_var, product
from crucible.plan.lowering import Lowering, broadcast, lowers
from crucible.plan.phases import Along
from crucible.plan.program import Contract, Index, Phases, Sliding, Tensor, unflat
from crucible.plan.value import Condition, Const, Fold, Inside, Masked, Multiple, Op, Value

aten = torch.ops.aten

# From this many output pixels on, a sample's pixels fill tiles of their own, so that statistics per sample stay apart.
OWN_TILES = 256
# Up to this many taps, a convolution of single channels is a loop in the thread of each element.
FEW_TAPS = 64
# Up to this many phases that lie beside each other have sums at a time.
BESIDE_MOST = 4


def _along(tensor: Tensor, index: Index, variable: Var) -> bool:
    """Whether moving along a variable moves by one element in memory: the best direction to read in."""
    from crucible.plan.value import Load, walk

    for value in walk(tensor.at(index)):
        if isinstance(value, Load):
            step = value.index.substitute({variable: of_atom(variable) + 1}) - value.index
            if step == 1:
                return True
    return False


# -- matrix products


@lowers(aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default)
def matmul(low: Lowering, node: Any) -> Tensor:
    name = str(node.target)
    if "addmm" in name or "baddbmm" in name:
        bias, a, b = (low.tensor(x) for x in node.args[:3])
    else:
        bias, (a, b) = None, (low.tensor(x) for x in node.args[:2])
    low.product_of(a, b)
    result = _product(low, node, a, b)
    if bias is None:
        return result
    beta, alpha = node.kwargs.get("beta", 1), node.kwargs.get("alpha", 1)
    def element(index: Index) -> Value:
        value = result.at(index)
        if alpha != 1:
            value = Op("mul", (value, low.scalar(alpha, "f")), "f")
        if beta == 0:
            return value
        added = broadcast(bias, index)
        if beta != 1:
            added = Op("mul", (added, low.scalar(beta, "f")), "f")
        return Op("add", (value, added), "f")

    return low.lazy(node, element, [result, bias], cost=1)


def _product(low: Lowering, node: Any, a: Tensor, b: Tensor) -> Tensor:
    a, b = low.operand(a), low.operand(b)
    batched = len(a.shape) == 3
    lead = a.shape[:1] if batched else ()
    m, k = a.shape[-2:]
    n = b.shape[-1]
    batch = tuple(low.fresh("z", s) for s in lead)
    rows, cols, depth = low.fresh("m", m), low.fresh("n", n), low.fresh("k", k)
    z = tuple(of_var(v) for v in batch)
    contract = Contract(
        low.operation_name(f"{node.name}_product"), batch, rows, cols, depth,
        lambda: a.at((*z, of_var(rows), of_var(depth))), lambda: b.at((*z, of_var(depth), of_var(cols))),
        (*z, of_var(rows), of_var(cols)), (*lead, m, n),
        _along(a, (*z, of_var(rows), of_atom(depth)), depth), _along(b, (*z, of_atom(depth), of_var(cols)), depth),
        "matmul", (a, b), node.name,
    )  # fmt: skip
    return low.add_contract(contract)


# -- convolutions


@dataclass(frozen=True)
class Window:
    """The parameters of a convolution over d dimensions."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def taps(self) -> int:
        total = 1
        for k in self.kernel:
            total *= k
        return total


def _window(low: Lowering, weight: Tensor, args: Sequence[Any]) -> Window:
    """``args``: stride, padding, dilation, groups."""
    rank = len(weight.shape) - 2
    kernel = tuple(s.constant for s in weight.shape[2:] if s.constant is not None)
    if len(kernel) != rank:
        raise low.refusal("a convolution whose kernel size depends on the input")

    def full(values: Any) -> tuple[int, ...]:
        values = [low.constant(v) for v in values]
        return tuple(values * rank if len(values) == 1 else values)

    return Window(kernel, full(args[0]), full(args[1]), full(args[2]), low.constant(args[3]))


@lowers(aten.convolution.default)
def convolution(low: Lowering, node: Any) -> Tensor:
    x, weight = low.tensor(node.args[0]), low.tensor(node.args[1])
    bias = low.tensor(node.args[2]) if node.args[2] is not None else None
    low.product_of(x, weight)
    stride, padding, dilation, transposed, _output_padding, groups = node.args[3:9]
    window = _window(low, weight, (stride, padding, dilation, groups))
    shape = low.result_shape(node)
    made = _convolved(low, node, x, weight, window, shape, "", transposed=transposed)
    if bias is None:
        return made
    return low.lazy(node, lambda i: Op("add", (made.at(i), bias.at((i[1],))), "f"), [made, bias], cost=1)


@lowers(aten.convolution_backward.default)
def convolution_backward(low: Lowering, node: Any) -> Any:
    g, x, weight = (low.tensor(a) for a in node.args[:3])
    low.product_of(g, x, weight)
    stride, padding, dilation, transposed, _output_padding, groups, wanted = node.args[4:11]
    window = _window(low, weight, (stride, padding, dilation, groups))
    grad_x = grad_w = grad_b = None
    if wanted[0]:
        grad_x = _convolved(low, node, g, weight, window, x.shape, "_x", transposed=not transposed)
    if wanted[1]:
        grad_w = _weight_gradient(low, node, g, x, weight, window, transposed)
    if wanted[2]:
        axes = [0, *range(2, len(g.shape))]
        (total,) = low.add_reduce(node, g, axes, "sum", lambda i: (g.at(i),), ["f"], [g])
        grad_b = low.squeezed(total, axes)
    return grad_x, grad_w, grad_b


def _pixels(low: Lowering, shape: Index, groups: int) -> tuple[tuple[Var, ...], Var, Int, Int, Index]:
    """How samples, groups and pixels are dealt to batches and columns: (batch vars, cols var, sample, group, pixel)."""
    n, spatial = shape[0], shape[2:]
    count = product(spatial)
    group = low.fresh("g", integer(groups))
    if count.hint(low.symbols.hints) >= OWN_TILES:
        sample = low.fresh("s", n)
        cols = low.fresh("p", count)
        return (sample, group), cols, of_var(sample), of_var(group), unflat(of_var(cols), spatial)
    cols = low.fresh("p", n * count)
    index = unflat(of_var(cols), (n, *spatial))
    return (group,), cols, index[0], of_var(group), index[1:]


def _convolved(
    low: Lowering, node: Any, x: Tensor, weight: Tensor, window: Window, shape: Index, suffix: str, *, transposed: bool
) -> Tensor:  # fmt: skip
    """The convolution of x, or its transposed: output pixel y gets x[(y + pad - tap*dilation) / stride] if it divides.

    Each is the derivative of the other by its input, with the same weight.
    """
    x, weight = low.operand(x), low.operand(weight)
    rows_per = shape[1] // window.groups
    depth_per = x.shape[1] // window.groups
    if depth_per == 1 and window.taps <= FEW_TAPS:
        return _depthwise(low, node, x, weight, window, shape, transposed=transposed)
    if transposed and any(s != 1 for s in window.stride):
        return _phased(low, node, x, weight, window, shape, suffix)
    batch, cols, sample, group, pixel = _pixels(low, shape, window.groups)
    rows = low.fresh("m", rows_per)
    depth = low.fresh("k", depth_per * window.taps)
    channel, *tap = unflat(of_var(depth), (depth_per, *map(integer, window.kernel)))

    def a() -> Value:
        if transposed:
            return weight.at((group * depth_per + channel, of_var(rows), *tap))
        return weight.at((group * rows_per + of_var(rows), channel, *tap))

    def b() -> Value:
        if transposed:
            at = [p + pad - t * d for p, pad, t, d in zip(pixel, window.padding, tap, window.dilation)]
            inside = x.at((sample, group * depth_per + channel, *at))
            return _masked([Inside(i, s) for i, s in zip(at, x.shape[2:])], inside)
        at = _under(pixel, tap, window)
        inside = x.at((sample, group * depth_per + channel, *at))
        return _guarded([Inside(i, s) for i, s in zip(at, x.shape[2:])], inside, window)

    contract = Contract(
        low.operation_name(f"{node.name}{suffix}_sum"), batch, rows, cols, depth, a, b,
        (sample, group * rows_per + of_var(rows), *pixel), shape, not transposed or window.taps > 1, False, "conv",
        (x, weight), node.name, _sliding(low, x, window, shape, batch, sample, group, transposed=transposed),
    )  # fmt: skip
    return low.add_contract(contract)


def _phased(
    low: Lowering, node: Any, x: Tensor, weight: Tensor, window: Window, shape: Index, suffix: str
) -> Tensor:
    """The transposed convolution with a stride, all phases at once.

    Phases that have all taps are rows beside each other; any others are groups, whose taps the kernels know.
    """
    dims = [Along(*each) for each in zip(window.kernel, window.stride, window.padding, window.dilation)]
    outputs, places = shape[2:], tuple(a.places(e) for a, e in zip(dims, shape[2:]))
    inner = [a.stride if a.even else 1 for a in dims]
    outer = [1 if a.even else a.stride for a in dims]
    rows_per, depth_per = shape[1] // window.groups, x.shape[1] // window.groups
    batch, cols, sample, split, place = _pixels(low, (*shape[:2], *places), window.groups * prod(outer))
    rows = low.fresh("m", rows_per * prod(inner))
    depth = low.fresh("k", depth_per * prod(a.taps for a in dims))
    channel, *tap = unflat(of_var(depth), (depth_per, *(integer(a.taps) for a in dims)))
    group, own = split // prod(outer), of_var(rows) // prod(inner)
    of_rows = unflat(of_var(rows) % prod(inner), [integer(n) for n in inner])
    of_split = unflat(split % prod(outer), [integer(n) for n in outer])
    phase = [r if a.even else s for a, r, s in zip(dims, of_rows, of_split)]
    conditions: list[Condition] = []
    for a, f, t in zip(dims, phase, tap):
        if a.kernel % a.starts:
            conditions.append(Inside(a.weight(f, t), integer(a.kernel)))
        if a.common > 1:
            conditions.append(Inside(f % a.common, integer(1)))

    def a_() -> Value:
        taps = [a.weight(f, t) for a, f, t in zip(dims, phase, tap)]
        return _masked(conditions, weight.at((group * depth_per + channel, own, *taps)))

    def b_() -> Value:
        at = [a.input(p, t) for a, p, t in zip(dims, place, tap)]
        inside = [Inside(i, e) for i, e in zip(at, x.shape[2:])]
        return _masked([*conditions, *inside], x.at((sample, group * depth_per + channel, *at)))

    moved = [low.fresh("y", e) if a.stride > 1 else None for a, e in zip(dims, outputs)]
    pixels = [(v, a.output(p, f)) for v, a, p, f in zip(moved, dims, place, phase) if v is not None]
    pixel = [p if v is None else of_var(v) for v, p in zip(moved, place)]
    form = [[a.taps for a in dims], [1] * len(dims), [a.spacing for a in dims],
            [a.first - (a.taps - 1) * a.spacing for a in dims]]  # fmt: skip
    inside = prod(outer) if window.groups == 1 else 1
    phases = Phases(
        prod(window.stride), of_var(rows) % prod(inner) * prod(outer) + split % prod(outer), tuple(pixels),
        tuple(conditions), (window.taps, prod(a.taps * a.stride for a in dims)),
        inside, dims[-1].beside if inside > 1 and 1 < outer[-1] <= BESIDE_MOST else 1,
    )  # fmt: skip
    contract = Contract(
        low.operation_name(f"{node.name}{suffix}_sum"), batch, rows, cols, depth, a_, b_,
        (sample, group * rows_per + own, *pixel), shape, False, False, "conv", (x, weight), node.name,
        _slid(low, x, window.groups, (*shape[:2], *places), batch, sample, group, form, flipped=True), phases,
    )  # fmt: skip
    return low.add_contract(contract)


def _depthwise(
    low: Lowering, node: Any, x: Tensor, weight: Tensor, window: Window, shape: Index, *, transposed: bool
) -> Tensor:
    """A convolution with one input channel for each group: a few products an element, nothing for a tile to share."""
    rows_per = shape[1] // window.groups
    dims = [Along(*each) for each in zip(window.kernel, window.stride, window.padding, window.dilation)]
    # The taps of the element's own phase alone, where they are found without a division of negative numbers.
    phased = transposed and prod(window.stride) > 1 and all(a.dilation == 1 or a.stride == 1 for a in dims)
    loops = tuple(low.fresh("t", integer(a.taps if phased else a.kernel)) for a in dims)
    tap = [of_var(v) for v in loops]
    taken = tuple(v for v in loops if v.extent != 1)

    def own(sample: Int, channel: Int, pixel: Sequence[Int]) -> Value:
        """The product of a tap of the element's phase with what it reads."""
        group = channel // rows_per
        reach = [p + a.padding for a, p in zip(dims, pixel)]
        taps = [a.weight(r % a.stride, t) for a, r, t in zip(dims, reach, tap)]
        at = [r // a.stride - t * a.spacing for a, r, t in zip(dims, reach, tap)]
        there = [Inside(t, integer(a.kernel)) for a, t in zip(dims, taps) if not a.even]
        inside = [Inside(i, s) for i, s in zip(at, x.shape[2:])]
        factor = weight.at((group, channel % rows_per, *taps))
        return _masked([*there, *inside], Op("mul", (factor, x.at((sample, group, *at))), "f"))

    def any_(sample: Int, channel: Int, pixel: Sequence[Int]) -> Value:
        group = channel // rows_per
        if transposed:
            at, conditions = _reached(pixel, tap, x.shape[2:], window)
            value = _masked(conditions, x.at((sample, group, *at)))
            factor = weight.at((group, channel % rows_per, *tap))
        else:
            at = _under(pixel, tap, window)
            value = _guarded([Inside(i, s) for i, s in zip(at, x.shape[2:])], x.at((sample, group, *at)), window)
            factor = weight.at((channel, ZERO, *tap))
        return Op("mul", (factor, value), "f")

    def element(index: Index) -> Value:
        sample, channel, *pixel = index
        product_ = (own if phased else any_)(sample, channel, pixel)
        return Fold("sum", taken, (product_,), 0, "f") if taken else product_

    cost = 4 * (prod(a.taps for a in dims) if phased else window.taps)
    return low.lazy(node, element, [x, weight], cost=cost, folds=bool(taken), shape=shape, dtype="scalar")


def _depthwise_gradient(
    low: Lowering, node: Any, plain: Tensor, under: Tensor, weight: Tensor, window: Window
) -> Tensor:
    """The same for the weight: one sum over samples and pixels for each channel and tap."""
    rows_per = plain.shape[1] // window.groups
    rank = len(window.kernel)

    def element(index: Index) -> Value:
        channel, tap, sample, pixel = index[0], index[1 : 1 + rank], index[1 + rank], index[2 + rank :]
        at = _under(pixel, tap, window)
        seen = under.at((sample, channel // rows_per, *at))
        value = _guarded([Inside(i, s) for i, s in zip(at, under.shape[2:])], seen, window)
        return Op("mul", (plain.at((sample, channel, *pixel)), value), "f")

    shape = (plain.shape[1], *map(integer, window.kernel), plain.shape[0], *plain.shape[2:])
    source = low.lazy(node, element, [plain, under], cost=2, shape=shape, dtype="scalar")
    axes = range(1 + rank, len(shape))
    (total,) = low.add_reduce(node, source, axes, "sum", lambda i: (source.at(i),), ["f"], [plain, under])
    return low.lazy(
        node, lambda i: total.at((i[0], *i[2:], *[ZERO] * len(axes))), [total], shape=weight.shape, dtype="scalar"
    )


def _sliding(
    low: Lowering, x: Tensor, window: Window, shape: Index, batch: tuple[Var, ...], sample: Int, group: Int, *,
    transposed: bool,
) -> Sliding | None:  # fmt: skip
    """The convolution as a window over x."""
    if transposed:  # the last tap comes first
        shift = [p - (k - 1) * d for p, k, d in zip(window.padding, window.kernel, window.dilation)]
        rows = [list(window.kernel), [1] * len(shift), list(window.dilation), shift]
    else:
        rows = [list(window.kernel), list(window.stride), list(window.dilation), [-p for p in window.padding]]
    return _slid(low, x, window.groups, shape, batch, sample, group, rows, flipped=transposed)


def _slid(
    low: Lowering, x: Tensor, groups: int, shape: Index, batch: tuple[Var, ...], sample: Int, group: Int,
    rows: list[list[int]], *, flipped: bool,
) -> Sliding | None:  # fmt: skip
    """A window over x. ``rows``: kernel, stride, dilation and shift, for each dimension."""
    if x.shape[1].constant is None or shape[1].constant is None:
        return None
    merged = len(batch) == 1  # samples are pixels too
    extents, limits = list(shape[2:]), list(x.shape[2:])
    if merged:
        extents, limits = [shape[0], *extents], [x.shape[0], *limits]
        rows = [[first, *row] for first, row in zip((1, 1, 1, 0), rows)]
    missing = 4 - len(extents)
    if missing < 0:
        return None
    rows = [[first] * missing + row for first, row in zip((1, 1, 1, 0), rows)]
    kernel, strides, dilation, shifts = map(tuple, rows)
    form = Form(kernel, strides, dilation, shifts, flipped)
    channel = low.fresh("c", x.shape[1] // groups)
    position = tuple(low.fresh("i", e) for e in [integer(1)] * missing + limits)
    pixel = tuple(of_var(v) for v in position[missing:])

    def source() -> Value:
        at = pixel if merged else (sample, *pixel)
        return x.at((at[0], group * (x.shape[1] // groups) + of_var(channel), *at[1:]))

    ones = [integer(1)] * missing
    return Sliding(form, (*ones, *extents), (*ones, *limits), channel, position, source)


def _under(pixel: Sequence[Int], tap: Sequence[Int], window: Window) -> list[Int]:
    """The input pixel that a tap of the window over an output pixel reads."""
    return [p * s - pad + t * d for p, s, pad, t, d in zip(pixel, window.stride, window.padding, tap, window.dilation)]


def _reached(
    pixel: Sequence[Int], tap: Sequence[Int], extents: Sequence[Int], window: Window
) -> tuple[list[Int], tuple[Condition, ...]]:
    """The input pixel that reaches an output pixel through a tap, and when there is one."""
    conditions: list[Condition] = []
    at: list[Int] = []
    for p, pad, t, d, s, extent in zip(pixel, window.padding, tap, window.dilation, window.stride, extents):
        reach = p + pad - t * d
        conditions.append(Inside(reach, extent * s if s > 1 else extent))
        if s > 1:
            conditions.append(Multiple(reach, integer(s)))
        at.append(reach // s if s > 1 else reach)
    return at, tuple(conditions)


def _weight_gradient(
    low: Lowering, node: Any, g: Tensor, x: Tensor, weight: Tensor, window: Window, transposed: bool
) -> Tensor:
    """For each tap: the product of the tensor that is read plainly with the one that is read under the window."""
    # A transposed convolution's roles are exchanged: its input is plain and its output is under the window.
    plain, under = (x, g) if transposed else (g, x)
    plain, under = low.operand(plain), low.operand(under)
    groups = window.groups
    rows_per = plain.shape[1] // groups
    cols_per = under.shape[1] // groups
    if cols_per == 1 and rows_per == 1 and window.taps <= FEW_TAPS:
        return _depthwise_gradient(low, node, plain, under, weight, window)
    group = low.fresh("g", integer(groups))
    rows = low.fresh("m", rows_per)
    cols = low.fresh("n", cols_per * window.taps)
    depth = low.fresh("k", plain.shape[0] * product(plain.shape[2:]))
    sample, *pixel = unflat(of_var(depth), (plain.shape[0], *plain.shape[2:]))
    channel, *tap = unflat(of_var(cols), (cols_per, *map(integer, window.kernel)))
    at = _under(pixel, tap, window)

    def a() -> Value:
        return plain.at((sample, of_var(group) * rows_per + of_var(rows), *pixel))

    def b() -> Value:
        inside = under.at((sample, of_var(group) * cols_per + channel, *at))
        return _guarded([Inside(i, s) for i, s in zip(at, under.shape[2:])], inside, window)

    contract = Contract(
        low.operation_name(f"{node.name}_w_sum"), (group,), rows, cols, depth, a, b,
        (of_var(group) * rows_per + of_var(rows), channel, *tap), weight.shape, True, True, "conv", (plain, under),
        node.name, _correlating(low, plain, under, window, of_var(group), rows),
    )  # fmt: skip
    return low.add_contract(contract)


def _correlating(
    low: Lowering, plain: Tensor, under: Tensor, window: Window, group: Int, rows: Var
) -> Sliding | None:
    """The gradient of a weight as a window over one tensor, beside the other; samples are pixels."""
    missing = 3 - len(window.kernel)
    if missing < 0 or plain.shape[1].constant is None or under.shape[1].constant is None:
        return None
    ones = [integer(1)] * missing
    kernel, stride, dilation, shift = (
        (first,) * (missing + 1) + tuple(row)
        for first, row in zip(
            (1, 1, 1, 0), (window.kernel, window.stride, window.dilation, [-p for p in window.padding])
        )
    )
    # Samples first, in any number: then the dimensions that are not there.
    extents = (plain.shape[0], *ones, *plain.shape[2:])
    limits = (under.shape[0], *ones, *under.shape[2:])
    channel = low.fresh("c", under.shape[1] // window.groups)
    position = tuple(low.fresh("i", e) for e in limits)
    pixel = tuple(low.fresh("y", e) for e in extents)

    def at(tensor: Tensor, place: tuple[Var, ...], which: Var) -> Value:
        per = tensor.shape[1] // window.groups
        rest = (of_var(v) for v in place[1 + missing :])
        return tensor.at((of_var(place[0]), group * per + of_var(which), *rest))

    return Sliding(
        Form(kernel, stride, dilation, shift, False), extents, limits, channel, position,
        lambda: at(under, position, channel), lambda: at(plain, pixel, rows), pixel,
    )  # fmt: skip


def _masked(conditions: Sequence[Condition], inside: Value) -> Value:
    return Masked(tuple(conditions), inside, Const(0.0, "f"), "f") if conditions else inside


def _guarded(conditions: list[Inside], inside: Value, window: Window) -> Value:
    """Without padding nothing lies outside."""
    return _masked([c for c, p in zip(conditions, window.padding) if p], inside)
