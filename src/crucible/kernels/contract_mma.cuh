// The contraction engine on tensor cores (mma.sync, compute capability 8.0 and later).
//
// Block tile BM x BN, BK deep; each warp computes WM x WN. What lies in shared memory are 32-bit words: a tf32 number,
// or two half or bfloat16 numbers of neighbouring k. A panel is made of slabs 16 words deep; a line's 16 words are four
// 16-byte chunks, permuted by the line's number so that 16-byte stores across lines, 4-byte stores along k and the
// fragments' 16-byte loads all hit distinct banks. A fragment's order of k is the load's (word 4q .. 4q+3 for the
// thread with lane % 4 == q), the same in A and B, so the sum is over all k all the same.
// Per slab a warp loads (WM + WN) * 64 bytes and issues WM * WN / 64 mma (three times that in grade Fp32).
// Registers: WM * WN / 32 sums, WN / 2 more for a slab's own, and the next tile's elements.
// Tensor cores cut what they add, so the sums of a slab go to ordinary registers, which round.
//
// Grades:
//   Tf32    operands rounded to tf32, to nearest even
//   Fp32    operands split into two tf32 numbers (in registers: shared memory has them whole), three products, the small
//           ones first. A tile with a number that is huge, inf or nan takes fused multiply-adds: a split would make nan of
//           inf, and an overflow of one product nan of the sum.
//   Native  operands rounded to scalar (half or bfloat16), summed in float
#pragma once

#include "contract_operand.cuh"

namespace crucible {

enum class Grade { Tf32, Fp32, Native };

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define CRUCIBLE_HAS_MMA 1
#else
#define CRUCIBLE_HAS_MMA 0
#endif

#if CRUCIBLE_HAS_MMA
// To tf32, to nearest even; tensor cores ignore the bits below. What would round to infinity is cut instead; a nan stays
// one when its low bits go.
__device__ __forceinline__ unsigned round_tf32(float value) {
  const unsigned bits = __float_as_uint(value), size = bits & 0x7fffffffu;
  const unsigned quiet = size > 0x7f800000u ? 0x400000u : 0u;
  return size < 0x7f7ff000u ? bits + 0xfffu + (bits >> 13 & 1u) : bits | quiet;
}

template <Grade grade>
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (grade != Grade::Native) {
    asm(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
#if CRUCIBLE_SCALAR == 3
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
  }
}

// Two neighbouring k as scalars in one word, the first in the low half.
__device__ __forceinline__ unsigned pack(float first, float second) {
#if CRUCIBLE_SCALAR == 2
  const __half2 pair = __floats2half2_rn(first, second);
  return reinterpret_cast<const unsigned&>(pair);
#elif CRUCIBLE_SCALAR == 3
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return reinterpret_cast<const unsigned&>(pair);
#else
  return 0;
#endif
}

// 16 bytes from global to shared memory without passing through registers.
__device__ __forceinline__ void copy_async(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :: "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from)
               : "memory");
}
// SIZE bytes (4, 8 or 16), of which the first `some` come from memory and the rest are zeros.
template <int SIZE>
__device__ __forceinline__ void copy_async_some(void* to, const void* from, int some) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (SIZE == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(address), "l"(from), "r"(some) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" :: "r"(address), "l"(from), "n"(SIZE), "r"(some) : "memory");
}
// Four bytes, or four zeros.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               :: "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from), "r"(there ? 4 : 0)
               : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most LEFT of this thread's batches of copies are under way.
template <int LEFT = 0>
__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
#endif  // CRUCIBLE_HAS_MMA

template <int BM_, int BN_, int BK_, int WM, int WN, Grade grade>
struct Mma {
  static constexpr int BM = BM_, BN = BN_, BK = BK_;
  static constexpr int PER_WORD = grade == Grade::Native ? 2 : 1;  // elements
  static constexpr int COPIES = grade == Grade::Fp32 ? 2 : 1;      // of a fragment: the high parts, and the low parts
  static constexpr int WORDS = BK / PER_WORD, SLABS = WORDS / 16;
  static constexpr int MT = WM / 16, NT = WN / 8, WARPS_N = BN / WN;
  static constexpr int threads = BM / WM * WARPS_N * 32;
  // As many as fit without spills.
  static constexpr int blocks_per_sm = threads > 128 ? 1 : grade == Grade::Tf32 && WM * WN <= 1024 ? 3 : 2;
  static_assert(BM % WM == 0 && BN % WN == 0 && WM % 16 == 0 && WN % 8 == 0 && BN % 32 == 0, "tile does not divide");
  static_assert(BK % (16 * PER_WORD) == 0 && threads <= 1024, "bad tile depth or thread count");
  static_assert((grade == Grade::Native) == (sizeof(scalar) == 2), "Native is for two-byte scalars, others for float");

