// CUDA's SIMD-in-a-word intrinsics: two 16-bit or four 8-bit lanes in one 32-bit register (__vadd4, __vmaxs2, ...),
// and the three-operand __vi* family of newer chips.
#pragma once

#include <cstdint>

#include "csim/intrinsics.h"

namespace csim {
// Applies f to each lane of type T; the result keeps the lane's low bits.
template <class T, class F> inline unsigned lanes(unsigned a, unsigned b, F f) {
    constexpr int bits = sizeof(T) * 8;
    unsigned result = 0;
    for (int i = 0; i < 32; i += bits)
        result |= ((unsigned)f((int)(T)(a >> i), (int)(T)(b >> i)) & ((1u << bits) - 1)) << i;
    return result;
}
template <class T, class F> inline unsigned lanes3(unsigned a, unsigned b, unsigned c, F f) {
    constexpr int bits = sizeof(T) * 8;
    unsigned result = 0;
    for (int i = 0; i < 32; i += bits)
        result |= ((unsigned)f((int)(T)(a >> i), (int)(T)(b >> i), (int)(T)(c >> i)) & ((1u << bits) - 1)) << i;
    return result;
}
template <class T> inline int saturate(int x) {
    constexpr int low = std::numeric_limits<T>::min(), high = std::numeric_limits<T>::max();
    return x < low ? low : x > high ? high : x;
}
template <class T> inline unsigned sum_of_differences(unsigned a, unsigned b) {
    unsigned sum = 0;
    lanes<T>(a, b, [&](int x, int y) { return sum += (unsigned)(x > y ? x - y : y - x); });
    return sum;
}
}  // namespace csim

// name2 (16-bit lanes) and name4 (8-bit lanes); S and U in an expression's lane type stand for signed and unsigned.
#define CSIM_LANES_OF(name, T, expr)                                             \
    CSIM_INTRINSIC unsigned name(unsigned a, unsigned b) {                       \
        return csim::lanes<T>(a, b, [](int x, int y) { return expr; });          \
    }
#define CSIM_SIGNED(name, expr) CSIM_LANES_OF(name##2, int16_t, expr) CSIM_LANES_OF(name##4, int8_t, expr)
#define CSIM_UNSIGNED(name, expr) CSIM_LANES_OF(name##2, uint16_t, expr) CSIM_LANES_OF(name##4, uint8_t, expr)
CSIM_UNSIGNED(__vadd, x + y)
CSIM_UNSIGNED(__vsub, x - y)
CSIM_UNSIGNED(__vavgu, (x + y + 1) >> 1)
CSIM_UNSIGNED(__vhaddu, (x + y) >> 1)
CSIM_SIGNED(__vavgs, (x + y + (x + y >= 0)) >> 1)  // rounds halves away from zero
CSIM_SIGNED(__vmaxs, x > y ? x : y)
CSIM_SIGNED(__vmins, x < y ? x : y)
CSIM_UNSIGNED(__vmaxu, x > y ? x : y)
CSIM_UNSIGNED(__vminu, x < y ? x : y)
CSIM_SIGNED(__vabsdiffs, x > y ? x - y : y - x)
CSIM_UNSIGNED(__vabsdiffu, x > y ? x - y : y - x)
#undef CSIM_LANES_OF

#define CSIM_SATURATED(name, T, expr)                                                         \
    CSIM_INTRINSIC unsigned name(unsigned a, unsigned b) {                                    \
        return csim::lanes<T>(a, b, [](int x, int y) { return csim::saturate<T>(expr); });    \
    }
CSIM_SATURATED(__vaddss2, int16_t, x + y)
CSIM_SATURATED(__vaddss4, int8_t, x + y)
CSIM_SATURATED(__vaddus2, uint16_t, x + y)
CSIM_SATURATED(__vaddus4, uint8_t, x + y)
CSIM_SATURATED(__vsubss2, int16_t, x - y)
CSIM_SATURATED(__vsubss4, int8_t, x - y)
CSIM_SATURATED(__vsubus2, uint16_t, x - y)
CSIM_SATURATED(__vsubus4, uint8_t, x - y)
#undef CSIM_SATURATED

#define CSIM_ONE_OPERAND(name, T, expr)                                                                \
    CSIM_INTRINSIC unsigned name(unsigned a) { return csim::lanes<T>(a, 0, [](int x, int) { return expr; }); }
