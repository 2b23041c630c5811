"""What capturing keeps: blocks without gradients, lengths of sequences; and what it says of what it cannot keep."""

from __future__ import annotations

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.utils._pytree as pytree

from crucible.fuse import FuseError, FuseOptions, fuse_source, without_memory
from crucible.graph.capture import CaptureError, capture
from crucible.graph.joint import _rms_norm, trace
from crucible.plan.lower import Unsupported, lower

pytestmark = pytest.mark.quick


class Tracked(nn.Module):
    """A buffer that follows the mean of what is computed, of which it must not be a part."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        y = self.linear(x)
        with torch.no_grad():
            self.mean.lerp_(y.mean(0), 0.1)
            scale = y.abs().amax()
            with torch.enable_grad():
                scale = scale + 1
        return (y - self.mean) / scale


def gradients(model, x):
    """Of the inputs and parameters, by torch itself and by the traced graph."""
    x = x.clone().requires_grad_()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    out = model(x)
    tangent = torch.randn_like(out)
    wanted = torch.autograd.grad(out, [*model.parameters(), x], tangent, allow_unused=True)
    model.load_state_dict(state)
    graph = capture(model, without_memory([x.detach()]))
    joint = trace(graph)
    given = [x.detach() if graph.sources[n.name].kind == "input" else model.get_parameter(graph.sources[n.name].name)
             if graph.sources[n.name].kind == "parameter" else model.get_buffer(graph.sources[n.name].name)
             for n in graph.placeholders]  # fmt: skip
    module = torch.fx.GraphModule({}, joint.graph)
    with torch.no_grad():
        returned = module([g.detach() for g in given], [tangent])
    returned = pytree.tree_leaves(returned, is_leaf=lambda x: x is None)
    return wanted, returned[len(joint.updates) + len(joint.outputs) :]


def test_what_is_computed_without_gradients_has_none():
    wanted, found = gradients(Tracked(), torch.randn(5, 6))
    assert len(wanted) == len(found) == 3
    for a, b in zip(wanted, found):
        torch.testing.assert_close(a, b)


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 4), nn.Linear(4, 4)

    @torch.no_grad()
    def features(self, x):
        return self.first(x)

    def forward(self, x):
        return self.second(F.relu(self.features(x)))


def test_a_frozen_part_gets_no_gradient():
    wanted, found = gradients(Frozen(), torch.randn(5, 6))
    assert [g is None for g in wanted] == [g is None for g in found] == [True, True, False, False, True]


class Heads(nn.Module):
    """Attention as it is written everywhere: what heads found becomes one by a view where torch's layout permits."""

    def forward(self, x):
        b, n, d = x.shape
        q = x.view(b, n, 2, d // 2).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).reshape(b, n, d)


def test_attention_whose_heads_are_put_together():
    model, x = Heads(), torch.randn(2, 5, 8)
    graph = capture(model, without_memory([x]))
    assert any(n.target == torch.ops.aten.view.default for n in graph.module.graph.nodes)
    wanted, found = gradients(model, x)
    assert len(wanted) == len(found) == 1
    torch.testing.assert_close(wanted[0], found[0])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_sequences_may_have_any_length(kind):
    model = kind(6, 4, 2, bidirectional=True, dropout=0.0)

    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = model

        def forward(self, x):
            return self.layer(x)[0]

    graph = capture(First(), without_memory([torch.randn(5, 3, 6)]))
    (x,) = [n.meta["val"] for n in graph.placeholders if graph.sources[n.name].kind == "input"]
    assert [s.node.expr.is_Symbol for s in x.shape[:2]] == [True, True]
    layers = [n for n in graph.module.graph.nodes if "crucible" in str(n.target)]
    assert len(layers) == 1


def test_dropout_between_layers_lies_outside_of_them():
    model = nn.LSTM(6, 4, 3, dropout=0.5, bidirectional=True)

    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = model

        def forward(self, x):
            y, (h, c) = self.layer(x)
            return y, h, c

    names = {}
    for training in (True, False):
        graph = capture(First().train(training), without_memory([torch.randn(5, 3, 6)]))
        names[training] = [str(n.target) for n in graph.module.graph.nodes if n.op == "call_function"]
        assert [o.meta["val"].shape[0] for o in graph.outputs[1:]] == [6, 6]  # layers times directions
    assert names[True].count("crucible.lstm.default") == 3 and sum("dropout" in n for n in names[True]) == 2
    assert names[False].count("crucible.lstm.default") == 1 and not any("dropout" in n for n in names[False])


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


class Rounded(nn.Module):
    def forward(self, x):
        return Straight.apply(x) * 2


SOURCE = "class Model(torch.nn.Module):\n    def forward(self, x): ...\n"


class Hooked(nn.Module):
    def forward(self, x):
        y = x * 2
        if y.requires_grad:
            y.register_hook(lambda g: g * 0.5)
        return torch.tanh(y)


def test_hooks_that_may_change_gradients_are_refused_by_name():
    layers = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    layers[0].register_full_backward_hook(lambda layer, given, made: None)
    for model, name in ((Hooked(), r"Tensor\.register_hook\(\)"), (layers, "a backward hook of 0")):
        given = without_memory([torch.randn(4, 3, requires_grad=True)])
        given = [x.requires_grad_() for x in given]
        with pytest.raises(FuseError, match=f"would be lost: {name}"):
            fuse_source(SOURCE, "hooked.py", model, given)
        fuse_source(SOURCE, "hooked.py", model, given, FuseOptions(forward_only=True))
    layers[0]._backward_hooks.clear()
    layers.register_full_backward_hook(lambda layer, given, made: None)  # runs around what is fused
    fuse_source(SOURCE, "hooked.py", layers, given)


class Clipped(nn.Linear):
    def forward(self, x):
        self.weight.data.clamp_(-0.1, 0.1)
        return super().forward(x)


class Penalty(nn.Linear):
    def forward(self, x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(torch.tanh(super().forward(x)).sum(), x, create_graph=True)[0]


class Moved(nn.Linear):
    def forward(self, x):
        with torch.no_grad():
            self.bias.mul_(0.9)
        return super().forward(x)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        pytest.param(Clipped(3, 3), r"takes the \.data of a tensor", id="data"),
        pytest.param(Penalty(3, 3), r"calls torch\.autograd\.grad\(\)", id="grad"),
        pytest.param(Moved(3, 3), "changes the parameter bias, which has gradients", id="parameter"),
    ],
)
def test_what_torch_export_cannot_follow_is_named(model, words):
    with pytest.raises(CaptureError, match=words):
        capture(model, without_memory([torch.randn(4, 3)]))


