// cuRAND's device generators for the simulator: Philox4_32_10 and XORWOW.
//
// Both follow the published algorithms: Philox (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3") with
// cuRAND's use of its counter, and Marsaglia's xorwow with cuRAND's seeding; sequences are 2^67 draws apart, reached by
// powers of the generator's bit matrix. Raw integers and uniform floats are bit-identical to a chip's; normals go
// through log and sincos, whose last bits differ. Left out: MRG32k3a, MTGP32, Sobol generators, Poisson and discrete.
#pragma once

#include <cmath>
#include <cstdint>

#include "csim/intrinsics.h"
#include "curand_status.h"

#define CSIM_CURAND inline

// ---- states, with the members that CUDA's have
struct curandStatePhilox4_32_10 {
    uint4 ctr;
    uint4 output;
    uint2 key;
    unsigned STATE;  // how many of `output` were handed out
    int boxmuller_flag;
    int boxmuller_flag_double;
    float boxmuller_extra;
    double boxmuller_extra_double;
};
struct curandStateXORWOW {
    unsigned d, v[5];
    int boxmuller_flag;
    int boxmuller_flag_double;
    float boxmuller_extra;
    double boxmuller_extra_double;
};
using curandStatePhilox4_32_10_t = curandStatePhilox4_32_10;
using curandStateXORWOW_t = curandStateXORWOW;
using curandState = curandStateXORWOW;
using curandState_t = curandStateXORWOW;