  static constexpr int A_WORDS = BM * WORDS, B_WORDS = BN * WORDS;
  static constexpr int buffer = A_WORDS + B_WORDS;
  static constexpr int passes = MT, pass_rows = BM / WM * 16, pass_stride = BN + 8;
  static constexpr int shared_bytes = larger(2 * buffer, pass_rows * pass_stride) * 4;

  struct Sums {
    float at[MT][NT][4];
  };

  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ __forceinline__ int warp_m() { return static_cast<int>(threadIdx.x) / 32 / WARPS_N; }
  static __device__ __forceinline__ int warp_n() { return static_cast<int>(threadIdx.x) / 32 % WARPS_N; }

#if CRUCIBLE_HAS_MMA
  // Where the 16 bytes lie that hold words 4 * chunk .. 4 * chunk + 3 of a line.
  template <int LINES>
  static __device__ __forceinline__ int chunk_at(int line, int chunk) {
    return (chunk / 4 * LINES + line) * 16 + ((chunk ^ line >> 1) & 3) * 4;
  }

  // A word of the panel. True if the number is too large for three products (grade Fp32).
  static __device__ __forceinline__ bool convert(const accum* from, unsigned& word) {
    if constexpr (grade == Grade::Native) {
      word = pack(from[0], from[1]);
    } else if constexpr (grade == Grade::Tf32) {
      word = round_tf32(from[0]);
    } else {
      word = __float_as_uint(from[0]);
      return !(fabsf(from[0]) < 1e18f);
    }
    return false;
  }

  template <int LINES, class S>
  static __device__ __forceinline__ bool put(const S& staged, unsigned* panel, int stored) {
    bool odd = false;
#pragma unroll
    for (int j = 0; j < S::RUN_COUNT; ++j)
#pragma unroll
      for (int i = 0; i < S::LINE_COUNT; ++i) {
        if (staged.line(i) >= stored) continue;
        const accum* from = staged.values[j][i];
        if constexpr (S::RUNS == WORDS) {
          const int word = staged.run(j), at = chunk_at<LINES>(staged.line(i), word / 4) + word % 4;
          odd |= convert(from, panel[at]);
        } else {
          const int at = chunk_at<LINES>(staged.line(i), staged.run(j));
          unsigned words[4];
#pragma unroll
          for (int e = 0; e < 4; ++e) odd |= convert(from + e * PER_WORD, words[e]);
          *reinterpret_cast<uint4*>(panel + at) = make_uint4(words[0], words[1], words[2], words[3]);
        }
      }
    return odd;
  }

