"""Clamps in a row merge within their family, with the same gradients at the bounds and at NaN."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from rewrite_cases import assert_same, capture, random

from crucible.graph.rewrites import clamp_chains

pytestmark = pytest.mark.quick

# Every bound of the cases below, what lies between and beyond, and the special values.
EDGES = torch.tensor(
    [-3.0, -2, -1, -0.5, -0.0, 0, 0.25, 0.5, 0.75, 1, 2, 4, 6, 7, math.inf, -math.inf, math.nan] * 4,
    dtype=torch.float64,
).reshape(4, 17)


GO = [
    lambda x: x.clamp(-1, 1).clamp(-0.5, 2),
    lambda x: x.clamp(min=0).clamp(max=1),
    lambda x: x.clamp(max=1).clamp(min=-1),
    lambda x: torch.clamp_min(x, -1).clamp(-2, 0.5),
    lambda x: torch.clamp_max(torch.clamp_max(x, 2), 1),
    lambda x: x.clamp(0, 1).clamp(1, 2),
    lambda x: F.relu(F.relu(x)),
    lambda x: F.relu6(F.relu(x)),
    lambda x: F.relu(F.hardtanh(x, -1, 1)),
    lambda x: F.hardtanh(F.relu(x), -1, 1),
    lambda x: F.relu(F.hardtanh(x, 0.25, 1)),
    lambda x: F.hardtanh(F.relu6(x), 0.5, 7),
    lambda x: F.hardtanh(F.hardtanh(x, -1, 1), -0.5, 2),
]


def test_applied() -> None:
    case = capture(lambda m, x: tuple(body(x) for body in GO), random(3, 4))
    assert len(clamp_chains.apply(case.graph)) == len(case.targets()) == len(GO)
    assert_same(case, [3 * random(2, 7)], [3 * random(5, 3)], [EDGES], [EDGES[:1]])


STAY = [
    lambda x: F.relu(x.clamp(min=0)),
    lambda x: F.relu(x).clamp(min=0),
    lambda x: F.relu(x).clamp(max=6),
    lambda x: x.clamp(0, 1).clamp(2, 3),
    lambda x: x.clamp(2, 1).clamp(0, 3),
    lambda x: F.hardtanh(F.relu(x), -2, 0),
    lambda x: x.clamp(min=math.nan).clamp(0, 1),
    lambda x: (lambda y: y.clamp(0, 1) + y)(x.clamp(-1, 2)),
    lambda x: x.clamp(x.sin(), x.cos()).clamp(0, 1),
]


def test_not_applied() -> None:
    case = capture(lambda m, x: tuple(body(x) for body in STAY), random(3, 4))
    assert clamp_chains.apply(case.graph) == []
