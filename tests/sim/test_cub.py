"""cub's block, warp and device primitives against numpy, and what is said about the rest of cub."""

import numpy as np
import pytest
import wrapper_cases as w

from crucible.build import BuildError
from crucible.sim import kernel as sim


@pytest.fixture(autouse=True)
def fresh():
    sim.reset()
    yield
    sim.reset()


def test_block_primitives():
    given, words = w.run("cub_block")
    values = (given & 0xFFFF).astype(np.int64) - 0x8000
    out = words.reshape(-1, 4, 512)
    first = out[:, 2].view(np.int32).reshape(-1, 4, 128)
    own = values.reshape(-1, 128, 4)
    np.testing.assert_array_equal(first[:, 0], np.repeat(values.sum(axis=1)[:, None], 128, axis=1))
    np.testing.assert_array_equal(first[:, 1, 0], own[:, :77, 0].sum(axis=1))
    np.testing.assert_array_equal(first[:, 1, 1:], np.maximum.accumulate(own[:, :, 2], axis=1)[:, 1:])
    np.testing.assert_array_equal(first[:, 2, 0], own[:, :, 1].max(axis=1))
    scans = own[:, :, 3].reshape(-1, 4, 32).cumsum(axis=2).reshape(-1, 128)
    np.testing.assert_array_equal(first[:, 2, 1:], scans[:, 1:])
    np.testing.assert_array_equal(first[:, 3, ::32], own[:, :, 3].reshape(-1, 4, 32).sum(axis=2))
    np.testing.assert_array_equal(out[:, 1].view(np.int32), values.cumsum(axis=1) - values)
    keys = (given & 0xFF).astype(np.int64)
    order = np.argsort(keys >> 2, axis=1, kind="stable")
    np.testing.assert_array_equal(out[:, 3], order)
    blocked = np.take_along_axis(keys, order, axis=1)
    striped = blocked.reshape(-1, 4, 128).transpose(0, 2, 1).reshape(-1, 512)  # thread t holds items t, t + 128, ...
    np.testing.assert_array_equal(out[:, 0], striped)


KERNELS = r"""
#include <cub/cub.cuh>
struct Prefix {
    float running;
    __device__ float operator()(float aggregate) { float old = running; running += aggregate; return old; }
};
// A tiled scan of a long row with a running prefix, an argmax, a maximum over a ragged block of 3 x 40 threads.
__global__ void row_scan(const float* x, float* y, int n) {
    using Scan = cub::BlockScan<float, 64>;
    __shared__ Scan::TempStorage temp;
    Prefix prefix{0.0f};
    for (int base = 0; base < n; base += 64) {
        float v = base + threadIdx.x < n ? x[base + threadIdx.x] : 0.0f, sum;
        Scan(temp).InclusiveSum(v, sum, prefix);
        __syncthreads();
        if (base + threadIdx.x < n) y[base + threadIdx.x] = sum;
    }
}
__global__ void reductions(const float* x, float* out, int* where) {
    using Pair = cub::KeyValuePair<int, float>;
    using Arg = cub::BlockReduce<Pair, 40, cub::BLOCK_REDUCE_WARP_REDUCTIONS, 3>;
    using Max = cub::BlockReduce<float, 40, cub::BLOCK_REDUCE_RAKING, 3>;
    __shared__ union { Arg::TempStorage arg; Max::TempStorage max; } temp;
    int t = threadIdx.y * 40 + threadIdx.x;
    Pair best = Arg(temp.arg).Reduce(Pair(t, x[t]), cub::ArgMax());
    __syncthreads();
    float largest = Max(temp.max).Reduce(x[t], cub::Max());
    if (t == 0) { out[0] = largest; out[1] = best.value; where[0] = best.key; }
}
__global__ void reuse_without_barrier(const float* x, float* out) {
    using Reduce = cub::BlockReduce<float, 128>;
    __shared__ Reduce::TempStorage temp;
    float a = Reduce(temp).Sum(x[threadIdx.x]);
    float b = Reduce(temp).Sum(x[threadIdx.x] * 2.0f);
    if (threadIdx.x == 0) out[0] = a + b;
}
__global__ void segments(const int* x, const int* flags, int* out) {
    using Warp = cub::WarpReduce<int>;
    __shared__ Warp::TempStorage temp;
    out[threadIdx.x] = Warp(temp).TailSegmentedSum(x[threadIdx.x], flags[threadIdx.x]);
    out[32 + threadIdx.x] = Warp(temp).HeadSegmentedSum(x[threadIdx.x], flags[threadIdx.x]);
    using Eight = cub::WarpReduce<int, 8>;
    __shared__ Eight::TempStorage small[4];
    out[64 + threadIdx.x] = Eight(small[threadIdx.x / 8]).Sum(x[threadIdx.x]);
}
extern "C" int device_wide(const float* x, float* sum, float* scan, float* sorted, int* order, const int* ids, int n) {
    char temp; size_t bytes = 0;
    if (cub::DeviceReduce::Sum(nullptr, bytes, x, sum, n) != cudaSuccess || bytes == 0) return 1;
    cub::DeviceReduce::Sum(&temp, bytes, x, sum, n);
    cub::DeviceReduce::Max(&temp, bytes, x, sum + 1, n);
    cub::DeviceScan::ExclusiveSum(&temp, bytes, x, scan, n);
    cub::DeviceRadixSort::SortPairsDescending(&temp, bytes, x, sorted, ids, order, n);
    return (int)cudaGetLastError();
}
"""


