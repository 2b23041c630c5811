"""What a chip refuses, the simulator refuses: at the next check, with the same error, and without running anything."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from crucible.sim import kernel as sim

SOURCE = r"""
__global__ void fill(float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 1.f;
}
__global__ void __launch_bounds__(64) bounded(float* y) { y[0] = 1.f; }
__global__ void dynamic(float* y, int n) {
    extern __shared__ float s[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) s[i] = 1.f;
    __syncthreads();
    y[threadIdx.x] = s[n - 1 - threadIdx.x];
}
__global__ void add(const float* a, const double* b, float* y, short k) {
    y[threadIdx.x] = a[threadIdx.x] + (float)b[0] + k;
}
template <typename T> __global__ void templated(T* y, T v) { y[threadIdx.x] = v; }

extern "C" int try_launch(float* y, int grid_y, int block, int smem) {
    fill<<<dim3(1, grid_y), block, smem>>>(y, 1);
    int peeked = cudaPeekAtLastError(), error = cudaGetLastError();
    return peeked == error && cudaGetLastError() == cudaSuccess ? error : -1;
}
extern "C" int try_bounded(float* y, int block) {
    bounded<<<1, block>>>(y);
    return cudaGetLastError();
}
extern "C" int try_dynamic(float* y, int bytes, int opt_in) {
    if (opt_in) {
        cudaError_t e = cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        if (e != cudaSuccess) { cudaGetLastError(); return -(int)e; }
    }
    dynamic<<<1, 32, bytes>>>(y, bytes / 4);
    return cudaGetLastError();
}
extern "C" int by_address(float* a, double* b, float* y) {
    short k = 3;
    void* args[] = {&a, &b, &y, &k};
    const void* f = (const void*)add;
    return cudaLaunchKernel(f, dim3(1), dim3(8), args, 0, nullptr);
}
extern "C" int by_template(float* y) {
    float v = 2.f;
    void* args[] = {&y, &v};
    return cudaLaunchKernel((void*)templated<float>, 1, 8, args);
}
extern "C" int by_config(float* y) {
    cudaLaunchConfig_t config = {};
    config.gridDim = 1;
    config.blockDim = 8;
    return cudaLaunchKernelEx(&config, templated<float>, y, 5.f);
}
extern "C" int config_refused(float* y) {
    cudaLaunchConfig_t config = {};
    config.gridDim = 1;
    config.blockDim = 2048;
    const cudaError_t refused = cudaLaunchKernelEx(&config, templated<float>, y, 5.f);
    return refused == cudaGetLastError() && cudaGetLastError() == cudaSuccess ? refused : -1;
}
extern "C" int cooperative(int blocks) {
    void* args[] = {nullptr};
    float* y = nullptr;
    float v = 0.f;
    void* both[] = {&y, &v};
    return cudaLaunchCooperativeKernel((void*)templated<float>, blocks, 1024, both, 0, nullptr);
}
__constant__ int table[4];
__global__ void look_up(int* y) { y[threadIdx.x] = table[threadIdx.x]; }
extern "C" int symbols(int* out) {
    int values[4] = {5, 6, 7, 8}, *device = nullptr, back[4];
    cudaMemcpyToSymbol(table, values, sizeof values);
    if (cudaMalloc(&device, sizeof values)) return -1;
    look_up<<<1, 4>>>(device);
    int error = cudaMemcpy(out, device, sizeof values, cudaMemcpyDeviceToHost);
    error |= cudaMemcpyFromSymbol(back, table, sizeof back);
    for (int i = 0; i < 4; i++) if (back[i] != values[i]) return -2;
    cudaFree(device);
    return error;
}
extern "C" int properties(int* out) {
    cudaDeviceProp p;
    int n, error = cudaGetDeviceProperties(&p, 0);
    cudaDeviceGetAttribute(&n, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
    out[0] = p.major, out[1] = p.multiProcessorCount, out[2] = (int)p.sharedMemPerBlockOptin, out[3] = n;
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&out[4], fill, 256, 0);
    int grid;
    cudaOccupancyMaxPotentialBlockSize(&grid, &out[5], fill, 0, 0);
    return error;
}
extern "C" const char* text_of(int e) { return cudaGetErrorString((cudaError_t)e); }
"""

INVALID_VALUE, INVALID_CONFIGURATION, TOO_LARGE = 1, 9, 720


@pytest.fixture(scope="module")
def lib():
    kernel = sim.Kernel(SOURCE, ["fill"], filename="limits.cu")
    lib = kernel._lib
    lib.kernel = kernel
    lib.text_of.restype = ctypes.c_char_p
    return lib


@pytest.fixture(autouse=True)
def clean():
    sim.configure(schedule=0, checked=True)
    sim.reset()
    yield
    assert sim.reports() == []
    sim.reset()


def pointer(array: sim.DeviceArray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.pointer)


@pytest.fixture
def y():
    return sim.DeviceArray.of(np.zeros(64, np.float32))


@pytest.mark.parametrize(
    "grid_y, block, smem, error",
    [
        (1, 32, 0, 0), (1, 1024, 0, 0), (1, 1025, 0, INVALID_CONFIGURATION), (1, 2048, 0, INVALID_CONFIGURATION),
        (1, 0, 0, INVALID_CONFIGURATION), (0, 32, 0, INVALID_CONFIGURATION), (65536, 32, 0, INVALID_CONFIGURATION),
        (1, 32, 48 * 1024, 0), (1, 32, 48 * 1024 + 1, INVALID_VALUE), (1, 32, 300 * 1024, INVALID_VALUE),
    ],
)  # fmt: skip
def test_launch_configuration(lib, y, grid_y, block, smem, error):
    assert lib.try_launch(pointer(y), grid_y, block, smem) == error
    entry = sim.launches()[-1]
    if error:
        assert entry["error"] == lib.text_of(error).decode() and entry["detail"] and not entry["ran"]
        assert entry["code"] == ("shared_memory_limit" if smem else "launch_error")
    else:
        assert entry["error"] is None and entry["ran"] and entry["writes"]
    assert (y.numpy()[0] == 1) == (error == 0)


def test_error_texts(lib):
    assert lib.text_of(INVALID_CONFIGURATION) == b"invalid configuration argument"
    assert lib.text_of(INVALID_VALUE) == b"invalid argument"
    assert lib.text_of(700) == b"an illegal memory access was encountered"


def test_launch_bounds(lib, y):
    assert lib.try_bounded(pointer(y), 64) == 0
    assert lib.try_bounded(pointer(y), 65) == INVALID_VALUE
    assert "__launch_bounds__(64)" in sim.launches()[-1]["detail"]


def test_dynamic_shared_opt_in(lib, y):
    assert lib.try_dynamic(pointer(y), 100 * 1024, 0) == INVALID_VALUE
    assert lib.try_dynamic(pointer(y), 300 * 1024, 1) == -INVALID_VALUE
    assert lib.try_dynamic(pointer(y), 227 * 1024, 1) == 0


def test_cooperative_launch_size(lib):
    assert lib.cooperative(132 * 2 + 1) == TOO_LARGE
    sim.reset()


def test_launches_by_address(lib, y):
    a, b = sim.DeviceArray.of(np.arange(8, dtype=np.float32)), sim.DeviceArray.of(np.array([0.5]))
    assert lib.by_address(pointer(a), pointer(b), pointer(y)) == 0
    np.testing.assert_array_equal(y.numpy()[:8], np.arange(8) + 3.5)
    assert sim.launches()[-1]["kernel"] == "add"
    assert lib.by_template(pointer(y)) == 0 and set(y.numpy()[:8]) == {2.0}
    assert lib.by_config(pointer(y)) == 0 and set(y.numpy()[:8]) == {5.0}
    assert lib.config_refused(pointer(y)) == lib.try_launch(pointer(y), 1, 2048, 0) > 0


def test_symbols(lib):
    out = (ctypes.c_int * 4)()
    assert lib.symbols(out) == 0 and list(out) == [5, 6, 7, 8]


def test_device_properties(lib):
    out = (ctypes.c_int * 6)()
    assert lib.properties(out) == 0
    assert list(out) == [9, 132, 227 * 1024, 227 * 1024, 8, 1024]


def test_freed_memory_is_given_back():
    before = sim.runtime().csim_bytes_in_use()
    for _ in range(50):
        sim.DeviceArray((1 << 20,), np.float32)
    assert sim.runtime().csim_bytes_in_use() == before


def test_written_bytes_are_tracked():
    rt = sim.runtime()
    a = sim.DeviceArray(100, np.uint8)
    assert a.unwritten() == 100
    rt.csim_mark_written(a.pointer + 10, 20)
    rt.csim_mark_written(a.pointer + 25, 10)
    assert a.unwritten() == 75 and rt.csim_first_uninitialised(a.pointer + 12, 80) == 23
    rt.csim_mark_written(a.pointer, 100)
    assert rt.csim_first_uninitialised(a.pointer, 100) == -1
    rt.csim_mark_uninitialised(a.pointer + 4, 3)
    assert a.unwritten() == 3 and rt.csim_first_uninitialised(a.pointer, 100) == 4


def test_kernel_writes_are_tracked(lib):
    y = sim.DeviceArray(64, np.float32)
    lib.kernel("fill", 1, 64, [y, 60])
    assert y.unwritten() == 16 and sim.runtime().csim_first_uninitialised(y.pointer, 256) == 240


def test_source_files_are_found():
    assert Path(sim.Kernel(SOURCE, ["fill"], filename="limits.cu").path).exists()
