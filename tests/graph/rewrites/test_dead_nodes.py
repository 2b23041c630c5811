"""Unused pure nodes go; random draws, assertions and outputs stay."""

from __future__ import annotations

import pytest
import torch
from rewrite_cases import assert_same, capture, random

from crucible.graph.edit import aten, insert
from crucible.graph.rewrites import dead_nodes

pytestmark = pytest.mark.quick


def with_unused(target, *settings, **named):
    case = capture(lambda m, x: torch.exp(x), random(3, 4))
    exp = next(n for n in case.graph.nodes if n.target is aten.exp.default)
    insert(exp, target, exp.args[0], *settings, **named)
    return case


def test_a_chain_of_unused_nodes_goes() -> None:
    case = with_unused(aten.sin.default)
    sin = next(n for n in case.graph.nodes if n.target is aten.sin.default)
    insert(sin.next, aten.cos.default, sin)
    assert len(dead_nodes.apply(case.graph)) == 2
    assert_same(case, [random(2, 7)], [random(5, 3)])


def test_a_proven_assertion_goes() -> None:
    case = capture(lambda m, x: torch.exp(x.to(torch.float64)), random(3, 4, dtype=torch.float32))
    assert any("_assert_tensor_metadata" in t for t in case.targets())
    dead_nodes.apply(case.graph)
    assert not any("_assert_tensor_metadata" in t for t in case.targets())


def test_an_assertion_that_says_more_stays() -> None:
    case = capture(lambda m, x: torch.exp(x), random(3, 4))
    exp = next(n for n in case.graph.nodes if n.target is aten.exp.default)
    with case.graph.inserting_before(exp):
        case.graph.call_function(aten._assert_tensor_metadata.default, (exp.args[0], [3, 4]))
    assert dead_nodes.apply(case.graph) == []


def test_random_draws_stay() -> None:
    assert dead_nodes.apply(with_unused(aten.bernoulli.p, 0.5).graph) == []


def test_used_nodes_stay() -> None:
    case = capture(lambda m, x: torch.exp(x.sin()), random(3, 4))
    assert dead_nodes.apply(case.graph) == []
