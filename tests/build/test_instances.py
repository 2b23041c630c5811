"""What a list of symbols says of kernels."""

import pytest

from crucible.build.instances import among

pytestmark = pytest.mark.quick

SYMBOLS = """0000000000000000 W void crucible::k<crucible::Tile<64, (crucible::Grade)0>, (anonymous namespace)::stage>((anonymous namespace)::stage, float*)
0000000000000010 W void crucible::k<3, one>(one)::{lambda(auto:1)#1}::operator()<int>(int) const
0000000000000020 W void crucible::helper<3>(float*)
0000000000000030 W cudaError_t cudaLaunchKernelEx<one>(cudaLaunchConfig_st const*, void (*)(one), one)
0000000000000040 t void k<float (*)(int)>(float (*)(int))
0000000000000050 b guard variable for launch()::known
0000000000000060 W void plain(float*)
"""  # noqa: E501


def test_instances_of_kernels_are_found():
    tile = "crucible::k<crucible::Tile<64, (crucible::Grade)0>, stage>"
    assert among(SYMBOLS, {"k", "plain"}) == [tile, "k<float (*)(int)>"]
    assert among(SYMBOLS, {"helper"}) == ["crucible::helper<3>"]
    assert among("", {"k"}) == []
