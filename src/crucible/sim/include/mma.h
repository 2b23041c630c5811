// nvcuda::wmma for the simulator: fragments, load, store, fill and mma_sync as warp collectives.
//
// Numbers are those of csim/mma.h: exact products, one rounding of each result (towards zero for float accumulators).
// CUDA leaves open which thread owns which element; in here x[i] follows the register layout of the mma instructions,
// and half-precision operands hold each element twice, as the real fragments do (num_elements agrees with CUDA's).
// Left out: 4-bit and 1-bit types.
#pragma once

#include <cstdint>
#include <type_traits>

#include "csim/mma.h"

namespace nvcuda::wmma {
struct row_major;
struct col_major;
struct matrix_a;
struct matrix_b;
struct accumulator;
namespace precision {
struct tf32;
}
enum layout_t { mem_row_major, mem_col_major };

inline float __float_to_tf32(float x) {
    uint32_t bits = csim::bit_cast<uint32_t>(x);
    if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0x1000u) & ~0x1fffu;
    return csim::bit_cast<float>(bits);
}

namespace details {
template <class T> struct Stored { using type = T; };
template <> struct Stored<precision::tf32> { using type = float; };
template <class T> using stored = typename Stored<T>::type;

// The shapes and types that CUDA offers; anything else fails to compile here as it does under nvcc.
template <class T, int M, int N, int K> constexpr bool operand_exists() {
    constexpr bool k16 = K == 16 && ((M == 16 && N == 16) || (M == 32 && N == 8) || (M == 8 && N == 32));
    if constexpr (std::is_same_v<T, precision::tf32>) return M == 16 && N == 16 && K == 8;
    else if constexpr (std::is_same_v<T, double>) return M == 8 && N == 8 && K == 4;
    else return k16 && (std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16> || std::is_same_v<T,
            signed char> ||
                        std::is_same_v<T, unsigned char>);
}
template <class T> constexpr int elements_per_register() {
    return std::is_same_v<T, precision::tf32> || std::is_same_v<T, double> ? 1 : sizeof(stored<T>) == 2 ? 2 : 4;
}
// Where element i of a lane lies. An operand is seen as ROWS x K (A: rows of A; B: columns of B).
struct Place {
    int row, column;
};
template <int ROWS, int E> CSIM_EXEC constexpr Place operand_place(int lane, int i) {
    int q = i / E;
    return {lane / 4 + 8 * (q % (ROWS / 8)), q / (ROWS / 8) * 4 * E + lane % 4 * E + i % E};
}
template <int M, int N> CSIM_EXEC constexpr Place accumulator_place(int lane, int i) {
    int pair = i / 2;
    return {lane / 4 + 8 * (pair % (M / 8)), 8 * (pair / (M / 8)) + 2 * (lane % 4) + i % 2};
}
CSIM_EXEC inline double value_of(__half x) { return csim::mma::half_bits_to_float(csim::bit_cast<uint16_t>(x)); }
CSIM_EXEC inline double value_of(__nv_bfloat16 x) { return __bfloat162float(x); }
CSIM_EXEC inline double value_of(double x) { return x; }
CSIM_EXEC inline double value_of(float x) { return csim::bit_cast<float>(csim::bit_cast<uint32_t>(x) & 0xffffe000u); }
CSIM_EXEC inline int64_t value_of(signed char x) { return x; }
CSIM_EXEC inline int64_t value_of(unsigned char x) { return x; }

CSIM_EXEC inline void result_to(float& out, double sum, bool) { out = csim::mma::toward_zero(sum); }
CSIM_EXEC inline void result_to(__half& out, double sum, bool) { out = __double2half(sum); }
CSIM_EXEC inline void result_to(double& out, double sum, bool) { out = sum; }
CSIM_EXEC inline void result_to(int& out, int64_t sum, bool saturate) {
    out = (int)(uint32_t)(saturate ? sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum : sum);
}
CSIM_EXEC inline double start_of(float c) { return c; }
CSIM_EXEC inline double start_of(double c) { return c; }
CSIM_EXEC inline double start_of(__half c) { return __half2float(c); }
CSIM_EXEC inline int64_t start_of(int c) { return c; }
}  // namespace details

