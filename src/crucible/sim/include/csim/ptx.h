// What rewritten inline PTX calls (crucible/sim/ptx.py): registers, arithmetic, conversions, loads and stores.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "csim/async.h"
#include "csim/fp16.h"
#include "csim/hopper.h"
#include "csim/memory.h"
#include "csim/mma.h"

namespace csim::ptx {
// ---- registers: plain variables whose bits can be read as any PTX type of the same width
template <class T> inline constexpr bool is_number = std::is_arithmetic_v<T> || std::is_same_v<T, unsigned __int128>;
template <class T> inline constexpr bool is_whole = std::is_integral_v<T> || std::is_same_v<T, unsigned __int128>;

// The value of a register, seen as a T: integers are cut or extended, all else keeps its bits.
template <class T, class From> inline T as(From value) {
    if constexpr (std::is_same_v<T, From>) return value;
    else if constexpr (std::is_pointer_v<From>) return as<T>((uintptr_t)value);
    else if constexpr (std::is_enum_v<From>) return as<T>((std::underlying_type_t<From>)value);
    else if constexpr (is_whole<T> && is_whole<From>) return (T)value;
    else if constexpr (std::is_floating_point_v<T> && std::is_floating_point_v<From>) return (T)value;
    else if constexpr (sizeof(T) == sizeof(From)) return bit_cast<T>(value);
    else if constexpr (is_whole<From> && sizeof(T) == 2) return bit_cast<T>((uint16_t)value);  // an immediate, or
    else if constexpr (is_whole<From> && sizeof(T) == 4) return bit_cast<T>((uint32_t)value);  // a wider register
    else if constexpr (is_whole<From> && sizeof(T) == 8) return bit_cast<T>((uint64_t)value);
    else if constexpr (is_whole<T> && sizeof(From) == 4) return (T)bit_cast<uint32_t>(value);
    else if constexpr (is_whole<T> && sizeof(From) == 2) return (T)bit_cast<uint16_t>(value);
    else static_assert(sizeof(T) == 0, "a PTX operand of the wrong width");
}
template <class R, class V> inline void put(R& target, V value) { target = as<R>(value); }

// Operands of the asm statement itself: any C++ type of the register's width goes in and out by its bits.
template <class R, class V> inline R fetch(const V& value) {
    if constexpr (std::is_pointer_v<V> || std::is_enum_v<V> || std::is_arithmetic_v<V>) return as<R>(value);
    else if constexpr (std::is_array_v<V>) return as<R>((uintptr_t)&value);
    else if constexpr (sizeof(V) == sizeof(R)) return bit_cast<R>(value);
    else return as<R>((R)value);
}
template <class V, class R> inline void store(V& target, R value) {
    if constexpr (sizeof(V) == sizeof(R)) std::memcpy((void*)&target, &value, sizeof value);
    else if constexpr (std::is_arithmetic_v<V>) target = (V)value;
    else static_assert(sizeof(V) == sizeof(R), "an asm output of another width than its constraint");
}
template <class R> inline R poison() {
    R value;
    std::memset(&value, 0xff, sizeof value);
    return value;
}
CSIM_HERE void unsupported(const char* instruction, const char* reason) {
    csim_fail("unsupported_feature", "unsupported PTX instruction `%s`: %s is not simulated", instruction, reason);
}

// ---- special registers
inline uint32_t warps() { return (uint32_t)(csim_block_threads() + 31) / 32; }
inline uint32_t nsmid() { return 132; }
inline uint32_t smid() { return (blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)) % nsmid(); }
inline uint64_t ticks() { return (uint64_t)csim_clock(); }
inline uint64_t nanoseconds() { return (uint64_t)csim_globaltimer(); }
inline uint32_t dynamic_shared() { return (uint32_t)csim_dynamic_shared_bytes(); }

// ---- memory
inline void* generic_address(uint64_t address, int64_t offset) { return (char*)(uintptr_t)address + offset; }
CSIM_HERE void* shared_address(uint64_t address, int64_t offset) {
    return from_shared((uint64_t)((int64_t)address + offset));
}

