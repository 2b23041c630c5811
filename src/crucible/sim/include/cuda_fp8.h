// NVIDIA's 8-bit floats, with the bodies it has for a host compiler (kernels' macros would select PTX).
#pragma once
#pragma push_macro("__CUDA_ARCH__")
#pragma push_macro("__CUDACC__")
#undef __CUDA_ARCH__
#undef __CUDACC__
#include_next <cuda_fp8.h>
#pragma pop_macro("__CUDACC__")
#pragma pop_macro("__CUDA_ARCH__")
