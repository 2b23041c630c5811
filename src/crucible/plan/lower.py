"""Lower a traced graph to a Program: what each node's elements are, and which operations stand on their own."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from crucible.graph.joint import Joint
from crucible.graph.reach import computed_from
from crucible.plan import contractions, pointwise, windows
from crucible.plan.index import ONE, ZERO, Int, Var, integer, nonnegative, of_atom, product
from crucible.plan.program import (
    Buffer,
    Contract,
    Extern,
    Index,
    Keep,
    Operation,
    Pooled,
    Program,
    Reduce,
    Tensor,
    flat,
    kind_of,
    reshaped,
)
from crucible.plan.symbols import Symbols
from crucible.plan.value import Const, IndexValue, Load, Masked, Op, Result, SizeText, Value, walk
from crucible.plan.value import Inside as In

aten = torch.ops.aten
Handler = Callable[["Lowering", fx.Node], Any]
HANDLERS: dict[Any, Handler] = {}

# What an element may cost before several readers share it through memory instead of computing it each.
SHARED_COST = 512
# What an element of a contraction's operand may cost: it is fetched many times.
OPERAND_COST = 3
# What an element that is normalised must cost at least to be stored in the stead of a contraction's sum: with cheaper
# ones the forward pass for gradients, which stores sums, and the one without share their kernels.
WORTH_STORING = 6

DTYPES = {torch.int64: "int64", torch.int32: "int32", torch.int16: "int16", torch.int8: "int8",
          torch.uint8: "uint8", torch.bool: "bool"}  # fmt: skip


class Unsupported(Exception):
    """This node cannot be lowered; the message is the reason that the user reads."""


def lowers(*targets: Any) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for target in targets:
            HANDLERS[target] = handler
        return handler

    return register


class Lowering:
    """One pass over the nodes. ``env`` has the Tensor (or tuple of them, or number) of every node."""

    def __init__(
        self, joint: Joint, roles: Sequence[tuple[str, str]], element: torch.dtype, pools: bool
    ) -> None:  # fmt: skip
        self.joint = joint
        self.pools = pools  # contractions may pool what they store
        self.element = element
        self.symbols = Symbols()
        self.program = Program()
        self.env = self.program.env
        self.vars = 0
        self.operations = self.program.operations
        for node, (name, role) in zip([*joint.primals, *joint.tangents], roles):
            self.env[node] = self._argument(node, name, role)

    # -- the walk

    def run(self) -> Program:
        for node in self.joint.graph.nodes:
            if node.op == "call_function":
                self.env[node] = self._node(node)
                if node.meta.get("once") and isinstance(self.env[node], Tensor):
                    self.keep(self.env[node], "computed once for many elements", dtype="accum")
            elif node.op == "get_attr":
                raise Unsupported(f"{node.name} is a constant that torch made while tracing")
        program = self.program
        program.updates = [self._returned(n, "the new value of a buffer") for n in self.joint.updates]
        program.outputs = [self._returned(n, "an output") for n in self.joint.outputs]
        program.gradients = [self._returned(n, "a gradient") for n in self.joint.gradients]
        program.hints = self.symbols.hints
        program.sizes = self.symbols.computed
        return program

    def _node(self, node: Any) -> Any:
        value = node.meta.get("val")
        if isinstance(value, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool, bool)):
            return value
        handler = HANDLERS.get(node.target)
        if handler is None:
            return self.extern(node, f"{_op_name(node)} is not among the operators that can be fused")
        try:
            return handler(self, node)
        except (Unsupported, NotImplementedError) as refusal:
            return self.extern(node, str(refusal))

    def _argument(self, node: Any, name: str, role: str) -> Any:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return value
        buffer = Buffer(name, self.shape(value), self.dtype(value), role)
        self.program.buffers[name] = buffer
        return Tensor(name, buffer.shape, buffer.dtype, buffer.load, buffer=buffer)

    def _returned(self, node: Any, why: str) -> Any:
        if not isinstance(node, fx.Node):
            return node
        value = self.env[node]
        if isinstance(value, Tensor):
            return self.keep(value, why, fresh=True)
        return value

    # -- what handlers use

    def shape(self, value: torch.Tensor) -> Index:
        return tuple(self.symbols.of(s) for s in value.shape)

    def dtype(self, value: torch.Tensor) -> str:
        if value.dtype.is_floating_point:
            if value.dtype != self.element:
                raise Unsupported(f"a tensor of {value.dtype} beside {self.element}")
            return "scalar"
        if value.dtype not in DTYPES:
            raise Unsupported(f"a tensor of {value.dtype}")
        return DTYPES[value.dtype]

    def refusal(self, reason: str) -> Unsupported:
        return Unsupported(reason)

    def result_shape(self, node: Any) -> Index:
        return self.shape(node.meta["val"])

    def new_vars(self, shape: Sequence[Int], stem: str = "i") -> Index:
        made = []
        for s in shape:
            self.vars += 1
            made.append(ZERO if s == 1 else of_atom(Var(f"{stem}{self.vars}", s)))
        return tuple(made)

    def fresh(self, stem: str, extent: Int) -> Var:
        self.vars += 1
        return Var(f"{stem}{self.vars}", extent)

    def tensor(self, arg: Any) -> Tensor:
        got = self.env[arg] if isinstance(arg, fx.Node) else arg
        if not isinstance(got, Tensor):
            raise Unsupported(f"an argument that is not a tensor: {arg}")
        return got

    def number(self, arg: Any) -> Any:
        """A size or a number that is an argument."""
        return self.env[arg] if isinstance(arg, fx.Node) else arg

    def whole(self, arg: Any) -> Int:
        return self.symbols.of(self.number(arg))

    def constant(self, arg: Any) -> int:
        value = self.whole(arg).constant
        if value is None:
            raise Unsupported("a parameter that depends on the size of the input")
        return value

    def scalar(self, arg: Any, kind: str) -> Value:
        """A number as a value of a kind."""
        value = self.number(arg)
        if isinstance(value, torch.SymInt):
            index = IndexValue(self.symbols.of(value))
            return index if kind == "l" else Op("to_f", (index,), "f")
        if isinstance(value, torch.SymFloat):
            text = self.symbols.real(value)
            names = [self.symbols.of(s) for s in sorted(value.node.expr.free_symbols, key=str)]
            return SizeText(f"accum({text})", tuple(names))
        if kind == "f":
            return Const(float(value), "f")
        return Const(bool(value) if kind == "b" else int(value), kind)

    def lazy(
        self,
        node: Any,
        element: Callable[[Index], Value],
        inputs: Sequence[Tensor],
        *,
        cost: int = 0,
        folds: bool = False,
        shape: Index | None = None,
        dtype: str | None = None,
        pooled: Pooled | None = None,
    ) -> Tensor:
        if pooled is None:
            self.stored_pools(inputs)
        shape = self.result_shape(node) if shape is None else shape
        dtype = self.dtype(node.meta["val"]) if dtype is None else dtype
        total = cost + sum(t.cost for t in inputs if t.buffer is None)
        results = frozenset().union(*(t.results for t in inputs if t.buffer is None))
        nodes = tuple(dict.fromkeys([*(n for t in inputs if t.buffer is None for n in t.nodes), node.name]))
        made = Tensor(
            node.name, shape, dtype, element, total, folds or any(t.folds for t in inputs), None, results, nodes, pooled
        )
        if total > SHARED_COST and len(node.users) > 1:
            self.keep(made, "computing it again for each reader would cost more")
        return made

    def stored_pools(self, inputs: Sequence[Tensor]) -> None:
        """Keep what contractions pool, and what is computed from that alone, when something else needs it."""
        for t in inputs:
            if t.pooled is not None and t.buffer is None and t.pooled.tensor.buffer is None:
                self.keep(t, "pooled where a contraction has its elements")

    def passed_on(self, inputs: Sequence[Tensor], shape: Index, dtype: str) -> Pooled | None:
        """The pool whose result a pointwise function can be stored in the stead of."""
        found = {id(t.pooled): t.pooled for t in inputs if t.pooled is not None and t.buffer is None}
        if len(found) != 1 or dtype != "scalar":
            return None
        (pooled,) = found.values()
        alone = all(
            t.shape == shape if t.pooled is pooled and t.buffer is None
            else t.buffer.role != "made" if t.buffer is not None else not t.results and not t.folds
            for t in inputs
        )  # fmt: skip
        return pooled if alone else None

    def keep(self, tensor: Tensor, why: str, *, fresh: bool = False, dtype: str = "") -> Buffer:
        """Memory for a tensor. A fresh one is not shared with an argument."""
        if tensor.buffer is not None and not (fresh and tensor.buffer.role != "made"):
            return tensor.buffer
        name = self.buffer_name(tensor.name)
        buffer = Buffer(name, tensor.shape, dtype or tensor.dtype, "made")
        self.program.buffers[name] = buffer
        source = tensor
        if tensor.buffer is None:
            source = Tensor(tensor.name, tensor.shape, tensor.dtype, tensor.element, tensor.cost, tensor.folds,
                            None, tensor.results, tensor.nodes, tensor.pooled)  # fmt: skip
            tensor.buffer, tensor.cost, tensor.folds = buffer, 0, False
        # Operations between here and there may read it already: from now on they load what this stores.
        self.operations.insert(self._earliest(source), Keep(source, buffer, why))
        return buffer

    def _earliest(self, tensor: Tensor) -> int:
        """Where among the operations everything is at hand that an element of a tensor is computed from."""
        needed: set[str] = set()
        for value in walk(tensor.at(self.new_vars(tensor.shape))):
            if isinstance(value, Load):
                needed.add(value.buffer)
            elif isinstance(value, Result):
                needed.add(value.source)
        return max((k + 1 for k, o in enumerate(self.operations) if needed & _made(o)), default=0)

    def in_stead_of_sums(self, node: Any, source: Tensor) -> None:
        """Keep what is normalised, computed from a contraction's sums, where nothing else needs the sums themselves.

        Something must lie in memory until the moments are known; this spares computing it from the sums once more.
        """
        if source.buffer is not None or source.cost < WORTH_STORING or source.folds or source.dtype != "scalar":
            return
        contracts = [o for o in self.operations if isinstance(o, Contract) and o.name in source.results]
        if len(contracts) != 1 or len(source.results) != 1 or product(contracts[0].shape) != source.numel:
            return
        mine = next((n for n in node.all_input_nodes if self.env[n] is source), None)
        if mine is None or not any(u is not node and computed_from(u, [node]) for u in mine.users):
            return
        behind: list[fx.Node] = []
        at = [mine]
        while at:
            before = [n for n in at.pop().all_input_nodes if isinstance(self.env[n], Tensor) and self.env[n].results]
            behind += before
            at += before
        # Sizes are no elements; the graph's outputs have no value of their own.
        if all(sum(not isinstance(u.meta.get("val"), (torch.SymInt, int)) for u in n.users) == 1 for n in behind):
            self.keep(source, "normalised when its moments are known")

    def buffer_name(self, stem: str) -> str:
        name, k = stem, 1
        while name in self.program.buffers:
            name, k = f"{stem}_{k}", k + 1
        return name

    def operand(self, tensor: Tensor) -> Tensor:
        """A tensor that a contraction or a window reads again and again."""
        if tensor.buffer is None and (tensor.cost > OPERAND_COST or tensor.folds):
            self.keep(tensor, "an operand that is read many times")
        return tensor

    def extern(self, node: Any, reason: str) -> Any:
        """Leave the node to torch."""
        self.program.reasons.append((f"{node.name} ({_op_name(node)})", reason))
        inputs = [self.env[n] for n in node.all_input_nodes if isinstance(self.env[n], Tensor)]
        for t in inputs:
            self.keep(t, "torch's own operator reads it")
        values = node.meta["val"]
        many = isinstance(values, (tuple, list))
        results: list[Tensor | None] = []
        for k, value in enumerate(values if many else [values]):
            if value is None or not isinstance(value, torch.Tensor):
                results.append(None)
                continue
            name = self.buffer_name(f"{node.name}_{k}" if many else node.name)
            buffer = Buffer(name, self.shape(value), self.dtype(value), "made")
            self.program.buffers[name] = buffer
            results.append(Tensor(name, buffer.shape, buffer.dtype, buffer.load, buffer=buffer))
        self.operations.append(Extern(node.name, node, tuple(inputs), results, reason, (node.args, node.kwargs)))
        return tuple(results) if many else results[0]

    def add_contract(self, contract: Contract) -> Tensor:
        def element(index: Index) -> Value:
            return Result(contract.name, 0, index, "f")

        contract.result = Tensor(contract.name, contract.shape, "scalar", element, 0, False, None,
                                 frozenset({contract.name}), (contract.node,))  # fmt: skip
        self.operations.append(contract)
        return contract.result

    def add_reduce(
        self, node: Any, source: Tensor, dims: Sequence[int], reducer: str, body: Callable[[Index], tuple[Value, ...]],
        kinds: Sequence[str], inputs: Sequence[Tensor],
    ) -> list[Tensor]:  # fmt: skip
        """A reduction of ``source`` over ``dims``; results in keepdim form, one for each result of the reducer."""
        self.stored_pools(inputs)
        rank = len(source.shape)
        kept = [d for d in range(rank) if d not in dims]
        outer = tuple(self.fresh("r", source.shape[d]) for d in kept)
        inner = tuple(self.fresh("k", source.shape[d]) for d in dims)

        def full(o: Index, i: Index) -> Index:
            at = dict(zip(kept, o)) | dict(zip(dims, i))
            return tuple(at[d] for d in range(rank))

        reduce = Reduce(
            self.buffer_name(node.name), outer, inner, lambda o, i: body(full(o, i)), reducer, tuple(inputs), node.name,
            tuple(kept), source,
        )  # fmt: skip
        shape = tuple(ONE if d in dims else source.shape[d] for d in range(rank))
        for part, kind in enumerate(kinds):
            dtype = {"f": "scalar", "l": "int64", "b": "bool"}[kind]

            def element(index: Index, part: int = part, kind: str = kind) -> Value:
                return Result(reduce.name, part, tuple(index[d] for d in kept), kind)

            reduce.results.append(
                Tensor(
                    f"{reduce.name}_{part}",
                    shape,
                    dtype,
                    element,
                    0,
                    False,
                    None,
                    frozenset({reduce.name}),
                    (node.name,),
                )
            )
        self.operations.append(reduce)
        return reduce.results

    def squeezed(self, tensor: Tensor, dims: Sequence[int]) -> Tensor:
        shape = tuple(s for d, s in enumerate(tensor.shape) if d not in dims)

        def element(index: Index) -> Value:
            rest = iter(index)
            return tensor.at(tuple(ZERO if d in dims else next(rest) for d in range(len(tensor.shape))))

        return Tensor(
            tensor.name, shape, tensor.dtype, element, tensor.cost, tensor.folds, None, tensor.results, tensor.nodes
        )


def _made(operation: Operation) -> set[str]:
    """The names by which values refer to what an operation makes."""
    if isinstance(operation, Keep):
        return {operation.buffer.name}
    if isinstance(operation, Extern):
        return {t.buffer.name for t in operation.results if t is not None and t.buffer is not None}
    return {operation.name}


def _op_name(node: Any) -> str:
    target = node.target
    packet = getattr(target, "overloadpacket", None)
    return f"torch.ops.{packet}" if packet is not None else str(getattr(target, "__name__", target))


def convert(value: Value, kind: str) -> Value:
    if value.kind == kind:
        return value
    if isinstance(value, Const):
        made = {"f": float, "l": int, "b": bool}[kind](value.value)
        return Const(made, kind)
    return Op(f"to_{kind}", (value,), kind)


def broadcast(tensor: Tensor, index: Index) -> Value:
    """The element of a tensor at an index of something it is broadcast to."""
    own = index[len(index) - len(tensor.shape) :] if tensor.shape else ()
    return tensor.at(tuple(ZERO if s == 1 else i for s, i in zip(tensor.shape, own)))


# -- pointwise


def _apply(low: Lowering, node: Any, row: str, args: Sequence[Any], kind: str | None = None) -> Tensor:
    """A row of the table on tensors and numbers; ``kind`` is that of the arguments."""
    entry = pointwise.TABLE[row]
    tensors = [low.tensor(a) for a in args if isinstance(a, fx.Node) and isinstance(low.env[a], Tensor)]
    tensors += [a for a in args if isinstance(a, Tensor)]
    out_kind = kind_of(low.dtype(node.meta["val"]))
    if kind is None:
        kind = out_kind if entry.result == "=" else _common(low, tensors, args)
    text = {"f": entry.real, "l": entry.whole, "b": entry.logical or (entry.whole if entry.result == "b" else None)}[
        kind
    ]
    if text is None and kind == "b" and entry.whole is not None:
        kind = "l"
        text = entry.whole
    if text is None:
        raise Unsupported(f"{row} of {'integers' if kind == 'l' else 'booleans'}")
    result_kind = kind if entry.result == "=" else entry.result
    shape = low.result_shape(node)

    def element(index: Index) -> Value:
        values = []
        for position, a in enumerate(args):
            wanted = "b" if row == "where" and position == 0 else kind
            if isinstance(a, Tensor):
                values.append(convert(broadcast(a, index), wanted))
            elif isinstance(a, fx.Node) and isinstance(low.env[a], Tensor):
                values.append(convert(broadcast(low.env[a], index), wanted))
            else:
                values.append(convert(low.scalar(a, wanted), wanted))
        return convert(Op(row, tuple(values), result_kind), out_kind)

    pooled = low.passed_on(tensors, shape, low.dtype(node.meta["val"]))
    return low.lazy(node, element, tensors, cost=entry.cost, shape=shape, pooled=pooled)


def _common(low: Lowering, tensors: Sequence[Tensor], args: Sequence[Any]) -> str:
    kinds = {t.kind for t in tensors}
    for a in args:
        if isinstance(a, float) or isinstance(low.number(a) if isinstance(a, fx.Node) else a, torch.SymFloat):
            kinds.add("f")
        elif isinstance(a, int) and not isinstance(a, bool):
            kinds.add("l" if kinds != {"f"} else "f")
    return "f" if "f" in kinds else "l" if "l" in kinds else "b"


@lowers(torch.ops.prims.hypot.default)
def _hypot(low: Lowering, node: Any) -> Tensor:
    return _apply(low, node, "hypot", node.args)


@lowers(aten.round.default)
def _round(low: Lowering, node: Any) -> Tensor:
    return _apply(low, node, "round", node.args)


@lowers(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar)
def _add(low: Lowering, node: Any) -> Tensor:
    row = "add" if "add" in str(node.target) else "sub"
    alpha = node.kwargs.get("alpha", node.args[2] if len(node.args) > 2 else 1)
    a, b = node.args[:2]
    if alpha == 1:
        return _apply(low, node, row, (a, b))
    scaled = low.tensor(b) if isinstance(b, fx.Node) else None
    if scaled is None:
        return _apply(low, node, row, (a, b * alpha))
    kind = scaled.kind
    product = Tensor(
        scaled.name, scaled.shape, scaled.dtype,
        lambda i: Op("mul", (scaled.at(i), low.scalar(alpha, kind)), kind), scaled.cost + 1, scaled.folds, None,
        scaled.results, scaled.nodes,
    )  # fmt: skip
    return _apply(low, node, row, (a, product))


@lowers(aten.mul.Tensor, aten.mul.Scalar)
def _mul(low: Lowering, node: Any) -> Tensor:
    return _apply(low, node, "mul", node.args)


@lowers(aten.div.Tensor, aten.div.Scalar)
def _div(low: Lowering, node: Any) -> Tensor:
    return _apply(low, node, "div", node.args, "f")


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _div_mode(low: Lowering, node: Any) -> Tensor:
    mode = node.kwargs.get("rounding_mode", node.args[2] if len(node.args) > 2 else None)
    row = {None: "div", "floor": "floor_divide", "trunc": "trunc_divide"}[mode]
    return _apply(low, node, row, node.args[:2])


@lowers(aten.pow.Tensor_Scalar)
def _pow_scalar(low: Lowering, node: Any) -> Tensor:
    x, power = node.args
    simple = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}.get(low.number(power))
    if simple is not None and (simple == "square" or low.tensor(x).kind == "f"):
        return _apply(low, node, simple, (x,))
    if low.number(power) == 3:
        t = low.tensor(x)
        return low.lazy(
            node, lambda i: Op("mul", (Op("mul", (t.at(i), t.at(i)), t.kind), t.at(i)), t.kind), [t], cost=2
        )
    return _apply(low, node, "pow", node.args)


@lowers(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def _pow(low: Lowering, node: Any) -> Tensor:
    return _apply(low, node, "pow", node.args)


@lowers(aten.gelu.default)
def _gelu(low: Lowering, node: Any) -> Tensor:
    tanh = node.kwargs.get("approximate", node.args[1] if len(node.args) > 1 else "none") == "tanh"
    return _apply(low, node, "gelu_tanh" if tanh else "gelu", node.args[:1])


@lowers(aten.gelu_backward.default)
def _gelu_backward(low: Lowering, node: Any) -> Tensor:
    tanh = node.kwargs.get("approximate", node.args[2] if len(node.args) > 2 else "none") == "tanh"
    return _apply(low, node, "gelu_tanh_backward" if tanh else "gelu_backward", node.args[:2])


def _with_defaults(row: str, *defaults: float) -> Handler:
    def handler(low: Lowering, node: Any) -> Tensor:
        given = list(node.args[1:])
        names = {"elu": ("alpha", "scale", "input_scale"), "leaky_relu": ("negative_slope",),
                 "hardtanh": ("min_val", "max_val"), "softplus": ("beta", "threshold")}[row]  # fmt: skip
        full = [given[i] if i < len(given) else node.kwargs.get(n, d) for i, (n, d) in enumerate(zip(names, defaults))]
        return _apply(low, node, row, (node.args[0], *full))

    return handler


HANDLERS[aten.elu.default] = _with_defaults("elu", 1.0, 1.0, 1.0)
HANDLERS[aten.leaky_relu.default] = _with_defaults("leaky_relu", 0.01)
HANDLERS[aten.hardtanh.default] = _with_defaults("hardtanh", -1.0, 1.0)
HANDLERS[aten.softplus.default] = _with_defaults("softplus", 1.0, 20.0)


@lowers(aten.log_sigmoid_forward.default)
def _log_sigmoid(low: Lowering, node: Any) -> Any:
    x = low.tensor(node.args[0])
    out = Tensor(node.name, x.shape, x.dtype, lambda i: Op("log_sigmoid", (x.at(i),), "f"), x.cost + 24, x.folds, None,
                 x.results, (*x.nodes, node.name))  # fmt: skip

    def small(i: Index) -> Value:
        """exp(-|x|), which the derivative is computed from."""
        return Op("exp", (Op("neg", (Op("abs", (x.at(i),), "f"),), "f"),), "f")

    return out, Tensor(node.name, x.shape, x.dtype, small, x.cost + 10, x.folds, None, x.results, x.nodes)


@lowers(aten.clamp.default, aten.clamp.Tensor, aten.clamp_min.default, aten.clamp_max.default, aten.clamp_min.Tensor,
        aten.clamp_max.Tensor)  # fmt: skip
def _clamp(low: Lowering, node: Any) -> Tensor:
    name = str(node.target)
    arguments = [*node.args[1:], None, None]
    low_bound = node.kwargs.get("min", arguments[0])
    high = node.kwargs.get("max", arguments[1])
    if "clamp_max" in name:
        low_bound, high = None, arguments[0] if arguments[0] is not None else high
    x = node.args[0]
    if low_bound is None and high is None:
        return low.tensor(x)
    if high is None:
        return _apply(low, node, "clamp_min", (x, low_bound))
    if low_bound is None:
        return _apply(low, node, "clamp_max", (x, high))
    return _apply(low, node, "clamp", (x, low_bound, high))


@lowers(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def _where(low: Lowering, node: Any) -> Tensor:
    return _apply(low, node, "where", node.args, kind_of(low.dtype(node.meta["val"])))


@lowers(
    aten.alias.default, aten.clone.default, aten.detach.default, aten.lift_fresh_copy.default, aten.contiguous.default
)
def _same(low: Lowering, node: Any) -> Tensor:
    return low.tensor(node.args[0])


@lowers(aten._to_copy.default, torch.ops.prims.convert_element_type.default, aten.to.dtype)
def _to(low: Lowering, node: Any) -> Tensor:
    x = low.tensor(node.args[0])
    dtype = low.dtype(node.meta["val"])
    if dtype == x.dtype:
        return x
    kind = kind_of(dtype)
    if kind_of(x.dtype) == "l" and kind == "l":
        raise Unsupported("a change between integer types")
    return low.lazy(node, lambda i: convert(x.at(i), kind), [x], cost=1)


@lowers(aten.full.default, aten.full_like.default, aten.zeros.default, aten.ones.default, aten.zeros_like.default,
        aten.ones_like.default, aten.new_zeros.default, aten.new_full.default, aten.scalar_tensor.default,
        aten.new_ones.default, aten.empty_like.default, aten.empty.memory_format, aten.new_empty.default,
        aten.new_empty_strided.default, aten.empty_strided.default, aten.fill.Scalar)  # fmt: skip
def _full(low: Lowering, node: Any) -> Tensor:
    name = str(node.target)
    kind = kind_of(low.dtype(node.meta["val"]))
    if "full" in name or "fill" in name:
        fill = node.args[2] if "new_full" in name else node.args[1]
    elif "scalar_tensor" in name:
        fill = node.args[0]
    else:
        fill = 1 if "ones" in name else 0
    value = low.scalar(fill, kind)
    return low.lazy(node, lambda i: value, [])


@lowers(aten.arange.start_step, aten.arange.start, aten.arange.default, torch.ops.prims.iota.default)
def _arange(low: Lowering, node: Any) -> Tensor:
    name = str(node.target)
    if "iota" in name:
        start, step = node.kwargs.get("start", 0), node.kwargs.get("step", 1)
    else:
        start = node.args[0] if len(node.args) > 1 else 0
        step = node.args[2] if len(node.args) > 2 else 1
    dtype = low.dtype(node.meta["val"])
    if kind_of(dtype) == "l":
        first, each = low.whole(start), low.whole(step)
        return low.lazy(node, lambda i: IndexValue(first + each * i[0]), [])
    a, b = low.scalar(start, "f"), low.scalar(step, "f")
    return low.lazy(node, lambda i: Op("add", (a, Op("mul", (b, Op("to_f", (IndexValue(i[0]),), "f")), "f")), "f"), [])


@lowers(operator.getitem)
def _getitem(low: Lowering, node: Any) -> Any:
    return low.env[node.args[0]][node.args[1]]


# -- views


def _view(low: Lowering, node: Any, source: Tensor, back: Callable[[Index], Index]) -> Tensor:
    """A tensor whose element at an index is the source's at ``back(index)``."""
    shape = low.result_shape(node)
    made = low.lazy(node, lambda i: source.at(back(i)), [source], shape=shape)
    return made


