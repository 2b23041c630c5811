"""Lowering: what stays torch's and why, the order of what is kept, and the sizes that a graph was traced for."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

from crucible.emit.host import Mode, bind_sizes
from crucible.graph.capture import capture
from crucible.graph.joint import trace
from crucible.plan.lower import lower
from crucible.plan.program import Keep, Program
from crucible.plan.schedule import schedule
from crucible.plan.stages import Call, Map, Row, read, written

pytestmark = pytest.mark.quick


def lowered(function: object, *shapes: tuple[int, ...], engine: str = "simt") -> tuple[Program, Mode]:
    class Model(torch.nn.Module):
        def forward(self, *inputs: torch.Tensor) -> object:
            return function(*inputs)  # type: ignore[operator]

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "an autograd kernel was not registered": a derivative is lost
        warnings.simplefilter("ignore", DeprecationWarning)
        graph = capture(Model(), [torch.empty(s, device="meta") for s in shapes])
        joint = trace(graph)
    roles = [(n.name, graph.sources[n.name].kind) for n in graph.placeholders]
    roles += [(f"d_output{i}", "tangent") for i in joint.tangible]
    program = lower(joint, roles)
    plan = schedule(program, engine)
    arguments = [b for b in program.buffers.values() if b.role == "input"]
    return program, Mode("model", graph, joint, plan, {}, {}, arguments)


def assert_in_order(mode: Mode) -> None:
    have = {b.name for b in mode.plan.program.buffers.values() if b.role != "made"}
    for stage in mode.plan.stages:
        assert set(read(stage)) <= have, f"{stage.name} reads what is not there yet"
        made = stage.extern.results if isinstance(stage, Call) else []
        have |= {t.buffer.name for t in made if t is not None and t.buffer is not None}
        have |= {b.name for b in written(stage)} if not isinstance(stage, Call) else set()


def test_what_is_kept_late_is_there_for_those_who_read_it_early() -> None:
    def early_reader(x: torch.Tensor) -> object:
        y = torch.sigmoid(x)
        return y.sum(1), torch.sort(y, dim=1).values, y

    program, mode = lowered(early_reader, (4, 8))
    assert_in_order(mode)
    assert isinstance(program.operations[0], Keep)


@pytest.mark.parametrize("function", [F.selu, F.relu6, F.log_softmax, torch.absolute], ids=lambda f: f.__name__)
def test_composite_operators_have_a_derivative(function: object) -> None:
    kwargs = {"dim": 1} if function is F.log_softmax else {}
    program, _ = lowered(lambda x: function(x, **kwargs), (4, 8))  # type: ignore[operator]
    assert program.gradients[0] is not None


def test_derivatives_that_work_in_place_are_fused() -> None:
    program, mode = lowered(lambda x: F.normalize(x, dim=1), (4, 8))
    assert not program.reasons
    assert_in_order(mode)


def test_circular_padding_is_fused() -> None:
    program, _ = lowered(lambda x: F.pad(x, (1, 1), mode="circular"), (4, 3, 8))
    assert not program.reasons


def test_amax_of_one_axis_keeps_the_others() -> None:
    program, _ = lowered(lambda x: torch.amax(x, dim=-1), (4, 8))
    assert [b.numel.hint(program.hints) for b in program.outputs] == [4]


def test_unknown_operators_stay_torchs_with_a_reason() -> None:
    program, mode = lowered(lambda x: torch.cumsum(x * 2, 1) + 1, (4, 8))
    assert any("cumsum" in name and reason for name, reason in program.reasons)
    assert_in_order(mode)


def test_sizes_that_the_trace_assumed_are_checked() -> None:
    def depends_on_sizes(x: torch.Tensor) -> torch.Tensor:
        return x[:, ::3].sum(1) if x.shape[0] > 3 else x.sum(1)

    _, mode = lowered(depends_on_sizes, (6, 9))
    text = "\n".join(bind_sizes(mode, mode.arguments))
    assert "> 3" in text or ">= 4" in text


def test_a_traced_size_of_one_is_not_taken_for_granted() -> None:
    _, mode = lowered(lambda x: x[:, 1::2] - torch.ones(1, device=x.device), (4, 3))
    text = "\n".join(bind_sizes(mode, mode.arguments))
    assert "== 1" in text


def test_shapes_are_compared_as_a_whole() -> None:
    _, mode = lowered(lambda x, y: x + y, (6, 9), (6, 9))
    text = "\n".join(bind_sizes(mode, mode.arguments))
    first, second = (b.name for b in mode.arguments)
    assert f"if {first}.dim() != 2:" in text  # before its sizes are read off
    assert f"if {second}.shape != (" in text and f"{second}.dim()" not in text


def column_of_minima(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.min(x, dim=1, keepdim=True)[0] + bias  # (n, 1) + (1, m, 1, 1): in memory, rows are the last dimension


def test_a_walk_across_memory_is_a_map() -> None:
    _, mode = lowered(column_of_minima, (1000, 4099), (1, 4099, 1, 1))
    assert_in_order(mode)
    rows, stores = mode.plan.forward_stages
    assert isinstance(rows, Row) and not any(p.stores for p in rows.passes)
    assert isinstance(stores, Map) and stores.stores[0].buffer is mode.plan.program.outputs[0]
    assert any(b.dtype == "accum" and b.name in read(stores) for b in written(rows))


def test_a_walk_over_all_rows_does_not_store_some_of_them() -> None:
    def halves(x: torch.Tensor) -> object:
        y = torch.softmax(x, dim=2)
        return y[:, :32], y[:, 32:]

    _, mode = lowered(halves, (4, 64, 640))
    assert_in_order(mode)
    walks = [s for s in mode.plan.forward_stages if isinstance(s, Row)]
    assert walks and not any(p.stores for s in walks for p in s.passes)


def test_a_walk_across_memory_stays_where_a_map_would_not_pay() -> None:
    def transposed(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=1).t().contiguous()  # reading across memory is no better

    for function, shapes in [
        (transposed, [(1000, 4099)]),
        (column_of_minima, [(100, 1031), (1, 1031, 1, 1)]),  # a launch costs more
        (lambda x, b: torch.min(x, dim=1, keepdim=True)[0] + b, [(1000, 4099), (4099,)]),  # along memory
    ]:
        _, mode = lowered(function, *shapes)
        assert_in_order(mode)
        (rows,) = mode.plan.forward_stages
        assert isinstance(rows, Row) and rows.passes[-1].stores