@pytest.fixture(scope="module")
def kernels():
    return sim.Kernel(KERNELS, ["row_scan", "reductions", "reuse_without_barrier", "segments"])


def test_scan_with_a_running_prefix(kernels):
    x = np.random.default_rng(0).standard_normal(200).astype(np.float32)
    y = np.zeros(200, np.float32)
    kernels("row_scan", 1, 64, [x, y, 200])
    np.testing.assert_allclose(y, np.cumsum(x.astype(np.float64)), rtol=1e-5, atol=1e-5)


def test_reductions_of_a_ragged_block(kernels):
    x = np.random.default_rng(1).standard_normal(120).astype(np.float32)
    out, where = np.zeros(2, np.float32), np.zeros(1, np.int32)
    kernels("reductions", 1, (40, 3), [x, out, where])
    assert out[0] == out[1] == x.max() and where[0] == x.argmax()


def test_storage_reused_without_a_barrier_is_a_race(kernels):
    with pytest.raises(sim.SimulatorError) as caught:
        kernels("reuse_without_barrier", 1, 128, [np.ones(128, np.float32), np.zeros(1, np.float32)])
    assert caught.value.code == "race_shared"
    assert "Reduce(temp).Sum" in KERNELS.splitlines()[caught.value.report["line"] - 1]


def test_segments_and_small_warps(kernels):
    rng = np.random.default_rng(2)
    x, flags = rng.integers(0, 100, 32, dtype=np.int32), (rng.random(32) < 0.3).astype(np.int32)
    flags[0] = 1
    out = np.zeros(96, np.int32)
    kernels("segments", 1, 32, [x, flags, out])
    heads = np.flatnonzero(flags)
    for begin, end in zip(heads, [*heads[1:], 32], strict=True):
        assert out[32 + begin] == x[begin:end].sum()
    begins = [0, *(heads[:-1] + 1)]
    for begin, end in zip(begins, heads + 1, strict=True):
        assert out[begin] == x[begin:end].sum()
    np.testing.assert_array_equal(out[64::8], x.reshape(4, 8).sum(axis=1))


def test_device_wide(kernels):
    import ctypes

    rng = np.random.default_rng(3)
    n = 300
    x = sim.DeviceArray.of(rng.standard_normal(n).astype(np.float32))
    ids = sim.DeviceArray.of(np.arange(n, dtype=np.int32))
    sums, scan, ordered = (sim.DeviceArray(shape, np.float32) for shape in (2, n, n))
    order = sim.DeviceArray(n, np.int32)
    library = ctypes.CDLL(str(kernels.path))
    pointers = [ctypes.c_void_p(a.pointer) for a in (x, sums, scan, ordered, order, ids)]
    assert library.device_wide(*pointers, n) == 0
    values = x.numpy()
    np.testing.assert_allclose(sums.numpy(), [values.astype(np.float64).sum(), values.max()], rtol=1e-5)
    np.testing.assert_allclose(scan.numpy(), np.cumsum(values.astype(np.float64)) - values, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(order.numpy(), np.argsort(-values, kind="stable"))
    np.testing.assert_array_equal(ordered.numpy(), np.sort(values)[::-1])
    assert [launch["kernel"] for launch in sim.launches()][:1] == ["cub::DeviceReduce"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "#include <cub/cub.cuh>\n__global__ void k(int* p) { cub::BlockHistogram<int, 32, 4, 8> h; }",
            "cub::BlockHistogram is not simulated",
        ),
        (
            "#include <cub/cub.cuh>\nvoid f() { cub::DeviceSelect::Flagged(); }\n__global__ void k(int* p) {}",
            "DeviceSelect_is_not_simulated",
        ),
        ("#include <thrust/device_vector.h>\n__global__ void k(int* p) {}", "Thrust .* is not simulated"),
        ("#include <cublas_v2.h>\n__global__ void k(int* p) {}", "cuBLAS .* is not simulated"),
    ],
)
def test_what_is_left_out_is_named(text, message):
    with pytest.raises(BuildError) as caught:
        sim.Kernel(text, ["k"])
    import re

    assert re.search(message, str(caught.value) + caught.value.log)
