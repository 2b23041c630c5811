"""nvcuda::wmma against numpy."""

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


SHAPES = {
    "wmma_16_16_16_half": ((16, 16, 16), np.float16, "row", "col"),
    "wmma_16_16_16_half_t": ((16, 16, 16), np.float16, "col", "row"),
    "wmma_32_8_16_half": ((32, 8, 16), np.float16, "row", "col"),
    "wmma_8_32_16_half": ((8, 32, 16), np.float16, "row", "col"),
    "wmma_16_16_16_bf16": ((16, 16, 16), "bf16", "row", "col"),
    "wmma_32_8_16_bf16": ((32, 8, 16), "bf16", "col", "row"),
    "wmma_16_16_16_s8": ((16, 16, 16), np.int8, "row", "col"),
}


def read(words, kind):
    if kind == "bf16":
        return (words.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return words.view(kind).astype(np.float64)


@pytest.mark.parametrize("name", SHAPES)
def test_product(name):
    (m, n, k), kind, a_order, b_order = SHAPES[name]
    given, words = w.run(name)
    size = 2 if kind == "bf16" else np.dtype(kind).itemsize
    a_words, b_words = m * k * size // 4, n * k * size // 4
    a = read(np.ascontiguousarray(given[:, :a_words]), kind)
    b = read(np.ascontiguousarray(given[:, a_words : a_words + b_words]), kind)
    a = a.reshape(-1, m, k) if a_order == "row" else a.reshape(-1, k, m).transpose(0, 2, 1)
    b = b.reshape(-1, k, n) if b_order == "row" else b.reshape(-1, n, k).transpose(0, 2, 1)
    start = np.ascontiguousarray(given[:, a_words + b_words :])
    if kind is np.int8:
        c = start.view(np.int32).reshape(-1, m, n).astype(np.int64)
        expected = (c + (a @ b).astype(np.int64)).astype(np.uint32).view(np.int32)
        np.testing.assert_array_equal(words.view(np.int32).reshape(-1, m, n), expected.reshape(-1, m, n))
    else:
        expected = start.view(np.float32).reshape(-1, m, n).astype(np.float64) + a @ b
        np.testing.assert_allclose(words.view(np.float32).reshape(-1, m, n), expected, rtol=2e-7, atol=1e-6)


def test_half_accumulator():
    given, words = w.run("wmma_16_16_16_half_half")
    a, b, c = given.view(np.float16).reshape(-1, 3, 16, 16).astype(np.float64).transpose(1, 0, 2, 3)
    expected = (c + a @ b).astype(np.float16)
    assert (words.view(np.float16).reshape(-1, 16, 16) == expected).mean() > 0.999


def test_tf32_rounds_its_operands():
    given, words = w.run("wmma_16_16_8_tf32")
    rounded = ((given[:, :256] + 0x1000) & 0xFFFFE000).astype(np.uint32).view(np.float32).astype(np.float64)
    a, b = rounded[:, :128].reshape(-1, 16, 8), rounded[:, 128:].reshape(-1, 16, 8).transpose(0, 2, 1)
    c = np.ascontiguousarray(given[:, 256:]).view(np.float32).reshape(-1, 16, 16).transpose(0, 2, 1)
    got = words.view(np.float32).reshape(-1, 16, 16).transpose(0, 2, 1)
    np.testing.assert_allclose(got, c + a @ b, rtol=2e-7, atol=1e-6)


MISUSE = r"""
#include <mma.h>
using namespace nvcuda;
__global__ void load(const __half* a, float* out, int ldm) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> f;
    wmma::load_matrix_sync(f, a, ldm);
    out[threadIdx.x] = __half2float(f.x[0]);
}
__global__ void shared_tile(const __half* a, const __half* b, float* out) {
    __shared__ __align__(32) __half tile[2][256];
    for (int i = threadIdx.x; i < 256; i += 32) { tile[0][i] = a[i]; tile[1][i] = b[i]; }
    __syncwarp();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
    wmma::fill_fragment(fc, 1.0f);
    wmma::load_matrix_sync(fa, tile[0], 16);
    wmma::load_matrix_sync(fb, tile[1], 16);
    wmma::mma_sync(fc, fa, fb, fc);
    for (int i = 0; i < fc.num_elements; ++i) fc.x[i] *= 2.0f;
    wmma::store_matrix_sync(out, fc, 16, wmma::mem_row_major);
}
"""


@pytest.fixture(scope="module")
def kernels():
    return sim.Kernel(MISUSE, ["load", "shared_tile"])


def test_through_shared_memory(kernels):
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal((16, 16)).astype(np.float16) for _ in range(2))
    out = sim.DeviceArray((16, 16), np.float32)
    kernels("shared_tile", 1, 32, [a, b, out])
    expected = 2 * (1 + a.astype(np.float64) @ b.astype(np.float64))
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6, atol=1e-6)
    assert out.unwritten() == 0


@pytest.mark.parametrize(("ldm", "code"), [(16, None), (17, "misaligned"), (24, "out_of_bounds")])
def test_bad_loads_are_reported(kernels, ldm, code):
    args = {"a": np.zeros((16, 16), np.float16), "out": np.zeros(32, np.float32), "ldm": ldm}
    if code is None:
        kernels("load", 1, 32, args)
    else:
        with pytest.raises(sim.SimulatorError) as caught:
            kernels("load", 1, 32, args)
        assert caught.value.code == code
