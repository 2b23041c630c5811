// CUDA's mathematical functions that g++ and glibc lack, with CUDA's names and overloads.
//
// Accuracy: every function here, the "fast" intrinsics (__expf, __sinf, __fdividef, ...) among them, is computed to
// about float (or double) rounding error. A chip's fast intrinsics are less accurate than that, so a kernel that leans
// on __expf near the edge of its tolerance can look better here than on the chip; nothing is flushed to zero either.
#pragma once

#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <math.h>  // the C++ wrapper: puts isnan, isinf, isfinite, abs, ... into the global namespace, as CUDA does
#include <stdlib.h>

#include "csim/intrinsics.h"

#define CSIM_MATH static inline

// ---- min and max: exactly CUDA's overloads, so that a call which is ambiguous under nvcc is ambiguous here too
#define CSIM_MIN_MAX(R, A, B)                                                \
    CSIM_MATH constexpr R min(A a, B b) { return (R)a < (R)b ? (R)a : (R)b; } \
    CSIM_MATH constexpr R max(A a, B b) { return (R)a > (R)b ? (R)a : (R)b; }
#define CSIM_MIN_MAX_FAMILY(S, U) \
    CSIM_MIN_MAX(S, S, S)         \
    CSIM_MIN_MAX(U, U, U)         \
    CSIM_MIN_MAX(U, S, U)         \
    CSIM_MIN_MAX(U, U, S)
CSIM_MIN_MAX_FAMILY(int, unsigned)
CSIM_MIN_MAX_FAMILY(long, unsigned long)
CSIM_MIN_MAX_FAMILY(long long, unsigned long long)
#undef CSIM_MIN_MAX_FAMILY
#undef CSIM_MIN_MAX
CSIM_MATH float min(float a, float b) { return __builtin_fminf(a, b); }  // a NaN loses against a number
CSIM_MATH float max(float a, float b) { return __builtin_fmaxf(a, b); }
CSIM_MATH double min(double a, double b) { return __builtin_fmin(a, b); }
CSIM_MATH double max(double a, double b) { return __builtin_fmax(a, b); }
CSIM_MATH double min(float a, double b) { return __builtin_fmin(a, b); }
CSIM_MATH double max(float a, double b) { return __builtin_fmax(a, b); }
CSIM_MATH double min(double a, float b) { return __builtin_fmin(a, b); }
CSIM_MATH double max(double a, float b) { return __builtin_fmax(a, b); }
CSIM_MATH unsigned umin(unsigned a, unsigned b) { return a < b ? a : b; }
CSIM_MATH unsigned umax(unsigned a, unsigned b) { return a > b ? a : b; }
CSIM_MATH long long llmin(long long a, long long b) { return a < b ? a : b; }
CSIM_MATH long long llmax(long long a, long long b) { return a > b ? a : b; }
CSIM_MATH unsigned long long ullmin(unsigned long long a, unsigned long long b) { return a < b ? a : b; }
CSIM_MATH unsigned long long ullmax(unsigned long long a, unsigned long long b) { return a > b ? a : b; }

