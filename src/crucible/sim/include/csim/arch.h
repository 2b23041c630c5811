// From here on the source is device code: say so to `#if __CUDA_ARCH__ >= 800` and `#ifdef __CUDACC__`.
// Apart from crucible_sim.h because it must follow every header that would take a device-only path under these macros.
#ifndef CSIM_ARCH_H
#define CSIM_ARCH_H
#ifndef CSIM_CUDA_ARCH
#define CSIM_CUDA_ARCH 900
#endif
#undef __CUDA_ARCH__
#define __CUDA_ARCH__ CSIM_CUDA_ARCH
#undef __CUDACC__
#define __CUDACC__ 1
#ifndef __NVCC__
#define __NVCC__ 1
#endif
#ifndef __CUDACC_VER_MAJOR__
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 9
#define __CUDACC_VER_BUILD__ 86
#endif
#endif
