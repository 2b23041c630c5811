// Tensor-core instructions: mma.sync, ldmatrix, stmatrix, movmatrix, as warp collectives on register fragments.
//
// Numbers: operands are taken as the hardware takes them (tf32 uses the top 19 bits of a float, whatever the rest
// holds) and products are exact. Accumulation to f32 cuts, as a chip does (csim/tensor_sum.h). So long sums drift
// downwards in magnitude, and a kernel that never promotes its accumulator shows it here too. Accumulation to f16
// rounds to nearest.
//
// Fragments: with g = lane / 4, t = lane % 4 and e elements in one 32-bit register, register (kb, half) of A holds
// A[g + 8*half][kb*4e + t*e ..], register kb of B holds B[kb*4e + t*e ..][g], and C/D hold [g + 8*half][2t .. 2t+1].
// Every shape below follows this one rule.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "csim/fp16.h"
#include "csim/memory.h"
#include "csim/tensor_sum.h"

namespace csim::mma {
enum class Acc { f32, f16, s32, f64 };

using tensor::aligned_sum;
using tensor::exponent_of;
using tensor::half_bits_to_float;
using tensor::toward_zero;
CSIM_EXEC inline uint32_t float_to_half_bits(double x) { return bit_cast<uint16_t>(__double2half(x)); }

struct F16 {
    using Value = double;
    static constexpr int per_register = 2;
    CSIM_HERE static Value at(uint32_t r, int i) { return half_bits_to_float(r >> (16 * i) & 0xffffu); }
};
struct Bf16 {
    using Value = double;
    static constexpr int per_register = 2;
    CSIM_HERE static Value at(uint32_t r, int i) { return tensor::bfloat_bits_to_float(r >> (16 * i) & 0xffffu); }
};
struct Tf32 {
    using Value = double;
    static constexpr int per_register = 1;
    CSIM_HERE static Value at(uint32_t r, int) { return tensor::tf32_bits_to_float(r); }
};
struct F64 {
    using Value = double;
    static constexpr int per_register = 1;
    CSIM_HERE static Value at(double r, int) { return r; }
};
struct S8 {
    using Value = int64_t;
    static constexpr int per_register = 4;
    CSIM_HERE static Value at(uint32_t r, int i) { return (int8_t)(r >> (8 * i)); }
};
struct U8 {
    using Value = int64_t;
    static constexpr int per_register = 4;
    CSIM_HERE static Value at(uint32_t r, int i) { return (uint8_t)(r >> (8 * i)); }
};

// A collective of the whole warp sets `incomplete` in every slot when a lane is missing; the caller then says so.
CSIM_EXEC inline bool whole_warp(void* const* slots) {
    for (int lane = 0; lane < 32; ++lane)
        if (!slots[lane]) return false;
    return true;
}
CSIM_HERE void need_full_warp(bool complete, const char* name) {
    if (!complete)
        csim_fail("warp_divergence", "%s needs all 32 lanes of the warp, and some have exited or do not exist", name);
}

template <class R> struct Slot {
    const R *a, *b, *c;
    R* d;
    bool saturate, complete;
};

template <class A, class B, Acc ACC, int M, int K, class R> struct Multiply {
    using Value = typename A::Value;
    static constexpr int E = A::per_register, HALVES = M / 8, BLOCKS = K / (4 * E);

    CSIM_EXEC static void exec(void* const* slots, unsigned) {
        if (!whole_warp(slots)) return;
        Value a[M][K], b[8][K];
        int a_e[M][K], b_e[8][K];  // exponents, for Acc::f32
        for (int lane = 0; lane < 32; ++lane) {
            auto* s = static_cast<Slot<R>*>(slots[lane]);
            s->complete = true;
            int g = lane >> 2, t = lane & 3;
            for (int kb = 0; kb < BLOCKS; ++kb)
                for (int i = 0; i < E; ++i) {
                    int k = kb * 4 * E + t * E + i;
                    for (int half = 0; half < HALVES; ++half) a[g + 8 * half][k] = A::at(s->a[kb * HALVES + half], i);
                    b[g][k] = B::at(s->b[kb], i);
                    if constexpr (ACC == Acc::f32) {
                        for (int half = 0; half < HALVES; ++half) a_e[g + 8 * half][k] = exponent_of(a[g + 8 * half][k]);
                        b_e[g][k] = exponent_of(b[g][k]);
                    }
                }
        }
        // Rows of zeros add nothing to a sum where the other operand is finite: most rows of a ragged last tile.
        bool idle[M] = {};
        if constexpr (ACC == Acc::f32) {
            Value spread = 0;
            for (int n = 0; n < 8; ++n)
                for (int k = 0; k < K; ++k) spread += b[n][k] * 0;  // nan where one is inf or nan
            for (int m = 0; m < M && spread == 0; ++m) {
                idle[m] = true;
                for (int k = 0; k < K; ++k) idle[m] = idle[m] && a[m][k] == 0;
            }
        }
        for (int lane = 0; lane < 32; ++lane) {
            auto* s = static_cast<Slot<R>*>(slots[lane]);
            int g = lane >> 2, t = lane & 3;
            for (int half = 0; half < HALVES; ++half) {
                const Value same[2] = {accumulator(s->c, half, 0), accumulator(s->c, half, 1)};
                // Only -0 could change, by a product of +0.
                if (idle[g + 8 * half] && (same[0] != 0 || !std::signbit((double)same[0])) &&
                    (same[1] != 0 || !std::signbit((double)same[1]))) {
                    finish(s->d, half, same, s->saturate);
                    continue;
                }
                Value sum[2];
                for (int j = 0; j < 2; ++j) {
                    sum[j] = accumulator(s->c, half, j);
                    const Value *row = a[g + 8 * half], *column = b[2 * t + j];
                    if constexpr (ACC == Acc::f32)
                        sum[j] = aligned_sum<K>(sum[j], row, column, a_e[g + 8 * half], b_e[2 * t + j]);
                    else
                        for (int k = 0; k < K; ++k) sum[j] += row[k] * column[k];
                }
                finish(s->d, half, sum, s->saturate);
            }
        }
    }
    CSIM_HERE static Value accumulator(const R* c, int half, int j) {
        if constexpr (ACC == Acc::f16) return F16::at(c[half], j);
        else if constexpr (ACC == Acc::f32) return bit_cast<float>(c[2 * half + j]);
        else if constexpr (ACC == Acc::s32) return (int32_t)c[2 * half + j];
        else return c[2 * half + j];
    }
    CSIM_HERE static void finish(R* d, int half, const Value* sum, bool saturate) {
        if constexpr (ACC == Acc::f16) {
            d[half] = float_to_half_bits(sum[0]) | float_to_half_bits(sum[1]) << 16;
        } else {
            for (int j = 0; j < 2; ++j) {
                R& out = d[2 * half + j];
                if constexpr (ACC == Acc::f32) out = bit_cast<uint32_t>((float)sum[j]);
                else if constexpr (ACC == Acc::f64) out = sum[j];
                else out = (uint32_t)(saturate ? sum[j] > INT32_MAX   ? INT32_MAX
                                                 : sum[j] < INT32_MIN ? INT32_MIN
                                                                      : sum[j]
                                               : sum[j]);
            }
        }
    }
};

// d = a * b + c on the fragments of one warp; the caller's registers, in the order of the PTX operands.
template <class A, class B, Acc ACC, int M, int K, class R>
CSIM_HERE void sync(R* d, const R* a, const R* b, const R* c, bool saturate = false) {
    Slot<R> slot{a, b, c, d, saturate, false};
    csim_warp_collective(0xffffffffu, &slot, &Multiply<A, B, ACC, M, K, R>::exec, "mma.sync");
    need_full_warp(slot.complete, "mma.sync");
}

// ---- ldmatrix / stmatrix: 8x8 tiles of 16-bit elements; lane 8*i + r brings the address of row r of tile i.
// The warp meets twice: first so that what its lanes wrote before counts as written (these instructions wait for all
// lanes), then, each lane having checked its own row, to move the data.
struct MeetSlot {
    bool complete;
    CSIM_EXEC static void exec(void* const* slots, unsigned) {
        if (!whole_warp(slots)) return;
        for (int lane = 0; lane < 32; ++lane) static_cast<MeetSlot*>(slots[lane])->complete = true;
    }
};
CSIM_HERE void meet(const char* name) {
    MeetSlot slot{false};
    csim_warp_collective(0xffffffffu, &slot, &MeetSlot::exec, name);
    need_full_warp(slot.complete, name);
}
struct MatrixSlot {
    uint16_t* row;
    uint32_t* registers;
};
template <int N, bool TRANSPOSED, bool STORE> struct MatrixMove {
    CSIM_EXEC static void exec(void* const* slots, unsigned) {
        if (!whole_warp(slots)) return;
        for (int lane = 0; lane < 32; ++lane) {
            auto* s = static_cast<MatrixSlot*>(slots[lane]);
            for (int tile = 0; tile < N; ++tile) {
                uint16_t parts[2];
                if (STORE) std::memcpy(parts, &s->registers[tile], 4);
                for (int j = 0; j < 2; ++j) {
                    int row = TRANSPOSED ? 2 * (lane & 3) + j : lane >> 2,
                            column = TRANSPOSED ? lane >> 2 : 2 * (lane & 3) + j;
                    uint16_t& element = static_cast<MatrixSlot*>(slots[8 * tile + row])->row[column];
                    if (STORE) element = parts[j];
                    else parts[j] = element;
                }
                if (!STORE) std::memcpy(&s->registers[tile], parts, 4);
            }
        }
    }
};
template <int N, bool TRANSPOSED> CSIM_HERE void ldmatrix(uint32_t* out, const void* row) {
    meet("ldmatrix");
    if (csim_lane() < 8 * N) {
        if ((uintptr_t)row % 16) csim_fail("misaligned", "ldmatrix: the row address %p is not a multiple of 16", row);
        check_access(row, 16, false);
    }
    MatrixSlot slot{(uint16_t*)row, out};
    csim_warp_collective(0xffffffffu, &slot, &MatrixMove<N, TRANSPOSED, false>::exec, "ldmatrix");
}
template <int N, bool TRANSPOSED> CSIM_HERE void stmatrix(void* row, const uint32_t* in) {
    meet("stmatrix");
    if (csim_lane() < 8 * N) {
        if ((uintptr_t)row % 16) csim_fail("misaligned", "stmatrix: the row address %p is not a multiple of 16", row);
        check_access(row, 16, true);
    }
    MatrixSlot slot{(uint16_t*)row, (uint32_t*)in};
    csim_warp_collective(0xffffffffu, &slot, &MatrixMove<N, TRANSPOSED, true>::exec, "stmatrix");
}

// movmatrix: one 8x8 tile, transposed from registers to registers
struct TransposeSlot {
    uint32_t in, out;
    bool complete;
    CSIM_EXEC static void exec(void* const* slots, unsigned) {
        if (!whole_warp(slots)) return;
        uint16_t tile[8][8];
        for (int lane = 0; lane < 32; ++lane) {
            auto* s = static_cast<TransposeSlot*>(slots[lane]);
            s->complete = true;
            for (int j = 0; j < 2; ++j) tile[lane >> 2][2 * (lane & 3) + j] = (uint16_t)(s->in >> (16 * j));
        }
        for (int lane = 0; lane < 32; ++lane) {
            int row = lane >> 2, column = 2 * (lane & 3);
            static_cast<TransposeSlot*>(slots[lane])->out = tile[column][row] | (uint32_t)tile[column + 1][row] << 16;
        }
    }
};
CSIM_HERE uint32_t movmatrix(uint32_t value) {
    TransposeSlot slot{value, 0, false};
    csim_warp_collective(0xffffffffu, &slot, &TransposeSlot::exec, "movmatrix");
    need_full_warp(slot.complete, "movmatrix");
    return slot.out;
}
}  // namespace csim::mma