namespace csim::fn {
// sin(pi x) and cos(pi x): the remainder is exact, so whole and half arguments give exact answers.
inline double sinpi(double x) {
    double r = std::remainder(x, 2.0);
    if (r > 0.5) r = 1.0 - r;
    if (r < -0.5) r = -1.0 - r;
    return std::sin(r * M_PI);
}
inline double cospi(double x) {
    double r = std::fabs(std::remainder(x, 2.0));
    return r <= 0.25 ? std::cos(r * M_PI) : std::sin((0.5 - r) * M_PI);
}
// exp(x*x) * erfc(x) without overflow: the product where both are finite, else the asymptotic series.
inline double erfcx(double x) {
    if (x < 25.0) {
        double high = x * x, low = std::fma(x, x, -high);
        double e = std::exp(high);
        return std::isinf(e) ? e : e * (1.0 + low) * std::erfc(x);
    }
    double q = 0.5 / (x * x), term = 1.0, sum = 1.0;
    for (int k = 1; k < 16; ++k) sum += term *= -(2 * k - 1) * q;
    return sum / (x * std::sqrt(M_PI));
}
// The inverse of erfc by Halley's iteration; the start is the leading term of the tail, or the middle's series.
inline double erfcinv(double y) {
    if (!(y >= 0.0 && y <= 2.0)) return std::nan("");
    if (y == 0.0) return HUGE_VAL;
    if (y == 2.0) return -HUGE_VAL;
    if (y == 1.0) return 0.0;
    if (y > 1.0) return -erfcinv(2.0 - y);  // exact for y in [1, 2]
    double t = std::sqrt(-2.0 * std::log(0.5 * y));
    double x = 0.70710678118654752 * (t - (2.515517 + t * (0.802853 + t * 0.010328)) /
                                              (1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308))));
    for (int i = 0; i < 4; ++i) {
        double slope = 1.1283791670955126 * std::exp(-x * x);
        if (slope == 0.0) break;
        double step = (std::erfc(x) - y) / slope;
        x += step / (1.0 + x * step);
    }
    return x;
}
inline double erfinv(double y) {
    if (std::fabs(y) < 0.5) {  // near zero 1 - y would lose the small argument
        double x = 0.88622692545275801 * y;
        for (int i = 0; i < 6; ++i) {
            double step = (std::erf(x) - y) / (1.1283791670955126 * std::exp(-x * x));
            x -= step / (1.0 + x * step);
        }
        return x;
    }
    return y > 0.0 ? erfcinv(1.0 - y) : -erfcinv(1.0 + y);
}
inline double normcdf(double x) { return 0.5 * std::erfc(-x * 0.70710678118654752440); }
inline double normcdfinv(double p) { return -1.4142135623730951 * erfcinv(2.0 * p); }
template <class T> inline double norm(int n, const T* p) {
    double sum = 0.0;
    for (int i = 0; i < n; ++i) sum = std::hypot(sum, (double)p[i]);
    return sum;
}
}  // namespace csim::fn

// One function of CUDA in its three spellings: nameF(float), name(double), name(float).
#define CSIM_UNARY(name, expr)                                                       \
    CSIM_MATH double name(double a) { double x = a; return expr; }                   \
    CSIM_MATH float name(float a) { double x = a; return (float)(expr); }            \
    CSIM_MATH float name##f(float a) { double x = a; return (float)(expr); }
CSIM_UNARY(rsqrt, 1.0 / std::sqrt(x))
CSIM_UNARY(rcbrt, 1.0 / std::cbrt(x))
CSIM_UNARY(sinpi, csim::fn::sinpi(x))
CSIM_UNARY(cospi, csim::fn::cospi(x))
CSIM_UNARY(erfinv, csim::fn::erfinv(x))
CSIM_UNARY(erfcinv, csim::fn::erfcinv(x))
CSIM_UNARY(erfcx, csim::fn::erfcx(x))
CSIM_UNARY(normcdf, csim::fn::normcdf(x))
CSIM_UNARY(normcdfinv, csim::fn::normcdfinv(x))
CSIM_UNARY(cyl_bessel_i0, std::cyl_bessel_i(0.0, std::fabs(x)))
CSIM_UNARY(cyl_bessel_i1, std::copysign(std::cyl_bessel_i(1.0, std::fabs(x)), x))
#undef CSIM_UNARY

