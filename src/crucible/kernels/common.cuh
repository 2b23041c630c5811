// What every stage shares: the element type of the file, the type sums are kept in, and the width of an index.
//
// The including file is compiled once for each element type it meets, with
//   CRUCIBLE_SCALAR   0 float, 1 double, 2 __half, 3 __nv_bfloat16
//   CRUCIBLE_WIDE     1 when an index may pass 2^31
//   CRUCIBLE_HOPPER   1 for a chip with Hopper's matrix instructions (compute capability 9.0a)
#pragma once

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#ifndef CRUCIBLE_SCALAR
#define CRUCIBLE_SCALAR 0
#endif
#ifndef CRUCIBLE_WIDE
#define CRUCIBLE_WIDE 0
#endif
#ifndef CRUCIBLE_HOPPER
#define CRUCIBLE_HOPPER 0
#endif

#if CRUCIBLE_SCALAR == 2
#include <cuda_fp16.h>
#elif CRUCIBLE_SCALAR == 3
#include <cuda_bf16.h>
#endif

namespace crucible {

#if CRUCIBLE_SCALAR == 0
using scalar = float;
using accum = float;
#elif CRUCIBLE_SCALAR == 1
using scalar = double;
using accum = double;
#elif CRUCIBLE_SCALAR == 2
using scalar = __half;
using accum = float;
#else
using scalar = __nv_bfloat16;
using accum = float;
#endif

#if CRUCIBLE_WIDE
using Index = int64_t;
#else
using Index = int32_t;
#endif

// Kernels follow each other closely: on Hopper one is set up while the one before it on the stream ends. So each begins with
// follow(), which waits until all of that is done and seen, and is launched by
//   cudaLaunchKernelEx(After(blocks, threads, shared bytes, stream), kernel, arguments...)
__device__ __forceinline__ void follow() {
#if CRUCIBLE_HOPPER
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#ifndef __CUDACC_RTC__
struct After {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[3]{};
  // Blocks in clusters of so many, which a simulator does not have; or all of them there at a time, to wait for each other.
  After(dim3 blocks, unsigned threads, size_t shared, cudaStream_t stream, unsigned cluster = 1, bool together = false) {
    config.gridDim = blocks;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
#if CRUCIBLE_HOPPER && CUDART_VERSION >= 12030  // with which such launches can be captured in graphs
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
#endif
    if (cluster > 1) {
      attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
      attributes[config.numAttrs++].val.clusterDim = {cluster, 1, 1};
    }
    if (together) {
      attributes[config.numAttrs].id = cudaLaunchAttributeCooperative;
      attributes[config.numAttrs++].val.cooperative = 1;
    }
  }
  operator const cudaLaunchConfig_t*() {
    config.attrs = attributes;
    return &config;
  }
};
#endif

// An element of a tensor that this kernel only reads: such loads need not wait for stores before them.
template <class T>
__device__ __forceinline__ T read(const T& x) { return __ldg(&x); }
__device__ __forceinline__ bool read(const bool& x) { return __ldg(reinterpret_cast<const unsigned char*>(&x)) != 0; }
#if CRUCIBLE_SCALAR == 3  // before CUDA 12.2 there is no __ldg() of it for chips before 8.0
__device__ __forceinline__ __nv_bfloat16 read(const __nv_bfloat16& x) {
  return __nv_bfloat16(__nv_bfloat16_raw{__ldg(reinterpret_cast<const unsigned short*>(&x))});
}
#endif

// Asks for an element that is loaded later.
template <class T>
__device__ __forceinline__ void prefetch(const T* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

__device__ __forceinline__ bool inside(Index i, Index n) { return i >= 0 && i < n; }
__device__ __forceinline__ Index nearest(Index i, Index n) { return i < 0 ? 0 : i < n ? i : n - 1; }

// Elements as values of the type that arithmetic is done in.
template <class T>
__device__ __forceinline__ T to_accum(T x) { return x; }

#if CRUCIBLE_SCALAR == 2
__device__ __forceinline__ float to_accum(__half x) { return __half2float(x); }
__device__ __forceinline__ scalar to_scalar(accum x) { return __float2half_rn(x); }
#elif CRUCIBLE_SCALAR == 3
__device__ __forceinline__ float to_accum(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ scalar to_scalar(accum x) { return __float2bfloat16_rn(x); }
#else
__device__ __forceinline__ scalar to_scalar(accum x) { return x; }
#endif

}  // namespace crucible
