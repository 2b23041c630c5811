// The part of cuda_fp16.h and cuda_bf16.h that NVIDIA's headers offer to device code only: fused multiply-add, the
// h*/h2* math functions, and conversions with a named rounding. All else (arithmetic, comparisons, casts) already has
// a host body in those headers (12.x and 13.x) and is used as it is.
//
// Results are the correctly rounded ones. A chip computes hexp and its like through fast float approximations, so the
// last bit can differ there. No operator of the half types is used in here: candidates may switch those off
// (__CUDA_NO_HALF_OPERATORS__), as torch's own extension builder does.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

#include "csim/math.h"

namespace csim {
inline double to_double(__half x) { return __half2float(x); }
inline double to_double(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class H> H from_double(double x);
template <> inline __half from_double<__half>(double x) { return __double2half(x); }
template <> inline __nv_bfloat16 from_double<__nv_bfloat16>(double x) { return __double2bfloat16(x); }

template <class P, class F> inline P each(P a, F f) {
    P result;
    result.x = f(a.x);
    result.y = f(a.y);
    return result;
}

// a*b + c with one rounding. The product is exact in double; the sum is rounded to odd, so that the second rounding
// (to 11 or 8 bits) cannot land on a false tie.
template <class H> inline H fused(H a, H b, H c) {
    double p = to_double(a) * to_double(b), q = to_double(c), s = p + q;
    if (std::isfinite(s)) {
        double t = s - p, error = (p - (s - t)) + (q - t);
        uint64_t bits = bit_cast<uint64_t>(s);
        if (error != 0.0 && !(bits & 1)) s = bit_cast<double>((error > 0.0) == (s > 0.0) ? bits + 1 : bits - 1);
    }
    return from_double<H>(s);
}
template <class H> inline H relu(H x) {
    double v = to_double(x);
    return v != v ? x : from_double<H>(v > 0.0 ? v : 0.0);
}
template <class H> inline H saturated(H x) {
    double v = to_double(x);
    return from_double<H>(v > 0.0 ? (v < 1.0 ? v : 1.0) : 0.0);
}
}  // namespace csim

#define CSIM_HALF static inline

// ---- fused multiply-add: scalar and pair, plain, saturated to [0, 1], clamped at zero
#define CSIM_FMA(H, P)                                                                                      \
    CSIM_HALF H __hfma(H a, H b, H c) { return csim::fused(a, b, c); }                                      \
    CSIM_HALF H __hfma_sat(H a, H b, H c) { return csim::saturated(csim::fused(a, b, c)); }                 \
    CSIM_HALF H __hfma_relu(H a, H b, H c) { return csim::relu(csim::fused(a, b, c)); }                     \
    CSIM_HALF P __hfma2(P a, P b, P c) {                                                                    \
        P r;                                                                                                \
        r.x = csim::fused(a.x, b.x, c.x);                                                                   \
        r.y = csim::fused(a.y, b.y, c.y);                                                                   \
        return r;                                                                                           \
    }                                                                                                       \
    CSIM_HALF P __hfma2_sat(P a, P b, P c) { return csim::each(__hfma2(a, b, c), csim::saturated<H>); }     \
    CSIM_HALF P __hfma2_relu(P a, P b, P c) { return csim::each(__hfma2(a, b, c), csim::relu<H>); }         \
    /* complex a*b + c, in the order that the headers document */                                           \
    CSIM_HALF P __hcmadd(P a, P b, P c) {                                                                   \
        P r;                                                                                                \
        r.x = csim::fused(__hneg(a.y), b.y, csim::fused(a.x, b.x, c.x));                                    \
        r.y = csim::fused(a.y, b.x, csim::fused(a.x, b.y, c.y));                                            \
        return r;                                                                                           \
    }
CSIM_FMA(__half, __half2)
CSIM_FMA(__nv_bfloat16, __nv_bfloat162)
#undef CSIM_FMA

// ---- h<name> on a scalar, h2<name> on a pair
#define CSIM_HALF_MATH_FOR(H, P, name, expr)                                                                   \
    CSIM_HALF H h##name(H a) { double x = csim::to_double(a); return csim::from_double<H>(expr); }             \
    CSIM_HALF P h2##name(P a) { return csim::each(a, [](H e) { return h##name(e); }); }
#define CSIM_HALF_MATH(name, expr)                        \
    CSIM_HALF_MATH_FOR(__half, __half2, name, expr)       \
    CSIM_HALF_MATH_FOR(__nv_bfloat16, __nv_bfloat162, name, expr)
CSIM_HALF_MATH(exp, std::exp(x))
CSIM_HALF_MATH(exp2, std::exp2(x))
CSIM_HALF_MATH(exp10, ::exp10(x))
CSIM_HALF_MATH(log, std::log(x))
CSIM_HALF_MATH(log2, std::log2(x))
CSIM_HALF_MATH(log10, std::log10(x))
CSIM_HALF_MATH(sin, std::sin(x))
CSIM_HALF_MATH(cos, std::cos(x))
CSIM_HALF_MATH(tanh, std::tanh(x))
CSIM_HALF_MATH(tanh_approx, std::tanh(x))
CSIM_HALF_MATH(sqrt, std::sqrt(x))
CSIM_HALF_MATH(rsqrt, 1.0 / std::sqrt(x))
CSIM_HALF_MATH(rcp, 1.0 / x)
CSIM_HALF_MATH(ceil, std::ceil(x))
CSIM_HALF_MATH(floor, std::floor(x))
CSIM_HALF_MATH(rint, std::nearbyint(x))
CSIM_HALF_MATH(trunc, std::trunc(x))
#undef CSIM_HALF_MATH
#undef CSIM_HALF_MATH_FOR

// ---- to integers with a named rounding (the _rz forms are in NVIDIA's host headers)
#define CSIM_HALF_TO_INTS(I, name)                                                                                     \
    CSIM_HALF I __half2##name##_rn(__half a) { return csim::saturating_cast<I>(std::nearbyint(__half2float(a))); }     \
    CSIM_HALF I __half2##name##_ru(__half a) { return csim::saturating_cast<I>(std::ceil(__half2float(a))); }          \
    CSIM_HALF I __half2##name##_rd(__half a) { return csim::saturating_cast<I>(std::floor(__half2float(a))); }         \
    CSIM_HALF I __bfloat162##name##_rn(__nv_bfloat16 a) {                                                              \
        return csim::saturating_cast<I>(std::nearbyint(__bfloat162float(a)));                                          \
    }                                                                                                                  \
    CSIM_HALF I __bfloat162##name##_ru(__nv_bfloat16 a) {                                                              \
        return csim::saturating_cast<I>(std::ceil(__bfloat162float(a)));                                               \
    }                                                                                                                  \
    CSIM_HALF I __bfloat162##name##_rd(__nv_bfloat16 a) {                                                              \
        return csim::saturating_cast<I>(std::floor(__bfloat162float(a)));                                              \
    }