class Branching(nn.Module):
    def forward(self, x, y):
        if x.size(0) > 1 and y.size(0) != 3:
            x = x - x.mean(0)
        return x[:2, 1:7:2], y.squeeze(0), x[-5:]


def test_what_is_taken_for_granted_of_sizes_is_asked_at_run_time():
    """torch takes sizes for two or more, and knows without a guard."""
    given = without_memory([torch.randn(9, 8), torch.randn(4, 8)])
    graph = capture(Branching(), given)
    (rows, columns), (others, _) = (n.meta["val"].shape for n in graph.placeholders)
    found = {str(c) for c in trace(graph, backward=False).guards}
    assert {f"{rows} > 1", f"{rows} >= 2", f"{columns} >= 6", f"Ne({others}, 1)", f"Ne({others}, 3)"} <= found
    assert torch.SymBool.__bool__.__qualname__ == "SymBool.__bool__"


class Masked(nn.Module):
    """Masks that are kept by length."""

    def __init__(self):
        super().__init__()
        self.masks = {}

    def forward(self, x):
        n = x.size(1)
        if n not in self.masks:
            self.masks[n] = torch.ones(n, n).tril()
        return x @ self.masks[n]


def test_a_size_that_must_be_a_number_is_one():
    graph = capture(Masked(), without_memory([torch.randn(4, 5)]))
    (shape,) = (n.meta["val"].shape for n in graph.placeholders if graph.sources[n.name].kind == "input")
    assert isinstance(shape[0], torch.SymInt) and shape[1] == 5


def test_a_backward_that_is_python_is_refused_by_name():
    apply = torch.autograd.Function.__dict__["apply"]
    with pytest.raises(FuseError, match=r"would be lost: backward\(\) of Straight.*--forward-only"):
        fuse_source(SOURCE, "rounded.py", Rounded(), without_memory([torch.randn(4, 3)]))
    assert torch.autograd.Function.__dict__["apply"] is apply
    assert Straight.apply(torch.ones(1)).item() == 1
    fused = fuse_source(
        SOURCE, "rounded.py", Rounded(), without_memory([torch.randn(4, 3)]), FuseOptions(forward_only=True)
    )
    assert "round" in fused.text