@lowers(aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten._reshape_copy.default)
def _reshape(low: Lowering, node: Any) -> Tensor:
    x = low.tensor(node.args[0])
    shape = low.result_shape(node)
    if shape == x.shape:
        return x
    return _view(low, node, x, lambda i: reshaped(i, shape, x.shape))


@lowers(aten.permute.default, aten.transpose.int, aten.t.default)
def _permute(low: Lowering, node: Any) -> Tensor:
    x = low.tensor(node.args[0])
    rank = len(x.shape)
    name = str(node.target)
    if "permute" in name:
        order = [d % rank for d in node.args[1]]
    elif "transpose" in name:
        order = list(range(rank))
        a, b = node.args[1] % rank, node.args[2] % rank
        order[a], order[b] = order[b], order[a]
    else:
        order = list(range(rank))[::-1]
    return _view(low, node, x, lambda i: tuple(i[order.index(d)] for d in range(rank)))


@lowers(aten.expand.default)
def _expand(low: Lowering, node: Any) -> Tensor:
    x = low.tensor(node.args[0])
    lead = len(low.result_shape(node)) - len(x.shape)
    return _view(low, node, x, lambda i: tuple(ZERO if s == 1 else k for s, k in zip(x.shape, i[lead:])))


@lowers(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default, aten.unsqueeze.default)
def _squeeze(low: Lowering, node: Any) -> Tensor:
    x = low.tensor(node.args[0])
    shape = low.result_shape(node)
    return _view(low, node, x, lambda i: reshaped(i, shape, x.shape))


