// NVIDIA's cuda_fp8.h with its host bodies: the macros that promise a device compiler are hidden while it is read.
#pragma once
#pragma push_macro("__CUDACC__")
#pragma push_macro("__CUDA_ARCH__")
#pragma push_macro("__NVCC__")
#undef __CUDACC__
#undef __CUDA_ARCH__
#undef __NVCC__
#include_next <cuda_fp8.h>
#pragma pop_macro("__NVCC__")
#pragma pop_macro("__CUDA_ARCH__")
#pragma pop_macro("__CUDACC__")