// ---- Philox
namespace csim::random {
CSIM_CURAND uint4 philox_round(uint4 c, uint2 k) {
    uint64_t p0 = (uint64_t)0xD2511F53u * c.x, p1 = (uint64_t)0xCD9E8D57u * c.z;
    return make_uint4((unsigned)(p1 >> 32) ^ c.y ^ k.x, (unsigned)p1, (unsigned)(p0 >> 32) ^ c.w ^ k.y, (unsigned)p0);
}
CSIM_CURAND uint4 philox(uint4 counter, uint2 key) {
    for (int round = 0; round < 10; ++round) {
        counter = philox_round(counter, key);
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
    return counter;
}
// Adds n to the low or the high half of the 128-bit counter.
CSIM_CURAND void advance(unsigned& low, unsigned& high, uint64_t n) {
    uint64_t value = ((uint64_t)high << 32 | low) + n;
    low = (unsigned)value, high = (unsigned)(value >> 32);
}
CSIM_CURAND void advance(curandStatePhilox4_32_10* s, uint64_t blocks) {
    uint64_t before = (uint64_t)s->ctr.y << 32 | s->ctr.x;
    advance(s->ctr.x, s->ctr.y, blocks);
    if (before + blocks < before) advance(s->ctr.z, s->ctr.w, 1);
}
}  // namespace csim::random

CSIM_CURAND void skipahead(unsigned long long n, curandStatePhilox4_32_10* s) {
    s->STATE += (unsigned)(n & 3);
    n /= 4;
    if (s->STATE > 3) ++n, s->STATE -= 4;
    csim::random::advance(s, n);
    s->output = csim::random::philox(s->ctr, s->key);
}
CSIM_CURAND void skipahead_sequence(unsigned long long n, curandStatePhilox4_32_10* s) {
    csim::random::advance(s->ctr.z, s->ctr.w, n);
    s->output = csim::random::philox(s->ctr, s->key);
}
CSIM_CURAND void curand_init(unsigned long long seed, unsigned long long subsequence, unsigned long long offset,
                             curandStatePhilox4_32_10* s) {
    *s = {};
    s->key = make_uint2((unsigned)seed, (unsigned)(seed >> 32));
    skipahead_sequence(subsequence, s);
    skipahead(offset, s);
}
CSIM_CURAND unsigned curand(curandStatePhilox4_32_10* s) {
    const unsigned values[4] = {s->output.x, s->output.y, s->output.z, s->output.w};
    unsigned result = values[s->STATE++ & 3];
    if (s->STATE == 4) {
        csim::random::advance(s, 1);
        s->output = csim::random::philox(s->ctr, s->key);
        s->STATE = 0;
    }
    return result;
}
CSIM_CURAND uint4 curand4(curandStatePhilox4_32_10* s) {
    const uint4 old = s->output;
    csim::random::advance(s, 1);
    s->output = csim::random::philox(s->ctr, s->key);
    const unsigned values[8] = {old.x, old.y, old.z, old.w, s->output.x, s->output.y, s->output.z, s->output.w};
    const unsigned* v = values + (s->STATE & 3);
    return make_uint4(v[0], v[1], v[2], v[3]);
}

// ---- XORWOW. The five words step linearly over bits, so n steps are a power of a 160 x 160 bit matrix.
namespace csim::random {
struct BitMatrix {
    uint32_t column[160][5];  // what each single bit of the state becomes
};
__attribute__((always_inline)) CSIM_CURAND void xorwow_step(uint32_t* v) {
    uint32_t t = v[0] ^ (v[0] >> 2);
    v[0] = v[1], v[1] = v[2], v[2] = v[3], v[3] = v[4];
    v[4] = v[4] ^ (v[4] << 4) ^ (t ^ (t << 1));
}
CSIM_PLAIN CSIM_CURAND void multiply(const BitMatrix& m, const uint32_t* in, uint32_t* out) {
    uint32_t sum[5] = {};
    for (int word = 0; word < 5; ++word)
        for (uint32_t bits = in[word]; bits; bits &= bits - 1) {
            const uint32_t* column = m.column[32 * word + __builtin_ctz(bits)];
            for (int i = 0; i < 5; ++i) sum[i] ^= column[i];
        }
    for (int i = 0; i < 5; ++i) out[i] = sum[i];
}
// jumps()[i]: 2^i steps. Built once, in some milliseconds, by squaring.
CSIM_PLAIN CSIM_CURAND const BitMatrix* jumps() {
    static BitMatrix powers[67 + 64];
    static bool built;
    if (built) return powers;
    for (int bit = 0; bit < 160; ++bit) {
        uint32_t* column = powers[0].column[bit];
        column[bit / 32] = 1u << (bit % 32);
        xorwow_step(column);
    }
    for (int p = 1; p < 67 + 64; ++p)
        for (int bit = 0; bit < 160; ++bit) multiply(powers[p - 1], powers[p - 1].column[bit], powers[p].column[bit]);
    built = true;
    return powers;
}
CSIM_PLAIN CSIM_CURAND void jump(uint32_t* v, unsigned long long n, int scale) {
    for (int i = 0; n; ++i, n >>= 1)
        if (n & 1) multiply(jumps()[i + scale], v, v);
}
}  // namespace csim::random

// The matrices work on a local copy: what the kernel's own state sees are checked reads and writes.
CSIM_CURAND void skipahead(unsigned long long n, curandStateXORWOW* s) {
    curandStateXORWOW local = *s;
    csim::random::jump(local.v, n, 0);
    local.d += 362437u * (unsigned)n;
    *s = local;
}
CSIM_CURAND void skipahead_sequence(unsigned long long n, curandStateXORWOW* s) {
    curandStateXORWOW local = *s;
    csim::random::jump(local.v, n, 67);  // 2^67 steps leave d where it was
    *s = local;
}
CSIM_CURAND void curand_init(unsigned long long seed, unsigned long long subsequence, unsigned long long offset,
                             curandStateXORWOW* s) {
    const unsigned t0 = 1099087573u * ((unsigned)seed ^ 0xaad26b49u);
    const unsigned t1 = 2591861531u * ((unsigned)(seed >> 32) ^ 0xf7dcefddu);
    curandStateXORWOW local{};
    local.d = 6615241u + t1 + t0;
    local.v[0] = 123456789u + t0;
    local.v[1] = 362436069u ^ t0;
    local.v[2] = 521288629u + t1;
    local.v[3] = 88675123u ^ t1;
    local.v[4] = 5783321u + t0;
    skipahead_sequence(subsequence, &local);
    skipahead(offset, &local);
    *s = local;
}
CSIM_CURAND unsigned curand(curandStateXORWOW* s) {
    csim::random::xorwow_step(s->v);
    s->d += 362437u;
    return s->v[4] + s->d;
}

// ---- distributions
namespace csim::random {
CSIM_CURAND float uniform(unsigned x) { return (float)x * 0x1p-32f + 0x1p-33f; }  // (0, 1]
CSIM_CURAND double uniform_double(unsigned x, unsigned y) {
    return (double)((uint64_t)x ^ (uint64_t)y << 21) * 0x1p-53 + 0x1p-54;
}
CSIM_CURAND float2 box_muller(unsigned x, unsigned y) {
    float u = uniform(x), v = (float)y * (0x1p-32f * 6.2831855f) + 0x1p-33f * 6.2831855f, s = sqrtf(-2.0f * logf(u));
    return make_float2(s * sinf(v), s * cosf(v));
}
CSIM_CURAND double2 box_muller_double(uint4 x) {
    double u = uniform_double(x.x, x.y), angle = (double)((uint64_t)x.z ^ (uint64_t)x.w << 21) * 0x1p-52 + 0x1p-53;
    double s = std::sqrt(-2.0 * std::log(u));
    return make_double2(s * std::sin(angle * M_PI), s * std::cos(angle * M_PI));
}
template <class S> CSIM_CURAND uint4 four(S* s) {
    unsigned x = curand(s), y = curand(s), z = curand(s), w = curand(s);
    return make_uint4(x, y, z, w);
}
CSIM_CURAND uint4 four(curandStatePhilox4_32_10* s) { return curand4(s); }
// cuRAND makes a double of two words, but of one with Philox.
template <class S> CSIM_CURAND double one_double(S* s) {
    unsigned x = curand(s), y = curand(s);
    return uniform_double(x, y);
}
CSIM_CURAND double one_double(curandStatePhilox4_32_10* s) { return (double)curand(s) * 0x1p-32 + 0x1p-32; }
constexpr int extra_normal = 1;
}  // namespace csim::random

#define CSIM_CURAND_FOR(STATE)                                                                                      \
    CSIM_CURAND float curand_uniform(STATE* s) { return csim::random::uniform(curand(s)); }                         \
    CSIM_CURAND double curand_uniform_double(STATE* s) { return csim::random::one_double(s); }                      \
    CSIM_CURAND float2 curand_normal2(STATE* s) {                                                                   \
        unsigned x = curand(s), y = curand(s);                                                                      \
        return csim::random::box_muller(x, y);                                                                      \
    }                                                                                                               \
    CSIM_CURAND float curand_normal(STATE* s) {                                                                     \
        if (s->boxmuller_flag == csim::random::extra_normal) {                                                      \
            s->boxmuller_flag = 0;                                                                                  \
            return s->boxmuller_extra;                                                                              \
        }                                                                                                           \
        float2 pair = curand_normal2(s);                                                                            \
        s->boxmuller_flag = csim::random::extra_normal;                                                             \
        s->boxmuller_extra = pair.y;                                                                                \
        return pair.x;                                                                                              \
    }                                                                                                               \
    CSIM_CURAND double2 curand_normal2_double(STATE* s) {                                                           \
        return csim::random::box_muller_double(csim::random::four(s));                                              \
    }                                                                                                               \
    CSIM_CURAND double curand_normal_double(STATE* s) {                                                             \
        if (s->boxmuller_flag_double == csim::random::extra_normal) {                                               \
            s->boxmuller_flag_double = 0;                                                                           \
            return s->boxmuller_extra_double;                                                                       \
        }                                                                                                           \
        double2 pair = curand_normal2_double(s);                                                                    \
        s->boxmuller_flag_double = csim::random::extra_normal;                                                      \
        s->boxmuller_extra_double = pair.y;                                                                         \
        return pair.x;                                                                                              \
    }                                                                                                               \
    CSIM_CURAND float curand_log_normal(STATE* s, float mean, float stddev) {                                       \
        return expf(mean + stddev * curand_normal(s));                                                              \
    }                                                                                                               \
    CSIM_CURAND float2 curand_log_normal2(STATE* s, float mean, float stddev) {                                     \
        float2 pair = curand_normal2(s);                                                                            \
        return make_float2(expf(mean + stddev * pair.x), expf(mean + stddev * pair.y));                             \
    }                                                                                                               \
    CSIM_CURAND double curand_log_normal_double(STATE* s, double mean, double stddev) {                             \
        return std::exp(mean + stddev * curand_normal_double(s));                                                   \
    }
CSIM_CURAND_FOR(curandStatePhilox4_32_10)
CSIM_CURAND_FOR(curandStateXORWOW)
#undef CSIM_CURAND_FOR

// ---- four at a time: Philox only, as in cuRAND
CSIM_CURAND float4 curand_uniform4(curandStatePhilox4_32_10* s) {
    uint4 x = curand4(s);
    return make_float4(csim::random::uniform(x.x), csim::random::uniform(x.y), csim::random::uniform(x.z),
                       csim::random::uniform(x.w));
}
CSIM_CURAND double2 curand_uniform2_double(curandStatePhilox4_32_10* s) {
    uint4 x = curand4(s);
    return make_double2(csim::random::uniform_double(x.x, x.y), csim::random::uniform_double(x.z, x.w));
}
CSIM_CURAND float4 curand_normal4(curandStatePhilox4_32_10* s) {
    uint4 x = curand4(s);
    float2 a = csim::random::box_muller(x.x, x.y), b = csim::random::box_muller(x.z, x.w);
    return make_float4(a.x, a.y, b.x, b.y);
}
CSIM_CURAND float4 curand_log_normal4(curandStatePhilox4_32_10* s, float mean, float stddev) {
    float4 n = curand_normal4(s);
    return make_float4(expf(mean + stddev * n.x), expf(mean + stddev * n.y), expf(mean + stddev * n.z),
                       expf(mean + stddev * n.w));
}