CSIM_HALF_TO_INTS(short, short)
CSIM_HALF_TO_INTS(unsigned short, ushort)
CSIM_HALF_TO_INTS(int, int)
CSIM_HALF_TO_INTS(unsigned, uint)
CSIM_HALF_TO_INTS(long long, ll)
CSIM_HALF_TO_INTS(unsigned long long, ull)
#undef CSIM_HALF_TO_INTS

// ---- integers to bfloat16 with a directed rounding: through a float rounded the same way, which loses nothing
#define CSIM_INT_TO_BF16_AT(I, name, mode)                                                                           \
    CSIM_HALF __nv_bfloat16 __##name##2bfloat16_##mode(I a) {                                                        \
        return __float2bfloat16_##mode(__ll2float_##mode((long long)a));                                             \
    }
#define CSIM_INT_TO_BF16(I, name)       \
    CSIM_INT_TO_BF16_AT(I, name, rz)    \
    CSIM_INT_TO_BF16_AT(I, name, ru)    \
    CSIM_INT_TO_BF16_AT(I, name, rd)
CSIM_INT_TO_BF16(short, short)
CSIM_INT_TO_BF16(unsigned short, ushort)
CSIM_INT_TO_BF16(int, int)
CSIM_INT_TO_BF16(unsigned, uint)
CSIM_INT_TO_BF16(long long, ll)
#undef CSIM_INT_TO_BF16
#undef CSIM_INT_TO_BF16_AT
CSIM_HALF __nv_bfloat16 __ull2bfloat16_rz(unsigned long long a) { return __float2bfloat16_rz(__ull2float_rz(a)); }
CSIM_HALF __nv_bfloat16 __ull2bfloat16_ru(unsigned long long a) { return __float2bfloat16_ru(__ull2float_ru(a)); }
CSIM_HALF __nv_bfloat16 __ull2bfloat16_rd(unsigned long long a) { return __float2bfloat16_rd(__ull2float_rd(a)); }