CSIM_HERE void check_alignment(const void* p, size_t bytes, const char* what) {
    if ((uintptr_t)p % bytes)
        csim_fail("misaligned", "%s of %zu bytes at %p, which is not a multiple of %zu", what, bytes, p, bytes);
}
CSIM_EXEC [[gnu::noinline]] inline void move(void* to, const void* from, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) ((volatile char*)to)[i] = ((const volatile char*)from)[i];
}
// Polled: volatile, relaxed, acquire. Such accesses do not race with one another.
template <bool POLLED, class T, size_t N> CSIM_HERE void load(const void* p, T (&out)[N]) {
    check_alignment(p, sizeof out, "a load");
    if (POLLED) csim_atomic_begin(p, sizeof out, 0, here());
    else check_access(p, sizeof out, false);
    move(out, p, sizeof out);
    if (POLLED) csim_atomic_end(p, sizeof out);
}
template <bool POLLED, class T, size_t N> CSIM_HERE void save(void* p, const T (&in)[N]) {
    check_alignment(p, sizeof in, "a store");
    if (POLLED) csim_atomic_begin(p, sizeof in, 1, here());
    else check_access(p, sizeof in, true);
    move(p, in, sizeof in);
    if (POLLED) csim_atomic_end(p, sizeof in);
}

// ---- arithmetic. Integers wrap; __half and its kin go through the named functions, whose operators may be disabled.
template <class T> using Unsigned = std::make_unsigned_t<T>;
template <class T> inline constexpr bool is_scalar_half = std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>;
template <class T> inline constexpr bool is_pair = std::is_same_v<T, __half2> || std::is_same_v<T, __nv_bfloat162>;

// Of two zeros the positive one is the larger.
template <class T> inline T least(T a, T b) { return a == b ? (std::signbit(a) ? a : b) : std::fmin(a, b); }
template <class T> inline T greatest(T a, T b) { return a == b ? (std::signbit(a) ? b : a) : std::fmax(a, b); }

#define CSIM_PTX_BINARY(name, whole, real, half, pair)                                   \
    template <class T> inline T name(T a, T b) {                                         \
        if constexpr (is_pair<T>) return pair(a, b);                                     \
        else if constexpr (is_scalar_half<T>) return half(a, b);                         \
        else if constexpr (std::is_floating_point_v<T>) return real;                     \
        else return whole;                                                               \
    }
CSIM_PTX_BINARY(add, (T)((Unsigned<T>)a + (Unsigned<T>)b), a + b, __hadd, __hadd2)
CSIM_PTX_BINARY(sub, (T)((Unsigned<T>)a - (Unsigned<T>)b), a - b, __hsub, __hsub2)
CSIM_PTX_BINARY(mul, (T)((uint64_t)a * (uint64_t)b), a* b, __hmul, __hmul2)
CSIM_PTX_BINARY(min, a < b ? a : b, least(a, b), __hmin, __hmin2)
CSIM_PTX_BINARY(max, a > b ? a : b, greatest(a, b), __hmax, __hmax2)
CSIM_PTX_BINARY(min_nan, a < b ? a : b, std::isnan(a) || std::isnan(b) ? (T)NAN : least(a, b), __hmin_nan,
        __hmin2_nan)
CSIM_PTX_BINARY(max_nan, a > b ? a : b, std::isnan(a) || std::isnan(b) ? (T)NAN : greatest(a, b), __hmax_nan,
        __hmax2_nan)
#undef CSIM_PTX_BINARY
template <class T> inline T fma(T a, T b, T c) {
    if constexpr (is_pair<T>) return __hfma2(a, b, c);
    else if constexpr (is_scalar_half<T>) return __hfma(a, b, c);
    else return std::fma(a, b, c);
}
template <class T> inline T mul_hi(T a, T b) {
    using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
    return (T)((Wide)a * (Wide)b >> (sizeof(T) * 8));
}
template <class T> inline T div(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) return a / b;
    else return b == 0 ? (T)-1 : std::is_signed_v<T> && b == (T)-1 ? (T)(0 - (Unsigned<T>)a) : (T)(a / b);
}
template <class T> inline T rem(T a, T b) {
    return b == 0 ? a : std::is_signed_v<T> && b == (T)-1 ? (T)0 : (T)(a % b);
}
// Directed rounding exists for f32 and f64 only.
#define CSIM_PTX_DIRECTED_1(name, params, arguments, single, twice)    \
    template <class T> inline T name params {                          \
        if constexpr (sizeof(T) == 4) return single arguments;         \
        else return twice arguments;                                   \
    }
