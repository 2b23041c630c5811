// Atomic functions. The simulator runs one CUDA thread at a time, so a checked plain read-modify-write is atomic; the
// runtime is told before (bounds, initialisation, races, memory order) and after (polling loops must make room for
// others).
#ifndef CSIM_ATOMICS_H
#define CSIM_ATOMICS_H

namespace csim {
template <class T, class F> CSIM_PLAIN inline T read_modify_write(T* p, F next, void* pc) {
    csim_atomic_begin(p, sizeof(T), 2, pc);
    T old;   // copied as bytes: NVIDIA's assignment operators for half pairs are instrumented, and would look like a race
    __builtin_memcpy(&old, p, sizeof old);
    T value = next(old);
    __builtin_memcpy(p, &value, sizeof value);
    csim_atomic_end(p, sizeof(T));
    return old;
}
template <class T> inline T wrapping_add(T a, T b) {
    if constexpr (std::is_integral_v<T>) return (T)((std::make_unsigned_t<T>)a + (std::make_unsigned_t<T>)b);
    else return a + b;
}
template <class T> inline T wrapping_sub(T a, T b) {
    if constexpr (std::is_integral_v<T>) return (T)((std::make_unsigned_t<T>)a - (std::make_unsigned_t<T>)b);
    else return a - b;
}
// NVIDIA's operators on __half may be switched off (-D__CUDA_NO_HALF_OPERATORS__), so add through the named functions.
inline __half wrapping_add(__half a, __half b) { return __hadd(a, b); }
inline __half2 wrapping_add(__half2 a, __half2 b) { return __hadd2(a, b); }
inline __nv_bfloat16 wrapping_add(__nv_bfloat16 a, __nv_bfloat16 b) { return __hadd(a, b); }
inline __nv_bfloat162 wrapping_add(__nv_bfloat162 a, __nv_bfloat162 b) { return __hadd2(a, b); }
inline float2 wrapping_add(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }
inline float4 wrapping_add(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
}  // namespace csim

// Only the types CUDA offers: a call with another type must fail to compile here as it does under nvcc.
#define CSIM_ATOMIC_1(NAME, T, EXPR)                                           \
    CSIM_PLAIN inline T NAME(T* p, T v) {                                      \
        auto next = [=](T a) CSIM_PLAIN -> T { return EXPR; };                 \
        return csim::read_modify_write(p, next, __builtin_return_address(0));  \
    }
#define CSIM_ATOMIC(NAME, T, EXPR)        \
    CSIM_ATOMIC_1(NAME, T, EXPR)          \
    CSIM_ATOMIC_1(NAME##_block, T, EXPR)  \
    CSIM_ATOMIC_1(NAME##_system, T, EXPR)
#define CSIM_ATOMIC_INTS(NAME, EXPR)          \
    CSIM_ATOMIC(NAME, int, EXPR)              \
    CSIM_ATOMIC(NAME, unsigned, EXPR)         \
    CSIM_ATOMIC(NAME, unsigned long long, EXPR)

CSIM_ATOMIC_INTS(atomicAdd, csim::wrapping_add(a, v))
CSIM_ATOMIC(atomicAdd, float, a + v)
CSIM_ATOMIC(atomicAdd, double, a + v)
CSIM_ATOMIC(atomicAdd, __half, csim::wrapping_add(a, v))
CSIM_ATOMIC(atomicAdd, __half2, csim::wrapping_add(a, v))
CSIM_ATOMIC(atomicAdd, __nv_bfloat16, csim::wrapping_add(a, v))
CSIM_ATOMIC(atomicAdd, __nv_bfloat162, csim::wrapping_add(a, v))
CSIM_ATOMIC(atomicAdd, float2, csim::wrapping_add(a, v))
CSIM_ATOMIC(atomicAdd, float4, csim::wrapping_add(a, v))
CSIM_ATOMIC(atomicSub, int, csim::wrapping_sub(a, v))
CSIM_ATOMIC(atomicSub, unsigned, a - v)
CSIM_ATOMIC_INTS(atomicExch, v)
CSIM_ATOMIC(atomicExch, float, v)
CSIM_ATOMIC_INTS(atomicMin, v < a ? v : a)
CSIM_ATOMIC_INTS(atomicMax, v > a ? v : a)
CSIM_ATOMIC(atomicMin, long long, v < a ? v : a)
CSIM_ATOMIC(atomicMax, long long, v > a ? v : a)
CSIM_ATOMIC_INTS(atomicAnd, a & v)
CSIM_ATOMIC_INTS(atomicOr, a | v)
CSIM_ATOMIC_INTS(atomicXor, a ^ v)
CSIM_ATOMIC(atomicInc, unsigned, a >= v ? 0u : a + 1)
CSIM_ATOMIC(atomicDec, unsigned, a == 0 || a > v ? v : a - 1)

#define CSIM_CAS_1(NAME, T)                                                     \
    CSIM_PLAIN inline T NAME(T* p, T compare, T v) {                            \
        auto next = [=](T a) CSIM_PLAIN -> T { return a == compare ? v : a; };  \
        return csim::read_modify_write(p, next, __builtin_return_address(0));   \
    }
#define CSIM_CAS(T)           \
    CSIM_CAS_1(atomicCAS, T)  \
    CSIM_CAS_1(atomicCAS_block, T) \
    CSIM_CAS_1(atomicCAS_system, T)
CSIM_CAS(int)
CSIM_CAS(unsigned)
CSIM_CAS(unsigned long long)
CSIM_CAS(unsigned short)
#undef CSIM_ATOMIC
#undef CSIM_ATOMIC_1
#undef CSIM_ATOMIC_INTS
#undef CSIM_CAS
#undef CSIM_CAS_1
#endif