class Chosen(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


class Selected(nn.Module):
    def forward(self, x):
        return x[x > 0].sum() * x


def test_a_failure_is_told_once(capfd):
    with pytest.raises(CaptureError, match=r"depends on the values in a tensor"):
        capture(Chosen(), without_memory([torch.randn(4, 3)]))
    printed = capfd.readouterr()
    assert printed.out == printed.err == ""


def test_what_a_model_prints_is_kept(capsys):
    class Talking(nn.Module):
        def forward(self, x):
            import sys

            print("captured", file=sys.stderr)
            return x + 1

    capture(Talking(), without_memory([torch.randn(4, 3)]))
    assert "captured" in capsys.readouterr().err


def test_a_size_that_depends_on_values_is_refused_with_the_operator():
    graph = capture(Selected(), without_memory([torch.randn(4, 3)]))
    joint = trace(graph, backward=False)
    with pytest.raises(Unsupported, match=r"aten\.index gives a tensor whose size depends on the values in another"):
        lower(joint, [("x", "input")], torch.float32, pools=False)


class Eight(nn.Module):
    def forward(self, x):
        return x.to(torch.float8_e4m3fn).float() * x


class Same(nn.Module):
    def forward(self, x):
        return x.float() * 2


@pytest.mark.parametrize(
    ("model", "dtype", "words"),
    [
        (Eight(), torch.float32, r"aten\._to_copy gives a tensor of torch.float8_e4m3fn"),
        (Same(), torch.float8_e4m3fn, "the input x is a tensor of torch.float8_e4m3fn"),
    ],
)
def test_types_that_no_kernel_takes_are_named(model, dtype, words):
    with pytest.raises(FuseError, match=words):
        fuse_source(SOURCE, "mixed.py", model, without_memory([torch.randn(4, 3).to(dtype)]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_epsilon_of_an_rms_norm_is_that_of_the_type_torch_computes_in(dtype):
    small = torch.full((2, 12), 1e-2, dtype=dtype)
    torch.testing.assert_close(_rms_norm(small, [12]), F.rms_norm(small, [12]))


class Autocast(nn.Module):
    def __init__(self, device, enabled):
        super().__init__()
        self.linear, self.device, self.enabled = nn.Linear(3, 3), device, enabled

    def forward(self, x):
        with torch.autocast(self.device, torch.bfloat16, enabled=self.enabled):
            return self.linear(x)


class Decorated(nn.Module):
    @torch.autocast("cuda", torch.float16)
    def forward(self, x):
        return x @ x.t()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Autocast("cuda", True), r'torch\.autocast\("cuda", dtype=torch\.bfloat16\)'),
        (Autocast("cpu", True), r'torch\.autocast\("cpu", dtype=torch\.bfloat16\)'),
        (Decorated(), r'torch\.autocast\("cuda", dtype=torch\.float16\)'),
    ],
)
def test_automatic_mixed_precision_is_refused(model, words):
    """torch makes it inert where there is no GPU: the graph would be of another function."""
    with pytest.raises(CaptureError, match=words):
        capture(model, without_memory([torch.randn(4, 3)]))
    assert torch.autocast.__init__.__name__ == "__init__"


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_automatic_mixed_precision_that_is_switched_off_is_not(device):
    graph = capture(Autocast(device, False), without_memory([torch.randn(4, 3)]))
    assert [o.meta["val"].dtype for o in graph.outputs] == [torch.float32]


class Followed(nn.Module):
    """Writes into its second argument what has no gradient, and returns the third as it has become."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x, state, z):
        y = self.linear(x)
        state.lerp_(y.detach(), 0.1)
        z.relu_()
        return y * z, z


def test_arguments_that_are_written_into_are_results_behind_the_others():
    graph = capture(Followed(), without_memory([torch.randn(4, 3) for _ in range(3)]))
    assert graph.changed == ["state", "z"] and graph.returned == {1: "z"}
    assert len(graph.outputs) == 4 and graph.outputs[1] is None
    joint = trace(graph)
    names = [n.name for n in graph.placeholders]
    reached = {i: [names[k] for k in reach] for i, reach in zip(joint.tangible, joint.reach)}
    # What is detached has no gradient where only that would.
    assert reached == {0: ["p_linear_weight", "p_linear_bias", "x", "z"], 2: ["state"], 3: ["z"]}
