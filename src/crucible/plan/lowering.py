"""The pass over a traced graph that makes a Program of it, and the table of handlers of single operators."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import fx

from crucible.graph import recurrent
from crucible.graph.joint import Joint
from crucible.graph.reach import computed_from
from crucible.plan.index import ONE, ZERO, Int, Var, of_atom, product
from crucible.plan.program import (
    COMPLEX_BYTES,
    SCALAR_BYTES,
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
)
from crucible.plan.symbols import Symbols, Unsupported
from crucible.plan.value import Const, IndexValue, Load, Op, Result, SizeText, Value, walk

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

# What the functions of a generated file call themselves and what they use: no tensor is named so.
RESERVED = frozenset(
    "accum alone at counts ctx dense device dtype gradients index kernels made math memory needs nn others places room "
    "saved self sizes specs stages tensors torch any list map max min tuple zip".split()
)
SIZE = re.compile(r"s\d+")  # what torch calls a size

# Changes of type: the only operators that take tensors of float64 into kernels that do not compute in it.
CASTS = {aten._to_copy.default, torch.ops.prims.convert_element_type.default, aten.to.dtype}
# Those that give their argument as it is.
UNCHANGED = (
    aten.alias.default, aten.clone.default, aten.detach.default, aten.lift_fresh_copy.default, aten.contiguous.default,
)  # fmt: skip

# Those that have other elements beside their argument's.
ADDING = {aten.cat.default, aten.slice_scatter.default, aten.constant_pad_nd.default}

DTYPES = {torch.int64: "int64", torch.int32: "int32", torch.int16: "int16", torch.int8: "int8",
          torch.uint8: "uint8", torch.bool: "bool"}  # fmt: skip


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
        if value is None and not node.users:  # what torch only checks
            return self.extern(node, "it says what could not be computed") if self._checks_values(node) else None
        if handler is None:
            return self.extern(node, f"{_op_name(node)} is not among the operators that can be fused")
        if self._is_complex(node):
            return self.extern(node, "it computes with complex numbers")
        if self._of_nothing(node):
            return self.extern(node, "it makes elements of a tensor that has none")
        if self._in_double(node):
            return self.extern(node, "it computes in float64, and the kernels of this file in float32")
        try:
            return handler(self, node)
        except (Unsupported, NotImplementedError) as refusal:
            return self.extern(node, str(refusal))

    def _checks_values(self, node: Any) -> bool:
        """Whether a node raises an error for what another could not compute."""
        return node.target is aten._linalg_check_errors.default and not computed_from(node, self.joint.tangents)

    def _of_nothing(self, node: Any) -> bool:
        """Whether a tensor without elements, whatever the input is, becomes one with some: a sum of nothing, say."""
        given = [self.env[n] for n in node.all_input_nodes]
        if node.target in ADDING or not any(isinstance(t, Tensor) and ZERO in t.shape for t in given):
            return False
        value = node.meta.get("val")
        return isinstance(value, torch.Tensor) and ZERO not in self.shape(value)

    def _is_complex(self, node: Any) -> bool:
        """Whether a node takes or gives complex numbers."""
        if node.target is operator.getitem:
            return False
        results = node.meta.get("val")
        many = results if isinstance(results, (tuple, list)) else [results]
        given = [self.env[n] for n in node.all_input_nodes]
        return any(isinstance(r, torch.Tensor) and r.is_complex() for r in many) or any(
            isinstance(t, Tensor) and t.dtype in COMPLEX_BYTES for t in given
        )

    def _in_double(self, node: Any) -> bool:
        """Whether a node computes in float64 where kernels do not; they do take its results, and numbers."""
        if self.element == torch.float64 or node.target in (operator.getitem, *UNCHANGED):
            return False
        results = node.meta.get("val")
        many = results if isinstance(results, (tuple, list)) else [results]
        if any(isinstance(r, torch.Tensor) and r.dtype == torch.float64 for r in many):
            return True
        given = [self.env[n] for n in node.all_input_nodes]
        wide = any(isinstance(t, Tensor) and t.dtype == "float64" and t.shape for t in given)
        return wide and node.target not in CASTS

    def _argument(self, node: Any, name: str, role: str) -> Any:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return value
        try:
            buffer = Buffer(name, self.shape(value), self.dtype(value), role)
        except Unsupported as refusal:
            raise Unsupported(f"the {role} {name} is {refusal}") from refusal
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
            if value.dtype == self.element:
                return "scalar"
            name = name_of(value.dtype)
            if name not in SCALAR_BYTES:
                raise Unsupported(f"a tensor of {value.dtype}")
            self.program.own = name_of(self.element)
            return name
        if value.dtype.is_complex and name_of(value.dtype) in COMPLEX_BYTES:
            self.program.own = name_of(self.element)
            return name_of(value.dtype)
        if value.dtype not in DTYPES:
            raise Unsupported(f"a tensor of {value.dtype}")
        return DTYPES[value.dtype]

    def type_of(self, tensor: Tensor) -> str:
        """The floating type by the name torch has for it."""
        return name_of(self.element) if tensor.dtype == "scalar" else tensor.dtype

    def product_of(self, *tensors: Tensor) -> None:
        """Contractions take the file's own type alone."""
        other = next((t for t in tensors if t.dtype != "scalar"), None)
        if other is not None:
            raise Unsupported(f"a product of torch.{other.dtype} in a Model whose products are mostly {self.element}")

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
        if tensor.dtype == "float64" and self.element != torch.float64:
            raise Unsupported(f"{tensor.name} of float64 is returned as it came; the kernels compute in float32")
        # Operations and buffers are known by name: no operation but the tensor's own has this one.
        own = {o.name for o in self._named() if o.node == tensor.name or isinstance(o, Contract)} & tensor.results
        name = self.buffer_name(tensor.name, {o.name for o in self._named()} - own)
        buffer = Buffer(name, tensor.shape, dtype or tensor.dtype, "made")
        self.program.buffers[name] = buffer
        source = tensor
        if tensor.buffer is None:
            # What walks over its own rows stores them; behind a view their places may be hard to see.
            of = tensor if tensor.flat is None or tensor.flat.buffer is not None else tensor.flat
            source = Tensor(tensor.name, of.shape, tensor.dtype, of.element, tensor.cost, tensor.folds,
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

    def buffer_name(self, stem: str, taken: Collection[str] = ()) -> str:
        name, k = stem, 1
        while name in self.program.buffers or name in taken or name in RESERVED:
            name, k = f"{stem}_{k}", k + 1
        return name

    def operation_name(self, stem: str) -> str:
        """For a contraction or a reduction, whose results have no buffers yet: no two may have the same."""
        return self.buffer_name(stem, {o.name for o in self._named()})

    def _named(self) -> list[Contract | Reduce]:
        return [o for o in self.operations if isinstance(o, (Contract, Reduce))]

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
        values = node.meta.get("val")
        many = isinstance(values, (tuple, list))
        results: list[Tensor | None] = []
        for k, value in enumerate(values if many else [values]):
            if value is None or not isinstance(value, torch.Tensor):
                results.append(None)
                continue
            name = self.buffer_name(f"{node.name}_{k}" if many else node.name, {o.name for o in self._named()})
            try:
                buffer = Buffer(name, self.shape(value), self.dtype(value), "made")
            except Unsupported as refusal:
                raise Unsupported(f"{_op_name(node)} gives {refusal}") from refusal
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
        kinds: Sequence[str], inputs: Sequence[Tensor], real: str = "scalar",
    ) -> list[Tensor]:  # fmt: skip
        """A reduction of ``source`` over ``dims``; results in keepdim form, one for each result of the reducer.

        ``real``: the type of floating ones.
        """
        self.stored_pools(inputs)
        rank = len(source.shape)
        kept = [d for d in range(rank) if d not in dims]
        outer = tuple(self.fresh("r", source.shape[d]) for d in kept)
        inner = tuple(self.fresh("k", source.shape[d]) for d in dims)

        def full(o: Index, i: Index) -> Index:
            at = dict(zip(kept, o)) | dict(zip(dims, i))
            return tuple(at[d] for d in range(rank))

        reduce = Reduce(
            self.operation_name(node.name), outer, inner, lambda o, i: body(full(o, i)), reducer, tuple(inputs),
            node.name, tuple(kept), source,
        )  # fmt: skip
        shape = tuple(ONE if d in dims else source.shape[d] for d in range(rank))
        for part, kind in enumerate(kinds):
            dtype = {"f": real, "l": "int64", "b": "bool"}[kind]

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
    if target in recurrent.WRITTEN:
        return recurrent.WRITTEN[target]
    packet = getattr(target, "overloadpacket", None)
    return f"torch.ops.{packet}" if packet is not None else str(getattr(target, "__name__", target))


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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


def argument(node: Any, position: int, name: str, default: Any) -> Any:
    """An argument of a node, given by its name or at its place."""
    return node.kwargs.get(name, node.args[position] if len(node.args) > position else default)
