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
