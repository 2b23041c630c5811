"""--arch: the CUDA text is found in the file, with its lines, and compiled in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from crucible.prove.arch import compile_everywhere, cuda_sources, summary, wanted

pytestmark = pytest.mark.quick

FILE = '''import torch
from torch.utils.cpp_extension import load_inline

COMMON = """
__device__ float twice(float x) { return 2 * x; }
"""
WIDTH = 32
SOURCE = COMMON + f"""
#define W {WIDTH}
__global__ void k(float* x) {{
    x[W] = twice(x[0]);
    BROKEN
}}
"""
module = load_inline(name="m", cpp_sources="", cuda_sources=[SOURCE], functions=["go"], extra_cuda_cflags=["-O3"])
'''


def test_sources_are_put_together_from_their_parts(tmp_path: Path) -> None:
    path = tmp_path / "new.py"
    path.write_text(FILE.replace("    BROKEN\n", ""))
    (source,) = cuda_sources(path)
    assert "twice" in source.text and "#define W 32" in source.text
    assert source.flags == ("-O3",) and source.first_line == 4
    results = compile_everywhere([source], scratch=tmp_path / "s", archs=["sm_80", "sm_90a"])
    assert [r.state for r in results] == ["ok", "ok"]
    assert summary(results) == ["compiles for sm_80, sm_90a"]


def test_an_error_is_named_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "new.py"
    path.write_text(FILE.replace("BROKEN", "x[1] = unheard_of;"))
    results = compile_everywhere(cuda_sources(path), scratch=tmp_path / "s", archs=["sm_80"])
    assert results[0].state == "failed" and results[0].line == 12
    assert summary(results) == ['does not compile for sm_80: identifier "unheard_of" is undefined (line 12)']


def test_strings_with_kernels_serve_where_load_inline_is_out_of_sight(tmp_path: Path) -> None:
    path = tmp_path / "new.py"
    path.write_text('S = """\n__global__ void k(float* x) { x[0] = 1; }\n"""\nbuild(S)\n')
    assert [s.first_line for s in cuda_sources(path)] == [1]


def test_wanted() -> None:
    assert len(wanted("all")) == 8
    assert wanted("80, sm_90a") == ["sm_80", "sm_90a"]


def test_a_compiler_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "new.py"
    path.write_text(FILE.replace("    BROKEN\n", ""))
    results = compile_everywhere(cuda_sources(path), scratch=tmp_path / "s", archs=["sm_80"], timeout=0.01)
    assert results[0].state == "skipped" and "the compiler was stopped: no answer within 0.01 s" in results[0].message
