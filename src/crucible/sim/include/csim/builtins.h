// CUDA's qualifiers and built-in variables, as g++ can take them.
#ifndef CSIM_BUILTINS_H
#define CSIM_BUILTINS_H
#include <vector_types.h>

#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __shared__
#undef __managed__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __align__
#undef __grid_constant__
#undef __cluster_dims__
#undef __maxnreg__
#undef __restrict__

#define __global__
#define __device__
#define __host__
#define __constant__  // empty rather than static: `static __constant__` and `extern __constant__` must stay legal
#define __managed__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __maxnreg__(...)
#define __align__(n) __attribute__((aligned(n)))  // the GNU spelling may stand anywhere among the specifiers
#define __shared__ thread_local                   // at block scope implicitly static: one copy for the running block

// Real variables, not macros: host code is free to name its locals blockDim and gridDim. Declared const (CUDA does too)
// so that the compiler keeps them in registers and does not instrument them; the runtime, which defines them, sets them
// at every switch.
extern "C" {
extern __thread const uint3 threadIdx __attribute__((tls_model("initial-exec")));
extern __thread const uint3 blockIdx __attribute__((tls_model("initial-exec")));
extern __thread const uint3 blockDim __attribute__((tls_model("initial-exec")));
extern __thread const uint3 gridDim __attribute__((tls_model("initial-exec")));
}
static constexpr int warpSize = 32;

// Uninstrumented code: the runtime's own helpers that touch device memory after an explicit check.
#define CSIM_PLAIN __attribute__((no_sanitize("thread")))

namespace csim {
template <class T> struct identity { using type = T; };
template <class T> using id_t = typename identity<T>::type;  // keeps a parameter out of template argument deduction
}  // namespace csim

static inline long long clock64() { return csim_clock(); }
static inline unsigned long long __globaltimer() { return csim_globaltimer(); }
static inline void __nanosleep(unsigned) { csim_yield(); }
static inline void __trap() { csim_trap(); }
static inline void __brkpt() {}
static inline void __prof_trigger(int) {}
#ifndef __builtin_assume
#define __builtin_assume(x) ((void)0)
#endif
#ifndef __assume
#define __assume(x) ((void)0)
#endif

// assert() in a kernel is a report, not the end of the process. The renamed function takes glibc's place even when
// <cassert> is included again later.
#define __assert_fail csim_assert_fail

// Address space questions and conversions.
static inline bool csim_in_shared(const void* p) {
    const char* base = (const char*)csim_dynamic_shared();
    return (const char*)p >= base && (const char*)p < base + csim_dynamic_shared_bytes();
}
static inline unsigned int __isGlobal(const void* p) { return csim_is_device(p) && !csim_in_shared(p); }

// Cache hints are plain accesses.
#define CSIM_LOAD(NAME) \
    template <class T> inline T NAME(const T* p) { return *p; }
#define CSIM_STORE(NAME) \
    template <class T> inline void NAME(T* p, csim::id_t<T> v) { *p = v; }
CSIM_LOAD(__ldg)
CSIM_LOAD(__ldca)
CSIM_LOAD(__ldcg)
CSIM_LOAD(__ldcs)
CSIM_LOAD(__ldlu)
CSIM_STORE(__stcs)
CSIM_STORE(__stcg)
CSIM_STORE(__stwb)
// __ldcv / __stwt bypass caches: like volatile accesses they may be polled.
template <class T> CSIM_PLAIN inline T __ldcv(const T* p) {
    csim_atomic_begin(p, sizeof(T), 0, __builtin_return_address(0));
    T v = *p;
    csim_atomic_end(p, sizeof(T));
    return v;
}
template <class T> CSIM_PLAIN inline void __stwt(T* p, csim::id_t<T> v) {
    csim_atomic_begin(p, sizeof(T), 1, __builtin_return_address(0));
    *p = v;
    csim_atomic_end(p, sizeof(T));
}
#undef CSIM_LOAD
#undef CSIM_STORE

static inline size_t __cvta_generic_to_shared(const void* p) { return (size_t)p; }
static inline size_t __cvta_generic_to_global(const void* p) { return (size_t)p; }
static inline size_t __cvta_generic_to_local(const void* p) { return (size_t)p; }
static inline size_t __cvta_generic_to_constant(const void* p) { return (size_t)p; }
static inline void* __cvta_shared_to_generic(size_t p) { return (void*)p; }
static inline void* __cvta_global_to_generic(size_t p) { return (void*)p; }
#endif
