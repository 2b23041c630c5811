"""Which walks and maps take several neighbours at once, what that requires, and that it is right."""

import pytest

import crucible
from crucible.fuse import FuseOptions, fuse_problem
from crucible.plan.index import integer, of_atom, size, var
from crucible.plan.program import Buffer
from crucible.plan.stages import Map, Pass, Row, Store
from crucible.plan.value import Const, IndexValue, Inside, Kept, Load, Masked, Op, walk
from crucible.plan.vectors import LANE, vectors

N, H, W = size("n"), size("h"), size("w")
J = var("j", N * H * W)
ROW = var("row", 10)
U = of_atom(LANE)


def element(index, buffer="x", **more):
    return Load(buffer, index, "f", **more)


def walked(value, to=J, by=None, also=()):
    out = Buffer("y", (N * H * W,), "scalar", "output")
    return vectors(Pass(J.atom, (N * H * W,), [], [Store(out, to, value)], by), also)


@pytest.mark.quick
def test_neighbours_in_memory_become_vectors():
    v = walked(Op("add", (element(ROW * N * H * W + J), element(ROW, "scale")), "f"))
    assert v is not None and not v.placed and not v.whole
    assert v.loads == (("x", ROW * N * H * W + J),) and v.stores == (("y", J),)
    (store,) = v.several.stores
    assert store.index == J + U
    assert element(ROW * N * H * W + J + U) in walk(store.value) and element(ROW, "scale") in walk(store.value)