def _start(low: Lowering, given: Any, extent: Int) -> Int:
    """Where a slice begins; a negative number counts from the end."""
    start = low.whole(given) if given is not None else ZERO
    if start.constant is not None:
        return extent + start if start.constant < 0 else start
    if not nonnegative(start):
        raise Unsupported("a slice that starts at a computed place")
    return start


@lowers(aten.slice.Tensor)
def _slice(low: Lowering, node: Any) -> Tensor:
    x = low.tensor(node.args[0])
    arguments = [*node.args[1:], *[None] * 4]
    dim = (arguments[0] or 0) % len(x.shape)
    step = low.constant(arguments[3]) if arguments[3] is not None else 1
    start = _start(low, arguments[1], x.shape[dim])
    return _view(low, node, x, lambda i: (*i[:dim], start + i[dim] * step, *i[dim + 1 :]))


@lowers(aten.select.int)
def _select(low: Lowering, node: Any) -> Tensor:
    x = low.tensor(node.args[0])
    dim = node.args[1] % len(x.shape)
    at = low.whole(node.args[2])
    if at.constant is not None and at.constant < 0:
        at = x.shape[dim] + at
    return _view(low, node, x, lambda i: (*i[:dim], at, *i[dim:]))


@lowers(aten.repeat.default)
def _repeat(low: Lowering, node: Any) -> Tensor:
    x = low.tensor(node.args[0])
    lead = len(low.result_shape(node)) - len(x.shape)
    return _view(low, node, x, lambda i: tuple(ZERO if s == 1 else k % s for s, k in zip(x.shape, i[lead:])))


