"""Pools move before monotone functions: same values and gradients, through ties, flat parts, NaN and infinities."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from rewrite_cases import assert_same, assert_same_values, capture, random

from crucible.graph.rewrites import pool_monotone

pytestmark = pytest.mark.quick

FUNCTIONS = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 1.0),
    "threshold": lambda x: F.threshold(x, 0.5, 0.25),
    "hardsigmoid": F.hardsigmoid,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": lambda x: F.elu(x, 1.5),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.7),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "log_sigmoid": F.logsigmoid,
    "atan": torch.atan,
    "erf": torch.erf,
    "times": lambda x: x * 1.7,
    "over": lambda x: x / 3,
    "plus": lambda x: x + 0.3,
    "minus": lambda x: x - 2,
}
EXACT = ["relu", "relu6", "hardtanh", "threshold"]


def ties(*sizes: int) -> torch.Tensor:
    """Few distinct values, the kinks of the functions among them."""
    return torch.tensor([-3.0, -0.5, 0.0, 0.25, 0.5, 1.0, 3.0, 6.0, 7.0], dtype=torch.float64)[torch.randint(9, sizes)]


def special(*sizes: int, nans: float = 0.0) -> torch.Tensor:
    """Infinities strewn in, and NaN."""
    x = random(*sizes)
    x[torch.rand(sizes) < 0.2] = -math.inf
    x[torch.rand(sizes) < 0.1] = math.inf
    x[torch.rand(sizes) < nans] = math.nan
    return x


def all_moved(case) -> bool:
    """Whether every pool reads the input itself."""
    pools = [n for n in case.graph.nodes if "max_pool" in str(n.target)]
    return bool(pools) and all(n.args[0].op == "placeholder" for n in pools)


@pytest.mark.parametrize("exact", [True, False])
def test_applied(exact: bool) -> None:
    chosen = [f for name, f in FUNCTIONS.items() if (name in EXACT) == exact]
    case = capture(lambda m, x: tuple(F.max_pool2d(f(x), 3, 2, 1) for f in chosen), random(2, 3, 8, 9))
    assert len(pool_monotone.apply(case.graph)) == len(chosen)
    assert all_moved(case)
    assert_same(case, [random(3, 2, 7, 11)], [ties(1, 4, 9, 6)], [special(3, 3, 8, 8)], [20 * random(2, 2, 9, 9)])
    with_nan = [special(3, 3, 8, 8, nans=0.1)]
    if exact:
        assert_same(case, with_nan)
    else:
        assert_same_values(case, with_nan)


def test_exact_functions_move_in_sixteen_bits() -> None:
    chosen = [FUNCTIONS[name] for name in EXACT]
    case = capture(lambda m, x: tuple(F.max_pool2d(f(x), 2) for f in chosen), random(2, 3, 8, 9, dtype=torch.bfloat16))
    assert len(pool_monotone.apply(case.graph)) == len(chosen)
    assert_same(case, [ties(2, 3, 6, 6).bfloat16()], tolerance=0)


def test_strict_functions_stay_in_sixteen_bits() -> None:
    strict = [f for name, f in FUNCTIONS.items() if name not in EXACT]
    case = capture(lambda m, x: tuple(F.max_pool2d(f(x), 2) for f in strict), random(2, 3, 8, 9, dtype=torch.bfloat16))
    assert pool_monotone.apply(case.graph) == []


POOLS = [
    lambda x: F.max_pool1d(x.flatten(2), 3, 2),
    lambda x: F.max_pool3d(x.unsqueeze(2), (1, 2, 2)),
    lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    lambda x: F.max_pool2d(x, 2, dilation=2),
    lambda x: F.max_pool2d(x, 2, return_indices=True)[0],
    lambda x: F.adaptive_max_pool2d(x, 3),
    lambda x: x.amax((1, 3)),
    lambda x: x.amin(-1, keepdim=True),
    lambda x: x.max(dim=1).values,
    lambda x: x.min(dim=2, keepdim=True).values,
]


def test_every_kind_of_pool() -> None:
    def with_relu(m, x):
        with _ReluBeforePool():
            return tuple(pool(x) for pool in POOLS)

    case = capture(with_relu, random(2, 3, 8, 9))
    assert len(pool_monotone.apply(case.graph)) == len(POOLS)
    assert_same(case, [random(3, 4, 9, 7)], [ties(2, 2, 8, 6)])


class _ReluBeforePool(torch.overrides.TorchFunctionMode):
    """Applies relu right before the pooling call, whatever view comes first."""

    NAMES = ("max_pool", "amax", "amin", "max", "min")

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if any(name.startswith(n) or f"_{n}" in name for n in self.NAMES):
            args = (torch.relu(args[0]), *args[1:])
        return func(*args, **(kwargs or {}))


def test_compositions_move_one_after_the_other() -> None:
    case = capture(lambda m, x: F.max_pool2d(torch.tanh(F.relu(x * 2) + 1), 2), random(2, 3, 8, 9))
    assert len(pool_monotone.apply(case.graph)) == 4
    assert all_moved(case)
    assert_same(case, [random(3, 2, 7, 11)], [ties(1, 4, 9, 6)])


def test_softplus_moves_where_its_step_drowns_in_rounding() -> None:
    def body(m, x):
        return F.max_pool2d(F.softplus(x), 2)

    case = capture(body, random(2, 3, 8, 9, dtype=torch.float32))
    assert len(pool_monotone.apply(case.graph)) == 1
    assert_same(case, [20 + 1e-3 * random(2, 3, 8, 8, dtype=torch.float32)], tolerance=1e-5)
    assert pool_monotone.apply(capture(body, random(2, 3, 8, 9)).graph) == []


STAY = [
    lambda x: x.clamp(0, 1),
    lambda x: x.clamp(min=0),
    torch.exp,
    F.gelu,
    F.silu,
    torch.neg,
    torch.abs,
    lambda x: x * -2,
    lambda x: x * 0,
    lambda x: x * 1e20,
    lambda x: x + math.inf,
    lambda x: 1 - x,
    lambda x: F.leaky_relu(x, 0.0),
    lambda x: F.leaky_relu(x, -0.1),
    lambda x: F.elu(x, -1.0),
    lambda x: F.threshold(x, 0.0, 1.0),
    lambda x: torch.add(x, 1.0, alpha=-1),
    lambda x: x * x,
    lambda x: F.softplus(x, threshold=1),
]


def test_other_functions_stay() -> None:
    x = random(2, 3, 8, 9, dtype=torch.float32)
    case = capture(lambda m, x: tuple(F.max_pool2d(f(x), 2) for f in STAY), x)
    assert pool_monotone.apply(case.graph) == []


def test_why_clamp_stays() -> None:
    """An element at the bound and one beyond it: the first gets the gradient, after an exchange it would not."""
    x = torch.tensor([[[[1.0, 2.0]]]], requires_grad=True)
    (before,) = torch.autograd.grad(F.max_pool2d(x.clamp(max=1), (1, 2)).sum(), x)
    (after,) = torch.autograd.grad(F.max_pool2d(x, (1, 2)).clamp(max=1).sum(), x)
    assert before.tolist() != after.tolist()


@pytest.mark.parametrize(
    "body",
    [
        lambda m, x: (lambda y: F.max_pool2d(y, 2).sum() + y.sum())(F.relu(x)),
        lambda m, x: F.max_pool2d(F.relu(x), 2, return_indices=True)[1],
        lambda m, x: F.max_pool2d(F.relu(x), 2, padding=1, dilation=3),
        lambda m, x: F.avg_pool2d(F.relu(x), 2),
    ],
)
def test_other_graphs_stay(body) -> None:
    assert pool_monotone.apply(capture(body, random(2, 3, 8, 9)).graph) == []
