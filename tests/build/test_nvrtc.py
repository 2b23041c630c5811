"""Compiling for every architecture: NVRTC on real sources, simple, templated, with tensor cores, with accessors."""

from __future__ import annotations

import pytest

from crucible.build.nvrtc import ARCHITECTURES, ArchResult, NotFound, compile_all, load

try:
    library = load()
except NotFound:  # pragma: no cover
    pytest.skip("no NVRTC on this machine", allow_module_level=True)

pytestmark = pytest.mark.quick

OLD = [a for a in ("sm_70", "sm_75") if int(a[3:]) in library.architectures()]


def by_arch(results: list[ArchResult]) -> dict[str, ArchResult]:
    return {r.arch: r for r in results}


def test_a_simple_extension_compiles_everywhere() -> None:
    source = """#include <torch/extension.h>
__global__ void add(const float* a, float* b, int64_t n) {
    int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
    if (i < n) b[i] += std::max(a[i], -std::numeric_limits<float>::infinity());
}
torch::Tensor go(torch::Tensor a) { add<<<1, 1>>>(a.data_ptr<float>(), a.data_ptr<float>(), 1); return a; }
"""
    results = compile_all(source)
    assert [r.arch for r in results] == list(ARCHITECTURES)
    for result in results:
        assert result.ok or result.skipped, result
    assert all(r.ptx_bytes > 100 and r.message == "" for r in results if r.ok)


def test_an_error_is_at_the_users_line() -> None:
    source = "#include <torch/extension.h>\n\n__global__ void k(float* x) {\n    x[0] = missing_name;\n}\n"
    result = compile_all(source, ["sm_80"], file="new.py", first_line=40)[0]
    assert result.state == "failed"
    assert (result.file, result.line) == ("new.py", 43)
    assert "missing_name" in result.message


def test_an_error_in_a_template_shows_only_when_instantiated() -> None:
    kernel = "template <typename T> __global__ void k(T* x) {\n    x[0] = x->nothing;\n}\n"
    host = "void go(float* x) {\n    k<float><<<1, 1>>>(x);\n}\n"
    result = compile_all(kernel + host, ["sm_80"], file="new.py")[0]
    assert result.state == "failed" and result.line == 2
    unused = "template <int N> __global__ void k(float (&x)[N]) {}\n"
    result = compile_all(unused, ["sm_80"])[0]
    assert result.state == "skipped" and "template arguments" in result.message  # nothing was compiled
    result = compile_all(unused + "__global__ void plain() {}\n", ["sm_80"])[0]
    assert result.ok and result.notes == ["parsed, not instantiated: k"] and result.kernels == 1


def test_instances_that_the_host_compiler_deduces() -> None:
    """The functor's type stands nowhere beside the kernel's name; and which branch is built depends on a macro."""
    source = """#include <cuda_runtime.h>
template <int N, class F> __global__ void k(F f, float* x) { x[threadIdx.x] = f(x[N]); }
template <class F> __global__ void other(F f) { f.nothing(); }
struct Doubled { __device__ float operator()(float v) const { return 2 * v; } };
ODD
template <int N, class F> cudaError_t launch(F f, float* x, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1), config.blockDim = dim3(32), config.stream = stream;
  return cudaLaunchKernelEx(&config, k<N, F>, f, x);
}
void go(float* x, cudaStream_t stream) {
#if WRONG
  launch<3>(Odd(), x, stream);
#else
  launch<3>(Doubled(), x, stream);
  launch<5>(Doubled(), x, stream);
#endif
}
"""
    source = source.replace("ODD\n", ODD + "\n")
    result = compile_all(source, ["sm_80"], file="new.py")[0]
    assert result.ok and result.kernels == 2 and result.notes == [], result
    result = compile_all(source, ["sm_80"], file="new.py", flags=["-DWRONG=1"])[0]
    assert result.state == "failed" and "class type" in result.message, result


# Wrong for a GPU alone: the host compiler must get through it to say what is launched.
ODD = """struct Odd {
  template <class T>
  __device__ float operator()(T v) const {
#ifdef __CUDACC_RTC__
    return v.nothing;
#endif
    return v;
  }
};"""


def test_dispatched_types_are_instantiated() -> None:
    source = """
template <typename scalar_t> __global__ void k(scalar_t* x) {
    using acc_t = at::acc_type<scalar_t, true>;
    acc_t sum = static_cast<acc_t>(x[0]) * acc_t(2);
    static_assert(sizeof(acc_t) >= 4, "accumulates in float or wider");
    x[1] = static_cast<scalar_t>(sum > acc_t(0) ? sum : acc_t(0));
    if (x[1] > x[0]) x[0] = x[1] + x[0];
    gpuAtomicAdd(x, x[1]);
}
void go(torch::Tensor x) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::ScalarType::Half, at::ScalarType::BFloat16, x.scalar_type(), "k", [&] {
        k<scalar_t><<<1, 1>>>(x.data_ptr<scalar_t>());
    });
}
"""
    for result in compile_all(source, [*OLD, "sm_80", "sm_90a"]):
        assert result.ok, result