@lowers(aten.unfold.default)
def _unfold(low: Lowering, node: Any) -> Tensor:
    x = low.tensor(node.args[0])
    dim = node.args[1] % max(len(x.shape), 1)
    step = low.constant(node.args[3])
    return _view(low, node, x, lambda i: (*i[:dim], i[dim] * step + i[-1], *i[dim + 1 : -1]))


@lowers(aten.flip.default)
def _flip(low: Lowering, node: Any) -> Tensor:
    x = low.tensor(node.args[0])
    dims = {d % len(x.shape) for d in node.args[1]}
    return _view(low, node, x, lambda i: tuple(x.shape[d] - 1 - k if d in dims else k for d, k in enumerate(i)))


@lowers(aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int)
def _split(low: Lowering, node: Any) -> tuple[Tensor, ...]:
    x = low.tensor(node.args[0])
    unbind = "unbind" in str(node.target)
    dim = (node.args[1] if unbind and len(node.args) > 1 else node.args[2] if len(node.args) > 2 else 0) % len(x.shape)
    parts, start = [], ZERO
    for value in node.meta["val"]:
        shape = low.shape(value)

        def element(i: Index, start: Int = start) -> Value:
            return x.at((*i[:dim], start, *i[dim:]) if unbind else (*i[:dim], start + i[dim], *i[dim + 1 :]))

        parts.append(low.lazy(node, element, [x], shape=shape, dtype=x.dtype))
        start = start + (1 if unbind else shape[dim])
    return tuple(parts)


