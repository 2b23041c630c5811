"""Which other sizes a candidate is tried at."""

import pytest

from crucible.prove.checks.sizes import odd_sizes

pytestmark = pytest.mark.quick


def free(*members):
    return [{"members": list(m)} for m in members]


def test_odd_and_near_and_never_the_same():
    for small in range(1, 40):
        ((_, found),) = odd_sizes(free([(0, 1)]), [small], [0]).items()
        assert found % 2 == 1 and found != small and abs(found - small) <= 3, small


def test_dimensions_of_an_input_differ():
    one = free([(0, 2)], [(0, 3)], [(0, 4)])
    assert sorted(odd_sizes(one, [6, 6, 6], [0, 1, 2]).values()) == [7, 9, 11]
    shared = free([(0, 2), (1, 2)], [(0, 3)], [(1, 3)])
    found = odd_sizes(shared, [6, 6, 6], [0, 1, 2])
    assert found[0] not in (found[1], found[2])


def test_many_inputs_stay_small():
    """What an input is tried at does not depend on how many others there are."""
    many = free(*[[(k, d)] for k in range(8) for d in (2, 3)])
    assert set(odd_sizes(many, [6] * 16, list(range(16))).values()) == {7, 9}
