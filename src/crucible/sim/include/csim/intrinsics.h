// CUDA's integer, bit-cast and conversion intrinsics in portable C++. Unsigned arithmetic throughout: the simulator
// compiles kernels with overflow checks, and none of these may set them off.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#define CSIM_INTRINSIC static inline

namespace csim {
// Always inlined, so that uninstrumented code which uses it stays uninstrumented.
template <class To, class From> inline __attribute__((always_inline)) To bit_cast(const From& from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy((void*)&to, (const void*)&from, sizeof to);
    return to;
}

// cvt.<int>.<float> as the chip does it: out-of-range values saturate; NaN gives 0, or the lone top bit when either
// side has 64 bits.
template <class I, class F> inline I saturating_cast(F x) {
    using L = std::numeric_limits<I>;
    if (x != x) return sizeof(I) == 8 || sizeof(F) == 8 ? (I)((std::make_unsigned_t<I>)1 << (sizeof(I) * 8 - 1)) : (I)0;
    constexpr F top = (F)(std::make_unsigned_t<I>(1) << (L::digits - 1)) * 2;  // 2^digits: exact in F
    if (x >= top) return L::max();
    if constexpr (std::is_signed_v<I>) {
        if (x < -top) return L::min();
    } else {
        if (x <= (F)-1) return 0;
        if (x < 0) return 0;
    }
    return (I)x;
}
}  // namespace csim

// ---- the bits of a value, read as another type
CSIM_INTRINSIC int __float_as_int(float x) { return csim::bit_cast<int>(x); }
CSIM_INTRINSIC unsigned __float_as_uint(float x) { return csim::bit_cast<unsigned>(x); }
CSIM_INTRINSIC float __int_as_float(int x) { return csim::bit_cast<float>(x); }
CSIM_INTRINSIC float __uint_as_float(unsigned x) { return csim::bit_cast<float>(x); }
CSIM_INTRINSIC long long __double_as_longlong(double x) { return csim::bit_cast<long long>(x); }
CSIM_INTRINSIC double __longlong_as_double(long long x) { return csim::bit_cast<double>(x); }
CSIM_INTRINSIC int __double2hiint(double x) { return (int)(csim::bit_cast<uint64_t>(x) >> 32); }
CSIM_INTRINSIC int __double2loint(double x) { return (int)(uint32_t)csim::bit_cast<uint64_t>(x); }
CSIM_INTRINSIC double __hiloint2double(int hi, int lo) {
    return csim::bit_cast<double>((uint64_t)(uint32_t)hi << 32 | (uint32_t)lo);
}

// ---- floating point to integer, four roundings each
#define CSIM_TO_INT(I, F, name)                                                                   \
    CSIM_INTRINSIC I name##_rn(F x) { return csim::saturating_cast<I>(std::nearbyint(x)); }       \
    CSIM_INTRINSIC I name##_rz(F x) { return csim::saturating_cast<I>(std::trunc(x)); }           \
    CSIM_INTRINSIC I name##_ru(F x) { return csim::saturating_cast<I>(std::ceil(x)); }            \
    CSIM_INTRINSIC I name##_rd(F x) { return csim::saturating_cast<I>(std::floor(x)); }
CSIM_TO_INT(int, float, __float2int)
CSIM_TO_INT(unsigned, float, __float2uint)
CSIM_TO_INT(long long, float, __float2ll)
CSIM_TO_INT(unsigned long long, float, __float2ull)
CSIM_TO_INT(int, double, __double2int)
CSIM_TO_INT(unsigned, double, __double2uint)
CSIM_TO_INT(long long, double, __double2ll)
CSIM_TO_INT(unsigned long long, double, __double2ull)
#undef CSIM_TO_INT