#define CSIM_PTX_DIRECTED(name, params, arguments, single, twice)                                          \
    CSIM_PTX_DIRECTED_1(name##_rz, params, arguments, single##_rz, twice##_rz)                             \
    CSIM_PTX_DIRECTED_1(name##_ru, params, arguments, single##_ru, twice##_ru)                             \
    CSIM_PTX_DIRECTED_1(name##_rd, params, arguments, single##_rd, twice##_rd)
CSIM_PTX_DIRECTED(add, (T a, T b), (a, b), __fadd, __dadd)
CSIM_PTX_DIRECTED(sub, (T a, T b), (a, b), __fsub, __dsub)
CSIM_PTX_DIRECTED(mul, (T a, T b), (a, b), __fmul, __dmul)
CSIM_PTX_DIRECTED(div, (T a, T b), (a, b), __fdiv, __ddiv)
CSIM_PTX_DIRECTED(fma, (T a, T b, T c), (a, b, c), __fmaf, __fma)
CSIM_PTX_DIRECTED(sqrt, (T a), (a), __fsqrt, __dsqrt)
CSIM_PTX_DIRECTED(rcp, (T a), (a), __frcp, __drcp)
#undef CSIM_PTX_DIRECTED
#undef CSIM_PTX_DIRECTED_1

#define CSIM_PTX_UNARY(name, real, half, pair)                                           \
    template <class T> inline T name(T a) {                                              \
        if constexpr (is_pair<T>) return pair(a);                                        \
        else if constexpr (is_scalar_half<T>) return half(a);                            \
        else { double x = a; return (T)(real); }                                         \
    }
CSIM_PTX_UNARY(rcp, 1.0 / x, ::hrcp, ::h2rcp)
CSIM_PTX_UNARY(sqrt, std::sqrt(x), ::hsqrt, ::h2sqrt)
CSIM_PTX_UNARY(rsqrt, 1.0 / std::sqrt(x), ::hrsqrt, ::h2rsqrt)
CSIM_PTX_UNARY(ex2, std::exp2(x), ::hexp2, ::h2exp2)
CSIM_PTX_UNARY(lg2, std::log2(x), ::hlog2, ::h2log2)
CSIM_PTX_UNARY(sin, std::sin(x), ::hsin, ::h2sin)
CSIM_PTX_UNARY(cos, std::cos(x), ::hcos, ::h2cos)
CSIM_PTX_UNARY(tanh, std::tanh(x), ::htanh, ::h2tanh)
#undef CSIM_PTX_UNARY
template <class T> inline T neg(T a) {
    if constexpr (is_pair<T>) return __hneg2(a);
    else if constexpr (is_scalar_half<T>) return __hneg(a);
    else if constexpr (std::is_floating_point_v<T>) return -a;
    else return (T)(0 - (Unsigned<T>)a);
}
template <class T> inline T abs(T a) {
    if constexpr (is_pair<T>) return __habs2(a);
    else if constexpr (is_scalar_half<T>) return __habs(a);
    else if constexpr (std::is_floating_point_v<T>) return std::fabs(a);
    else return a < 0 ? neg(a) : a;
}
template <class T> inline T copysign(T sign, T magnitude) { return std::copysign(magnitude, sign); }
template <class T> inline T saturate(T a) {  // .sat on floating point: the unit interval, NaN to zero
    if constexpr (is_pair<T>) return each(a, [](auto x) { return saturated(x); });
    else if constexpr (is_scalar_half<T>) return saturated(a);
    else if constexpr (std::is_floating_point_v<T>) return a > 0 ? (a < 1 ? a : (T)1) : (T)0;  // -0 gives +0, as on a chip
    else return a;
}
template <class T> inline T relu(T a) {
    if constexpr (is_pair<T>) return each(a, [](auto x) { return csim::relu(x); });
    else if constexpr (is_scalar_half<T>) return csim::relu(a);
    else return a > 0 || a != a ? a : (T)0;
}
template <class T> inline bool ordered_unequal(T a, T b) { return a < b || a > b; }

// ---- bits
template <class T> inline T bit_and(T a, T b) { return (T)(a & b); }
template <class T> inline T bit_or(T a, T b) { return (T)(a | b); }
template <class T> inline T bit_xor(T a, T b) { return (T)(a ^ b); }
template <class T> inline T shl(T a, uint32_t n) { return n >= sizeof(T) * 8 ? (T)0 : (T)((Unsigned<T>)a << n); }
template <class T> inline T shr(T a, uint32_t n) {
    constexpr uint32_t bits = sizeof(T) * 8;
    if (n >= bits) return std::is_signed_v<T> && a < 0 ? (T)-1 : (T)0;
    return (T)(a >> n);
}
template <class T> inline uint32_t popc(T a) { return (uint32_t)__builtin_popcountll((Unsigned<T>)a); }
template <class T> inline uint32_t clz(T a) { return sizeof(T) == 8 ? __clzll((long long)a) : __clz((int)a); }
template <class T> inline T brev(T a) { return sizeof(T) == 8 ? (T)__brevll((uint64_t)a) : (T)__brev((uint32_t)a); }
template <class T> inline uint32_t bfind(T a) {
    if (std::is_signed_v<T> && a < 0) a = (T)~a;
    return a ? (uint32_t)(sizeof(T) * 8 - 1) - clz(a) : 0xffffffffu;
}
template <class T> inline T bfe(T a, uint32_t position, uint32_t length) {
    constexpr uint32_t top = sizeof(T) * 8 - 1;
    position &= 255, length &= 255;
    uint32_t last = position + length - 1 < top ? position + length - 1 : top;
    bool negative = std::is_signed_v<T> && length && ((Unsigned<T>)a >> last & 1);
    Unsigned<T> result = 0;
    for (uint32_t i = 0; i <= top; ++i) {
        bool bit = i < length && position + i <= top ? ((Unsigned<T>)a >> (position + i) & 1) : negative;
        result |= (Unsigned<T>)bit << i;
    }
    return (T)result;
}
template <class T> inline T bfi(T insert, T into, uint32_t position, uint32_t length) {
    for (uint32_t i = 0; i < (length & 255) && (position & 255) + i < sizeof(T) * 8; ++i) {
        Unsigned<T> bit = (Unsigned<T>)1 << ((position & 255) + i);
        into = (T)(((Unsigned<T>)insert >> i & 1) ? (Unsigned<T>)into | bit : (Unsigned<T>)into & ~bit);
    }
    return into;
}
inline uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t result = 0;
    for (uint32_t row = 0; row < 8; ++row)
        if (table >> row & 1) result |= (row & 4 ? a : ~a) & (row & 2 ? b : ~b) & (row & 1 ? c : ~c);
    return result;
}
inline uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {  // bit 3 of a selector: the byte's sign, eight times
    uint32_t bytes = __byte_perm(a, b, selector), result = 0;
    for (int i = 0; i < 4; ++i) {
        uint32_t byte = bytes >> (8 * i) & 255;
        result |= (selector >> (4 * i) & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
    }
    return result;
}

// ---- conversions
enum class Round { rn, rz, rm, rp, rna, rni, rzi, rmi, rpi };

// To nearest with ties away (rna), to nearest even (rn), or cut off (rz): the 19 leading bits of a float.
inline uint32_t to_tf32(float x, Round round) {
    uint32_t bits = bit_cast<uint32_t>(x);
    if ((bits & 0x7f800000u) == 0x7f800000u) return bits & 0x007fffffu ? 0x7fffffffu : bits;
    if (round == Round::rna) bits += 0x1000u;
    else if (round == Round::rn) bits += 0x0fffu + (bits >> 13 & 1);
    return bits & ~0x1fffu;
}
template <class T> inline T to_whole(T x, Round round) {
    switch (round) {
        case Round::rz: case Round::rzi: return std::trunc(x);
        case Round::rm: case Round::rmi: return std::floor(x);
        case Round::rp: case Round::rpi: return std::ceil(x);
        default: return std::nearbyint(x);
    }
}
template <class D> inline D narrow(double x, Round round) {  // to float or double from something at least as exact
    if constexpr (sizeof(D) == 8) return x;
    switch (round) {
        case Round::rz: return __double2float_rz(x);
        case Round::rm: return __double2float_rd(x);
        case Round::rp: return __double2float_ru(x);
        default: return (D)x;
    }
}
inline __half to_half(float x, Round round) {
    switch (round) {
        case Round::rz: return __float2half_rz(x);
        case Round::rm: return __float2half_rd(x);
        case Round::rp: return __float2half_ru(x);
        default: return __float2half_rn(x);
    }
}
inline __nv_bfloat16 to_bfloat(float x, Round round) {
    switch (round) {
        case Round::rz: return __float2bfloat16_rz(x);
        case Round::rm: return __float2bfloat16_rd(x);
        case Round::rp: return __float2bfloat16_ru(x);
        default: return __float2bfloat16_rn(x);
    }
}
template <class D, class A> inline D convert(A a, Round round, bool saturated_to_unit) {
    if constexpr (is_scalar_half<A>) {
        return convert<D>((float)to_double(a), round, saturated_to_unit);
    } else if constexpr (is_scalar_half<D>) {
        float x = std::is_same_v<A, double> ? (float)a : convert<float>(a, Round::rn, false);
        if (saturated_to_unit) x = saturate(x);
        if (round >= Round::rni) x = to_whole(x, round);
        if constexpr (std::is_same_v<D, __half>) return to_half(x, round);
        else return to_bfloat(x, round);
    } else if constexpr (std::is_floating_point_v<A> && std::is_floating_point_v<D>) {
        A x = round >= Round::rni ? to_whole(a, round) : a;
        D result = narrow<D>((double)x, round);
        return saturated_to_unit ? saturate(result) : result;
    } else if constexpr (std::is_floating_point_v<A>) {
        return saturating_cast<D>(to_whole(a, round));
    } else if constexpr (std::is_floating_point_v<D>) {
        D result;
        if constexpr (std::is_unsigned_v<A> && sizeof(A) == 8) {
            result = sizeof(D) == 4 ? (round == Round::rz   ? __ull2float_rz(a)
                                       : round == Round::rm ? __ull2float_rd(a)
                                       : round == Round::rp ? __ull2float_ru(a)
                                                            : __ull2float_rn(a))
                                    : (D)a;
        } else {
            result = sizeof(D) == 4 ? (round == Round::rz   ? __ll2float_rz((long long)a)
                                       : round == Round::rm ? __ll2float_rd((long long)a)
                                       : round == Round::rp ? __ll2float_ru((long long)a)
                                                            : __ll2float_rn((long long)a))
                                    : (D)a;
        }
        return saturated_to_unit ? saturate(result) : result;
    } else {
        if (saturated_to_unit) {  // .sat between integers: clamp to the target's range
            __int128 x = a, low = std::numeric_limits<D>::min(), high = std::numeric_limits<D>::max();
            return (D)(x < low ? low : x > high ? high : x);
        }
        return (D)a;
    }
}
inline __half2 pair(__half low, __half high) { return __halves2half2(low, high); }
inline __nv_bfloat162 pair(__nv_bfloat16 low, __nv_bfloat16 high) { return __halves2bfloat162(low, high); }

// ---- shfl.sync, with the segment mask and clamp packed into one operand as PTX has them
enum class Shuffle { up, down, bfly, idx };
struct ShuffleSlot {
    Shuffle mode;
    uint32_t value, argument, control, result;
    bool in_range;
    CSIM_EXEC static void exec(void* const* slots, unsigned) {
        for (int lane = 0; lane < 32; ++lane) {
            auto* s = static_cast<ShuffleSlot*>(slots[lane]);
            if (!s) continue;
            int b = (int)(s->argument & 31), clamp = (int)(s->control & 31), segment = (int)(s->control >> 8 & 31);
            int last = (lane & segment) | (clamp & ~segment), first = lane & segment, source = lane;
            switch (s->mode) {
                case Shuffle::up: source = lane - b, s->in_range = source >= last; break;
                case Shuffle::down: source = lane + b, s->in_range = source <= last; break;
                case Shuffle::bfly: source = lane ^ b, s->in_range = source <= last; break;
                case Shuffle::idx: source = first | (b & ~segment), s->in_range = source <= last; break;
            }
            if (!s->in_range) source = lane;
            auto* from = static_cast<ShuffleSlot*>(slots[source & 31]);
            s->result = from ? from->value : 0xffffffffu;
        }
    }
};
CSIM_HERE uint32_t shuffle(Shuffle mode, uint32_t value, uint32_t argument, uint32_t control, uint32_t mask,
        bool& in_range) {
    ShuffleSlot slot{mode, value, argument, control, 0, false};
    csim_warp_collective(mask, &slot, &ShuffleSlot::exec, "shfl.sync");
    in_range = slot.in_range;
    return slot.result;
}
CSIM_HERE void arrive(int id, int threads, const char* name) { csim_block_arrive(id, threads, name); }
}  // namespace csim::ptx
