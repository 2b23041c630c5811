"""Schedules, sampling, and launches from several host threads."""

import threading

import numpy as np
import pytest

from crucible.sim import kernel as sim

SOURCE = r"""
__global__ void who_came(int* order, int* next) {
    order[atomicAdd(next, 1)] = blockIdx.x * blockDim.x + threadIdx.x;
}
__global__ void last_writer(int* y) {
    atomicExch(y, (int)(blockIdx.x * blockDim.x + threadIdx.x));
}
__global__ void mark(int* y, int width) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    y[i * width] = 1;
}
__global__ void wide_index(float* y, int rows, int width) {
    int row = blockIdx.x;
    int at = row * width + threadIdx.x;                     // overflows at full size
    if (row < rows) y[at] = 1.f;
}
__global__ void hash_then_write(unsigned* y) {
    int h = threadIdx.x + 1;
    for (int i = 0; i < 10; i++) h = h * 1103515245 + 12345;   // wraps on purpose
    y[threadIdx.x] = (unsigned)h;
}
__global__ void long_loop(float* y, int n) {
    float v = 0.f;
    for (int i = 0; i < n; i++) v += y[threadIdx.x + i % 2];
    if (threadIdx.x == 0) y[0] = v;
}
__global__ void max_of_unwritten(const float* x, float* y) {
    __shared__ float s[64];
    if (threadIdx.x < 60) s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    float best = s[0];
    for (int i = 1; i < 64; i++) best = fmaxf(best, s[i]);  // fmaxf drops a NaN
    y[threadIdx.x] = best;
}
"""


@pytest.fixture(scope="module")
def kernels():
    return sim.Kernel(
        SOURCE,
        ["who_came", "last_writer", "mark", "wide_index", "hash_then_write", "long_loop", "max_of_unwritten"],
        filename="schedule.cu",
    )


@pytest.fixture(autouse=True)
def clean():
    sim.reset()
    yield
    sim.configure(schedule=0, seed=1, sample_blocks=0, block_accesses=0, checked=True, kernel_seconds=20)
    sim.reset()


def order(kernels, **settings):
    sim.configure(**settings)
    out = np.zeros(60, np.int32)
    kernels("who_came", 3, 20, [out, np.zeros(1, np.int32)])
    return list(out)


def test_orders(kernels):
    assert order(kernels, schedule=0) == list(range(60))
    assert order(kernels, schedule=1) == list(range(59, -1, -1))
    shuffled = order(kernels, schedule=2, seed=5)
    assert sorted(shuffled) == list(range(60)) and shuffled not in (list(range(60)), list(range(59, -1, -1)))
    assert order(kernels, schedule=2, seed=5) == shuffled
    assert order(kernels, schedule=2, seed=6) != shuffled


def test_order_dependence_shows(kernels):
    results = set()
    for schedule in (0, 1):
        sim.configure(schedule=schedule)
        y = np.zeros(1, np.int32)
        kernels("last_writer", 2, 32, [y])
        results.add(int(y[0]))
    assert results == {0, 63}


def test_poison_differs_between_schedules(kernels):
    """Unwritten shared memory that max() hides as a NaN becomes visible as a large number under another schedule."""
    x = np.linspace(0, 1, 64, dtype=np.float32)
    results = []
    for schedule in (0, 1):
        sim.configure(schedule=schedule)
        y = np.zeros(64, np.float32)
        kernels("max_of_unwritten", 1, 64, [x, y])
        results.append(float(y[0]))
    assert results[0] <= 1.0 < results[1]
    assert sim.suspects() and sim.reports() == []


def test_sampled_blocks(kernels):
    sim.configure(sample_blocks=5, seed=2)
    y = np.zeros(100, np.int32)
    kernels("mark", 100, 1, [y, 1])
    assert y.sum() == 5 and y[0] == 1 and y[99] == 1


def test_full_size_index_arithmetic_on_lazy_memory(kernels):
    """2^31 elements and more: nothing is allocated but the pages that sampled blocks touch."""
    rows, width = 70000, 40000
    y = sim.DeviceArray((rows, width), np.float32)
    sim.configure(sample_blocks=4)
    with pytest.raises(sim.SimulatorError) as caught:
        kernels("wide_index", rows, 32, {"y": y, "rows": rows, "width": width})
    report = caught.value.report
    assert report["code"] == "index_overflow" and report["line"] == 14
    assert "does not fit" in report["message"] and "int" in report["message"]


def test_wrapping_on_purpose_is_no_overflow(kernels):
    kernels("hash_then_write", 1, 32, [np.zeros(32, np.uint32)])
    sim.configure(sample_blocks=1)
    kernels("hash_then_write", 4, 32, [np.zeros(32, np.uint32)])
    assert sim.reports() == []


def test_sampled_blocks_are_cut_off(kernels):
    sim.configure(sample_blocks=2, block_accesses=1000)
    y = np.zeros(64, np.float32)
    kernels("long_loop", 4, 32, [y, 1 << 30])
    assert sim.reports() == [] and sim.launches()[-1]["error"] is None


def test_unchecked(kernels):
    sim.configure(checked=False)
    before = sim.statistics()["accesses"]
    assert order(kernels, schedule=0) == list(range(60))
    assert sim.statistics()["accesses"] == before


def test_launches_from_other_threads(kernels):
    """Autograd runs backward passes on a thread of its own; static shared memory is per thread there."""
    x = np.linspace(0, 1, 64, dtype=np.float32)
    results, errors = [], []

    def work():
        try:
            for _ in range(5):
                results.append(order(kernels, schedule=0))
                y = np.zeros(64, np.float32)
                kernels("max_of_unwritten", 1, 64, [x, y])
        except Exception as error:  # shown by the assertion below
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors and all(r == list(range(60)) for r in results) and len(results) == 15
