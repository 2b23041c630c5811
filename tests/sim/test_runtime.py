"""Correct kernels: right results and no reports, whatever the order of threads and blocks."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from crucible.sim import kernel as sim

HERE = Path(__file__).parent / "kernels"
KERNELS = [
    "group_norm", "transpose", "histogram", "last_block_sum", "look_back_scan", "chained_blocks", "spin_lock",
    "grid_barrier", "warp_exchange", "producer_consumer", "bytes_and_halves", "same_value", "maxima", "votes",
    "early_exit", "vectors", "device_globals", "ragged_tile", "counts", "relay", "flat_walk",
    "swap_loops", "convolve", "announce", "shuffle_types",
]  # fmt: skip

rng = np.random.default_rng(0)


@pytest.fixture(scope="module")
def kernels():
    return sim.Kernel(HERE / "correct.cu", KERNELS)


@pytest.fixture(autouse=True, params=["ascending", "descending", "random"])
def schedule(request):
    order = ["ascending", "descending", "random"].index(request.param)
    sim.configure(schedule=order, seed=3)
    sim.reset()
    yield order
    assert sim.reports() == []
    sim.configure(schedule=0, seed=1)


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def test_group_norm(kernels):
    n, c, hw, g = 2, 32, 49, 4
    x, gamma, beta = floats(n, c, hw), floats(c), floats(c)
    y = sim.DeviceArray(x.shape, np.float32)
    args = {"x": x, "gamma": gamma, "beta": beta, "y": y, "C": c, "HW": hw, "G": g, "eps": 1e-5}
    kernels("group_norm", n * g, 256, args)
    grouped = x.reshape(n, g, -1).astype(np.float64)
    expected = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(grouped.var(-1, keepdims=True) + 1e-5)
    expected = expected.reshape(x.shape) * gamma[None, :, None] + beta[None, :, None]
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-4)
    assert y.unwritten() == 0


def test_transpose(kernels):
    x, y = floats(45, 70), np.zeros((70, 45), np.float32)
    kernels("transpose", (3, 2), (32, 8), [x, y, 45, 70])
    np.testing.assert_array_equal(y, x.T)


def test_histogram(kernels):
    x, counts = rng.integers(0, 64, 1000, dtype=np.int32), np.zeros(64, np.int32)
    kernels("histogram", 5, 96, [x, counts, 1000], smem=64 * 4)
    np.testing.assert_array_equal(counts, np.bincount(x, minlength=64))


def test_last_block(kernels):
    x, partial = floats(3000), sim.DeviceArray(7, np.float32)
    out, count = np.zeros(1, np.float32), np.zeros(1, np.uint32)
    for _ in range(2):
        kernels("last_block_sum", 7, 128, [x, partial, out, count, 3000])
        assert out[0] == pytest.approx(x.sum(), abs=1e-3)
        assert count[0] == 0


def test_look_back(kernels):
    x, y = rng.integers(0, 9, 600, dtype=np.int32), np.zeros(600, np.int32)
    blocks = 10
    zeros = [np.zeros(blocks, np.int32) for _ in range(2)]
    kernels("look_back_scan", blocks, 64, [x, y, *zeros, np.zeros(1, np.uint32), 600])
    np.testing.assert_array_equal(y, np.cumsum(x))


def test_chained_blocks(kernels):
    values, flags = np.zeros(20, np.int32), np.zeros(20, np.int32)
    kernels("chained_blocks", 20, 32, [values, flags])
    np.testing.assert_array_equal(values, np.arange(1, 21))


def test_spin_lock(kernels):
    lock, counter = np.zeros(1, np.int32), np.zeros(1, np.int32)
    kernels("spin_lock", 6, 96, [lock, counter])
    assert counter[0] == 18


def test_grid_barrier(kernels):
    x, y = np.abs(floats(300)), np.zeros(300, np.float32)
    kernels("grid_barrier", 5, 64, [x, sim.DeviceArray(5, np.float32), y, 300], cooperative=True)
    np.testing.assert_allclose(y, x / x.sum(), rtol=1e-4)


def test_warp_exchange(kernels):
    x, y = floats(64), np.zeros(64, np.float32)
    kernels("warp_exchange", 1, 64, [x, y])
    swapped = x.reshape(-1, 2)[:, ::-1].reshape(-1, 16)
    np.testing.assert_allclose(y, np.repeat(swapped.sum(1) + swapped[:, 0], 16), atol=1e-5)


def test_producer_consumer(kernels):
    x, y = floats(5, 64), np.zeros(5 * 64 + 32, np.float32)
    kernels("producer_consumer", 1, 160, [x, y, 5])
    np.testing.assert_array_equal(y[:320].reshape(5, 64), x[:, ::-1])


def test_announce(kernels):
    x, y = floats(7, 32), np.zeros((7, 32), np.float32)
    kernels("announce", 1, 64, [x, y, 7])
    np.testing.assert_array_equal(y, x[:, ::-1])


def test_shuffle_types(kernels):
    x, y, lane = rng.standard_normal(32), np.zeros(32), np.arange(32)
    kernels("shuffle_types", 1, 32, [x, y])
    expected = np.append(x[1:], x[31]) + (lane ^ 3) + np.where(lane >= 2, lane - 2, lane) + 7 + lane // 8 * 8 + 5 + 31
    np.testing.assert_allclose(y, expected)


def test_bytes_and_halves(kernels):
    a, b = rng.integers(0, 255, 203, dtype=np.uint8), np.zeros(203, np.uint8)
    h, g = floats(203).astype(np.float16), np.zeros(203, np.float16)
    kernels("bytes_and_halves", 1, 256, [a, b, h, g, 203])
    np.testing.assert_array_equal(b, a[::-1])
    np.testing.assert_array_equal(g, h[::-1] + h)


def test_same_value(kernels):
    flag, x = np.zeros(1, np.int32), np.full(100, 7, np.int32)
    kernels("same_value", 3, 32, [flag, x, 100])
    assert flag[0] == 1


def test_maxima(kernels):
    x = floats(500)
    best, best_int = np.full(1, -10, np.float32), np.full(1, -100000, np.int32)
    kernels("maxima", 5, 128, [x, best, best_int, 500])
    assert best[0] == x.max() and best_int[0] == int(x.max() * np.float32(1000))


def test_swap_loops(kernels):
    x, total, sums = floats(200), np.zeros(1), np.zeros(4, np.float16)
    kernels("swap_loops", 3, 96, [x, total, sums, 200])
    assert total[0] == pytest.approx(x.astype(np.float64).sum()) and list(sums) == [67, 67, 66, 200]


def test_votes(kernels):
    x, y = rng.integers(0, 5, 100, dtype=np.int32), np.zeros(100, np.int32)
    kernels("votes", 2, 64, [x, y, 100])
    for i in range(100):
        warp = np.arange(i // 32 * 32, min(100, i // 32 * 32 + 32))
        keep = x[warp] % 3 == 0
        expected = int(keep[: i % 32].sum()) + 100 * bool(keep.any()) + 1000 * (len(warp) == 32)
        expected += 10000 * int((x[warp] == x[i]).sum())
        expected += 1100000 if x[i] % 3 == 0 else 0
        assert y[i] == expected


def test_early_exit(kernels):
    x, y = floats(150), np.zeros(150, np.float32)
    kernels("early_exit", 2, 128, [x, y, 150])
    np.testing.assert_array_equal(y, 2 * x)


def test_vectors_and_constants(kernels):
    x, y = floats(300, 4), np.zeros((300, 4), np.float32)
    weights = (ctypes.c_float * 4).in_dll(kernels._lib, "weights")
    weights[:] = [1, 2, 3, 4]
    kernels("vectors", 3, 128, [x, y, 300])
    np.testing.assert_array_equal(y, x * np.array([1, 2, 3, 4], np.float32))


def test_constant_memory(kernels):
    x, y, weights = floats(9, 7), np.zeros((9, 7), np.float32), floats(3, 3)
    (ctypes.c_float * 9).in_dll(kernels._lib, "filter")[:] = weights.ravel().tolist()
    kernels("convolve", 1, 64, [x, y, 9, 7])
    padded = np.pad(x, 1)
    expected = sum(weights[i, j] * padded[i : i + 9, j : j + 7] for i in range(3) for j in range(3))
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_device_globals(kernels):
    x, y = floats(333), np.zeros(1, np.float32)
    for _ in range(2):
        kernels("device_globals", 4, 96, [x, y, 333])
        assert y[0] == pytest.approx(x.sum(), abs=1e-3)


def test_ragged_tile(kernels, schedule):
    x, y = floats(13, 32), sim.DeviceArray((13, 32), np.float32)
    kernels("ragged_tile", 2, (32, 8), [x, y, 13])
    np.testing.assert_allclose(y.numpy(), np.repeat(x.sum(1), 32).reshape(13, 32), rtol=1e-4, atol=1e-5)
    assert [s["code"] for s in sim.suspects()] == ["uninitialised_read"]  # noticed, and rightly not held against it


def test_counts(kernels):
    x, y = rng.integers(-1, 3, 96, dtype=np.int32), np.zeros(96, np.int32)
    kernels("counts", 1, 96, [x, y])
    assert set(y) == {int((x > 0).sum()) * 4 + 1}


def test_flat_walk(kernels):
    x, y = floats(128), np.zeros(32, np.float32)
    kernels("flat_walk", 1, 32, [x, y])
    np.testing.assert_allclose(y, np.full(32, (x * x[::-1]).sum()), rtol=1e-4)


def test_relay(kernels):
    y = np.zeros(4, np.int32)
    kernels("relay", 1, 128, [y])
    np.testing.assert_array_equal(y, np.arange(4))


def test_launch_from_host_code(kernels):
    x = floats(100)
    device_x, device_y = sim.DeviceArray.of(x), sim.DeviceArray(100, np.float32)
    error = ctypes.c_int(-1)
    launch = kernels._lib["_Z13launch_scaledPKfPfiPi"]
    launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    launch(device_x.pointer, device_y.pointer, 100, ctypes.addressof(error))
    assert error.value == 0
    np.testing.assert_array_equal(device_y.numpy(), 3 * x)
    entry = sim.launches()[-1]
    assert entry["kernel"] == "scaled<float, 64>" and entry["grid"] == [2, 1, 1] and entry["writes"]
    assert entry["file"].endswith("correct.cu")
    assert "scaled<float, 64><<<" in (HERE / "correct.cu").read_text().split("\n")[entry["line"] - 1]
