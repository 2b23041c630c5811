"""Index arithmetic: canonical forms have the value of what was written, views cancel, the text says the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crucible.plan.index import Int, Size, Var, integer, nonnegative, of_atom, product, size, var
from crucible.plan.program import flat, reshaped, unflat

pytestmark = pytest.mark.quick

SIZES = ("n", "h", "w")
Values = dict[str, int]
Written = tuple[Int, Callable[[Values], int]]  # the canonical form, and what was written as a function

values = st.fixed_dictionaries({name: st.integers(1, 9) for name in SIZES})


def leaves() -> st.SearchStrategy[Written]:
    sizes = st.sampled_from(SIZES).map(lambda n: (size(n), lambda v, n=n: v[n]))
    variables = st.sampled_from(SIZES).map(lambda n: (var(f"i_{n}", size(n)), lambda v, n=n: v[f"i_{n}"]))
    numbers = st.integers(0, 6).map(lambda k: (integer(k), lambda v, k=k: k))
    return st.one_of(sizes, variables, numbers)


def grown(inner: st.SearchStrategy[Written]) -> st.SearchStrategy[Written]:
    """Sums, differences, products, and divisions by what is positive."""
    divisors = st.one_of(
        st.integers(1, 5).map(lambda k: (integer(k), lambda v, k=k: k)),
        st.sampled_from(SIZES).map(lambda n: (size(n), lambda v, n=n: v[n])),
        st.tuples(st.sampled_from(SIZES), st.sampled_from(SIZES)).map(
            lambda p: (size(p[0]) * size(p[1]), lambda v, p=p: v[p[0]] * v[p[1]])
        ),
        st.sampled_from(SIZES).map(lambda n: (size(n) + 2, lambda v, n=n: v[n] + 2)),
    )
    return st.one_of(
        st.tuples(inner, inner).map(lambda p: (p[0][0] + p[1][0], lambda v, p=p: p[0][1](v) + p[1][1](v))),
        st.tuples(inner, inner).map(lambda p: (p[0][0] - p[1][0], lambda v, p=p: p[0][1](v) - p[1][1](v))),
        st.tuples(inner, inner).map(lambda p: (p[0][0] * p[1][0], lambda v, p=p: p[0][1](v) * p[1][1](v))),
        st.tuples(inner, divisors).map(lambda p: (p[0][0] // p[1][0], lambda v, p=p: p[0][1](v) // p[1][1](v))),
        st.tuples(inner, divisors).map(lambda p: (p[0][0] % p[1][0], lambda v, p=p: p[0][1](v) % p[1][1](v))),
    )


expressions = st.recursive(leaves(), grown, max_leaves=8)


def with_variables(sizes: Values, draw: Callable[[int], int]) -> Values:
    return {**sizes, **{f"i_{n}": draw(k) for n, k in sizes.items()}}


@given(expressions, values, st.data())
@settings(max_examples=600, derandomize=True, deadline=None, database=None)
def test_canonical_form_keeps_the_value(written: Written, sizes: Values, data: st.DataObject) -> None:
    form, meaning = written
    v = with_variables(sizes, lambda k: data.draw(st.integers(0, k - 1)))
    assert form.hint(v) == meaning(v)


@given(expressions, values, st.data())
@settings(max_examples=300, derandomize=True, deadline=None, database=None)
def test_text_has_the_value(written: Written, sizes: Values, data: st.DataObject) -> None:
    form, meaning = written
    v = with_variables(sizes, lambda k: data.draw(st.integers(0, k - 1)))
    assert eval(str(form).replace(" / ", " // "), {}, v) == meaning(v)


@given(expressions, values)
@settings(max_examples=300, derandomize=True, deadline=None, database=None)
def test_what_is_said_to_be_nonnegative_is(written: Written, sizes: Values) -> None:
    form, meaning = written
    if nonnegative(form) and form.variables():  # a quotient of sizes counts as a size
        assert meaning(with_variables(sizes, lambda k: 0)) >= 0
        assert meaning(with_variables(sizes, lambda k: k - 1)) >= 0


@given(expressions, values, st.data())
@settings(max_examples=300, derandomize=True, deadline=None, database=None)
def test_upper_bound_holds(written: Written, sizes: Values, data: st.DataObject) -> None:
    form, meaning = written
    upper = form.upper()
    if upper is not None:
        v = with_variables(sizes, lambda k: data.draw(st.integers(0, k - 1)))
        assert meaning(v) <= upper.hint(v)


extents = st.sampled_from([size("n"), size("h"), size("w") + 2, integer(3), integer(1), integer(4)])
shapes = st.lists(extents, min_size=1, max_size=4)


@given(shapes)
@settings(max_examples=200, derandomize=True, deadline=None, database=None)
def test_flattening_and_back_is_the_same_index(shape: list[Int]) -> None:
    index = tuple(var(f"i{d}", s) for d, s in enumerate(shape))
    assert unflat(flat(index, shape), shape) == index
    whole = product(shape)
    assert reshaped(reshaped(index, tuple(shape), (whole,)), (whole,), tuple(shape)) == index


def test_a_group_of_channels_and_back() -> None:
    n, h = size("n"), size("h")
    index = (var("s", n), var("c", 6), var("y", h))
    grouped = reshaped(index, (n, integer(6), h), (n, integer(2), integer(3), h))
    assert reshaped(grouped, (n, integer(2), integer(3), h), (n, integer(6), h)) == index


def test_a_quotient_of_a_sum_is_printed_with_parentheses() -> None:
    assert str((size("h") - 3) // 2) == "((h - 3) / 2)"


def test_the_first_coordinate_of_a_flat_index_needs_no_remainder() -> None:
    n, h = size("n"), size("h")
    position = var("i", n * h)
    assert unflat(position, (n, h)) == (position // h, position % h)


def test_a_flipped_index_survives_reshapes() -> None:
    """C++ rounds towards zero, so no quotient may have a negative top."""
    n, h = size("n"), size("h")
    flipped = (var("y", n), h - 1 - var("x", h))
    assert unflat(flat(flipped, (n, h)), (n, h)) == flipped


def test_substitution_reaches_into_quotients() -> None:
    i = Var("i", integer(12))
    assert (of_atom(i) // 5).substitute({i: integer(11)}) == 2
    assert (of_atom(i) % 5).substitute({i: integer(11)}) == 1
    assert of_atom(Size("h")).substitute({Size("h"): integer(4)}) == 4


def test_a_tensor_without_elements_has_an_index_of_zeros() -> None:
    shape = (size("n"), integer(0), integer(4))
    assert unflat(var("i", product(shape)), shape)[1] == 0