// ---- counting and moving bits
CSIM_INTRINSIC int __popc(unsigned x) { return __builtin_popcount(x); }
CSIM_INTRINSIC int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
CSIM_INTRINSIC int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
CSIM_INTRINSIC int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
CSIM_INTRINSIC int __ffs(int x) { return __builtin_ffs(x); }
CSIM_INTRINSIC int __ffsll(long long x) { return __builtin_ffsll(x); }
CSIM_INTRINSIC unsigned __brev(unsigned x) {
    x = (x & 0x55555555u) << 1 | (x >> 1 & 0x55555555u);
    x = (x & 0x33333333u) << 2 | (x >> 2 & 0x33333333u);
    x = (x & 0x0f0f0f0fu) << 4 | (x >> 4 & 0x0f0f0f0fu);
    return __builtin_bswap32(x);
}
CSIM_INTRINSIC unsigned long long __brevll(unsigned long long x) {
    return (unsigned long long)__brev((unsigned)x) << 32 | __brev((unsigned)(x >> 32));
}
// The n-th (1-based; negative: downwards) set bit at or beyond `base`; ~0 where there is none.
CSIM_INTRINSIC unsigned __fns(unsigned mask, unsigned base, int n) {
    base &= 31;
    if (n == 0) return mask >> base & 1 ? base : 0xffffffffu;
    for (int i = (int)base, step = n > 0 ? 1 : -1, left = n > 0 ? n : -n; i >= 0 && i < 32; i += step)
        if ((mask >> i & 1) && --left == 0) return (unsigned)i;
    return 0xffffffffu;
}
// Each nibble of the selector picks one of the eight bytes of {b, a}; its top bit asks for that byte's sign instead.
// Bytes of the pair (b, a) by number: three bits of the selector each. (The instruction prmt has a fourth: see ptx.h.)
CSIM_INTRINSIC unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= ((unsigned)(bytes >> (8 * (selector >> (4 * i) & 7))) & 255) << (8 * i);
    return result;
}
CSIM_INTRINSIC unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n) {
    return (unsigned)(((uint64_t)hi << 32 | lo) << (n & 31) >> 32);
}
CSIM_INTRINSIC unsigned __funnelshift_lc(unsigned lo, unsigned hi, unsigned n) {
    return n >= 32 ? lo : __funnelshift_l(lo, hi, n);
}
CSIM_INTRINSIC unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n) {
    return (unsigned)(((uint64_t)hi << 32 | lo) >> (n & 31));
}
CSIM_INTRINSIC unsigned __funnelshift_rc(unsigned lo, unsigned hi, unsigned n) {
    return n >= 32 ? hi : __funnelshift_r(lo, hi, n);
}
CSIM_INTRINSIC unsigned short __nv_bswap16(unsigned short x) { return __builtin_bswap16(x); }
CSIM_INTRINSIC unsigned __nv_bswap32(unsigned x) { return __builtin_bswap32(x); }
CSIM_INTRINSIC unsigned long long __nv_bswap64(unsigned long long x) { return __builtin_bswap64(x); }

// ---- products and sums
CSIM_INTRINSIC int __mulhi(int a, int b) { return (int)((int64_t)a * b >> 32); }
CSIM_INTRINSIC unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
CSIM_INTRINSIC long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
CSIM_INTRINSIC unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
CSIM_INTRINSIC int __mul24(int a, int b) {
    auto low24 = [](int x) { return (int64_t)(x & 0x7fffff) - (x & 0x800000); };
    return (int)(uint32_t)(uint64_t)(low24(a) * low24(b));
}
CSIM_INTRINSIC unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
CSIM_INTRINSIC unsigned __sad(int a, int b, unsigned c) { return (a > b ? (unsigned)a - b : (unsigned)b - a) + c; }
CSIM_INTRINSIC unsigned __usad(unsigned a, unsigned b, unsigned c) { return (a > b ? a - b : b - a) + c; }
CSIM_INTRINSIC int __hadd(int a, int b) { return (int)(((int64_t)a + b) >> 1); }
CSIM_INTRINSIC int __rhadd(int a, int b) { return (int)(((int64_t)a + b + 1) >> 1); }
CSIM_INTRINSIC unsigned __uhadd(unsigned a, unsigned b) { return (unsigned)(((uint64_t)a + b) >> 1); }
CSIM_INTRINSIC unsigned __urhadd(unsigned a, unsigned b) { return (unsigned)(((uint64_t)a + b + 1) >> 1); }

// ---- dot products of bytes (dp4a) and of halfwords with bytes (dp2a), wrapping like the chip
namespace csim {
template <class A, class B> inline unsigned dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; ++i) c += (unsigned)((int)(A)(a >> (8 * i)) * (int)(B)(b >> (8 * i)));
    return c;
}
template <class A, class B> inline unsigned dp2a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 2; ++i) c += (unsigned)((int)(A)(a >> (16 * i)) * (int)(B)(b >> (8 * i)));
    return c;
}
}  // namespace csim
CSIM_INTRINSIC int __dp4a(int a, int b, int c) { return (int)csim::dp4a<int8_t, int8_t>(a, b, c); }
CSIM_INTRINSIC unsigned __dp4a(unsigned a, unsigned b, unsigned c) { return csim::dp4a<uint8_t, uint8_t>(a, b, c); }
CSIM_INTRINSIC int __dp4a(char4 a, char4 b, int c) { return __dp4a(csim::bit_cast<int>(a), csim::bit_cast<int>(b), c); }
CSIM_INTRINSIC unsigned __dp4a(uchar4 a, uchar4 b, unsigned c) {
    return __dp4a(csim::bit_cast<unsigned>(a), csim::bit_cast<unsigned>(b), c);
}
CSIM_INTRINSIC int __dp2a_lo(int a, int b, int c) { return (int)csim::dp2a<int16_t, int8_t>(a, b, c); }
CSIM_INTRINSIC int __dp2a_hi(int a, int b, int c) { return (int)csim::dp2a<int16_t, int8_t>(a, (unsigned)b >> 16, c); }
CSIM_INTRINSIC unsigned __dp2a_lo(unsigned a, unsigned b, unsigned c) { return csim::dp2a<uint16_t, uint8_t>(a, b, c); }
CSIM_INTRINSIC unsigned __dp2a_hi(unsigned a, unsigned b, unsigned c) {
    return csim::dp2a<uint16_t, uint8_t>(a, b >> 16, c);
}

#ifndef __nv_assume
#define __nv_assume(condition) ((void)0)
#endif
