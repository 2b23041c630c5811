// What NVIDIA's headers expect from a host compiler (GNU spellings): the runtime wheel ships without its `crt` folder.
// With a full toolkit its own file is found first (it lies beside the header that includes it) and this one is unused.
#ifndef __HOST_DEFINES_H__
#define __HOST_DEFINES_H__

#define __no_return__ __attribute__((noreturn))
#undef __forceinline__
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __inline_hint__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __maxnreg__(n)
#define __local_maxnreg__(n)
#define __thread__ __thread
#define __import__
#define __export__
#define __cdecl
#define __annotate__(a)
#define __location__(a)
#define __specialization_static
#define CUDARTAPI
#define CUDARTAPI_CDECL

// The qualifiers mean nothing to a host compiler; the simulator's prefix header gives them their meaning later.
#ifndef __host__
#define __host__
#endif
#ifndef __device__
#define __device__
#endif
#ifndef __global__
#define __global__
#endif
#ifndef __shared__
#define __shared__
#endif
#ifndef __constant__
#define __constant__
#endif
#ifndef __managed__
#define __managed__
#endif
#ifndef __grid_constant__
#define __grid_constant__
#endif
#ifndef __nv_pure__
#define __nv_pure__
#endif
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#ifndef __cluster_dims__
#define __cluster_dims__(...)
#endif
#ifndef __block_size__
#define __block_size__(...)
#endif
#define __CUDA_ARCH_HAS_FEATURE__(feature) __CUDA_ARCH_FEAT_##feature

#endif
