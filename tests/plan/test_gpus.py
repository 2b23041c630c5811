"""The table of GPUs: names that find a row, names that do not, and the driver's own names."""

from __future__ import annotations

import pytest

from crucible.plan.gpus import DEFAULT, TABLE, UnknownGpu, chosen, find, known_as, names, present

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    "given, name",
    [
        ("h200", "h200"), ("H100", "h100"), ("a100", "a100-80"), ("A100-40", "a100-40"), ("NVIDIA H200", "h200"),
        ("RTX 4090", "rtx4090"), ("geforce_rtx_3090", "rtx3090"), ("Tesla T4", "t4"), (" v100 ", "v100"),
    ],
)  # fmt: skip
def test_find(given, name):
    assert find(given).name == name


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UnknownGpu) as error:
        find("gtx9999")
    assert "'gtx9999'" in str(error.value) and all(n in str(error.value) for n in names())


@pytest.mark.parametrize(
    "title, name",
    [
        ("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-40GB", "a100-40"), ("NVIDIA A100-SXM4-80GB", "a100-80"), ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"), ("Tesla T4", "t4"), ("NVIDIA L40S", "l40s"), ("NVIDIA A10", "a10"),
    ],
)  # fmt: skip
def test_names_as_the_driver_has_them(title, name):
    found = known_as(title)
    assert found is not None and found.name == name


@pytest.mark.parametrize("title", ["NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 3090 Ti", "NVIDIA H100 NVL",
                                   "NVIDIA A10G", "AMD Instinct MI300X"])  # fmt: skip
def test_a_relative_is_not_the_same_chip(title):
    assert known_as(title) is None


def test_figures_are_plausible():
    assert len({g.name for g in TABLE}) == len(TABLE)
    for g in TABLE:
        assert 100 < g.bandwidth < 20000 and g.fp64 < g.fp32 < 200
        assert (g.tf32 is not None) == (g.capability >= (8, 0)) == g.tensor_cores
        assert g.tf32 is None or g.fp16 is None or 1.9 < g.fp16 / g.tf32 < 2.1


def test_the_choice():
    assert chosen("t4").name == "t4"
    assert chosen(None) == (present() or find(DEFAULT))
