// The order in which cub's radix sorts see a key: its bits, turned so that they compare as unsigned numbers.
#pragma once

#include "cub/util.cuh"
#include "csim/intrinsics.h"

namespace cub::detail {
template <class KEY> inline uint64_t radix_bits(KEY key, int begin_bit, int end_bit) {
    using U = std::conditional_t<
        sizeof(KEY) == 8, uint64_t,
        std::conditional_t<sizeof(KEY) == 4, uint32_t, std::conditional_t<sizeof(KEY) == 2, uint16_t, uint8_t>>>;
    constexpr int width = sizeof(KEY) * 8;
    constexpr U top = (U)((U)1 << (width - 1));
    U bits = csim::bit_cast<U>(key);
    if constexpr (std::is_integral_v<KEY>) {
        if (std::is_signed_v<KEY>) bits ^= top;
    } else {
        if (bits == top) bits = 0;  // minus zero sorts as zero
        bits = bits & top ? (U)~bits : (U)(bits | top);
    }
    uint64_t wide = (uint64_t)bits >> begin_bit;
    int count = (end_bit < width ? end_bit : width) - begin_bit;
    return count >= 64 ? wide : wide & (((uint64_t)1 << count) - 1);
}
}  // namespace cub::detail
