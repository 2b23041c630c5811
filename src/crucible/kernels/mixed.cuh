// Tensors of other floating types than the file's own, where a Model has several.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common.cuh"

namespace crucible {

// An element as a value of the type that arithmetic is done in.
__device__ __forceinline__ accum widened(float x) { return x; }
__device__ __forceinline__ accum widened(double x) { return static_cast<accum>(x); }
__device__ __forceinline__ accum widened(__half x) { return __half2float(x); }
__device__ __forceinline__ accum widened(__nv_bfloat16 x) { return __bfloat162float(x); }

#if CRUCIBLE_SCALAR != 3  // common.cuh has it there, and says why
__device__ __forceinline__ __nv_bfloat16 read(const __nv_bfloat16& x) {
  return __nv_bfloat16(__nv_bfloat16_raw{__ldg(reinterpret_cast<const unsigned short*>(&x))});
}
#endif

// And back, rounded to nearest even.
__device__ __forceinline__ float to_float32(accum x) { return static_cast<float>(x); }
__device__ __forceinline__ double to_float64(accum x) { return x; }
__device__ __forceinline__ __half to_float16(float x) { return __float2half_rn(x); }
__device__ __forceinline__ __half to_float16(double x) { return __double2half(x); }
__device__ __forceinline__ __nv_bfloat16 to_bfloat16(float x) { return __float2bfloat16_rn(x); }
__device__ __forceinline__ __nv_bfloat16 to_bfloat16(double x) { return __double2bfloat16(x); }

// What a change of type leaves of a value.
__device__ __forceinline__ accum f_as_float32(accum x) { return to_float32(x); }
__device__ __forceinline__ accum f_as_float16(accum x) { return widened(to_float16(x)); }
__device__ __forceinline__ accum f_as_bfloat16(accum x) { return widened(to_bfloat16(x)); }

}  // namespace crucible