MMA = """
__device__ void mma(float* d, const unsigned* a, const unsigned* b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__global__ void k(float* o, const unsigned* a) {
    float d[4] = {0, 0, 0, 0};
    mma(d, a, a + 4);
    o[threadIdx.x] = d[0] + d[3];
}
"""


def test_tensor_cores_of_a_later_generation() -> None:
    results = by_arch(compile_all(MMA, [*OLD, "sm_80", "sm_120"], file="new.py", first_line=10))
    assert results["sm_80"].ok and results["sm_120"].ok
    for arch in OLD:
        assert results[arch].state == "failed"
        assert "requires .target sm_80 or higher" in results[arch].message
        assert results[arch].line in (12, 13, 14, 15), "a line of the asm statement"


def test_wgmma_is_for_one_generation_only() -> None:
    source = '__global__ void k() { asm volatile("wgmma.fence.sync.aligned;"); }\n'
    results = by_arch(compile_all(source, ["sm_80", "sm_90a", "sm_100"]))
    assert {a: r.state for a, r in results.items()} == {"sm_80": "failed", "sm_90a": "ok", "sm_100": "failed"}
    assert results["sm_80"].line == 1 and "wgmma" in results["sm_80"].message


def test_wmma_and_cooperative_groups() -> None:
    source = """
#include <mma.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
using namespace nvcuda;
namespace cg = cooperative_groups;
__global__ void k(float* o, const __half* a) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
    wmma::fill_fragment(fc, 0.0f);
    wmma::load_matrix_sync(fa, a, 16);
    wmma::load_matrix_sync(fb, a, 16);
    wmma::mma_sync(fc, fa, fb, fc);
    for (int i = 0; i < fc.num_elements; ++i) fc.x[i] *= 2.0f;
    wmma::store_matrix_sync(o, fc, 16, wmma::mem_row_major);
    auto tile = cg::tiled_partition<32>(cg::this_thread_block());
    o[0] = cg::reduce(tile, o[tile.thread_rank()], cg::plus<float>());
    cg::this_grid().sync();
}
"""
    for result in compile_all(source, [*OLD, "sm_80", "sm_90a"]):
        assert result.ok, result


def test_cub_primitives() -> None:
    source = """
#include <cub/block/block_reduce.cuh>
#include <cub/cub.cuh>
template <int N> __global__ void k(float* x) {
    using Reduce = cub::BlockReduce<float, N>;
    using Scan = cub::BlockScan<int, N>;
    __shared__ typename Reduce::TempStorage one;
    __shared__ typename Scan::TempStorage two;
    float sum = Reduce(one).Sum(x[threadIdx.x]);
    int before;
    Scan(two).ExclusiveSum(threadIdx.x, before);
    if (threadIdx.x == 0) x[before] = Reduce(one).Reduce(sum, cub::Max());
}
void go(float* x) { k<128><<<1, 128>>>(x); }
"""
    assert compile_all(source, ["sm_80"])[0].ok
    unknown = compile_all(source + "__global__ void r() { cub::BlockRadixSort<int, 64, 4> s; }\n", ["sm_80"])[0]
    assert unknown.state == "skipped" and "could not be tried" in unknown.message


def test_packed_accessors() -> None:
    source = """
template <typename scalar_t>
__global__ void k(const torch::PackedTensorAccessor32<scalar_t, 4, torch::RestrictPtrTraits> x,
                  torch::PackedTensorAccessor64<scalar_t, 2> y, at::PackedTensorAccessor32<int64_t, 1> z) {
    for (int i = threadIdx.x; i < x.size(0); i += blockDim.x) y[i][0] = x[i][1][2][3] * scalar_t(z[0]) + x.stride(1);
}
void go(torch::Tensor x) { AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "k", [&] { k<scalar_t><<<1, 1>>>(a, b, c); }); }
"""
    for result in compile_all(source, [*OLD, "sm_90a"]):
        assert result.ok, result


def test_torch_switches_half_operators_off_as_its_own_builds_do() -> None:
    source = "__global__ void k(__half* x) { x[0] = x[0] + x[1]; }\n"
    assert compile_all(source, ["sm_80"])[0].state == "failed"
    flags = ["-O3", "-U__CUDA_NO_HALF_OPERATORS__", "--use_fast_math"]
    assert compile_all(source, ["sm_80"], flags=flags)[0].ok


def test_too_much_static_shared_memory_names_the_kernel() -> None:
    body = "__shared__ float s[20000]; s[threadIdx.x] = o[0]; __syncthreads(); o[1] = s[9];"
    source = "\n__global__ void greedy(float* o) { " + body + " }\n"
    result = compile_all(source, ["sm_80"], first_line=5)[0]
    assert result.state == "failed" and "shared data" in result.message
    assert "greedy" in result.message and result.line == 6


def test_what_cannot_be_tried_is_said() -> None:
    assert "no kernel" in compile_all("int x = 1;\n", ["sm_80"])[0].message
    missing = compile_all('#include "cutlass/gemm/gemm.h"\n__global__ void k() {}\n', ["sm_80"])[0]
    assert missing.state == "skipped" and "cutlass/gemm/gemm.h" in missing.message
    ancient = compile_all("__global__ void k() {}\n", ["sm_35"])[0]
    assert ancient.state == "skipped" and "sm_35" in ancient.message
