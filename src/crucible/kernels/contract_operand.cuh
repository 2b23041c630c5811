// One operand of a contraction on its way from global memory to registers.
//
// A line is a row of A or a column of B. The block's threads share a tile of LINES lines, DEPTH deep, cut into runs of
// RUN neighbouring k: each thread owns LINE_COUNT lines and RUN_COUNT runs, always the same places, so that a line is
// decoded once a block and a k is decoded once for all the thread's lines (the functor is inlined; the compiler sees
// the same k). Neighbouring threads follow the direction that is contiguous in memory.
#pragma once

#include "box.cuh"

namespace crucible {

template <class P>
struct OperandA {
  static constexpr bool along_k = P::a_along_k;
  using Line = decltype(static_cast<const P*>(nullptr)->a_row(Index(0), Index(0)));
  static constexpr bool boxed = false;
  static __device__ __forceinline__ Index lines(const P& p) { return p.rows(); }
  static __device__ __forceinline__ Line line(const P& p, Index z, Index m) { return p.a_row(z, m); }
  static __device__ __forceinline__ accum at(const P& p, const Line& line, Index k) { return p.a(line, k); }
};

template <class P>
struct OperandB {
  static constexpr bool along_k = P::b_along_k;
  using Line = decltype(static_cast<const P*>(nullptr)->b_col(Index(0), Index(0)));
  static constexpr bool boxed = P::boxed;
  static __device__ __forceinline__ Index lines(const P& p) { return p.cols(); }
  static __device__ __forceinline__ Line line(const P& p, Index z, Index n) { return p.b_col(z, n); }
  static __device__ __forceinline__ accum at(const P& p, const Line& line, Index k) { return p.b(line, k); }
};

constexpr int larger(int x, int y) { return x > y ? x : y; }
constexpr int smaller(int x, int y) { return x < y ? x : y; }

template <class Operand, int LINES, int DEPTH, int RUN, int THREADS>
struct Staged {
  static constexpr int RUNS = DEPTH / RUN;
  // Threads side by side over the lines. Along k, 16 runs side by side fill a 32-byte sector at least, and more would
  // give each thread more lines to keep. Across the lines a warp should see 32 of them, but no more: the more runs at a
  // time, the fewer k for each thread to decode.
  static constexpr int SIDE =
      Operand::along_k ? THREADS / smaller(RUNS, 16) : larger(THREADS / RUNS, smaller(LINES, 32));
  static constexpr int RUN_STEP = THREADS / SIDE;
  static constexpr int LINE_COUNT = LINES / SIDE, RUN_COUNT = RUNS / RUN_STEP;
  static_assert(DEPTH % RUN == 0 && THREADS % SIDE == 0 && LINES % SIDE == 0 && RUNS % RUN_STEP == 0,
                "the threads must divide the tile evenly");

  typename Operand::Line lines[LINE_COUNT];
  accum values[RUN_COUNT][LINE_COUNT][RUN];
  int first_line, first_run, limit;  // limit: how many lines of the tile there are

  // Lines past the last one are zero: what they lead to is never stored.
  template <class P>
  __device__ __forceinline__ void place(const P& p, Index z, Index tile) {
    const int t = static_cast<int>(threadIdx.x);
    first_line = Operand::along_k ? t / RUN_STEP : t % SIDE;
    first_run = Operand::along_k ? t % RUN_STEP : t / SIDE;
    if constexpr (Operand::boxed) {
      const BoxPlace<P> box(p, tile / LINES);
      limit = box.reach();
#pragma unroll
      for (int i = 0; i < LINE_COUNT; ++i) lines[i] = Operand::line(p, z, box.pixel(p, line(i)));
      return;
    }
    const Index last = Operand::lines(p) - 1;
    limit = last - tile < LINES ? static_cast<int>(last - tile) + 1 : LINES;
#pragma unroll
    for (int i = 0; i < LINE_COUNT; ++i) {
      const int offset = line(i);
      lines[i] = Operand::line(p, z, last - tile < offset ? last : tile + offset);
    }
  }

  __device__ __forceinline__ int line(int i) const { return first_line + i * SIDE; }
  __device__ __forceinline__ int run(int j) const { return first_run + j * RUN_STEP; }

  // FULL: the tile's whole depth lies before `end`; otherwise what lies behind is zero.
  template <bool FULL, class P>
  __device__ __forceinline__ void fetch(const P& p, Index begin, Index end) {
#pragma unroll
    for (int j = 0; j < RUN_COUNT; ++j)
#pragma unroll
      for (int e = 0; e < RUN; ++e) {
        const int offset = run(j) * RUN + e;
#pragma unroll
        for (int i = 0; i < LINE_COUNT; ++i)
          values[j][i][e] = line(i) < limit && (FULL || offset < end - begin)
                                ? Operand::at(p, lines[i], begin + offset)
                                : accum(0);
      }
  }

  template <class P>
  __device__ __forceinline__ void load(const P& p, Index begin, Index end) {
    if (end - begin >= DEPTH)
      fetch<true>(p, begin, end);
    else
      fetch<false>(p, begin, end);
  }
};

}  // namespace crucible