template <class USE, int M, int N, int K, class T, class LAYOUT = void> class fragment;

template <int M, int N, int K, class T, class LAYOUT> class fragment<matrix_a, M, N, K, T, LAYOUT> {
    static_assert(details::operand_exists<T, M, N, K>(), "wmma has no fragment of this shape and type");

 public:
    using element_type = T;
    using storage_element_type = details::stored<T>;
    static constexpr int num_elements = M * K / 32 * (std::is_same_v<T, __half> ? (M == 32 ? 1 : M == 8 ? 4 : 2) : 1);
    static constexpr int num_storage_elements = num_elements, csim_rows = M, csim_unique = M * K / 32;
    storage_element_type x[num_elements];
};
template <int M, int N, int K, class T, class LAYOUT> class fragment<matrix_b, M, N, K, T, LAYOUT> {
    static_assert(details::operand_exists<T, M, N, K>(), "wmma has no fragment of this shape and type");

 public:
    using element_type = T;
    using storage_element_type = details::stored<T>;
    static constexpr int num_elements = N * K / 32 * (std::is_same_v<T, __half> ? (N == 32 ? 1 : N == 8 ? 4 : 2) : 1);
    static constexpr int num_storage_elements = num_elements, csim_rows = N, csim_unique = N * K / 32;
    storage_element_type x[num_elements];
};
template <int M, int N, int K, class T> class fragment<accumulator, M, N, K, T, void> {
 public:
    using element_type = T;
    using storage_element_type = T;
    static constexpr int num_elements = M * N / 32, num_storage_elements = num_elements;
    T x[num_elements];
};

template <class USE, int M, int N, int K, class T, class L, class V>
inline void fill_fragment(fragment<USE, M, N, K, T, L>& f, const V& value) {
    for (auto& element : f.x) element = (details::stored<T>)value;
}

namespace details {
CSIM_HERE size_t offset(Place at, unsigned ldm, bool columns_are_neighbours) {
    return columns_are_neighbours ? (size_t)at.row * ldm + at.column : (size_t)at.column * ldm + at.row;
}
template <class T> CSIM_HERE void check_matrix(const T* p, unsigned ldm, const char* name) {
    if ((uintptr_t)p % 16)
        csim_fail("misaligned", "wmma::%s: the matrix at %p does not start at a multiple of 16 bytes", name,
                (const void*)p);
    if (sizeof(T) < 8 && ldm * sizeof(T) % 16)
        csim_fail("misaligned", "wmma::%s: the leading dimension %u is not a multiple of 16 bytes", name, ldm);
}
}  // namespace details

