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
    if (std::isfinite(f) && std::fabs((double)f) > std::fabs(x)) f = bits_as<float>(bits_as<uint32_t>(f) - 1);
    return f;
}

// The exponent e of x = m * 2^e with 0.5 <= m < 1.
CSIM_TENSOR int exponent_of(double x) { return int(bits_as<uint64_t>(x) >> 52 & 0x7ff) - 1022; }

// One dot product as the tensor cores add it up.
template <int K> CSIM_TENSOR float aligned_sum(double c, const double* a, const double* b) {
    constexpr int kept = 26;
    double exact = c;
    int top = c ? exponent_of(c) : -5000;
    for (int k = 0; k < K; ++k) {
        const double product = a[k] * b[k];
        exact += product;
        if (product) top = std::max(top, exponent_of(a[k]) + exponent_of(b[k]) - 1);
    }
    if (!std::isfinite(exact) || top == -5000) return (float)exact;
    const double scale = std::ldexp(1.0, std::min(kept - top, 1000));
    int64_t sum = (int64_t)(c * scale);
    for (int k = 0; k < K; ++k) sum += (int64_t)(a[k] * b[k] * scale);
    return toward_zero((double)sum / scale);
}
#undef CSIM_TENSOR
}  // namespace csim::tensor