  // Four words of a line; in grade Fp32 their high and low parts. Tensor cores ignore the bits below a tf32 number's.
  template <int LINES, int N>
  static __device__ __forceinline__ void fragment(unsigned (&to)[COPIES][N][4], int n, const unsigned* panel, int line,
                                                  int slab) {
    const uint4 v = *reinterpret_cast<const uint4*>(panel + chunk_at<LINES>(line, slab * 4 + lane() % 4));
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if constexpr (grade == Grade::Fp32) {
        to[0][n][e] = (words[e] + 0x1000u) & 0xffffe000u;
        const float rest = __uint_as_float(words[e]) - __uint_as_float(to[0][n][e]);
        to[COPIES - 1][n][e] = __float_as_uint(rest) + 0x1000u;
      } else {
        to[0][n][e] = words[e];
      }
    }
  }

  static __device__ __forceinline__ void multiply_tile(Sums& sums, const unsigned* a_panel, const unsigned* b_panel,
                                                       int rows) {
    const int a_line = warp_m() * WM + lane() / 4, b_line = warp_n() * WN + lane() / 4;
#pragma unroll
    for (int slab = 0; slab < SLABS; ++slab) {
      unsigned b[COPIES][NT][4];
#pragma unroll
      for (int j = 0; j < NT; ++j) fragment<BN>(b, j, b_panel, b_line + j * 8, slab);
#pragma unroll
      for (int i = 0; i < MT; ++i) {
        if (i * 16 >= rows) break;  // the same for the whole warp
        unsigned a[COPIES][2][4];
#pragma unroll
        for (int h = 0; h < 2; ++h) fragment<BM>(a, h, a_panel, a_line + i * 16 + h * 8, slab);
        float part[NT][4] = {};
        if constexpr (grade == Grade::Fp32) {
          multiply_fragments(part, a[COPIES - 1], b[0]);
          multiply_fragments(part, a[0], b[COPIES - 1]);
        }
        multiply_fragments(part, a[0], b[0]);
#pragma unroll
        for (int j = 0; j < NT; ++j)
#pragma unroll
          for (int r = 0; r < 4; ++r) sums.at[i][j][r] += part[j][r];
      }
    }
  }

  static __device__ __forceinline__ void multiply_fragments(float (&to)[NT][4], const unsigned (&a)[2][4],
                                                            const unsigned (&b)[NT][4]) {
#pragma unroll
    for (int step = 0; step < 4; step += 2) {
      const unsigned rows[4] = {a[0][step], a[1][step], a[0][step + 1], a[1][step + 1]};
#pragma unroll
      for (int j = 0; j < NT; ++j) mma<grade>(to[j], rows, b[j][step], b[j][step + 1]);
    }
  }

  // The same tile by fused multiply-adds (grade Fp32).
  static __device__ __forceinline__ void multiply_odd_tile(Sums& sums, const unsigned* a_panel,
                                                           const unsigned* b_panel, int rows) {
    if (rows <= 0) return;
    const int a_line = warp_m() * WM + lane() / 4, b_line = warp_n() * WN + lane() % 4 * 2;
#pragma unroll 1
    for (int word = 0; word < WORDS; ++word) {
      float a[MT][2], b[NT][2];
#pragma unroll
      for (int i = 0; i < MT * 2; ++i) {
        if (i / 2 * 16 >= rows) {
          a[i / 2][i % 2] = 0;
          continue;
        }
        a[i / 2][i % 2] = __uint_as_float(a_panel[chunk_at<BM>(a_line + i * 8, word / 4) + word % 4]);
      }
#pragma unroll
      for (int j = 0; j < NT * 2; ++j) {
        b[j / 2][j % 2] = __uint_as_float(b_panel[chunk_at<BN>(b_line + j / 2 * 8 + j % 2, word / 4) + word % 4]);
      }
#pragma unroll
      for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int j = 0; j < NT; ++j)
#pragma unroll
          for (int r = 0; r < 4; ++r) sums.at[i][j][r] = fmaf(a[i][r / 2], b[j][r % 2], sums.at[i][j][r]);
    }
  }

  // Barrier; whether any thread of the block saw a number too large.
  static __device__ __forceinline__ bool meet(bool odd) {
    if constexpr (grade == Grade::Fp32) return __syncthreads_or(odd);
    __syncthreads();
    return false;
  }

  // sums = A B over [begin, end), for the tile at row m0 and column n0 of batch z.
  template <class P>
  static __device__ __forceinline__ void multiply(const P& p, Index z, Index m0, Index n0, Index begin, Index end,
                                                  unsigned char* shared, Sums& sums) {
    unsigned* panels = reinterpret_cast<unsigned*>(shared);
    Staged<OperandA<P>, BM, BK, P::a_along_k ? PER_WORD : 4 * PER_WORD, threads> a;
    Staged<OperandB<P>, BN, BK, P::b_along_k ? PER_WORD : 4 * PER_WORD, threads> b;
    sums = Sums{};
    if (begin >= end) return;
    a.place(p, z, m0);
    b.place(p, z, n0);
    a.load(p, begin, end);
    b.load(p, begin, end);
    // Rows of this warp that there are; none where its columns lie past the end.
    const int rows = warp_n() * WN < b.limit ? a.limit - warp_m() * WM : 0;
    // Lines that some warp multiplies: whole fragments of A, whole warps of B.
    const int a_stored = (a.limit + 15) / 16 * 16, b_stored = (b.limit + WN - 1) / WN * WN;
    bool odd = put<BM>(a, panels, a_stored);
    odd |= put<BN>(b, panels + A_WORDS, b_stored);
    odd = meet(odd);

    unsigned* current = panels;
    unsigned* other = panels + buffer;
    for (Index k = begin;; k += BK) {
      const bool more = end - k > BK;
      if (more) {
        a.load(p, k + BK, end);
        b.load(p, k + BK, end);
      }
      if (odd)
        multiply_odd_tile(sums, current, current + A_WORDS, rows);
      else
        multiply_tile(sums, current, current + A_WORDS, rows);
      if (!more) break;
      odd = put<BM>(a, other, a_stored);
      odd |= put<BN>(b, other + A_WORDS, b_stored);
      odd = meet(odd);
      unsigned* const swap = current;
      current = other;
      other = swap;
    }
  }
#else
  template <class P>
  static __device__ void multiply(const P&, Index, Index, Index, Index, Index, unsigned char*, Sums& sums) {
    sums = Sums{};
    __trap();  // the host chose an engine that this chip does not have
  }
#endif

  // The sums leave the registers in passes of pass_rows rows; row r of a pass is row_of(pass, r) of the tile.
  static __device__ __forceinline__ int row_of(int pass, int r) { return r / 16 * WM + pass * 16 + r % 16; }

  static __device__ __forceinline__ void expose(const Sums& sums, int pass, accum* rows) {
    accum* to = rows + (warp_m() * 16 + lane() / 4) * pass_stride + warp_n() * WN + lane() % 4 * 2;
#pragma unroll
    for (int i = 0; i < MT; ++i)
      if (i == pass) {  // a register has no address: the choice is made among unrolled copies
#pragma unroll
        for (int j = 0; j < NT; ++j)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            *reinterpret_cast<float2*>(to + h * 8 * pass_stride + j * 8) =
                make_float2(sums.at[i][j][2 * h], sums.at[i][j][2 * h + 1]);
      }
  }
};

}  // namespace crucible
