// How tensor cores add: shared by mma.sync (csim/mma.h) and wgmma (runtime/wgmma.cpp). Depends on nothing.
//
// Accumulation to f32 is what mma.sync does on an H200, bit for bit on random fragments (tests/gpu/test_wrappers.py):
// all addends are cut to 26 bits below the largest exponent among them, a product's being the sum of its factors', added
// exactly, and the sum is cut to f32 towards zero.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace csim::tensor {
#define CSIM_TENSOR inline __attribute__((always_inline))

template <class To, class From> CSIM_TENSOR To bits_as(From value) {
    static_assert(sizeof(To) == sizeof(From), "a cast that keeps the bits");
    To result;
    __builtin_memcpy(&result, &value, sizeof result);
    return result;
}

CSIM_TENSOR float half_bits_to_float(uint32_t h) {
    uint32_t sign = (h & 0x8000u) << 16, rest = h & 0x7fffu;
    if (rest >= 0x7c00u) return bits_as<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    return bits_as<float>(sign | bits_as<uint32_t>(bits_as<float>(rest << 13) * 0x1p112f));  // exact, subnormals too
}
CSIM_TENSOR float bfloat_bits_to_float(uint32_t b) { return bits_as<float>(b << 16); }
CSIM_TENSOR float tf32_bits_to_float(uint32_t t) { return bits_as<float>(t & 0xffffe000u); }

// A double cut to float: towards zero; infinities and NaN kept, and what is beyond float becomes infinite.
CSIM_TENSOR float toward_zero(double x) {
    float f = (float)x;
    if (__builtin_isfinite(f) && __builtin_fabs((double)f) > __builtin_fabs(x)) f = bits_as<float>(bits_as<uint32_t>(f) - 1);
    return f;
}

// The exponent e of x = m * 2^e with 0.5 <= m < 1; of zero, one that is smaller than any sum of two others.
constexpr int of_zero = -10000;
CSIM_TENSOR int exponent_of(double x) { return x == 0 ? of_zero : int(bits_as<uint64_t>(x) >> 52 & 0x7ff) - 1022; }
CSIM_TENSOR double power_of_two(int e) { return bits_as<double>(uint64_t(1023 + e) << 52); }

// One dot product as the tensor cores add it up, given the factors' exponents too. This is most of what a simulated
// contraction costs: no calls (-O1 inlines none) and no branches in the loops.
template <int K> CSIM_TENSOR float aligned_sum(double c, const double* a, const double* b, const int* a_e, const int* b_e) {
    constexpr int kept = 26, nothing = -5000;
    double exact = c, product[K];
    const int c_e = exponent_of(c);
    int top = c_e < nothing ? nothing : c_e;
    for (int k = 0; k < K; ++k) {
        product[k] = a[k] * b[k];
        exact += product[k];
        const int e = a_e[k] + b_e[k] - 1;
        top = top < e ? e : top;
    }
    if (!__builtin_isfinite(exact) || top == nothing) return (float)exact;
    const int shift = kept - top;  // factors are floats: a few hundred at most, so that both powers are doubles
    const double scale = power_of_two(shift);
    int64_t sum = (int64_t)(c * scale);
    for (int k = 0; k < K; ++k) sum += (int64_t)(product[k] * scale);
    return toward_zero((double)sum * power_of_two(-shift));
}
#undef CSIM_TENSOR
}  // namespace csim::tensor
