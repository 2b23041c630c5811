"""The passes together: to a fixed point, verified, on the shipped problems, flags respected."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from rewrite_cases import Captured, capture, random
from torch import nn

from crucible.graph import rewrites
from crucible.graph.edit import aten
from crucible.graph.verify import InvalidGraph, verify

pytestmark = pytest.mark.quick

PROBLEMS = sorted((Path(__file__).resolve().parents[3] / "problems").glob("*.py"))


@pytest.mark.parametrize("path", PROBLEMS, ids=lambda p: p.stem)
@pytest.mark.parametrize("training", [True, False])
def test_problems_stay_valid(path: Path, training: bool) -> None:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    problem = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(problem)
    with torch.device("meta"):
        case = Captured(problem.Model(*problem.get_init_inputs()).train(training), problem.get_inputs())
    off = [p.NAME for p in rewrites.PASSES if not p.ENABLED]
    rewrites.run_all(case.gm)
    rewrites.run_all(case.gm, also=off)
    verify(case.graph)
    assert rewrites.run_all(case.gm, also=off) == []


def test_the_pool_of_the_batch_norm_problem_moves() -> None:
    module = nn.Sequential(
        nn.ConvTranspose2d(4, 6, 3), nn.BatchNorm2d(6), nn.Tanh(), nn.MaxPool2d(2), nn.GroupNorm(2, 6)
    )
    case = capture(module.double(), random(2, 4, 6, 7))
    done = rewrites.run_all(case.gm)
    assert [s.split(":")[0] for s in done] == ["pool_monotone"]
    names = case.targets()
    assert names.index("aten.max_pool2d.default") < names.index("aten.tanh.default")


def test_an_unknown_name_is_refused() -> None:
    case = capture(lambda m, x: x.sin(), random(2, 3))
    with pytest.raises(ValueError, match="no such rewrite: nonsense"):
        rewrites.run_all(case.gm, also=["nonsense"])


def test_every_pass_says_what_it_is() -> None:
    names = [p.NAME for p in rewrites.PASSES]
    assert len(set(names)) == len(names)
    for each in rewrites.PASSES:
        assert each.__name__.endswith("." + each.NAME) and len((each.__doc__ or "").splitlines()) > 3


class TestVerify:
    def case(self):
        case = capture(lambda m, x: x.sin().cos(), random(2, 3))
        return case, next(n for n in case.graph.nodes if n.target is aten.sin.default)

    def test_a_sound_graph_passes(self) -> None:
        verify(self.case()[0].graph)

    def test_a_missing_value(self) -> None:
        case, sin = self.case()
        del sin.meta["val"]
        with pytest.raises(InvalidGraph, match="sin has no recorded value"):
            verify(case.graph)

    def test_another_dtype(self) -> None:
        case, sin = self.case()
        sin.meta["val"] = sin.meta["val"].to(torch.float32)
        with pytest.raises(InvalidGraph, match="float32"):
            verify(case.graph)

    def test_another_shape(self) -> None:
        case, sin = self.case()
        sin.meta["val"] = sin.meta["val"].t()
        with pytest.raises(InvalidGraph, match="its call returns"):
            verify(case.graph)

    def test_a_call_that_fails(self) -> None:
        case, sin = self.case()
        sin.target, sin.args = aten.mm.default, (sin.args[0], sin.args[0])
        with pytest.raises(InvalidGraph, match="fails on its inputs"):
            verify(case.graph)
