"""mma.sync, ldmatrix, stmatrix and movmatrix against numpy, and a GEMM made of them."""

import numpy as np
import pytest
import wrapper_cases as w

from crucible.sim import kernel as sim


@pytest.fixture(autouse=True)
def fresh():
    """Clear what an earlier test provoked: an error sticks, as on a chip."""
    sim.reset()
    yield
    sim.reset()


@pytest.mark.parametrize("form", w.MMA_FORMS, ids=lambda f: f.name)
def test_sums_are_those_of_the_chip(form):
    given, words = w.run(form.name)
    a, b, c = form.matrices(given)
    exact = c + np.einsum("bmk,bkn->bmn", a, b)
    got = form.accumulators(words)
    if form.accumulator == "s32":
        expected = np.clip(exact, -(2**31), 2**31 - 1) if form.suffix else exact.astype(np.uint32).view(np.int32)
        np.testing.assert_array_equal(got, expected.astype(np.int64).astype(np.int32))
    elif form.accumulator == "f16":
        assert (got == exact.astype(np.float16)).mean() > 0.999
    else:
        np.testing.assert_array_equal(got, form.chip_sum(a, b, c))
        largest = np.maximum(np.abs(c), np.abs(a[:, :, :, None] * b[:, None]).max(axis=2))
        assert np.all(np.abs(got - exact) <= 2.0**-21 * np.maximum(largest, np.abs(exact)))


def test_double_precision():
    given, words = w.run("mma_m8n8k4_f64")
    lanes = given.view(np.float64).reshape(-1, 32, 4)
    a = lanes[:, :, 0].reshape(-1, 8, 4)
    b = lanes[:, :, 1].reshape(-1, 8, 4).transpose(0, 2, 1)
    c = lanes[:, :, 2:].reshape(-1, 8, 8)
    np.testing.assert_allclose(words.view(np.float64).reshape(-1, 8, 8), a @ b + c, rtol=1e-13, atol=1e-13)


def tiles_of(words, step):
    """The four 8x8 tiles whose row r of tile i lies in the 16 bytes at index (8 i + r) * step mod 32."""
    rows = words.view(np.uint16).reshape(-1, 32, 8)
    return rows[:, [(lane * step) % 32 for lane in range(32)]].reshape(-1, 4, 8, 8)


@pytest.mark.parametrize(("count", "transposed"), w.MATRIX_FORMS)
def test_ldmatrix(count, transposed):
    given, words = w.run(w.matrix_name("ldmatrix", count, transposed))
    tiles = tiles_of(given, 7)
    tiles = tiles.transpose(0, 1, 3, 2) if transposed else tiles
    got = words.view(np.uint16).reshape(-1, 32, 4, 2)
    for tile in range(count):
        np.testing.assert_array_equal(got[:, :, tile].reshape(-1, 8, 8), tiles[:, tile])


@pytest.mark.parametrize(("count", "transposed"), w.MATRIX_FORMS)
def test_stmatrix(count, transposed):
    given, words = w.run(w.matrix_name("stmatrix", count, transposed))
    registers = given.view(np.uint16).reshape(-1, 32, 4, 2)
    tiles = tiles_of(words, 5)
    for tile in range(count):
        expected = registers[:, :, tile].reshape(-1, 8, 8)
        np.testing.assert_array_equal(tiles[:, tile], expected.transpose(0, 2, 1) if transposed else expected)


def test_movmatrix():
    given, words = w.run("movmatrix")
    tile = given.view(np.uint16).reshape(-1, 8, 8)
    np.testing.assert_array_equal(words.view(np.uint16).reshape(-1, 8, 8), tile.transpose(0, 2, 1))


def test_cp_async():
    given, words = w.run("cp_async")
    expected = given.copy()
    lanes = np.arange(32)
    expected[:, 128:192].reshape(-1, 32, 2)[:, lanes % 3 == 0] = 0
    expected[:, 128:192].reshape(-1, 32, 2)[:, lanes % 3 == 1, 1] = 0
    expected[:, 192:224][:, lanes % 4 == 0] = 7
    np.testing.assert_array_equal(words, expected)