template <class USE, int M, int N, int K, class T, class L>
CSIM_HERE void load_matrix_sync(fragment<USE, M, N, K, T, L>& f, const details::stored<T>* p,
                                                           unsigned ldm) {
    static_assert(!std::is_same_v<USE, accumulator>,
            "an accumulator is loaded with its memory layout as last argument");
    using F = fragment<USE, M, N, K, T, L>;
    constexpr bool k_is_fast = std::is_same_v<USE, matrix_a> == std::is_same_v<L, row_major>;
    csim::mma::meet("load_matrix_sync");
    details::check_matrix(p, ldm, "load_matrix_sync");
    for (int i = 0; i < F::csim_unique; ++i) {
        auto at = details::operand_place<F::csim_rows, details::elements_per_register<T>()>(csim_lane(), i);
        details::stored<T> element = p[details::offset(at, ldm, k_is_fast)];
        for (int copy = i; copy < F::num_elements; copy += F::csim_unique) f.x[copy] = element;
    }
    csim::mma::meet("load_matrix_sync");
}
template <int M, int N, int K, class T>
CSIM_HERE void load_matrix_sync(fragment<accumulator, M, N, K, T>& f, const T* p, unsigned ldm,
                                                           layout_t layout) {
    csim::mma::meet("load_matrix_sync");
    details::check_matrix(p, ldm, "load_matrix_sync");
    for (int i = 0; i < f.num_elements; ++i) {
        auto at = details::accumulator_place<M, N>(csim_lane(), i);
        f.x[i] = p[details::offset(at, ldm, layout == mem_row_major)];
    }
    csim::mma::meet("load_matrix_sync");
}
template <int M, int N, int K, class T>
CSIM_HERE void store_matrix_sync(T* p, const fragment<accumulator, M, N, K, T>& f, unsigned ldm,
                                                            layout_t layout) {
    csim::mma::meet("store_matrix_sync");
    details::check_matrix(p, ldm, "store_matrix_sync");
    for (int i = 0; i < f.num_elements; ++i) {
        auto at = details::accumulator_place<M, N>(csim_lane(), i);
        p[details::offset(at, ldm, layout == mem_row_major)] = f.x[i];
    }
    csim::mma::meet("store_matrix_sync");
}

namespace details {
template <class A, class B, class C, class D> struct MultiplySlot {
    const A* a;
    const B* b;
    const C* c;
    D* d;
    bool saturate, complete;
};
template <int M, int N, int K, class A, class B, class C, class D> struct Multiply {
    using T = typename A::element_type;
    using Value = decltype(value_of(stored<T>()));
    CSIM_EXEC static void exec(void* const* slots, unsigned) {
        if (!csim::mma::whole_warp(slots)) return;
        Value a[M][K], b[N][K];
        for (int lane = 0; lane < 32; ++lane) {
            auto* s = static_cast<MultiplySlot<A, B, C, D>*>(slots[lane]);
            s->complete = true;
            for (int i = 0; i < A::csim_unique; ++i) {
                Place at = operand_place<M, elements_per_register<T>()>(lane, i);
                a[at.row][at.column] = value_of(s->a->x[i]);
            }
            for (int i = 0; i < B::csim_unique; ++i) {
                Place at = operand_place<N, elements_per_register<T>()>(lane, i);
                b[at.row][at.column] = value_of(s->b->x[i]);
            }
        }
        for (int lane = 0; lane < 32; ++lane) {
            auto* s = static_cast<MultiplySlot<A, B, C, D>*>(slots[lane]);
            for (int i = 0; i < C::num_elements; ++i) {
                Place at = accumulator_place<M, N>(lane, i);
                Value sum = start_of(s->c->x[i]);
                for (int k = 0; k < K; ++k) sum += a[at.row][k] * b[at.column][k];
                result_to(s->d->x[i], sum, s->saturate);
            }
        }
    }
};
}  // namespace details

template <int M, int N, int K, class T, class LA, class LB, class TC, class TD>
CSIM_HERE void mma_sync(fragment<accumulator, M, N, K, TD>& d, const fragment<matrix_a, M, N, K, T, LA>& a,
                     const fragment<matrix_b, M, N, K, T, LB>& b, const fragment<accumulator, M, N, K, TC>& c,
                     bool saturate = false) {
    using A = fragment<matrix_a, M, N, K, T, LA>;
    using B = fragment<matrix_b, M, N, K, T, LB>;
    using C = fragment<accumulator, M, N, K, TC>;
    using D = fragment<accumulator, M, N, K, TD>;
    details::MultiplySlot<A, B, C, D> slot{&a, &b, &c, &d, saturate, false};
    csim_warp_collective(0xffffffffu, &slot, &details::Multiply<M, N, K, A, B, C, D>::exec, "mma_sync");
    csim::mma::need_full_warp(slot.complete, "mma_sync");
}
}  // namespace nvcuda::wmma
