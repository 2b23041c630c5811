"""What ptxas says, read; and with nvcc the real thing: no kernel on tensor cores spills where that is promised."""

from __future__ import annotations

import re
from pathlib import Path

import ptxas
import pytest
import stage

PROBLEMS = Path(__file__).parents[2] / "problems"
SAID = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'void crucible::pair_kernel<crucible::Warpgroups<1, 2, 0, 1, 16, \
(crucible::Operands)1>, true, contract_1>(contract_1, void*)' for 'sm_90a'
ptxas info    : Function properties for void crucible::pair_kernel<...>
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 128 registers, used 16 barriers
ptxas info    : Compiling entry function 'void crucible::row_found_kernel<256, rows_2>(rows_2, rows_2::Found*)' for 'sm_90a'
ptxas info    : Function properties for void crucible::row_found_kernel<256, rows_2>(rows_2, rows_2::Found*)
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 128 bytes smem, 16 bytes cmem[2]
ptxas info    : Compile time = 29.459 ms
"""  # noqa: E501
needs_nvcc = pytest.mark.skipif(ptxas.nvcc() is None, reason="no nvcc here")


@pytest.mark.quick
def test_what_was_said_is_read():
    pair, row = ptxas.parse("forward", SAID)
    assert (pair.registers, pair.stack, pair.stores, pair.loads, pair.shared) == (128, 8, 4, 12, 0)
    assert (row.registers, row.shared, row.spills) == (32, 128, False)
    assert pair.spills and pair.tensor_cores and not row.tensor_cores and pair.arch == "sm_90a"
    assert pair.short == "contract_1: pair_kernel<Warpgroups<1, 2, 0, 1, 16, 1>, true>"
    assert row.short == "rows_2: row_found_kernel<256>"
    lines = ptxas.table([pair, row]).splitlines()
    assert len(lines) == 3 and "4 + 12" in lines[1] and lines[1].endswith("SPILLS") and "SPILLS" not in lines[2]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void crucible::map_kernel<map_1>(map_1)", "map_1: map_kernel"),
        ("void crucible::row_kernel<1, rows_12>(rows_12)", "rows_12: row_kernel<1>"),
        ("void foreign(int*)", "foreign"),
        ("_ZN8crucible10map_kernelI5map_1EEvT_", "_ZN8crucible10map_kernelI5map_1EEvT_"),
    ],
)
def test_short_names(name, short):
    assert ptxas.short_name(name) == short


@pytest.mark.quick
def test_tiles_of_tensor_cores_are_known():
    tiles = "Mma Window Gradient GradientGroups Warpgroups Ready Strips Split WgmmaTile Holding"
    for tile in tiles.split():
        name = f"void crucible::some_kernel<crucible::{tile}<1, 2>, contract_1>(contract_1)"
        assert ptxas.Usage("forward", name, "sm_90a").tensor_cores, tile


@pytest.mark.quick
def test_macros_are_those_a_file_would_choose():
    auto, simt = "int(True and known ...", "if True or dtype == torch.float64"

    def values(*given):
        return [int(f.split("=")[1]) for f in ptxas.flags_for(*given)]

    assert values(auto, "sm_90a", "float32") == [0, 0, 1, 2, 1]
    assert values(auto, "sm_80", "float32") == [0, 0, 1, 2, 0]
    assert values(auto, "sm_90a", "bfloat16") == [3, 0, 3, 3, 1]
    assert values(auto, "sm_75", "float16") == [2, 0, 0, 0, 0]
    assert values(simt, "sm_80", "float32") == [0, 0, 0, 0, 0]
    assert values(auto, "sm_90a", "float32", "fp32") == [0, 0, 2, 2, 1]


@needs_nvcc
@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        ("conv_transpose2d", "Strips", "GradientGroups"),
        ("conv_transpose3d_relu_group_norm", "Ready", "Gradient"),
        ("gemm_group_norm_min_bias", "WgmmaTile", "WgmmaTile"),
        ("conv_transpose2d_gelu_group_norm", "Holding", "Strips"),
        # What the others have, in other sizes.
        pytest.param("conv_transpose2d_grouped_gelu_group_norm", "Holding", "Gradient", marks=pytest.mark.exhaustive),
        pytest.param("conv_transpose2d_batch_norm_tanh_max_pool_group_norm", "Ready", "Warpgroups",
                     marks=pytest.mark.exhaustive),
    ],
)  # fmt: skip
def test_no_spills_on_hopper(name, forward, backward, capsys):
    """In either part, of which each has the tile that is meant to be looked at."""
    code = stage.main([str(PROBLEMS / f"{name}.py"), "--ptxas", "--arch", "sm_90a"])
    said = capsys.readouterr()
    assert code == 0, said.out + said.err
    for part, tile in (("forward", forward), ("backward", backward)):
        assert re.search(rf"^{part} .*_kernel<{tile}<", said.out, re.M), f"no {tile} in the {part} part:\n{said.out}"
    if name.startswith("gemm"):  # nor do products of few rows, without tensor cores
        assert "contract_few_kernel<" in said.out and "SPILLS" not in said.out, said.out


@needs_nvcc
@pytest.mark.parametrize("name", ["conv_transpose2d", "conv_transpose3d_relu_group_norm"])
def test_no_spills_on_hopper_in_float32s_own_precision(name, capsys):
    code = stage.main([str(PROBLEMS / f"{name}.py"), "--ptxas", "--arch", "sm_90a", "--precision", "fp32"])
    said = capsys.readouterr()
    assert code == 0, said.out + said.err
    assert "contract_1: split_kernel<Split<" in said.out


@needs_nvcc
def test_spills_on_tensor_cores_are_an_error(tmp_path, capsys):
    """A kernel that must spill: more values alive at once than a thread has registers."""
    many = 300
    loads = "".join(f"float v{k} = volatile_(p + {k});\n" for k in range(many))
    stores = "".join(f"volatile_store(p + {many - 1 - k}, v{k});\n" for k in range(many))
    source = f"""
namespace crucible {{
template <int A, int B> struct Mma {{}};
__device__ float volatile_(const float* p) {{ return *(const volatile float*)p; }}
__device__ void volatile_store(float* p, float v) {{ *(volatile float*)p = v; }}
template <class Tile, class Stage> __global__ void contract_kernel(Stage s, float* p) {{
{loads}
__syncthreads();
{stores}
}}
}}
struct contract_1 {{}};
template __global__ void crucible::contract_kernel<crucible::Mma<1, 2>, contract_1>(contract_1, float*);
"""
    new = tmp_path / "new.py"
    new.write_text(f'"""A file with one kernel."""\n_SOURCES = {{"forward": ("", r"""{source}""")}}\n')
    command = [str(PROBLEMS / "conv_transpose2d.py"), str(new), "--ptxas", "--arch", "sm_80"]
    assert stage.main(command) == 1
    said = capsys.readouterr()
    assert "SPILLS" in said.out and "contract_1: contract_kernel<Mma<1, 2>>" in said.err
    new.write_text('"""Broken."""\n_SOURCES = {"forward": ("", "int main( {")}\n')
    assert stage.main(command) == 2
    assert "does not compile the forward part for sm_80" in capsys.readouterr().err
