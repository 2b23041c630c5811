"""WgmmaKept of emit/wgmma.py, operand A in registers: in the simulator against numpy, and compiled for the chip."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import crucible
from crucible.emit.wgmma import instructions
from crucible.sim import kernel as sim

KERNELS = Path(crucible.__file__).parent / "kernels"
WIDTHS = (16, 96)
STEPS = 3
OPERANDS = {0: "Half", 2: "Native", 3: "Native"}  # by CRUCIBLE_SCALAR
SOURCE = """
#include "wgmma.cuh"
namespace crucible {
template <int N, Operands kind>
struct WgmmaKept;  // as in window_hold.cuh
}
INSTRUCTIONS
using namespace crucible;

// d (64, N) + a (STEPS, 64, 16) times b (STEPS, N, 16) transposed: one batch, whose products take turns at d.
template <int N>
__global__ void kept(const unsigned* a, const uint4* b, float* d, int more) {
  __shared__ __align__(128) uint4 lines[STEPS][2][N];
  const int t = threadIdx.x, row = t / 32 * 16 + t % 32 / 4, q = t % 4;
  for (int i = t; i < STEPS * N * 2; i += 128) lines[i / (2 * N)][i % 2][i / 2 % N] = b[i];
#if CRUCIBLE_HAS_WGMMA
  publish();
  __syncthreads();
  unsigned mine[STEPS][4];
  float sums[N / 2];
#pragma unroll
  for (int s = 0; s < STEPS; ++s)
#pragma unroll
    for (int r = 0; r < 4; ++r) mine[s][r] = a[(s * 64 + row + r % 2 * 8) * 8 + r / 2 * 4 + q];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) sums[i] = d[(row + i / 2 % 2 * 8) * N + i / 4 * 8 + 2 * q + i % 2];
  wgmma_begin();
#pragma unroll
  for (int s = 0; s < STEPS; ++s)
    WgmmaKept<N, Operands::KIND>::multiply(sums, mine[s], lines_at(shared_address(lines[s]), N * 16), s ? 1 : more);
  wgmma_end();
  wgmma_wait<0>();
  settle(sums);
#pragma unroll
  for (int i = 0; i < N / 2; ++i) d[(row + i / 2 % 2 * 8) * N + i / 4 * 8 + 2 * q + i % 2] = sums[i];
#endif
}
"""


def source(scalar: int) -> str:
    given = {"CRUCIBLE_SCALAR": scalar, "CRUCIBLE_HOPPER": 1, "STEPS": STEPS, "KIND": OPERANDS[scalar]}
    defined = "".join(f"#define {name} {value}\n" for name, value in given.items())
    return defined + SOURCE.replace("INSTRUCTIONS", instructions([], kept=WIDTHS))


@functools.cache
def kernels(scalar: int) -> sim.Kernel:
    exports = {f"kept{n}": f"kept<{n}>" for n in WIDTHS}
    return sim.Kernel(source(scalar), exports, include=[KERNELS], architecture="sm_90a")


@pytest.fixture(autouse=True)
def fresh():
    sim.reset()
    yield
    sim.configure(schedule=0)
    sim.reset()


def operand(rng: np.random.Generator, rows: int, scalar: int) -> tuple[np.ndarray, np.ndarray]:
    """Random numbers of 16 bits as they are stored, and their values."""
    x = rng.standard_normal((STEPS, rows, 16)).astype(np.float32)
    if scalar == 3:
        bits = (x.view(np.uint32) >> 16).astype(np.uint16)
        return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    halves = x.astype(np.float16)
    return halves.view(np.uint16), halves.astype(np.float64)


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("scalar", OPERANDS)
def test_a_product_with_a_in_registers(scalar, n, more):
    sim.configure(schedule=1)
    rng = np.random.default_rng(n + scalar)
    (a, left), (b, right) = operand(rng, 64, scalar), operand(rng, n, scalar)
    before = rng.standard_normal((64, n)).astype(np.float32)
    out = before.copy()
    kernels(scalar)(f"kept{n}", 1, 128, {"a": a.view(np.uint32), "b": b.view(np.uint32), "d": out, "more": more})
    assert sim.reports() == []
    products = np.einsum("smk,snk->mn", left, right)
    np.testing.assert_allclose(out, products + more * before, rtol=0, atol=1e-4)


def test_only_what_was_asked_for_is_written():
    assert "WgmmaKept" not in instructions([16], [8], [32])
    text = instructions([16], kept=[96])
    assert "struct Wgmma<16, " in text and "Wgmma<96, " not in text and "WgmmaKept<16, " not in text
    assert text.count("struct WgmmaKept<96, ") == 3 and "WgmmaKept<96, Operands::Tf32>" not in text


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")
@pytest.mark.parametrize("scalar", OPERANDS)
def test_it_compiles_for_the_chip(scalar, tmp_path):
    launched = "".join(
        f"template __global__ void kept<{n}>(const unsigned*, const uint4*, float*, int);\n" for n in WIDTHS
    )
    (tmp_path / "kept.cu").write_text(source(scalar) + launched)
    command = ["nvcc", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", f"-I{KERNELS}", "-c", "kept.cu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "serialized" not in said  # ptxas: products that wait for each other's registers