// ---- float overloads of names for which glibc has only the double one
CSIM_MATH float exp10(float x) { return ::exp10f(x); }
CSIM_MATH float j0(float x) { return ::j0f(x); }
CSIM_MATH float j1(float x) { return ::j1f(x); }
CSIM_MATH float jn(int n, float x) { return ::jnf(n, x); }
CSIM_MATH float y0(float x) { return ::y0f(x); }
CSIM_MATH float y1(float x) { return ::y1f(x); }
CSIM_MATH float yn(int n, float x) { return ::ynf(n, x); }
CSIM_MATH void sincos(float x, float* s, float* c) { ::sincosf(x, s, c); }
CSIM_MATH void sincospif(float x, float* s, float* c) { *s = sinpif(x), *c = cospif(x); }
CSIM_MATH void sincospi(float x, float* s, float* c) { *s = sinpif(x), *c = cospif(x); }
CSIM_MATH void sincospi(double x, double* s, double* c) { *s = sinpi(x), *c = cospi(x); }

// ---- lengths and their reciprocals
CSIM_MATH float rhypotf(float a, float b) { return (float)(1.0 / std::hypot((double)a, (double)b)); }
CSIM_MATH double rhypot(double a, double b) { return 1.0 / std::hypot(a, b); }
CSIM_MATH float rhypot(float a, float b) { return rhypotf(a, b); }
CSIM_MATH double norm3d(double a, double b, double c) { return std::hypot(a, b, c); }
CSIM_MATH float norm3df(float a, float b, float c) { return (float)norm3d(a, b, c); }
CSIM_MATH double norm4d(double a, double b, double c, double d) {
    return std::hypot(std::hypot(a, b), std::hypot(c, d));
}
CSIM_MATH float norm4df(float a, float b, float c, float d) { return (float)norm4d(a, b, c, d); }
CSIM_MATH double rnorm3d(double a, double b, double c) { return 1.0 / norm3d(a, b, c); }
CSIM_MATH float rnorm3df(float a, float b, float c) { return (float)rnorm3d(a, b, c); }
CSIM_MATH double rnorm4d(double a, double b, double c, double d) { return 1.0 / norm4d(a, b, c, d); }
CSIM_MATH float rnorm4df(float a, float b, float c, float d) { return (float)rnorm4d(a, b, c, d); }
CSIM_MATH double norm(int n, const double* p) { return csim::fn::norm(n, p); }
CSIM_MATH float normf(int n, const float* p) { return (float)csim::fn::norm(n, p); }
CSIM_MATH double rnorm(int n, const double* p) { return 1.0 / csim::fn::norm(n, p); }
CSIM_MATH float rnormf(int n, const float* p) { return (float)(1.0 / csim::fn::norm(n, p)); }

// ---- the fast intrinsics. glibc declares functions of these very names (C linkage, noexcept, no definition to link
// with), so they are defined as what they were declared to be rather than hidden behind macros.
extern "C" {
inline float __expf(float x) noexcept { return expf(x); }
inline float __exp2f(float x) noexcept { return exp2f(x); }
inline float __exp10f(float x) noexcept { return ::exp10f(x); }
inline float __logf(float x) noexcept { return logf(x); }
inline float __log2f(float x) noexcept { return log2f(x); }
inline float __log10f(float x) noexcept { return log10f(x); }
inline float __powf(float x, float y) noexcept { return powf(x, y); }
inline float __sinf(float x) noexcept { return sinf(x); }
inline float __cosf(float x) noexcept { return cosf(x); }
inline float __tanf(float x) noexcept { return tanf(x); }
inline float __tanhf(float x) noexcept { return tanhf(x); }
inline void __sincosf(float x, float* s, float* c) noexcept { *s = sinf(x), *c = cosf(x); }
}
CSIM_MATH float __fdividef(float a, float b) { return a / b; }
CSIM_MATH float fdividef(float a, float b) { return a / b; }
CSIM_MATH double fdivide(double a, double b) { return a / b; }
CSIM_MATH float fdivide(float a, float b) { return a / b; }
CSIM_MATH float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }  // NaN and -0 give +0