GEMM = r"""
#include <cuda_fp16.h>
#include <stdint.h>
#define CP_ASYNC16(dst, src) \
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"((uint32_t)__cvta_generic_to_shared(dst)), "l"(src))
#define CP_COMMIT() asm volatile("cp.async.commit_group;\n" ::)
#define CP_WAIT(n) asm volatile("cp.async.wait_group %0;\n" ::"n"(n))

// C (M x N) = A (M x K) B^T (N x K): one warp computes 16 x 8, two stages of 16 in k through shared memory.
template <int VARIANT> __global__ void gemm(const __half* A, const __half* B, float* C, int N, int K) {
    extern __shared__ __align__(16) unsigned char memory[];
    __half (*a)[16][24] = reinterpret_cast<__half (*)[16][24]>(memory);                  // [2][16][24]
    __half (*b)[8][24] = reinterpret_cast<__half (*)[8][24]>(memory + 2 * 16 * 24 * 2);  // [2][8][24]
    const int lane = threadIdx.x, row = blockIdx.y * 16, column = blockIdx.x * 8;
    auto stage = [&](int s, int k) {
        CP_ASYNC16(&a[s][lane / 2][lane % 2 * 8], A + (row + lane / 2) * K + k + lane % 2 * 8);
        if (lane < 16) CP_ASYNC16(&b[s][lane / 2][lane % 2 * 8], B + (column + lane / 2) * K + k + lane % 2 * 8);
        CP_COMMIT();
    };
    float d[4] = {0, 0, 0, 0};
    stage(0, 0);
    for (int k = 0, s = 0; k < K; k += 16, s ^= 1) {
        if (k + 16 < K) stage(s ^ 1, k + 16);
        if (VARIANT == 1) CP_WAIT(1);                     // waits for one group too few at the end
        else if (VARIANT == 2) {}                         // waits for nothing
        else if (k + 16 < K) CP_WAIT(1);
        else CP_WAIT(0);
        __syncthreads();
        uint32_t ra[4], rb[2];
        uint32_t pa = (uint32_t)__cvta_generic_to_shared(&a[s][lane % 16][lane / 16 * 8]);
        uint32_t pb = (uint32_t)__cvta_generic_to_shared(&b[s][lane % 8][lane / 8 % 2 * 8]);
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                     : "=r"(ra[0]), "=r"(ra[1]), "=r"(ra[2]), "=r"(ra[3]) : "r"(pa));
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];\n" : "=r"(rb[0]), "=r"(rb[1]) : "r"(pb));
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
        __syncthreads();
    }
    float* c = C + (row + lane / 4) * N + column + lane % 4 * 2;
    c[0] = d[0]; c[1] = d[1]; c[8 * N] = d[2]; c[8 * N + 1] = d[3];
}
// The first warp fetches, the second reads: only the barrier makes that safe.
template <bool BARRIER> __global__ void hand_over(const uint32_t* in, uint32_t* out) {
    __shared__ __align__(16) uint32_t tile[128];
    const int lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
        CP_ASYNC16(&tile[4 * lane], in + 4 * lane);
        asm volatile("cp.async.wait_all;\n" ::: "memory");
    }
    if (BARRIER) __syncthreads();
    uint32_t r[4], p = (uint32_t)__cvta_generic_to_shared(&tile[4 * lane]);
    if (threadIdx.x >= 32) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(p));
        for (int i = 0; i < 4; ++i) out[4 * lane + i] = r[i];
    }
}
__global__ void misaligned_ldmatrix(uint32_t* out) {
    __shared__ __align__(16) uint32_t tile[160];
    for (int i = threadIdx.x; i < 160; i += 32) tile[i] = i;
    __syncthreads();
    uint32_t r, p = (uint32_t)__cvta_generic_to_shared(&tile[threadIdx.x % 8 * 5]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r) : "r"(p));
    out[threadIdx.x] = r;
}
__global__ void outside_ldmatrix(uint32_t* out) {
    extern __shared__ __align__(16) uint32_t tile[];
    tile[threadIdx.x] = threadIdx.x;
    __syncthreads();
    uint32_t r, p = (uint32_t)__cvta_generic_to_shared(tile) + (threadIdx.x % 8 + 1) * 16;
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r) : "r"(p));
    out[threadIdx.x] = r;
}
__global__ void generic_pointer(uint32_t* out) {
    __shared__ __align__(16) uint32_t tile[32];
    tile[threadIdx.x] = threadIdx.x;
    __syncthreads();
    uint32_t r;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(r) : "l"(&tile[threadIdx.x]));
    out[threadIdx.x] = r;
}
__global__ void half_a_warp(uint32_t* out) {
    float d[4] = {0, 0, 0, 0};
    uint32_t one = 0x3c003c00;
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%4}, {%4}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(one));
    out[threadIdx.x] = __float_as_uint(d[0]);
}
"""


@pytest.fixture(scope="module")
def kernels():
    exports = {f"gemm{i}": f"gemm<{i}>" for i in range(3)}
    exports |= {"hand_over": "hand_over<true>", "hand_over_race": "hand_over<false>"}
    exports |= {name: name for name in ("misaligned_ldmatrix", "outside_ldmatrix", "generic_pointer", "half_a_warp")}
    return sim.Kernel(GEMM, exports)


def run_gemm(kernels, variant):
    rng = np.random.default_rng(1)
    m, n, k = 32, 16, 64
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((m, k), (n, k)))
    c = np.zeros((m, n), np.float32)
    kernels(f"gemm{variant}", (n // 8, m // 16), 32, {"A": a, "B": b, "C": c, "N": n, "K": k}, smem=2 * 24 * 24 * 2)
    return c, a.astype(np.float64) @ b.astype(np.float64).T


def test_gemm(kernels):
    got, expected = run_gemm(kernels, 0)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", [1, 2])
def test_gemm_that_does_not_wait_for_its_copies(kernels, variant):
    """The data of a copy that nobody waited for is poison: a report, or NaN in the result."""
    try:
        got, _ = run_gemm(kernels, variant)
    except sim.SimulatorError as error:
        assert error.code == "uninitialised_read"
    else:
        assert np.isnan(got).any()


def test_copies_are_handed_to_another_warp_by_a_barrier_only(kernels):
    given = np.arange(128, dtype=np.uint32)
    kernels("hand_over", 1, 64, [given, np.zeros(128, np.uint32)])
    with pytest.raises(sim.SimulatorError) as caught:
        kernels("hand_over_race", 1, 64, [given, np.zeros(128, np.uint32)])
    assert caught.value.code == "race_shared"


@pytest.mark.parametrize(
    ("name", "block", "code"),
    [
        ("misaligned_ldmatrix", 32, "misaligned"),
        ("outside_ldmatrix", 32, "out_of_bounds"),
        ("generic_pointer", 32, "out_of_bounds"),
        ("half_a_warp", 16, "warp_divergence"),
    ],
)
def test_misuse_is_reported(kernels, name, block, code):
    with pytest.raises(sim.SimulatorError) as caught:
        kernels(name, 1, block, [np.zeros(32, np.uint32)], smem=128)
    assert caught.value.code == code
    source = GEMM.splitlines()[caught.value.report["line"] - 1]
    assert "asm volatile" in source