@lowers(aten.cat.default)
def _cat(low: Lowering, node: Any) -> Tensor:
    tensors = [low.tensor(t) for t in node.args[0]]
    shape = low.result_shape(node)
    tensors = [t for t in tensors if len(t.shape) == len(shape)]  # torch skips empty ones of any shape
    dim = (node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)) % len(shape)
    kind = kind_of(low.dtype(node.meta["val"]))
    starts, total = [], ZERO
    for t in tensors:
        starts.append(total)
        total = total + t.shape[dim]

    def element(i: Index) -> Value:
        value: Value = Const(0.0 if kind == "f" else 0, kind)
        for t, start in reversed(list(zip(tensors, starts))):
            own = (*i[:dim], i[dim] - start, *i[dim + 1 :])
            value = Masked((In(i[dim] - start, t.shape[dim]),), convert(t.at(own), kind), value, kind)
        return value

    return low.lazy(node, element, tensors, cost=2)


@lowers(aten.constant_pad_nd.default)
def _pad(low: Lowering, node: Any) -> Tensor:
    x = low.tensor(node.args[0])
    pads = [low.constant(p) for p in node.args[1]]
    fill = low.scalar(node.args[2] if len(node.args) > 2 else 0, x.kind)
    rank = len(x.shape)
    before = [0] * rank
    for k in range(len(pads) // 2):
        before[rank - 1 - k] = pads[2 * k]

    def element(i: Index) -> Value:
        own = tuple(k - b for k, b in zip(i, before))
        conditions = tuple(In(o, s) for d, (o, s) in enumerate(zip(own, x.shape)) if d >= rank - len(pads) // 2)
        return Masked(conditions, x.at(own), fill, x.kind)

    return low.lazy(node, element, [x], cost=2)


@lowers(aten.slice_scatter.default)
def _slice_scatter(low: Lowering, node: Any) -> Tensor:
    x, source = low.tensor(node.args[0]), low.tensor(node.args[1])
    arguments = [*node.args[2:], *[None] * 4]
    dim = (arguments[0] or 0) % len(x.shape)
    start = _start(low, arguments[1], x.shape[dim])
    step = low.constant(arguments[3]) if arguments[3] is not None else 1

    def element(i: Index) -> Value:
        from crucible.plan.value import Multiple

        offset = i[dim] - start
        conditions: tuple[Any, ...] = (In(offset, source.shape[dim] * step),)
        if step != 1:
            conditions += (Multiple(offset, integer(step)),)
        own = (*i[:dim], offset // step if step != 1 else offset, *i[dim + 1 :])
        return Masked(conditions, source.at(own), x.at(i), x.kind)

    return low.lazy(node, element, [x, source], cost=2)


@lowers(aten.select_scatter.default)
def _select_scatter(low: Lowering, node: Any) -> Tensor:
    x, source = low.tensor(node.args[0]), low.tensor(node.args[1])
    dim = node.args[2] % len(x.shape)
    at = low.whole(node.args[3])
    if at.constant is not None and at.constant < 0:
        at = x.shape[dim] + at

    def element(i: Index) -> Value:
        return Masked((In(i[dim] - at, ONE),), source.at((*i[:dim], *i[dim + 1 :])), x.at(i), x.kind)

    return low.lazy(node, element, [x, source], cost=2)


@lowers(aten.gather.default)
def _gather(low: Lowering, node: Any) -> Tensor:
    x, index = low.tensor(node.args[0]), low.tensor(node.args[2])
    buffer = low.keep(x, "elements are picked from it by index")
    dim = node.args[1] % max(len(x.shape), 1)

    def element(i: Index) -> Value:
        strides = _strides(buffer.shape)
        base = flat(tuple(ZERO if d == dim else k for d, k in enumerate(i)), buffer.shape)
        return Load(buffer.name, base, buffer.kind, ((index.at(i), strides[dim]),))

    return low.lazy(node, element, [index], cost=4)


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def _index(low: Lowering, node: Any) -> Tensor:
    """Elements picked by tensors of indices: their common shape takes the place of the dimensions they index."""
    x = low.tensor(node.args[0])
    given = {d: low.tensor(t) for d, t in enumerate(node.args[1]) if t is not None}
    if any(t.kind != "l" for t in given.values()):
        raise Unsupported("an index by a mask: how many elements it picks depends on the data")
    buffer = low.keep(x, "elements are picked from it by index")
    strides = _strides(buffer.shape)
    rank = max(len(t.shape) for t in given.values())
    dims = sorted(given)
    front = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0

    def element(i: Index) -> Value:
        picked = i[front : front + rank]
        others = iter((*i[:front], *i[front + rank :]))
        base = flat(tuple(ZERO if d in given else next(others) for d in range(len(x.shape))), buffer.shape)
        dynamic = tuple((_wrapped(broadcast(t, picked), x.shape[d]), strides[d]) for d, t in given.items())
        return Load(buffer.name, base, buffer.kind, dynamic)

    return low.lazy(node, element, list(given.values()), cost=4)


def _wrapped(index: Value, extent: Int) -> Value:
    """An index, where a negative one counts from the end."""
    negative = Op("lt", (index, Const(0, "l")), "b")
    return Op("where", (negative, Op("add", (index, IndexValue(extent)), "l"), index), "l")


@lowers(aten.index_select.default)
def _index_select(low: Lowering, node: Any) -> Tensor:
    x, index = low.tensor(node.args[0]), low.tensor(node.args[2])
    buffer = low.keep(x, "elements are picked from it by index")
    dim = node.args[1] % max(len(x.shape), 1)

    def element(i: Index) -> Value:
        base = flat(tuple(ZERO if d == dim else k for d, k in enumerate(i)), buffer.shape)
        return Load(buffer.name, base, buffer.kind, ((broadcast(index, (i[dim],)), _strides(buffer.shape)[dim]),))

    return low.lazy(node, element, [index], cost=4)


@lowers(aten.embedding.default)
def _embedding(low: Lowering, node: Any) -> Tensor:
    table, index = low.tensor(node.args[0]), low.tensor(node.args[1])
    buffer = low.keep(table, "rows are picked from it by index")

    def element(i: Index) -> Value:
        return Load(buffer.name, i[-1], buffer.kind, ((index.at(i[:-1]), buffer.shape[1]),))

    return low.lazy(node, element, [index], cost=4)


@lowers(aten.copy.default)
def _copy(low: Lowering, node: Any) -> Tensor:
    source = low.tensor(node.args[1])
    kind = kind_of(low.dtype(node.meta["val"]))
    return low.lazy(node, lambda i: convert(broadcast(source, i), kind), [source])


def _strides(shape: Index) -> list[Int]:
    out, total = [], ONE
    for s in reversed(shape):
        out.append(total)
        total = total * s
    return out[::-1]


@lowers(aten.scatter.src, aten.scatter.value)
def _scatter(low: Lowering, node: Any) -> Tensor:
    """One index along the dimension: every element knows whether it is the one."""
    x, index = low.tensor(node.args[0]), low.tensor(node.args[2])
    dim = node.args[1] % max(len(x.shape), 1)
    if (
        not x.shape
        or index.shape[dim] != 1
        or any(a != b for d, (a, b) in enumerate(zip(index.shape, x.shape)) if d != dim)
    ):
        raise Unsupported("a scatter of several elements along its dimension")
    source = node.args[3]

    def element(i: Index) -> Value:
        at = tuple(ZERO if d == dim else k for d, k in enumerate(i))
        chosen = Op("eq", (index.at(at), IndexValue(i[dim])), "b")
        new = low.tensor(source).at(at) if isinstance(source, fx.Node) else low.scalar(source, x.kind)
        return Op("where", (chosen, new, x.at(i)), x.kind)

    inputs = [x, index] + ([low.tensor(source)] if isinstance(source, fx.Node) else [])
    return low.lazy(node, element, inputs, cost=3)


# -- reductions


def _dims(given: Any, rank: int) -> list[int]:
    if given is None or given == []:
        return list(range(rank))
    many = given if isinstance(given, (list, tuple)) else [given]
    return sorted({d % rank if rank else 0 for d in many} & set(range(rank)))


def _reduction(low: Lowering, node: Any, reducer: str, dims: Any, keepdim: bool) -> Tensor:
    x = low.tensor(node.args[0])
    out_dtype = low.dtype(node.meta["val"])
    kind = kind_of(out_dtype)
    axes = _dims(dims, len(x.shape))
    if not axes:
        return low.lazy(node, lambda i: convert(x.at(i), kind), [x], cost=1)
    name = reducer if kind != "l" or reducer in ("any", "all") else f"{reducer}_l"
    from crucible.plan.reducers import TABLE

    if name not in TABLE:
        raise Unsupported(f"{reducer} of integers")
    body_kind = "b" if reducer in ("any", "all") else kind

    def body(index: Index) -> tuple[Value, ...]:
        value = x.at(index)
        if body_kind == "b" and value.kind != "b":
            value = Op("ne", (value, Const(0.0 if value.kind == "f" else 0, value.kind)), "b")
        return (convert(value, body_kind),)

    (result,) = low.add_reduce(node, x, axes, name, body, [kind], [x])
    return result if keepdim else low.squeezed(result, axes)


def _argument(node: Any, position: int, name: str, default: Any) -> Any:
    return node.kwargs.get(name, node.args[position] if len(node.args) > position else default)


@lowers(aten.sum.dim_IntList, aten.sum.default, aten.prod.dim_int, aten.prod.default, aten.amax.default,
        aten.amin.default, aten.any.dim, aten.any.default, aten.all.default, aten.all.dim, aten.any.dims,
        aten.max.default, aten.min.default)  # fmt: skip
def _reduce(low: Lowering, node: Any) -> Tensor:
    name = str(node.target.overloadpacket).split(".")[-1]
    reducer = {"amax": "max", "amin": "min"}.get(name, name)
    if name in ("sum", "prod", "any", "all", "max", "min") and str(node.target).endswith(".default"):
        return _reduction(low, node, reducer, None, False)
    return _reduction(low, node, reducer, _argument(node, 1, "dim", None), bool(_argument(node, 2, "keepdim", False)))


def _count(shape: Index, dims: Sequence[int]) -> Int:
    total = ONE
    for d in dims:
        total = total * shape[d]
    return total


def real_of(count: Int) -> Value:
    """A size as a number of the type sums are kept in."""
    return Const(float(count.constant), "f") if count.constant is not None else Op("to_f", (IndexValue(count),), "f")


@lowers(aten.mean.dim, aten.mean.default)
def _mean(low: Lowering, node: Any) -> Tensor:
    x = low.tensor(node.args[0])
    whole = str(node.target).endswith("default")
    dims = None if whole else _argument(node, 1, "dim", None)
    total = _reduction(low, node, "sum", dims, True if not whole and _argument(node, 2, "keepdim", False) else False)
    count = real_of(_count(x.shape, _dims(dims, len(x.shape))))
    return low.lazy(node, lambda i: Op("div", (total.at(i), count), "f"), [total], cost=4)


@lowers(aten.var_mean.correction, aten.var.correction)
def _var_mean(low: Lowering, node: Any) -> Any:
    x = low.tensor(node.args[0])
    axes = _dims(_argument(node, 1, "dim", None), len(x.shape))
    correction = node.kwargs.get("correction", 1)
    correction = 1 if correction is None else correction
    keepdim = bool(node.kwargs.get("keepdim", False))
    low.in_stead_of_sums(node, x)
    mean, m2, _count_ = low.add_reduce(node, x, axes, "moments", lambda i: (x.at(i),), ["f", "f", "f"], [x])
    count = _count(x.shape, axes)
    if correction == 0:
        divisor = real_of(count)
    else:
        left: Value = Op("sub", (real_of(count), Const(float(correction), "f")), "f")
        divisor = Op("clamp_min", (left, Const(0.0, "f")), "f")
    if not keepdim:
        mean, m2 = low.squeezed(mean, axes), low.squeezed(m2, axes)

    def derived(source: Tensor, element: Callable[[Index], Value]) -> Tensor:
        return Tensor(f"{node.name}_var", source.shape, "scalar", element, 4, False, None, source.results, source.nodes)

    variance = derived(m2, lambda i: Op("div", (m2.at(i), divisor), "f"))
    return (variance, mean) if "var_mean" in str(node.target) else variance


def _extreme(low: Lowering, node: Any, which: str, dim: Any, keepdim: bool) -> list[Tensor]:
    x = low.tensor(node.args[0])
    if x.kind != "f":
        raise Unsupported(f"{which} of integers")
    whole = dim is None
    axes = _dims(dim, len(x.shape))
    if not x.shape:
        zero = low.lazy(node, lambda i: Const(0, "l"), [], shape=(), dtype="int64")
        return [x, zero]

    def body(index: Index) -> tuple[Value, ...]:
        at = flat(index, x.shape) if whole else index[axes[0]]
        return x.at(index), IndexValue(at)

    results = low.add_reduce(node, x, axes, f"arg{which}", body, ["f", "l"], [x])
    return results if keepdim else [low.squeezed(r, axes) for r in results]


@lowers(aten.max.dim, aten.min.dim)
def _max_dim(low: Lowering, node: Any) -> Any:
    which = "max" if "max" in str(node.target) else "min"
    return tuple(_extreme(low, node, which, node.args[1], bool(_argument(node, 2, "keepdim", False))))


@lowers(aten.argmax.default, aten.argmin.default)
def _argmax(low: Lowering, node: Any) -> Tensor:
    which = "max" if "max" in str(node.target) else "min"
    return _extreme(low, node, which, _argument(node, 1, "dim", None), bool(_argument(node, 2, "keepdim", False)))[1]


# -- contractions and windows have files of their own


@lowers(aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default)
def _matmul(low: Lowering, node: Any) -> Tensor:
    return contractions.matmul(low, node)


@lowers(aten.convolution.default)
def _convolution(low: Lowering, node: Any) -> Tensor:
    return contractions.convolution(low, node)


@lowers(aten.convolution_backward.default)
def _convolution_backward(low: Lowering, node: Any) -> Any:
    return contractions.convolution_backward(low, node)


@lowers(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def _max_pool(low: Lowering, node: Any) -> Any:
    return windows.max_pool(low, node)


@lowers(aten.max_pool2d_with_indices_backward.default, aten.max_pool3d_with_indices_backward.default)
def _max_pool_backward(low: Lowering, node: Any) -> Any:
    return windows.max_pool_backward(low, node)


@lowers(aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default)
def _avg_pool(low: Lowering, node: Any) -> Any:
    return windows.avg_pool(low, node)


@lowers(aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default)
def _avg_pool_backward(low: Lowering, node: Any) -> Any:
    return windows.avg_pool_backward(low, node)


@lowers(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def _adaptive(low: Lowering, node: Any) -> Any:
    return windows.adaptive_avg_pool(low, node)


@lowers(aten._adaptive_avg_pool2d_backward.default, aten._adaptive_avg_pool3d_backward.default)
def _adaptive_backward(low: Lowering, node: Any) -> Any:
    return windows.adaptive_avg_pool_backward(low, node)


def _as_it_is(row: str) -> Handler:
    return lambda low, node: _apply(low, node, row, node.args)


def register_rows() -> None:
    """A row whose name and arguments are those of an ATen operator needs no handler, unless one is there already."""
    handled = {getattr(target, "overloadpacket", None) for target in HANDLERS}
    for name in pointwise.TABLE:
        packet = getattr(aten, name, None)
        if packet is None or packet in handled:
            continue
        for overload in packet.overloads():
            if overload in ("default", "Tensor", "Scalar", "self"):
                HANDLERS[getattr(packet, overload)] = _as_it_is(name)


register_rows()


def lower(
    joint: Joint, roles: Sequence[tuple[str, str]], element: torch.dtype = torch.float32, *, pools: bool = False
) -> Program:  # fmt: skip
    """The program of a traced graph. ``roles`` names each primal and tangent: (buffer name, role).

    ``pools``: the result of a pool over a contraction goes through memory, since contractions can pool what they store.
    """
    return Lowering(joint, roles, element, pools).run()