CSIM_ONE_OPERAND(__vabs2, int16_t, x < 0 ? -x : x)
CSIM_ONE_OPERAND(__vabs4, int8_t, x < 0 ? -x : x)
CSIM_ONE_OPERAND(__vabsss2, int16_t, csim::saturate<int16_t>(x < 0 ? -x : x))
CSIM_ONE_OPERAND(__vabsss4, int8_t, csim::saturate<int8_t>(x < 0 ? -x : x))
CSIM_ONE_OPERAND(__vneg2, int16_t, -x)
CSIM_ONE_OPERAND(__vneg4, int8_t, -x)
CSIM_ONE_OPERAND(__vnegss2, int16_t, csim::saturate<int16_t>(-x))
CSIM_ONE_OPERAND(__vnegss4, int8_t, csim::saturate<int8_t>(-x))
#undef CSIM_ONE_OPERAND

// __vcmp* gives all ones in a lane, __vset* gives 1.
#define CSIM_COMPARE(suffix, T, lane, op)                                                                     \
    CSIM_INTRINSIC unsigned __vcmp##suffix##lane(unsigned a, unsigned b) {                                    \
        return csim::lanes<T>(a, b, [](int x, int y) { return x op y ? -1 : 0; });                            \
    }                                                                                                         \
    CSIM_INTRINSIC unsigned __vset##suffix##lane(unsigned a, unsigned b) {                                    \
        return csim::lanes<T>(a, b, [](int x, int y) { return x op y ? 1 : 0; });                             \
    }