@pytest.mark.quick
def test_a_quotient_stays_the_same_where_sizes_are_multiples():
    v = walked(Op("add", (element(J), element(J // W % H, "scale")), "f"))
    assert v is not None and v.placed
    assert W in v.whole and all(n in (W, H * W) for n in v.whole)
    assert element(J // W % H, "scale") in walk(v.several.stores[0].value)


@pytest.mark.quick
def test_rows_of_another_pitch_must_begin_at_vectors():
    pitch = size("pitch")
    v = walked(element(J // W * pitch + J % W))
    assert v is not None and v.placed and set(v.whole) == {W, pitch}
    assert element(J // W * pitch + J % W + U) in walk(v.several.stores[0].value)
    assert walked(element(J // W * (W + 3) + J % W)) is None


@pytest.mark.quick
def test_rows_in_descending_order_begin_at_vectors_too():
    """The pitch is required twice, once as what it is and once as what goes down."""
    for width in (W, integer(10)):
        rows = N * H * W // width
        v = walked(element((rows - 1 - J // width) * width + J % width))
        assert v is not None and v.placed and v.whole in ((width,), (-width,))


@pytest.mark.quick
def test_parts_and_places_get_variables_of_their_own():
    v = walked(Op("add", (element(J), element(J // (H * W), "scale")), "f"), by=H * W)
    assert v is not None and v.part is not None and not v.placed and not v.whole
    part, place = of_atom(v.part), of_atom(v.place)
    assert v.loads == (("x", part * H * W + place),)
    assert element(part, "scale") in walk(v.several.stores[0].value)


@pytest.mark.quick
@pytest.mark.parametrize("value", [
    element(J * 2),
    element(N * H * W - J),
    element(J // 2 + J % 2 * W),  # a vector would have parts of several
    element(J, dynamic=((element(J, "which"), W),)),
    element(J, "y"),  # what the walk itself writes
    Masked((Inside(J - 3, N),), element(J - 3), Const(0.0, "f"), "f"),  # outside there is nothing to load
    element(J * J),
])  # fmt: skip
def test_others_stay_alone(value):
    assert walked(value) is None


@pytest.mark.quick
def test_stores_that_lie_apart_stay_alone():
    assert walked(element(J), to=J * 2) is None
    assert walked(element(J), to=integer(0)) is None


@pytest.mark.quick
def test_conditions_and_indices_follow_the_element():
    inside = Masked((Inside(J - 3, N),), Const(1.0, "f"), Const(0.0, "f"), "f")
    v = walked(Op("add", (Op("to_f", (IndexValue(J * 5),), "f"), inside), "f"), also=(Kept("k", J, "f"),))
    assert v is not None
    parts = set(walk(v.several.stores[0].value))
    assert IndexValue(J * 5 + U * 5) in parts
    assert any(isinstance(p, Masked) and p.conditions == (Inside(J - 3 + U, N),) for p in parts)
    assert v.also_several == (Kept("k", J + U, "f"),)


PROBLEM = '''
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm({features})
        self.scale = nn.Parameter(torch.linspace(-1, 1, 8))

    def forward(self, x):
        return {body}


def get_inputs():
    return [torch.randn({shape})]


def get_init_inputs():
    return []
'''
SCALED = "torch.tanh(x) * self.scale[:, None, None]"
GROUPS = "F.group_norm(F.gelu(x), 2, self.scale, None)"


def fused(tmp_path, body, shape, features=512):
    path = tmp_path / "problem.py"
    path.write_text(PROBLEM.format(body=body, shape=shape, features=features))
    return path, fuse_problem(path, FuseOptions(strict=True))


def stages(made, kind):
    return [s for s in made.modes[0].plan.forward_stages if isinstance(s, kind)]


@pytest.mark.parametrize("body,shape,several", [
    ("self.norm(x)", "64, 512", [True, True]),
    ("self.norm(x)", "64, 130", [False, False]),  # a warp has 130 elements: most threads would wait
    ("self.norm(x.t().contiguous().t() + 1)", "64, 512", [True, True]),
])  # fmt: skip
def test_rows_where_threads_have_enough(tmp_path, body, shape, several):
    _, made = fused(tmp_path, body, shape, int(shape.split(", ")[1]))
    (row,) = stages(made, Row)
    assert [p.several for p in row.passes] == several


@pytest.mark.parametrize("shape,several", [("4, 8, 12, 10", True), ("4, 8, 13, 11", False), ("4, 8, 2, 2", True)])
def test_maps_where_sizes_allow_it(tmp_path, shape, several):
    _, made = fused(tmp_path, SCALED, shape)
    (mapped,) = stages(made, Map)
    assert mapped.several is several
    assert f"in_vectors = {str(several).lower()};" in made.text


@pytest.mark.parametrize("body,shape,features", [
    ("self.norm(torch.tanh(x))", "40, 512", 512),
    (SCALED, "4, 8, 12, 10", 1),
    ("x.sum(-1, keepdim=True) + F.softmax(x, -1)", "30, 4100", 1),
    ("x > 0.5", "30, 256", 1),
    ("x.flip(0) * 2", "6, 12", 1),
])  # fmt: skip
def test_they_are_proven(tmp_path, body, shape, features):
    path, made = fused(tmp_path, body, shape, features)
    assert "read_vector" in made.text
    new = tmp_path / "new.py"
    new.write_text(made.text)
    proof = crucible.prove(path, new, device="sim", seed=3, quick=True)
    assert proof.verdict == "proven", f"{proof.reason.code}: {proof.reason.message}" if proof.reason else proof.verdict


def test_tensors_that_begin_anywhere(tmp_path, run_on_device):
    """Views of a larger tensor, at several distances from a multiple of 16 bytes, in two types."""
    path, made = fused(tmp_path, GROUPS, "3, 8, 40, 40", 1)
    (tmp_path / "new.py").write_text(made.text)
    run_on_device("""
        import new, problem
        torch.manual_seed(1)
        for dtype, most in ((torch.float32, 1e-6), (torch.float16, 1e-3)):
            model, reference = new.ModelNew().cuda().to(dtype), problem.Model().double()
            reference.load_state_dict(model.state_dict())
            for begin in (0, 1, 2, 3, 4, 5):
                x = torch.randn(3 * 8 * 40 * 40 + begin).to(dtype).cuda()[begin:].view(3, 8, 40, 40)
                assert x.storage_offset() == begin
                got, wanted = model(x).double().cpu(), reference(x.double().cpu())
                error = float((got - wanted).norm() / wanted.norm())
                assert error < most, (dtype, begin, error)
    """)
