"""Cooperative groups and the pipeline functions."""

import numpy as np
import pytest
import wrapper_cases as w

from crucible.sim import kernel as sim


@pytest.fixture(autouse=True)
def fresh():
    sim.reset()
    yield
    sim.reset()


def test_groups():
    given, words = w.run("groups")
    blocks = len(given)
    v = given.astype(np.int64)
    out = words.reshape(blocks, 64, 24).transpose(2, 0, 1).astype(np.int64)
    t = np.arange(64)
    np.testing.assert_array_equal(out[0], np.broadcast_to(t + 64000, (blocks, 64)))
    np.testing.assert_array_equal(out[1], np.broadcast_to(t % 32 + 100 * (t // 32), (blocks, 64)))
    np.testing.assert_array_equal(out[2], np.broadcast_to(t % 4 + 100 * (t % 32 // 4) + 80000, (blocks, 64)))
    np.testing.assert_array_equal(out[3], v[:, t // 32 * 32 + 7])
    np.testing.assert_array_equal(out[4], v[:, np.where(t % 4 < 3, t + 1, t)])
    np.testing.assert_array_equal(out[5], v[:, np.where(t % 4 >= 2, t - 2, t)])
    np.testing.assert_array_equal(out[6], v[:, t ^ 3])
    odd = (v & 1).reshape(blocks, 16, 4)
    np.testing.assert_array_equal(out[7], np.repeat((odd << np.arange(4)).sum(axis=2), 4, axis=1))
    np.testing.assert_array_equal(out[8], np.repeat(odd.any(axis=2) + 2 * odd.all(axis=2), 4, axis=1))
    warps = v.reshape(blocks, 2, 32)
    np.testing.assert_array_equal(out[10], np.repeat(warps.sum(axis=2) & 0xFFFFFFFF, 32, axis=1))
    np.testing.assert_array_equal(out[11], np.repeat(v.reshape(blocks, 16, 4).min(axis=2), 4, axis=1))
    np.testing.assert_array_equal(out[13].reshape(blocks, 2, 32), warps.cumsum(axis=2) & 0xFFFFFFFF)
    four = v.reshape(blocks, 16, 4)
    np.testing.assert_array_equal(out[14].reshape(blocks, 16, 4), (four.cumsum(axis=2) - four) & 0xFFFFFFFF)
    for warp in range(2):
        for block in range(blocks):
            lanes = np.flatnonzero(warps[block, warp] & 2)
            here = out[:, block, 32 * warp : 32 * warp + 32]
            np.testing.assert_array_equal(here[15][lanes], np.arange(len(lanes)) + 100 * len(lanes))
            np.testing.assert_array_equal(here[16][lanes], warps[block, warp][lanes[0]])
            np.testing.assert_array_equal(here[17][lanes], (warps[block, warp][lanes] & 255).sum())
            for side in (0, 1):
                same = np.flatnonzero((warps[block, warp] >> 2 & 1) == side)
                np.testing.assert_array_equal(here[20][same], np.arange(len(same)) + 100 * len(same) + 10000 * side)
            for label in range(4):
                same = np.flatnonzero((warps[block, warp] & 3) == label)
                np.testing.assert_array_equal(here[19][same], np.arange(len(same)) + 100 * len(same))


def test_pipelines():
    given, words = w.run("pipelines")
    expected = given.copy()
    expected[:, :256] = given[:, 255::-1]
    zeroed = expected[:, 256:384].reshape(-1, 64, 2)
    zeroed[:, 1::2, 1] = 0
    np.testing.assert_array_equal(words, expected)


KERNELS = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cuda/pipeline>
namespace cg = cooperative_groups;
__global__ void grid_sum(const float* x, float* partial, float* out, int n) {
    cg::grid_group grid = cg::this_grid();
    cg::thread_block block = cg::this_thread_block();
    auto tile = cg::tiled_partition<32>(block);
    float sum = 0.0f;
    for (int i = grid.thread_rank(); i < n; i += grid.size()) sum += x[i];
    sum = cg::reduce(tile, sum, cg::plus<float>());
    if (tile.thread_rank() == 0) atomicAdd(&partial[blockIdx.x], sum);
    grid.sync();
    if (grid.thread_rank() == 0) {
        float total = 0.0f;
        for (int b = 0; b < gridDim.x; ++b) total += partial[b];
        out[0] = total;
    }
}
__global__ void old_style(int* out) {
    cg::thread_group block = cg::this_thread_block();
    cg::thread_group part = cg::tiled_partition(block, 8);
    part.sync();
    out[threadIdx.x] = part.thread_rank() + 100 * part.size();
}
template <bool WAIT> __global__ void fetch(const float* x, float* y) {
    __shared__ float tile[128];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, tile, x, sizeof(float) * 128);
    if (WAIT) cg::wait(block); else block.sync();
    y[threadIdx.x] = tile[127 - threadIdx.x];
}
__global__ void stages(const float* x, float* y) {
    __shared__ float tile[2][64];
    auto pipe = cuda::make_pipeline();
    for (int s = 0; s < 2; ++s) {
        pipe.producer_acquire();
        cuda::memcpy_async(&tile[s][threadIdx.x], &x[s * 64 + threadIdx.x], sizeof(float), pipe);
        pipe.producer_commit();
    }
    for (int s = 0; s < 2; ++s) {
        pipe.consumer_wait();
        __syncthreads();
        y[s * 64 + threadIdx.x] = tile[s][63 - threadIdx.x];
        pipe.consumer_release();
    }
}
// Blocks tell each other a word in turns, and wait for all of a turn's words at once.
__global__ void told(unsigned* words, unsigned* out, int missing) {
    const int blocks = gridDim.x;
    unsigned sum = 0;
    for (unsigned turn = 1; turn < 4; ++turn) {
        unsigned* const here = words + turn % 2 * blocks;
        if (threadIdx.x == 0 && int(blockIdx.x) != missing)
            asm volatile("st.relaxed.gpu.global.u32 [%0], %1;"
                         ::"l"(here + blockIdx.x), "r"(turn << 8 | blockIdx.x) : "memory");
        bool come;
        unsigned got[4];
        do {
            come = true;
            for (int b = 0; b < blocks; ++b)
                asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(got[b]) : "l"(here + b));
            for (int b = 0; b < blocks; ++b) come = come && got[b] >> 8 == turn;
        } while (!come);
        for (int b = 0; b < blocks; ++b) sum += got[b] & 255u;
        __syncthreads();
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
__global__ void clusters(int* out) { out[0] = cg::this_cluster().num_blocks(); }
"""


@pytest.fixture(scope="module")
def kernels():
    exports = {name: name for name in ("grid_sum", "old_style", "stages", "told", "clusters")}
    return sim.Kernel(KERNELS, exports | {"fetch": "fetch<true>", "fetch_early": "fetch<false>"})


def test_grid_sync(kernels):
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    out = np.zeros(1, np.float32)
    kernels("grid_sum", 4, 64, [x, np.zeros(4, np.float32), out, 1000], cooperative=True)
    np.testing.assert_allclose(out[0], x.astype(np.float64).sum(), rtol=1e-4, atol=1e-4)


def test_grid_sync_needs_a_cooperative_launch(kernels):
    with pytest.raises(sim.SimulatorError):
        kernels("grid_sum", 4, 64, [np.ones(8, np.float32), np.zeros(4, np.float32), np.zeros(1, np.float32), 8])


def test_blocks_that_poll_several_words(kernels):
    out = np.zeros(4 * 32, np.uint32)
    kernels("told", 4, 32, [np.zeros(8, np.uint32), out, -1], cooperative=True)
    np.testing.assert_array_equal(out, 3 * (0 + 1 + 2 + 3))


def test_a_word_that_never_comes(kernels):
    with pytest.raises(sim.SimulatorError, match="deadlock: a thread polls memory that no other thread will change"):
        kernels("told", 4, 32, [np.zeros(8, np.uint32), np.zeros(128, np.uint32), 2], cooperative=True)


def test_groups_without_a_type(kernels):
    out = np.zeros(64, np.int32)
    kernels("old_style", 1, 64, [out])
    np.testing.assert_array_equal(out, np.arange(64) % 8 + 800)


def test_group_copies(kernels):
    x, y = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    kernels("fetch", 1, 128, [x, y])
    np.testing.assert_array_equal(y, x[::-1])
    kernels("stages", 1, 64, [x, y])
    np.testing.assert_array_equal(y, np.concatenate([x[63::-1], x[:63:-1]]))


def test_a_group_copy_that_was_not_waited_for(kernels):
    x, y = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    try:
        kernels("fetch_early", 1, 128, [x, y])
    except sim.SimulatorError as error:
        assert error.code in ("uninitialised_read", "race_shared")
    else:
        assert np.isnan(y).any()


def test_clusters_are_named(kernels):
    with pytest.raises(sim.SimulatorError, match="clusters are not simulated"):
        kernels("clusters", 1, 1, [np.zeros(1, np.int32)])
