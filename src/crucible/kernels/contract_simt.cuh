// The contraction engine for any chip and any type: fused multiply-adds in `accum`.
//
// Block tile BM x BN, BK deep, (BM / TM) * (BN / TN) threads. Shared: two buffers of a BK x BM and a BK x BN panel,
// k outermost, each k padded by 16 bytes. Registers: TM x TN sums, where there is room also those of the last SPAN k, and the
// next tile's elements. A k costs a thread (TM + TN) * sizeof(accum) bytes of shared memory in 16-byte loads and TM * TN
// operations.
#pragma once

#include "contract_operand.cuh"

namespace crucible {

template <int BM_, int BN_, int BK_, int TM, int TN>
struct Simt {
  static constexpr int BM = BM_, BN = BN_, BK = BK_;
  static constexpr int threads = (BM / TM) * (BN / TN);
  static constexpr int blocks_per_sm = 1;
  static constexpr int V = 16 / sizeof(accum);  // elements of a 16-byte load
  static constexpr int SPAN = 128;              // k in one serial sum; a longer one would lose more bits
  static constexpr bool SPANS = sizeof(accum) == 4 || TM * TN <= 32;  // a large tile of doubles has no registers left
  static_assert(TM % V == 0 && TN % V == 0 && BM % TM == 0 && BN % TN == 0 && BN % 32 == 0, "tile does not divide");
  static_assert(SPAN % BK == 0 && threads % 32 == 0 && threads <= 1024, "bad tile depth or thread count");

  static constexpr int LDA = BM + V, LDB = BN + V;  // one k's lines, and the padding
  static constexpr int buffer = BK * (LDA + LDB);
  static constexpr int passes = TM, pass_rows = BM / TM, pass_stride = BN + 8;
  static constexpr int shared_bytes = larger(2 * buffer, pass_rows * pass_stride) * static_cast<int>(sizeof(accum));

  struct Sums {
    accum at[TM][TN];
  };

  // A thread's rows and columns come V at a time, the groups apart by all threads' V.
  static __device__ __forceinline__ int row(int ty, int i) { return i / V * (BM / TM * V) + ty * V + i % V; }
  static __device__ __forceinline__ int tx() { return static_cast<int>(threadIdx.x) % (BN / TN); }
  static __device__ __forceinline__ int ty() { return static_cast<int>(threadIdx.x) / (BN / TN); }

  static __device__ __forceinline__ void read(float* to, const float* from) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  }
  static __device__ __forceinline__ void read(double* to, const double* from) {
    const double2 v = *reinterpret_cast<const double2*>(from);
    to[0] = v.x, to[1] = v.y;
  }

  // Rows come in groups of all threads' V; groups past the last row are neither stored nor multiplied.
  static constexpr int GROUP = BM / TM * V;

  template <int LD, class S>
  static __device__ __forceinline__ void put(const S& staged, accum* panel, int stored) {
#pragma unroll
    for (int j = 0; j < S::RUN_COUNT; ++j)
#pragma unroll
      for (int i = 0; i < S::LINE_COUNT; ++i)
        if (staged.line(i) < stored) panel[staged.run(j) * LD + staged.line(i)] = staged.values[j][i][0];
  }

  static __device__ __forceinline__ void multiply_tile(Sums& part, const accum* a_panel, const accum* b_panel, int rows) {
    if (ty() * V >= rows) return;  // no row of this thread exists
    const accum* a_from = a_panel + ty() * V;
    const accum* b_from = b_panel + tx() * V;
#pragma unroll
    for (int k = 0; k < BK; ++k) {
      accum a[TM], b[TN];
#pragma unroll
      for (int i = 0; i < TM; i += V)
        if (i / V * GROUP < rows) read(a + i, a_from + k * LDA + i / V * GROUP);
#pragma unroll
      for (int j = 0; j < TN; j += V) read(b + j, b_from + k * LDB + j / V * (BN / TN * V));
#pragma unroll
      for (int i = 0; i < TM; ++i)
        if (i / V * GROUP < rows)
#pragma unroll
          for (int j = 0; j < TN; ++j) part.at[i][j] = fma(a[i], b[j], part.at[i][j]);
    }
  }

  // sums = A B over [begin, end), for the tile at row m0 and column n0 of batch z.
  template <class P>
  static __device__ __forceinline__ void multiply(const P& p, Index z, Index m0, Index n0, Index begin, Index end,
                                                  unsigned char* shared, Sums& sums) {
    accum* panels = reinterpret_cast<accum*>(shared);
    Staged<OperandA<P>, BM, BK, 1, threads> a;
    Staged<OperandB<P>, BN, BK, 1, threads> b;
    sums = Sums{};
    if (begin >= end) return;
    a.place(p, z, m0);
    b.place(p, z, n0);
    a.load(p, begin, end);
    b.load(p, begin, end);
    const int stored = (a.limit + GROUP - 1) / GROUP * GROUP;
    put<LDA>(a, panels, stored);
    put<LDB>(b, panels + BK * LDA, BN);
    __syncthreads();

    Sums part{};
    int depth = 0;
    accum* current = panels;
    accum* other = panels + buffer;
    for (Index k = begin;; k += BK) {
      const bool more = end - k > BK;
      if (more) {
        a.load(p, k + BK, end);
        b.load(p, k + BK, end);
      }
      multiply_tile(SPANS ? part : sums, current, current + BK * LDA, a.limit);
      depth += BK;
      if (SPANS && (depth == SPAN || !more)) {
        depth = 0;
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
          for (int j = 0; j < TN; ++j) sums.at[i][j] += part.at[i][j], part.at[i][j] = 0;
      }
      if (!more) break;
      put<LDA>(a, other, stored);
      put<LDB>(b, other + BK * LDA, BN);
      __syncthreads();
      accum* const swap = current;
      current = other;
      other = swap;
    }
  }

  // The sums leave the registers in passes of pass_rows rows; row r of a pass is row_of(pass, r) of the tile.
  static __device__ __forceinline__ int row_of(int pass, int r) { return row(r, pass); }

  static __device__ __forceinline__ void expose(const Sums& sums, int pass, accum* rows) {
#pragma unroll
    for (int i = 0; i < TM; ++i)
      if (i == pass) {  // a register has no address: the choice is made among unrolled copies
#pragma unroll
        for (int j = 0; j < TN; ++j)
          rows[ty() * pass_stride + j / V * (BN / TN * V) + tx() * V + j % V] = sums.at[i][j];
      }
  }
};

}  // namespace crucible