// ---- arithmetic with a named rounding. The plain operators round to nearest; the others run with the processor's
// rounding switched, through volatile copies so that the compiler cannot move the operation out of the switched part.
namespace csim {
template <int MODE, class F> inline auto rounded(F f) {
    int before = std::fegetround();
    std::fesetround(MODE);
    volatile auto result = f();
    std::fesetround(before);
    return +result;
}
template <class T> inline T opaque(T value) {
    volatile T copy = value;
    return copy;
}
}  // namespace csim
#define CSIM_ROUNDED(T, name, params, expr, nearest)                                                   \
    CSIM_MATH T name##_rn params { return nearest; }                                                   \
    CSIM_MATH T name##_rz params { return csim::rounded<FE_TOWARDZERO>([&] { return (T)(expr); }); }   \
    CSIM_MATH T name##_ru params { return csim::rounded<FE_UPWARD>([&] { return (T)(expr); }); }       \
    CSIM_MATH T name##_rd params { return csim::rounded<FE_DOWNWARD>([&] { return (T)(expr); }); }
#define CSIM_V(x) csim::opaque(x)
CSIM_ROUNDED(float, __fadd, (float a, float b), CSIM_V(a) + CSIM_V(b), a + b)
CSIM_ROUNDED(float, __fsub, (float a, float b), CSIM_V(a) - CSIM_V(b), a - b)
CSIM_ROUNDED(float, __fmul, (float a, float b), CSIM_V(a) * CSIM_V(b), a * b)
CSIM_ROUNDED(float, __fdiv, (float a, float b), CSIM_V(a) / CSIM_V(b), a / b)
CSIM_ROUNDED(float, __frcp, (float a), 1.0f / CSIM_V(a), 1.0f / a)
CSIM_ROUNDED(float, __fsqrt, (float a), sqrtf(CSIM_V(a)), sqrtf(a))
CSIM_ROUNDED(float, __fmaf, (float a, float b, float c), fmaf(CSIM_V(a), CSIM_V(b), CSIM_V(c)), fmaf(a, b, c))
CSIM_ROUNDED(float, __fmaf_ieee, (float a, float b, float c), fmaf(CSIM_V(a), CSIM_V(b), CSIM_V(c)), fmaf(a, b, c))
CSIM_ROUNDED(double, __dadd, (double a, double b), CSIM_V(a) + CSIM_V(b), a + b)
CSIM_ROUNDED(double, __dsub, (double a, double b), CSIM_V(a) - CSIM_V(b), a - b)
CSIM_ROUNDED(double, __dmul, (double a, double b), CSIM_V(a) * CSIM_V(b), a * b)
CSIM_ROUNDED(double, __ddiv, (double a, double b), CSIM_V(a) / CSIM_V(b), a / b)
CSIM_ROUNDED(double, __drcp, (double a), 1.0 / CSIM_V(a), 1.0 / a)
CSIM_ROUNDED(double, __dsqrt, (double a), sqrt(CSIM_V(a)), sqrt(a))
CSIM_ROUNDED(double, __fma, (double a, double b, double c), fma(CSIM_V(a), CSIM_V(b), CSIM_V(c)), fma(a, b, c))
CSIM_ROUNDED(float, __double2float, (double a), CSIM_V(a), (float)a)
CSIM_ROUNDED(float, __int2float, (int a), CSIM_V(a), (float)a)
CSIM_ROUNDED(float, __uint2float, (unsigned a), CSIM_V(a), (float)a)
CSIM_ROUNDED(float, __ll2float, (long long a), CSIM_V(a), (float)a)
CSIM_ROUNDED(float, __ull2float, (unsigned long long a), CSIM_V(a), (float)a)
CSIM_ROUNDED(double, __ll2double, (long long a), CSIM_V(a), (double)a)
CSIM_ROUNDED(double, __ull2double, (unsigned long long a), CSIM_V(a), (double)a)
#undef CSIM_V
#undef CSIM_ROUNDED
CSIM_MATH double __int2double_rn(int a) { return a; }
CSIM_MATH double __uint2double_rn(unsigned a) { return a; }
CSIM_MATH float __frsqrt_rn(float a) { return (float)(1.0 / std::sqrt((double)a)); }