#define CSIM_COMPARES(suffix, op)              \
    CSIM_COMPARE(suffix##s, int16_t, 2, op)    \
    CSIM_COMPARE(suffix##s, int8_t, 4, op)     \
    CSIM_COMPARE(suffix##u, uint16_t, 2, op)   \
    CSIM_COMPARE(suffix##u, uint8_t, 4, op)
CSIM_COMPARES(ge, >=)
CSIM_COMPARES(gt, >)
CSIM_COMPARES(le, <=)
CSIM_COMPARES(lt, <)
CSIM_COMPARE(eq, uint16_t, 2, ==)
CSIM_COMPARE(eq, uint8_t, 4, ==)
CSIM_COMPARE(ne, uint16_t, 2, !=)
CSIM_COMPARE(ne, uint8_t, 4, !=)
#undef CSIM_COMPARES
#undef CSIM_COMPARE
#undef CSIM_SIGNED
#undef CSIM_UNSIGNED

CSIM_INTRINSIC unsigned __vsads2(unsigned a, unsigned b) { return csim::sum_of_differences<int16_t>(a, b); }
CSIM_INTRINSIC unsigned __vsads4(unsigned a, unsigned b) { return csim::sum_of_differences<int8_t>(a, b); }
CSIM_INTRINSIC unsigned __vsadu2(unsigned a, unsigned b) { return csim::sum_of_differences<uint16_t>(a, b); }
CSIM_INTRINSIC unsigned __vsadu4(unsigned a, unsigned b) { return csim::sum_of_differences<uint8_t>(a, b); }

// ---- __vimax/__vimin with two or three operands, with an add before or a clamp at zero ("relu") after
namespace csim {
template <class T> inline T larger(T a, T b) { return a > b ? a : b; }
template <class T> inline T smaller(T a, T b) { return a < b ? a : b; }
template <class T> inline T wrapped_sum(T a, T b) { return (T)((unsigned)a + (unsigned)b); }
}  // namespace csim
#define CSIM_VI(pick, word)                                                                                            \
    CSIM_INTRINSIC int __vi##word##_s32_relu(int a, int b) { return csim::larger(pick(a, b), 0); }                     \
    CSIM_INTRINSIC int __vi##word##3_s32(int a, int b, int c) { return pick(pick(a, b), c); }                          \
    CSIM_INTRINSIC unsigned __vi##word##3_u32(unsigned a, unsigned b, unsigned c) { return pick(pick(a, b), c); }      \
    CSIM_INTRINSIC int __vi##word##3_s32_relu(int a, int b, int c) { return csim::larger(pick(pick(a, b), c), 0); }    \
    CSIM_INTRINSIC int __viadd##word##_s32(int a, int b, int c) { return pick(csim::wrapped_sum(a, b), c); }          \
    CSIM_INTRINSIC unsigned __viadd##word##_u32(unsigned a, unsigned b, unsigned c) { return pick(a + b, c); }         \
    CSIM_INTRINSIC int __viadd##word##_s32_relu(int a, int b, int c) {                                                 \
        return csim::larger(pick(csim::wrapped_sum(a, b), c), 0);                                                     \
    }                                                                                                                  \
    CSIM_INTRINSIC unsigned __vi##word##_s16x2_relu(unsigned a, unsigned b) {                                          \
        return csim::lanes<int16_t>(a, b, [](int x, int y) { return csim::larger(pick(x, y), 0); });                   \
    }                                                                                                                  \
    CSIM_INTRINSIC unsigned __vi##word##3_s16x2(unsigned a, unsigned b, unsigned c) {                                  \
        return csim::lanes3<int16_t>(a, b, c, [](int x, int y, int z) { return pick(pick(x, y), z); });                \
    }                                                                                                                  \
    CSIM_INTRINSIC unsigned __vi##word##3_u16x2(unsigned a, unsigned b, unsigned c) {                                  \
        return csim::lanes3<uint16_t>(a, b, c, [](int x, int y, int z) { return pick(pick(x, y), z); });               \
    }                                                                                                                  \
    CSIM_INTRINSIC unsigned __vi##word##3_s16x2_relu(unsigned a, unsigned b, unsigned c) {                             \
        return csim::lanes3<int16_t>(a, b, c, [](int x, int y, int z) {                                                \
            return csim::larger(pick(pick(x, y), z), 0);                                                               \
        });                                                                                                            \
    }                                                                                                                  \
    CSIM_INTRINSIC unsigned __viadd##word##_s16x2(unsigned a, unsigned b, unsigned c) {                                \
        return csim::lanes3<int16_t>(a, b, c, [](int x, int y, int z) { return pick((int)(int16_t)(x + y), z); });     \
    }                                                                                                                  \
    CSIM_INTRINSIC unsigned __viadd##word##_u16x2(unsigned a, unsigned b, unsigned c) {                                \
        return csim::lanes3<uint16_t>(a, b, c, [](int x, int y, int z) { return pick((int)(uint16_t)(x + y), z); });   \
    }                                                                                                                  \
    CSIM_INTRINSIC unsigned __viadd##word##_s16x2_relu(unsigned a, unsigned b, unsigned c) {                           \
        return csim::lanes3<int16_t>(a, b, c, [](int x, int y, int z) {                                                \
            return csim::larger(pick((int)(int16_t)(x + y), z), 0);                                                    \
        });                                                                                                            \
    }
CSIM_VI(csim::larger, max)
CSIM_VI(csim::smaller, min)
#undef CSIM_VI

// __vib*: the winner, and through `pred` whether it was the first operand (ties count as the first).
#define CSIM_VIB(word, T, type, op)                                             \
    CSIM_INTRINSIC T __vib##word##_##type(T a, T b, bool* pred) {               \
        *pred = a op b;                                                         \
        return *pred ? a : b;                                                   \
    }
CSIM_VIB(max, int, s32, >=)
CSIM_VIB(max, unsigned, u32, >=)
CSIM_VIB(min, int, s32, <=)
CSIM_VIB(min, unsigned, u32, <=)
#undef CSIM_VIB
#define CSIM_VIB2(word, T, type, op)                                                                           \
    CSIM_INTRINSIC unsigned __vib##word##_##type(unsigned a, unsigned b, bool* pred_hi, bool* pred_lo) {       \
        *pred_lo = (T)a op(T) b;                                                                               \
        *pred_hi = (T)(a >> 16) op(T)(b >> 16);                                                                \
        return (*pred_lo ? a & 0xffffu : b & 0xffffu) | (*pred_hi ? a & 0xffff0000u : b & 0xffff0000u);        \
    }
CSIM_VIB2(max, int16_t, s16x2, >=)
CSIM_VIB2(max, uint16_t, u16x2, >=)
CSIM_VIB2(min, int16_t, s16x2, <=)
CSIM_VIB2(min, uint16_t, u16x2, <=)
#undef CSIM_VIB2
