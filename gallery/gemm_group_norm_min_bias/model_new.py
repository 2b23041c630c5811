"""Made by crucible 0.1.0 from gemm_group_norm_min_bias.py: the same function, gradients and side effects in fused CUDA kernels.

Kernels, and the operators of the reference that each one absorbs:

    forward   contract_1    addmm, var_mean, min_1
    forward   rows_1        min_1
    forward   map_1         min_1, add_2
    backward  rows_1        sum_1
    backward  rows_2        sum_2, sum_3, view_5
    backward  rows_3        sum_4, view_6
    backward  rows_4        mean, mean_1
    backward  map_1         full, min_1, sum_1, view_4, scatter, view_2, mul_5, view_7, mean, sub_2, addmm, view, var_mean, sub_1, add, rsqrt, mul_6, mean_1, mul_8, sub_3, mul_9, view_8
    backward  contract_1    mm
    backward  contract_2    mm_1, permute_3, permute_4
    backward  rows_5        sum_5, view_9

Proven against gemm_group_norm_min_bias.py in the simulator, crucible 0.1.0, torch 2.13.0+cpu: forward, side
effects, gradients, honesty, 3 other sizes and layouts, 4 ranges, determinism, memory; seed 7.
"""


import functools
import hashlib
import inspect
import math
import operator

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


_FORWARD_SOURCE = r"""
#include <stdexcept>
#include <string>
#include <cstring>

// ---- kernel bodies and what they share

// What every stage shares: the element type of the file, the type sums are kept in, and the width of an index.
//
// The including file is compiled once for each element type it meets, with
//   CRUCIBLE_SCALAR   0 float, 1 double, 2 __half, 3 __nv_bfloat16
//   CRUCIBLE_WIDE     1 when an index may pass 2^31
//   CRUCIBLE_HOPPER   1 for a chip with Hopper's matrix instructions (compute capability 9.0a)

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#ifndef CRUCIBLE_SCALAR
#define CRUCIBLE_SCALAR 0
#endif
#ifndef CRUCIBLE_WIDE
#define CRUCIBLE_WIDE 0
#endif
#ifndef CRUCIBLE_HOPPER
#define CRUCIBLE_HOPPER 0
#endif

#if CRUCIBLE_SCALAR == 2
#include <cuda_fp16.h>
#elif CRUCIBLE_SCALAR == 3
#include <cuda_bf16.h>
#endif

namespace crucible {

#if CRUCIBLE_SCALAR == 0
using scalar = float;
using accum = float;
#elif CRUCIBLE_SCALAR == 1
using scalar = double;
using accum = double;
#elif CRUCIBLE_SCALAR == 2
using scalar = __half;
using accum = float;
#else
using scalar = __nv_bfloat16;
using accum = float;
#endif

#if CRUCIBLE_WIDE
using Index = int64_t;
#else
using Index = int32_t;
#endif

// Kernels follow each other closely: on Hopper one is set up while the one before it on the stream ends. So each begins with
// follow(), which waits until all of that is done and seen, and is launched by
//   cudaLaunchKernelEx(After(blocks, threads, shared bytes, stream), kernel, arguments...)
__device__ __forceinline__ void follow() {
#if CRUCIBLE_HOPPER
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#ifndef __CUDACC_RTC__
struct After {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[3]{};
  // Blocks in clusters of so many, which a simulator does not have; or all of them there at a time, to wait for each other.
  After(dim3 blocks, unsigned threads, size_t shared, cudaStream_t stream, unsigned cluster = 1, bool together = false) {
    config.gridDim = blocks;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
#if CRUCIBLE_HOPPER && CUDART_VERSION >= 12030  // with which such launches can be captured in graphs
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
#endif
    if (cluster > 1) {
      attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
      attributes[config.numAttrs++].val.clusterDim = {cluster, 1, 1};
    }
    if (together) {
      attributes[config.numAttrs].id = cudaLaunchAttributeCooperative;
      attributes[config.numAttrs++].val.cooperative = 1;
    }
  }
  operator const cudaLaunchConfig_t*() {
    config.attrs = attributes;
    return &config;
  }
};
#endif

// An element of a tensor that this kernel only reads: such loads need not wait for stores before them.
template <class T>
__device__ __forceinline__ T read(const T& x) { return __ldg(&x); }
__device__ __forceinline__ bool read(const bool& x) { return __ldg(reinterpret_cast<const unsigned char*>(&x)) != 0; }
#if CRUCIBLE_SCALAR == 3  // before CUDA 12.2 there is no __ldg() of it for chips before 8.0
__device__ __forceinline__ __nv_bfloat16 read(const __nv_bfloat16& x) {
  return __nv_bfloat16(__nv_bfloat16_raw{__ldg(reinterpret_cast<const unsigned short*>(&x))});
}
#endif

// Asks for an element that is loaded later.
template <class T>
__device__ __forceinline__ void prefetch(const T* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

__device__ __forceinline__ bool inside(Index i, Index n) { return i >= 0 && i < n; }
__device__ __forceinline__ Index nearest(Index i, Index n) { return i < 0 ? 0 : i < n ? i : n - 1; }

// Elements as values of the type that arithmetic is done in.
template <class T>
__device__ __forceinline__ T to_accum(T x) { return x; }

#if CRUCIBLE_SCALAR == 2
__device__ __forceinline__ float to_accum(__half x) { return __half2float(x); }
__device__ __forceinline__ scalar to_scalar(accum x) { return __float2half_rn(x); }
#elif CRUCIBLE_SCALAR == 3
__device__ __forceinline__ float to_accum(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ scalar to_scalar(accum x) { return __float2bfloat16_rn(x); }
#else
__device__ __forceinline__ scalar to_scalar(accum x) { return x; }
#endif

}  // namespace crucible

namespace crucible {

__device__ __forceinline__ accum f_rsqrt(accum x) { return accum(1) / sqrt(x); }

}  // namespace crucible

namespace crucible {

__device__ __forceinline__ accum smaller(accum best, accum x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800 && CRUCIBLE_SCALAR != 1
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(best) : "f"(best), "f"(x));
  return best;
#else
  return x < best || x != x ? x : best;
#endif
}

struct Min {
  accum best = INFINITY;
  __device__ __forceinline__ void step(accum x) { best = smaller(best, x); }
  __device__ __forceinline__ void join(const Min& b) { step(b.best); }
  __device__ __forceinline__ accum total() const { return best; }
};

struct ArgMin {
  accum best = 0;
  int64_t at = -1;
  __device__ __forceinline__ void step(accum x, int64_t i) {
    if (i < 0) return;
    const bool nan = best != best, wins = nan ? x != x && i < at : x != x || x < best || (x == best && i < at);
    if (at < 0 || wins) best = x, at = i;
  }
  __device__ __forceinline__ void join(const ArgMin& b) { step(b.best, b.at); }
  __device__ __forceinline__ accum value() const { return best; }
  __device__ __forceinline__ int64_t index() const { return at; }
};

}  // namespace crucible

// Boxes of output pixels and the input under them, in up to four dimensions.
//
// A functor whose columns are pixels names its form by types: Box, Kernel, Stride, Dilation, Shift (all Dims), and gives
// the output's extents. Column i of a box is a pixel of it, the last dimension fastest. Input pixel
// y * stride + tap * dilation + shift is under tap of output pixel y; the halo of a box is all input pixels under it.

namespace crucible {

template <int A, int B, int C, int D>
struct Dims {
  static constexpr int product = A * B * C * D;
  __host__ __device__ static constexpr int at(int d) { return d == 0 ? A : d == 1 ? B : d == 2 ? C : D; }
  // How far apart neighbours along dimension d are.
  __host__ __device__ static constexpr int pitch(int d) { return d == 0 ? B * C * D : d == 1 ? C * D : d == 2 ? D : 1; }
  __host__ __device__ static constexpr int index(int i, int d) { return i / pitch(d) % at(d); }
};

// The input under so many pixels in a row, or under a box's.
template <class P>
__host__ __device__ constexpr int halo_extent(int d, int pixels) {
  return (pixels - 1) * P::Stride::at(d) + (P::Kernel::at(d) - 1) * P::Dilation::at(d) + 1;
}
template <class P>
__host__ __device__ constexpr int halo_extent(int d) { return halo_extent<P>(d, P::Box::at(d)); }
template <class P>
using HaloOf = Dims<halo_extent<P>(0), halo_extent<P>(1), halo_extent<P>(2), halo_extent<P>(3)>;

// Where the first tap of a box's pixel i lies in the halo; pixels past the box take its last one.
template <class P>
__device__ __forceinline__ int halo_offset(int i) {
  using Box = typename P::Box;
  if (i >= Box::product) i = Box::product - 1;
  int at = 0;
#pragma unroll
  for (int d = 0; d < 4; ++d) at += Box::index(i, d) * P::Stride::at(d) * HaloOf<P>::pitch(d);
  return at;
}
// How far a tap lies from the first.
template <class P>
__device__ __forceinline__ int tap_offset(int tap) {
  int at = 0;
#pragma unroll
  for (int d = 0; d < 4; ++d) at += P::Kernel::index(tap, d) * P::Dilation::at(d) * HaloOf<P>::pitch(d);
  return at;
}

// A functor may have a pool, of windows that lie side by side and divide its boxes.
template <class T>
struct Named { using type = void; };
template <class P, class = void>
struct PoolOf {
  static constexpr bool pooled = false;
  using Window = Dims<1, 1, 1, 1>;
};
template <class P>
struct PoolOf<P, typename Named<typename P::Pool>::type> {
  static constexpr bool pooled = true;
  using Window = typename P::Pool;
};

// A functor of phases knows elements by their places in a box; some may not exist, alike in all rows or not, and phases may lack some of the taps
// (as the weights count them).
template <class P, class = void>
struct PhasedOf { static constexpr bool phased = false; };
template <class P>
struct PhasedOf<P, typename Named<typename P::Phased>::type> { static constexpr bool phased = true; };
template <class P, class = void>
struct RaggedOf { static constexpr bool ragged = false, alike = true; };
template <class P>
struct RaggedOf<P, typename Named<typename P::Ragged>::type> { static constexpr bool ragged = true, alike = P::ALIKE; };
// Groups that read the same input: phases. So many of them, neighbours, have elements of which one lies beside the other.
template <class P, class = void>
struct InsideOf { static constexpr int groups = 1, beside = 1; };
template <class P>
struct InsideOf<P, typename Named<typename P::Inside>::type> { static constexpr int groups = P::PHASES, beside = P::BESIDE; };
template <class P, class = void>
struct TapsOf {
  static constexpr bool sparse = false;
  static __device__ __forceinline__ bool has(const P&, Index, int) { return true; }
};
template <class P>
struct TapsOf<P, typename Named<typename P::Sparse>::type> {
  static constexpr bool sparse = true;
  static __device__ __forceinline__ bool has(const P& p, Index group, int t) {
    return p.has(group, P::flipped ? P::Kernel::product - 1 - t : t);
  }
};

// The taps of a group's phase, in the order of the window.
template <class P>
struct Taps {
  uint64_t there = 0;
  Taps() = default;
  __device__ __forceinline__ Taps(const P& p, Index group) {
    static_assert(!TapsOf<P>::sparse || P::Kernel::product <= 64, "a bit for each");
    if (TapsOf<P>::sparse)
      for (int t = 0; t < P::Kernel::product; ++t) there |= uint64_t(TapsOf<P>::has(p, group, t)) << t;
  }
  __device__ __forceinline__ bool has(int t) const { return !TapsOf<P>::sparse || (there >> t & 1u); }
  // Whether a tap is the first, and whether there is none.
  __device__ __forceinline__ bool first(int t) const {
    return TapsOf<P>::sparse ? (there & ((uint64_t(1) << t) - 1)) == 0 : t == 0;
  }
  __device__ __forceinline__ bool none() const { return TapsOf<P>::sparse && there == 0; }
};

template <class P>
__host__ __device__ __forceinline__ Index box_count(const P& p) {
  Index count = 1;
#pragma unroll
  for (int d = 0; d < 4; ++d) count *= (p.extent(d) + P::Box::at(d) - 1) / P::Box::at(d);
  return count;
}

template <class P>
struct BoxPlace {
  Index first[4];  // the box's first pixel
  int there[4];    // how many pixels of it exist, by dimension

  __device__ __forceinline__ BoxPlace(const Index (&at)[4], const int (&of)[4]) {
#pragma unroll
    for (int d = 0; d < 4; ++d) first[d] = at[d], there[d] = of[d];
  }
  __device__ __forceinline__ BoxPlace(const P& p, Index box) {
#pragma unroll
    for (int d = 3; d >= 0; --d) {
      const Index extent = p.extent(d), count = (extent + P::Box::at(d) - 1) / P::Box::at(d);
      first[d] = (count == 1 ? 0 : box % count) * P::Box::at(d);
      if (count != 1) box /= count;
      there[d] = extent - first[d] < P::Box::at(d) ? static_cast<int>(extent - first[d]) : P::Box::at(d);
    }
  }
  __device__ __forceinline__ bool exists(int i) const {
    bool all = i < P::Box::product;
#pragma unroll
    for (int d = 0; d < 4; ++d) all = all && P::Box::index(i, d) < there[d];
    return all;
  }
  __device__ __forceinline__ int count() const { return there[0] * there[1] * there[2] * there[3]; }
  // One more than the last pixel that exists.
  __device__ __forceinline__ int reach() const {
    int last = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) last += (there[d] - 1) * P::Box::pitch(d);
    return last + 1;
  }
  // The output pixel of a column, as a flat index; of one that does not exist, the nearest.
  __device__ __forceinline__ Index pixel(const P& p, int i) const {
    if (i >= P::Box::product) i = P::Box::product - 1;
    Index at = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      const int step = P::Box::index(i, d);
      at = at * p.extent(d) + first[d] + (step < there[d] ? step : there[d] - 1);
    }
    return at;
  }
  // Pixel i of the box itself.
  __device__ __forceinline__ auto plain(const P& p, Index z, int i) const {
    return p.a_at(z, first[0] + P::Box::index(i, 0), first[1] + P::Box::index(i, 1), first[2] + P::Box::index(i, 2),
                  first[3] + P::Box::index(i, 3));
  }
  // The input pixel number h of the halo.
  __device__ __forceinline__ typename P::BAt halo(const P& p, Index z, int h) const {
    Index at[4];
#pragma unroll
    for (int d = 0; d < 4; ++d) at[d] = first[d] * P::Stride::at(d) + P::Shift::at(d) + HaloOf<P>::index(h, d);
    return p.b_at(z, at[0], at[1], at[2], at[3]);
  }
};

// The pixels of a box that a lane finishes: every 32nd (so many times), or all those of every 32nd window of a pool.
template <class P, int TIMES>
struct LanePixels {
  using Box = typename P::Box;
  using Window = typename PoolOf<P>::Window;
  using Windows = Dims<Box::at(0) / Window::at(0), Box::at(1) / Window::at(1), Box::at(2) / Window::at(2),
                       Box::at(3) / Window::at(3)>;
  static_assert(Windows::product * Window::product == Box::product, "a box has whole windows");
  static constexpr int TAKES = Window::product;  // pixels of a window
  static constexpr int ROUNDS = PoolOf<P>::pooled ? (Windows::product + 31) / 32 : TIMES, EACH = ROUNDS * TAKES;
  static_assert(EACH <= 32, "a bit for each");

  static __device__ __forceinline__ int window(int round) { return static_cast<int>(threadIdx.x) % 32 + round * 32; }
  static __device__ __forceinline__ int pixel(int j) {
    const int w = window(j / TAKES);
    if (!PoolOf<P>::pooled) return w;
    int i = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) i += (Windows::index(w, d) * Window::at(d) + Window::index(j % TAKES, d)) * Box::pitch(d);
    return w < Windows::product ? i : Box::product;
  }
  // A window among all of them, from the box's first.
  static __device__ __forceinline__ Index pooled(const P& p, int round) {
    Index at = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) at = at * (p.extent(d) / Window::at(d)) + Windows::index(window(round), d);
    return at;
  }
  static __device__ __forceinline__ Index first_pooled(const P& p, const BoxPlace<P>& place) {
    Index at = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) at = at * (p.extent(d) / Window::at(d)) + place.first[d] / Window::at(d);
    return at;
  }
};

// The columns of a box that a lane finishes.
template <class P, int BN>
struct BoxColumns {
  using Lanes = LanePixels<P, BN / 32>;
  static constexpr int EACH = Lanes::EACH;
  Index at[EACH], to[Lanes::ROUNDS];
  unsigned exists = 0;
  int count;
  Index tile;
  BoxPlace<P> place;

  __device__ __forceinline__ BoxColumns(const P& p, const BoxPlace<P>& of, Index box)
      : count(of.count()), tile(box), place(of) {
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      const int i = Lanes::pixel(j);
      at[j] = place.pixel(p, i);
      exists |= unsigned(place.exists(i)) << j;
    }
#pragma unroll
    for (int q = 0; q < Lanes::ROUNDS; ++q)
      to[q] = PoolOf<P>::pooled ? Lanes::first_pooled(p, place) + Lanes::pooled(p, q) : Index(0);
  }
  __device__ __forceinline__ bool valid(int, int j) const { return exists >> j & 1u; }
  __device__ __forceinline__ Index column(int, int j) const { return at[j]; }
  // The pixel of a column that exists, else the box's first.
  __device__ __forceinline__ Index pixel(int r, int j, int d) const {
    return place.first[d] + (valid(r, j) ? P::Box::index(Lanes::pixel(j), d) : 0);
  }
  // Where a row's value lies among those of the box.
  __device__ __forceinline__ int from(int j) const {
    const int i = Lanes::pixel(j);
    return PoolOf<P>::pooled && i >= P::Box::product ? P::Box::product - 1 : i;
  }
  // Whether all pixels of a window exist, and its place among all windows.
  __device__ __forceinline__ bool whole(int round) const {
    constexpr unsigned all = 0xffffffffu >> (32 - Lanes::TAKES);
    return (exists >> round * Lanes::TAKES & all) == all;
  }
  __device__ __forceinline__ Index pooled(int round) const { return to[round]; }
};

}  // namespace crucible

// One operand of a contraction on its way from global memory to registers.
//
// A line is a row of A or a column of B. The block's threads share a tile of LINES lines, DEPTH deep, cut into runs of
// RUN neighbouring k: each thread owns LINE_COUNT lines and RUN_COUNT runs, always the same places, so that a line is
// decoded once a block and a k is decoded once for all the thread's lines (the functor is inlined; the compiler sees
// the same k). Neighbouring threads follow the direction that is contiguous in memory.

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

// The contraction engine for any chip and any type: fused multiply-adds in `accum`.
//
// Block tile BM x BN, BK deep, (BM / TM) * (BN / TN) threads. Shared: two buffers of a BK x BM and a BK x BN panel,
// k outermost, each k padded by 16 bytes. Registers: TM x TN sums, where there is room also those of the last SPAN k, and the
// next tile's elements. A k costs a thread (TM + TN) * sizeof(accum) bytes of shared memory in 16-byte loads and TM * TN
// operations.

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

// Partial results of a warp's lanes (plain structs of whole words with a function join), by shuffles.

namespace crucible {

// What `shuffle` makes of each word.
template <class Acc, class Shuffle>
__device__ __forceinline__ Acc shuffled(const Acc& a, Shuffle shuffle) {
  static_assert(sizeof(Acc) % 4 == 0, "partial results are whole words");
  uint32_t words[sizeof(Acc) / 4];
  memcpy(words, &a, sizeof(Acc));
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Acc) / 4); ++i) words[i] = shuffle(words[i]);
  Acc b;
  memcpy(&b, words, sizeof(Acc));
  return b;
}

// The first COUNT lanes' results, joined, in the first of them. What the others join on the way nobody wants.
template <int COUNT, class Acc>
__device__ __forceinline__ Acc fold_lanes(Acc a) {
#pragma unroll
  for (int by = COUNT / 2; by > 0; by /= 2)
    a.join(shuffled(a, [by](uint32_t word) { return __shfl_down_sync(0xffffffffu, word, by); }));
  return a;
}

// The same, to all lanes.
template <int COUNT, class Acc>
__device__ __forceinline__ Acc join_lanes(const Acc& a) {
  return shuffled(fold_lanes<COUNT>(a), [](uint32_t word) { return __shfl_sync(0xffffffffu, word, 0); });
}

// Of N results in each lane, N a power of two: lane l gets a[l / (32 / N)], joined over the warp.
template <int N, class Acc>
__device__ __forceinline__ Acc scattered_join(Acc (&a)[N]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int step = 16;
  const auto across = [&step](const Acc& b) {
    return shuffled(b, [step](uint32_t word) { return __shfl_xor_sync(0xffffffffu, word, step); });
  };
#pragma unroll
  for (int n = N; n > 1; n /= 2, step /= 2)
#pragma unroll
    for (int i = 0; i < n / 2; ++i) {
      const Acc other = lane & step ? a[i] : a[i + n / 2];
      if (lane & step) a[i] = a[i + n / 2];
      a[i].join(across(other));
    }
#pragma unroll
  for (; step > 0; step /= 2) a[0].join(across(a[0]));
  return a[0];
}

}  // namespace crucible

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

// Batched contraction D[z][m][n] = sum over k of A(z, m, k) * B(z, k, n) with operands and result in the hands of a
// functor: matrix products, convolutions (implicit GEMM) and their gradients, with any prologue and epilogue.
//
// The functor P is trivially copyable:
//   static constexpr bool a_along_k;   neighbouring k are neighbours in memory for A (else neighbouring m)
//   static constexpr bool b_along_k;   likewise for B (else neighbouring n)
//   static constexpr bool statistics;  whether sink() is wanted
//   static constexpr int group;        columns of one statistic: a power of two that divides cols() and the tile, or 0
//   __host__ __device__ Index batches(), rows(), cols(), depth() const;
//   __device__ Row a_row(Index z, Index m) const;          what a(row, k) must know of the row; a small plain struct
//   __device__ accum a(const Row&, Index k) const;         an element, 0 where there is padding
//   __device__ Col b_col(Index z, Index n) const;
//   __device__ accum b(const Col&, Index k) const;
//   __device__ accum finish(Index z, Index m, Index n, int split, accum value, bool there) const;
// and for fragments.cuh, whose lanes have neighbours to store,
//   template <class To> __device__ accum finish_to(Index z, Index m, Index n, int split, accum value, To& to) const;
//                                      finish, but calls to(address, element) instead of storing
//   __device__ uintptr_t stored(Index z, Index m, Index n) const;  where in memory its first element goes, in elements
//   static constexpr bool in_pairs;    there is one such element at most, and neighbours among columns are so in memory
//   static constexpr bool reads;       finish reads what depends on the column
//   __device__ void sink(Index z, Index m, Index tile_n, accum count, accum mean, accum m2) const;
// a, b, finish are called for elements in range only; finish once for each (z, m, n, split) that is `there`, by neighbouring
// threads for neighbouring n: it applies the epilogue, stores, and returns the value that statistics are taken of. Called for
// one that is not there (a lane without an element of its own) it must store nothing, and its result is not used. sink is
// called once for each (z, m, tile or group of columns) with the count, mean and sum of squared deviations of finish's values.
// A functor whose groups are phases, which all read the same input, names a type Inside and has `static constexpr int PHASES`,
// their number.
// A functor of phases (plan/phases.py) whose columns are pixels of boxes names a type Phased. It has, for finish and exists,
// finish_at and exists_at, with a place in four dimensions (that of an element that is not there is any in range) for n.
// Where it names Ragged or Sparse there is
//   __device__ bool exists(Index z, Index m, Index n) const;  whether there is such an element; finish asks for itself
//   __device__ bool has(Index group, Index tap) const;        whether a group's phase has a tap of the window; else a is 0
// A functor whose columns are pixels of boxes may also pool, by windows that lie side by side:
//   using Pool = Dims<..>;             a window's extents, which divide the box's
//   using Pooling = ..;                a reduction (reduce.cuh) over a window's elements
//   __device__ accum pool_in(Index z, Index m, Index n, accum value) const;    an element of it
//   __device__ void pool_out(Index z, Index m, Index n, const Pooling&) const; n: the window's place among all whole ones
// A functor whose columns are no pixels may go on where finish ended, with what it returned and what its group has in common:
//   struct Group;                      of numbers, computed from the moments of a group once; without statistics empty
//   __device__ Group grouped(accum count, accum mean, accum m2) const;
//   struct Tail;                       reductions along a row, of the elements in a tile; it may have none
//   static constexpr bool reduces;     whether it has any
//   __device__ void tail(Index z, Index m, Index n, accum finished, const Group&, Tail&) const;   for elements in range only
//   __device__ void tail_out(Index z, Index m, Index tile_n, const Tail&) const;   once for each (z, m, tile of columns)
//
// Split s of `splits` sums a contiguous range of k (whole tiles); an empty range gives 0. Nothing depends on timing.
// The engine (Simt, Mma) is a template argument. Each block computes one tile and, through the shared memory that the
// operands no longer need, hands it out row by row: a warp for each row, a lane for each 32nd column.

#if CRUCIBLE_SCALAR != 1  // tensor cores sum in float
#endif

namespace crucible {

template <class Config>
constexpr int tile_cols() { return Config::BN; }

// Tiles in an order in which those that run together share operands: bands of 8 tiles of rows, columns outermost.
constexpr int TILE_BAND = 8;
struct TilePlace {
  Index z, m, n;  // m and n count tiles
};
__device__ __forceinline__ TilePlace tile_place(unsigned block, unsigned tiles_m, unsigned tiles_n) {
  constexpr unsigned BAND = TILE_BAND;
  const unsigned z = block / (tiles_m * tiles_n), within = block % (tiles_m * tiles_n);
  const unsigned first = within / (BAND * tiles_n) * BAND, rest = within % (BAND * tiles_n);
  const unsigned height = tiles_m - first < BAND ? tiles_m - first : BAND;
  return {static_cast<Index>(z), static_cast<Index>(first + rest % height), static_cast<Index>(rest / height)};
}

// Whether a functor goes on after finish, and with what.
template <class P, class = void>
struct TailOf {
  struct Row {};
  struct Group {};
  static __device__ __forceinline__ Group group(const P&, accum, accum, accum) { return {}; }
  static constexpr bool there = false, reduces = false;
};
template <class P>
struct TailOf<P, typename Named<typename P::Tail>::type> {
  using Row = typename P::Tail;
  using Group = typename P::Group;
  static __device__ __forceinline__ Group group(const P& p, accum count, accum mean, accum m2) { return p.grouped(count, mean, m2); }
  static constexpr bool there = true, reduces = P::reduces;
  static_assert(!P::statistics || P::group > 0, "what follows needs moments of whole groups");
};

// Sums over LANES neighbouring lanes.
template <int LANES, int N>
__device__ __forceinline__ void lanes_sums(accum (&x)[N]) {
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2)
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] += __shfl_xor_sync(0xffffffffu, x[i], step);
}

// Sums of N numbers over a warp, N a power of two: lane l gets that of x[l / (32 / N)].
template <int N>
__device__ __forceinline__ accum scattered_sum(accum (&x)[N]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int step = 16;
#pragma unroll
  for (int n = N; n > 1; n /= 2, step /= 2)
#pragma unroll
    for (int i = 0; i < n / 2; ++i) {
      const accum mine = lane & step ? x[i + n / 2] : x[i], other = lane & step ? x[i] : x[i + n / 2];
      x[i] = mine + __shfl_xor_sync(0xffffffffu, other, step);
    }
#pragma unroll
  for (; step > 0; step /= 2) x[0] += __shfl_xor_sync(0xffffffffu, x[0], step);
  return x[0];
}

// The columns of a tile that a lane finishes: every 32nd of BN neighbours.
template <int BN>
struct PlainColumns {
  static constexpr int EACH = BN / 32;
  Index first, tile;
  int count;

  template <class P>
  __device__ __forceinline__ PlainColumns(const P& p, Index tile_n) : first(tile_n * BN), tile(tile_n) {
    const Index left = p.cols() - first;
    count = left < BN ? static_cast<int>(left) : BN;
  }
  __device__ __forceinline__ bool valid(int, int j) const { return static_cast<int>(threadIdx.x) % 32 + j * 32 < count; }
  __device__ __forceinline__ Index column(int, int j) const { return first + static_cast<int>(threadIdx.x) % 32 + j * 32; }
  __device__ __forceinline__ int from(int j) const { return static_cast<int>(threadIdx.x) % 32 + j * 32; }
};

// Columns may be of several batches, neighbours from z on, and may know which elements exist: the same of all rows.
template <class C, class = void>
struct BatchOf {
  static constexpr bool knows = false;
  static __device__ __forceinline__ Index at(const C&, Index z, int) { return z; }
};
template <class C>
struct BatchOf<C, typename Named<typename C::Several>::type> {
  static constexpr bool knows = C::KNOWS;
  static __device__ __forceinline__ Index at(const C& columns, Index z, int j) { return z + columns.further(j); }
};

// Whether a lane's column of a row is an element.
template <class P, class C>
__device__ __forceinline__ bool is_there(const P& p, Index z, Index m, const C& columns, int r, int j) {
  if constexpr (BatchOf<C>::knows)
    return columns.valid(r, j);
  else if constexpr (RaggedOf<P>::ragged && PhasedOf<P>::phased)
    return columns.valid(r, j) && p.exists_at(BatchOf<C>::at(columns, z, j), m, columns.pixel(r, j, 0), columns.pixel(r, j, 1), columns.pixel(r, j, 2), columns.pixel(r, j, 3));
  else if constexpr (RaggedOf<P>::ragged)
    return columns.valid(r, j) && p.exists(z, m, columns.column(r, j));
  else
    return columns.valid(r, j);
}
template <class P, class C>
__device__ __forceinline__ accum finish_element(const P& p, Index z, Index m, const C& columns, int r, int j, int split,
                                                accum value, bool there) {
  if constexpr (PhasedOf<P>::phased)
    return p.finish_at(BatchOf<C>::at(columns, z, j), m, columns.pixel(r, j, 0), columns.pixel(r, j, 1), columns.pixel(r, j, 2), columns.pixel(r, j, 3), split, value,
                       there && columns.valid(r, j));
  else
    return p.finish(z, m, columns.valid(r, j) ? columns.column(r, j) : 0, split, value, there && columns.valid(r, j));
}
// Something near the mean of a row's elements, the same for LANES neighbours: the mean of those that they have, one each. Of
// deviations from it little cancels: n times its own squared deviation is not much of all of them, while that of a single
// element may be all. Zero where it is not finite, so that infinities stay what they are.
template <int LANES>
__device__ __forceinline__ accum near_mean(accum mine, int have) {
  accum sum = mine * accum(1.0 / LANES), count = static_cast<accum>(have);
  if (LANES == 32) count = static_cast<accum>(__popc(__ballot_sync(0xffffffffu, have != 0)));  // one each
#pragma unroll
  for (int by = LANES / 2; by > 0; by /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, by);
    if (LANES < 32) count += __shfl_xor_sync(0xffffffffu, count, by);
  }
  const accum mean = count > 0 ? sum * (accum(LANES) / count) : accum(0);
  return mean - mean == 0 ? mean : accum(0);
}
// The same of a row by all lanes, and how many elements there are.
template <int EACH, class P, class C>
__device__ __forceinline__ accum near_all(const P& p, Index z, Index m, const C& columns, int r, const accum (&kept)[EACH],
                                           int* found) {
  accum mine = 0;
  bool any = false;
#pragma unroll
  for (int j = EACH - 1; j >= 0; --j) {
    const bool there = is_there(p, z, m, columns, r, j);
    if (there) mine = kept[j];
    any |= there;
    if (!BatchOf<C>::knows) *found += __popc(__ballot_sync(0xffffffffu, there));
  }
  return near_mean<32>(mine, any);
}

// ROWS neighbouring rows of a tile (those there are, below `limit`) at a time, so that they need not wait for each other's
// shuffles: a warp's lanes take every 32nd column. The mean is computed first and the deviations from it, and then corrected
// by the deviations' own mean, so nothing cancels however far the values are from zero.
template <int ROWS, int EACH, class P, class C>
__device__ __forceinline__ void finish_values(const P& p, Index z, Index m, Index limit, const C& columns, int split,
                                              const accum (&values)[ROWS][EACH]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  accum kept[ROWS][EACH];
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
#pragma unroll
    for (int j = 0; j < EACH; ++j)
      // Elements that are not there are computed too, without a branch, and nothing is stored.
      kept[r][j] = finish_element(p, z, m + r < limit ? m + r : m, columns, r, j, split, values[r][j], m + r < limit);
  if constexpr (PoolOf<P>::pooled) {
    constexpr int TAKES = PoolOf<P>::Window::product;
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int q = 0; q < EACH / TAKES; ++q)
        if (m + r < limit && columns.whole(q)) {
          typename P::Pooling pool;
#pragma unroll
          for (int j = q * TAKES; j < (q + 1) * TAKES; ++j)
            pool.step(p.pool_in(z, m + r, columns.column(r, j), values[r][j]));
          p.pool_out(z, m + r, columns.pooled(q), pool);
        }
  }
  using Tail = TailOf<P>;
  [[maybe_unused]] typename Tail::Row tails[ROWS];
  if constexpr (P::statistics) {
    // LANES lanes take TAKES columns each of one statistic.
    constexpr int LANES = P::group > 0 && P::group < 32 ? P::group : 32;
    constexpr int TAKES = P::group == 0 ? EACH : P::group < 32 ? 1 : P::group / 32;
    constexpr int WIDTH = P::group == 0 ? 1 : P::group;
    constexpr bool ALL_KNOW = LANES < 32 || Tail::there;  // all lanes of a group get its moments
    static_assert(EACH % TAKES == 0, "a group of columns lies within a tile");
#pragma unroll
    for (int first = 0; ALL_KNOW && first < EACH; first += TAKES) {
      const accum size = static_cast<accum>(P::group > 0 ? P::group : columns.count);
      accum near[ROWS], both[2 * ROWS];  // means; deviations from them and their squares
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        near[r] = 0;
#pragma unroll
        for (int j = first; j < first + TAKES; ++j) near[r] += columns.valid(r, j) ? kept[r][j] : accum(0);
      }
      lanes_sums<LANES>(near);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        near[r] /= size;
        accum off = 0, squares = 0;
#pragma unroll
        for (int j = first; j < first + TAKES; ++j) {
          const accum d = columns.valid(r, j) ? kept[r][j] - near[r] : accum(0);
          off += d;
          squares = fma(d, d, squares);
        }
        both[2 * r] = off, both[2 * r + 1] = squares;
      }
      lanes_sums<LANES>(both);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const accum off = both[2 * r] / size, squares = both[2 * r + 1] - size * off * off;
        if (m + r < limit && lane % LANES == 0 && (P::group == 0 || columns.valid(0, first)))
          p.sink(z, m + r, P::group > 0 ? columns.column(0, first) / WIDTH : columns.tile, size, near[r] + off, squares);
        if constexpr (Tail::there) {
          const auto group = Tail::group(p, size, near[r] + off, squares);
#pragma unroll
          for (int j = first; j < first + TAKES; ++j)
            if (m + r < limit && columns.valid(r, j)) p.tail(z, m + r, columns.column(r, j), kept[r][j], group, tails[r]);
        }
      }
    }
    // The whole warp takes each of them, all rows in one go, with deviations from what is near the mean.
#pragma unroll
    for (int first = 0; !ALL_KNOW && first < EACH; first += TAKES) {
      constexpr int EVERY = 32 / ROWS;
      accum both[2 * ROWS], middle = 0;  // of row lane / EVERY, as is the size
      accum size = static_cast<accum>(P::group > 0 ? P::group : columns.count);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        accum near;
        if constexpr (RaggedOf<P>::ragged) {
          int found = columns.count;
          if (!BatchOf<C>::knows) found = 0;
          near = near_all(p, z, m + r, columns, r, kept[r], &found);
          if (lane / EVERY == r) size = static_cast<accum>(found);
        } else {
          const bool have = columns.valid(r, first);
          near = near_mean<32>(have ? kept[r][first] : accum(0), have);
        }
        if (lane / EVERY == r) middle = near;
        accum off = 0, squares = 0;
#pragma unroll
        for (int j = first; j < first + TAKES; ++j) {
          const accum d = is_there(p, z, m + r, columns, r, j) ? kept[r][j] - near : accum(0);
          off += d;
          squares = fma(d, d, squares);
        }
        both[2 * r] = off, both[2 * r + 1] = squares;
      }
      const accum part = RaggedOf<P>::ragged && size == 0 ? accum(0) : accum(1) / size;
      const accum mine = scattered_sum(both), other = __shfl_xor_sync(0xffffffffu, mine, EVERY / 2);
      const accum off = mine * part, squares = other - mine * off;
      if (lane % EVERY == 0 && m + lane / EVERY < limit && (P::group == 0 || columns.valid(0, first)))
        p.sink(z, m + lane / EVERY, P::group > 0 ? columns.column(0, first) / WIDTH : columns.tile, size, middle + off, squares < 0 ? accum(0) : squares);
    }
  } else if constexpr (Tail::there) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int j = 0; j < EACH; ++j)
        if (m + r < limit && columns.valid(r, j)) p.tail(z, m + r, columns.column(r, j), kept[r][j], {}, tails[r]);
  }
  if constexpr (Tail::reduces) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const auto row = fold_lanes<32>(tails[r]);
      if (lane == 0 && m + r < limit) p.tail_out(z, m + r, columns.tile, row);
    }
  }
}

template <class Config, class P, class C>
__device__ __forceinline__ void finish_row(const P& p, Index z, Index m, const C& columns, int split,
                                           const accum* values) {
  accum mine[1][C::EACH];
#pragma unroll
  for (int j = 0; j < C::EACH; ++j) mine[0][j] = values[columns.from(j)];
  finish_values(p, z, m, m + 1, columns, split, mine);
}

// Tiles of columns: boxes where the functor's columns are pixels of boxes.
template <class Config, class P>
__host__ __device__ __forceinline__ Index column_tiles(const P& p) {
  if constexpr (P::boxed)
    return box_count(p);
  else
    return p.cols() == 0 ? 0 : (p.cols() - 1) / Config::BN + 1;
}

template <class Config, class P>
__device__ __forceinline__ auto columns_of(const P& p, Index tile_n) {
  if constexpr (P::boxed)
    return BoxColumns<P, Config::BN>(p, BoxPlace<P>(p, tile_n), tile_n);
  else
    return PlainColumns<Config::BN>(p, tile_n);
}

// One tile of the result, and one split of its sums.
template <class Config, class P>
__device__ __forceinline__ void contract_tile(const P& p, unsigned block, int split, int splits,
                                              unsigned char* shared) {
  const Index rows = p.rows(), depth = p.depth();
  const TilePlace tile = tile_place(block, static_cast<unsigned>((rows - 1) / Config::BM + 1),
                                    static_cast<unsigned>(column_tiles<Config>(p)));
  const Index m0 = tile.m * Config::BM;

  const Index tiles = depth / Config::BK + (depth % Config::BK != 0), share = tiles / splits + (tiles % splits != 0);
  const Index first = share * split < tiles ? share * split : tiles;
  const Index last = tiles - first > share ? first + share : tiles;

  typename Config::Sums sums;
  Config::multiply(p, tile.z, m0, tile.n * Config::BN, first == tiles ? depth : first * Config::BK,
                   last == tiles ? depth : last * Config::BK, shared, sums);

  const auto columns = columns_of<Config>(p, tile.n);
  accum* staged = reinterpret_cast<accum*>(shared);
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll 1
  for (int pass = 0; pass < Config::passes; ++pass) {
    __syncthreads();
    Config::expose(sums, pass, staged);
    __syncthreads();
#pragma unroll 1
    for (int r = warp; r < Config::pass_rows; r += Config::threads / 32) {
      const int row = Config::row_of(pass, r);
      if (row < rows - m0) finish_row<Config>(p, tile.z, m0 + row, columns, split, staged + r * Config::pass_stride);
    }
  }
}

template <class Config, class P>
__global__ void __launch_bounds__(Config::threads, Config::blocks_per_sm)
    contract_kernel(const __grid_constant__ P p, int splits) {
  follow();
  extern __shared__ __align__(16) unsigned char contract_shared[];
  contract_tile<Config>(p, blockIdx.x, static_cast<int>(blockIdx.y), splits, contract_shared);
}

#ifndef __CUDACC_RTC__
// Kernels that this thread has asked for already. Static, and not in a template: a process has such only once for all
// libraries, and kernels of the same name in each.
static thread_local struct { const void* kernel; int device; } allowed[64];
static thread_local int allowed_count = 0;

// A block gets more than 48 KB only where its kernel was allowed to ask.
template <class Kernel>
cudaError_t allow_shared(Kernel* kernel, int bytes) {
  if (bytes <= 48 * 1024) return cudaSuccess;
  const void* const address = reinterpret_cast<const void*>(kernel);
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  for (int i = 0; i < allowed_count; ++i)
    if (allowed[i].kernel == address && allowed[i].device == device) return error;
  if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess && allowed_count < 64) allowed[allowed_count++] = {address, device};
  return error;
}

// Launches nothing where D is empty. cudaErrorInvalidValue: too many tiles, or statistics or a tail of split (partial) sums.
template <class Config, class P>
cudaError_t launch_contract(const P& p, int splits, cudaStream_t stream) {
  const int64_t tiles_m = (static_cast<int64_t>(p.rows()) + Config::BM - 1) / Config::BM;
  const int64_t tiles_n = column_tiles<Config>(p);
  const int64_t batches = p.batches(), most = 0x7fffffff;
  if (batches == 0 || tiles_m == 0 || tiles_n == 0) return cudaSuccess;
  if (tiles_m > most / tiles_n || batches > most / (tiles_m * tiles_n)) return cudaErrorInvalidValue;
  if (splits < 1 || splits > 65535 || ((P::statistics || TailOf<P>::there) && splits > 1)) return cudaErrorInvalidValue;
  const cudaError_t refused = allow_shared(contract_kernel<Config, P>, Config::shared_bytes);
  if (refused != cudaSuccess) return refused;
  const dim3 grid(static_cast<unsigned>(batches * tiles_m * tiles_n), static_cast<unsigned>(splits));
  return cudaLaunchKernelEx(After(grid, Config::threads, Config::shared_bytes, stream), contract_kernel<Config, P>, p, splits);
}
#endif

}  // namespace crucible

// A contraction in which one operand has few lines (rows of A, or columns of B) and the other many: a matrix times a few
// vectors. The large operand's bytes rule, and a tile of a contraction engine would be mostly empty.
//
// The large operand is streamed once, 16 bytes a lane where its elements lie so; the few lines wait in shared memory as
// accum, FEW_ROWS of them at most, and a thread's sums stay in registers: fused multiply-adds, as exact as any engine.
// The depth is split over blocks; the splits' sums go to memory, and a second kernel adds them up in order, finishes the
// elements and takes statistics as the engines do, tile by tile of their columns. Nothing depends on timing.
//
// Where the large operand's neighbours are along k, a warp takes FEW_LANE_LINES lines and its lanes share k. Where they
// are lines, a lane takes as many lines as 16 bytes have, its block's warps take turns in k, and their sums meet in
// shared memory.
//
// Bytes: the large operand once (from L2 again for each further FEW_ROWS lines), the few lines once a block, and 2 * splits
// sums for each element of the result. Operations: 2 a product, no tensor cores.
//
// Beside what contract.cuh asks of it, the functor has for a and b
//   static constexpr bool a_direct;    elements are those of memory, and neighbours (along k, or else rows) lie side by side
//   __device__ const scalar* a_from(const Row&, Index k) const;   where an element lies, if direct

namespace crucible {

// Lines of the smaller operand up to which this way is taken, set from measurement; the depth and the elements of the
// larger operand from which on; and the most splits, which one thread adds up.
constexpr int FEW_LINES = 16, FEW_DEPTH = 256, FEW_ELEMENTS = 1 << 15, FEW_SPLITS = 128;
// Thread blocks that fill a chip a few times over, and the least depth that is worth a split of its own.
constexpr int FEW_BLOCKS = 528, FEW_SHARE = 512;
constexpr int FEW_THREADS = 256, FEW_WARPS = FEW_THREADS / 32;
constexpr int FEW_LANE_LINES = 4;                        // of the large operand, for a warp
constexpr int FEW_VECTOR = 16 / sizeof(scalar);          // elements of a load
constexpr int FEW_CHUNK = 16 / sizeof(accum);            // numbers of a load from shared memory
constexpr int FEW_STEP = 32 * FEW_VECTOR;                // elements that a warp loads at once
constexpr int FEW_ROWS = sizeof(scalar) == 4 ? 16 : 8;   // few lines at a time: more would not leave registers for loads

// Which operand has few lines, and which element of the result two lines make.
template <class P>
struct FewRows {
  using Few = OperandA<P>;
  using Many = OperandB<P>;
  static constexpr bool direct = P::b_direct;
  static __host__ __device__ Index few(const P& p) { return p.rows(); }
  static __host__ __device__ Index many(const P& p) { return p.cols(); }
  static __device__ __forceinline__ const scalar* from(const P& p, const typename Many::Line& line, Index k) { return p.b_from(line, k); }
  static __device__ __forceinline__ int64_t place(const P& p, Index few, Index many) { return static_cast<int64_t>(few) * p.cols() + many; }
};
template <class P>
struct FewCols {
  using Few = OperandB<P>;
  using Many = OperandA<P>;
  static constexpr bool direct = P::a_direct;
  static __host__ __device__ Index few(const P& p) { return p.cols(); }
  static __host__ __device__ Index many(const P& p) { return p.rows(); }
  static __device__ __forceinline__ const scalar* from(const P& p, const typename Many::Line& line, Index k) { return p.a_from(line, k); }
  static __device__ __forceinline__ int64_t place(const P& p, Index few, Index many) { return static_cast<int64_t>(many) * p.cols() + few; }
};

// How the work is dealt out: blockIdx.x counts batches, blocks and passes (the latter side by side), blockIdx.y splits.
struct FewShape {
  int lines;      // few ones at a time: 2, 8 or 16
  int passes;     // over the few lines
  int splits;     // of the depth
  int share;      // a split's depth: whole steps, and one after another as many as are staged at once
  int blocks;     // that share the many lines
};

// How much of the few lines' depth is in shared memory (64 KB at most) at once.
__host__ __device__ constexpr int few_deepest(int lines, bool along_k) { return along_k && lines == 2 ? 4096 : 1024; }

// Blocks on a processor: as many as leave each thread its sums and the loads under way.
__host__ __device__ constexpr int few_resident(int lines) {
  return sizeof(scalar) == 8 ? (lines == 2 ? 2 : 1) : lines == 2 ? (sizeof(scalar) == 4 ? 4 : 3) : 2;
}

template <int LINES, bool ALONG_K>
constexpr int few_shared_bytes() {
  constexpr int lines = LINES * few_deepest(LINES, ALONG_K), sums = ALONG_K ? 0 : 2 * FEW_WARPS * FEW_STEP;
  return larger(lines, sums) * static_cast<int>(sizeof(accum));
}

// 16 bytes as numbers.
__device__ __forceinline__ void few_unpack(const uint4& from, accum (&to)[FEW_VECTOR]) {
#pragma unroll
  for (int i = 0; i < FEW_VECTOR; ++i) to[i] = to_accum(reinterpret_cast<const scalar*>(&from)[i]);
}

// N numbers from shared memory and to it, as many at once as may be.
template <int N>
__device__ __forceinline__ void few_read(const accum* from, accum (&to)[N]) {
  if constexpr (N % FEW_CHUNK == 0) {
#pragma unroll
    for (int i = 0; i < N; i += FEW_CHUNK) {
      const uint4 v = *reinterpret_cast<const uint4*>(from + i);
#pragma unroll
      for (int j = 0; j < FEW_CHUNK; ++j) to[i + j] = reinterpret_cast<const accum*>(&v)[j];
    }
  } else {
    static_assert(N == 2 && sizeof(accum) == 4, "two floats");
    const float2 v = *reinterpret_cast<const float2*>(from);
    to[0] = v.x, to[1] = v.y;
  }
}

template <int N>
__device__ __forceinline__ void few_write(accum* to, const accum (&from)[N]) {
  if constexpr (N % FEW_CHUNK == 0) {
#pragma unroll
    for (int i = 0; i < N; i += FEW_CHUNK) {
      uint4 v;
#pragma unroll
      for (int j = 0; j < FEW_CHUNK; ++j) reinterpret_cast<accum*>(&v)[j] = from[i + j];
      *reinterpret_cast<uint4*>(to + i) = v;
    }
  } else {
    *reinterpret_cast<float2*>(to) = make_float2(from[0], from[1]);
  }
}

__device__ __forceinline__ bool few_aligned(const scalar* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; }

// The few lines' numbers from k = begin on, for put(k, numbers); zeros past the last line, and past `length` to a whole step.
// Whole batches of loads are under way at once: nothing else happens meanwhile.
template <class Side, int LINES, class Put, class P>
__device__ __forceinline__ void few_stage(const P& p, Index z, Index first, Index begin, int length, Put put) {
  constexpr int AHEAD = LINES == 2 ? 8 : 2;
  const int padded = (length + FEW_STEP - 1) / FEW_STEP * FEW_STEP;
  const Index left = Side::few(p) - first;
  typename Side::Few::Line lines[LINES];
#pragma unroll
  for (int r = 0; r < LINES; ++r) lines[r] = Side::Few::line(p, z, r < left ? first + r : first);
  __syncthreads();  // nobody needs what was there
#pragma unroll AHEAD
  for (int k = static_cast<int>(threadIdx.x); k < padded; k += FEW_THREADS) {
    accum numbers[LINES];
#pragma unroll
    for (int r = 0; r < LINES; ++r) numbers[r] = r < left && k < length ? Side::Few::at(p, lines[r], begin + k) : accum(0);
    put(k, numbers);
  }
  __syncthreads();
}

// ---- neighbours along k

// Sums of COUNT numbers each over a warp's lanes: lane l gets that of x[l / (32 / COUNT)]. As scattered_sum(), for more
// numbers than the compiler would unroll by itself.
template <int COUNT, int STEP, int N>
__device__ __forceinline__ void few_lanes_sums(accum (&x)[N]) {
  if constexpr (STEP > 0) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (COUNT > 1) {
#pragma unroll
      for (int i = 0; i < COUNT / 2; ++i) {
        const accum mine = lane & STEP ? x[i + COUNT / 2] : x[i], other = lane & STEP ? x[i] : x[i + COUNT / 2];
        x[i] = mine + __shfl_xor_sync(0xffffffffu, other, STEP);
      }
    } else {
      x[0] += __shfl_xor_sync(0xffffffffu, x[0], STEP);
    }
    few_lanes_sums<(COUNT > 1 ? COUNT / 2 : 1), STEP / 2>(x);
  }
}

// Where number k of a line lies: what a lane reads at once is side by side, and so are neighbouring lanes.
__device__ __forceinline__ int few_along_place(int k) {
  const int within = k % FEW_STEP;
  return k - within + (within % FEW_VECTOR / FEW_CHUNK * 32 + within / FEW_VECTOR) * FEW_CHUNK + within % FEW_CHUNK;
}

// DIRECT: all lines lie on 16 bytes, and two steps' loads are under way at once; else single elements, 32 neighbours a time.
template <bool DIRECT, class Side, int LINES, class P>
__device__ __forceinline__ void few_along_sums(const P& p, const typename Side::Many::Line (&lines)[FEW_LANE_LINES], Index begin,
                                               int length, const accum* few, accum (&sums)[LINES * FEW_LANE_LINES]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // Single elements take a register more each, for where they lie, and two lines leave 64 in all.
  constexpr int L = FEW_LANE_LINES, V = FEW_VECTOR, STEPS = DIRECT || V < (LINES == 2 ? 4 : 8) ? 2 : 1;
  constexpr int PIECES = DIRECT ? V / FEW_CHUNK : V;
  constexpr int EACH = DIRECT ? FEW_CHUNK : 1;  // numbers of a few line's that are read at once
#pragma unroll 1
  for (int k0 = 0; k0 < length; k0 += STEPS * FEW_STEP) {
    uint4 raw[STEPS][L];
    accum single[STEPS][L][V];
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
#pragma unroll
      for (int l = 0; l < L; ++l) {
        const int k = k0 + s * FEW_STEP;
        if constexpr (DIRECT) {
          raw[s][l] = make_uint4(0, 0, 0, 0);
          if (k + lane * V < length) raw[s][l] = __ldg(reinterpret_cast<const uint4*>(Side::from(p, lines[l], begin + k + lane * V)));
        } else {
#pragma unroll
          for (int i = 0; i < V; ++i) {
            const int at = k + i * 32 + lane;
            single[s][l][i] = at < length ? Side::Many::at(p, lines[l], begin + at) : accum(0);
          }
        }
      }
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      const int k = k0 + s * FEW_STEP;
      if (k >= length) break;  // nothing was staged there
      if constexpr (DIRECT) {
#pragma unroll
        for (int l = 0; l < L; ++l) few_unpack(raw[s][l], single[s][l]);
      }
#pragma unroll
      for (int i = 0; i < PIECES; ++i)
#pragma unroll
        for (int r = 0; r < LINES; ++r) {
          const accum* const at = few + r * few_deepest(LINES, true) + (DIRECT ? k + (i * 32 + lane) * EACH : few_along_place(k + i * 32 + lane));
          accum x[EACH];
          if constexpr (DIRECT)
            few_read(at, x);
          else
            x[0] = *at;
#pragma unroll
          for (int l = 0; l < L; ++l)
#pragma unroll
            for (int j = 0; j < EACH; ++j)
              sums[r * L + l] = fma(x[j], single[s][l][i * EACH + j], sums[r * L + l]);
        }
    }
  }
}

template <class Side, int LINES, class P>
__device__ __forceinline__ void few_along(const P& p, const FewShape& shape, Index z, Index first, int block, Index begin,
                                          int length, accum* few, accum* parts) {
  constexpr int L = FEW_LANE_LINES, AT_ONCE = LINES * L < 32 ? LINES * L : 32, DEEPEST = few_deepest(LINES, true);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const Index many = Side::many(p), start = static_cast<Index>(block) * (FEW_WARPS * L);
#pragma unroll 1
  for (Index base = start; base < many; base += shape.blocks * (FEW_WARPS * L)) {
    const Index line = base + warp * L;
    typename Side::Many::Line lines[L];
#pragma unroll
    for (int l = 0; l < L; ++l) lines[l] = Side::Many::line(p, z, line + l < many ? line + l : many - 1);
    accum sums[LINES * L];
#pragma unroll
    for (int i = 0; i < LINES * L; ++i) sums[i] = 0;
#pragma unroll 1
    for (int done = 0; done < length; done += DEEPEST) {
      const int now = length - done < DEEPEST ? length - done : DEEPEST;
      const Index from = begin + done;
      if (base == start || length > DEEPEST)
        few_stage<Side, LINES>(p, z, first, from, now, [few](int k, const accum (&numbers)[LINES]) {
#pragma unroll
          for (int r = 0; r < LINES; ++r) few[r * few_deepest(LINES, true) + few_along_place(k)] = numbers[r];
        });
      if (line >= many) continue;
      bool direct = Side::direct && now % FEW_VECTOR == 0;
      if constexpr (Side::direct) {
#pragma unroll
        for (int l = 0; l < L; ++l) direct = direct && few_aligned(Side::from(p, lines[l], from));
        if (direct) few_along_sums<true, Side, LINES>(p, lines, from, now, few, sums);
      }
      if (!direct) few_along_sums<false, Side, LINES>(p, lines, from, now, few, sums);
    }
    if (line >= many) continue;
    int own = lane;
    asm volatile("" : "+r"(own));  // not to be seen through: places of sums, kept from the start, would cost the loads registers
#pragma unroll
    for (int i = 0; i < LINES * L; i += AT_ONCE) {
      accum some[AT_ONCE];
#pragma unroll
      for (int j = 0; j < AT_ONCE; ++j) some[j] = sums[i + j];
      few_lanes_sums<AT_ONCE, 16>(some);
      const int mine = i + own / (32 / AT_ONCE);
      const Index r = first + mine / L;
      if (own % (32 / AT_ONCE) == 0 && r < Side::few(p) && line + mine % L < many)
        parts[Side::place(p, r, line + mine % L)] = some[0];
    }
  }
}

// ---- neighbours are lines

// A lane's lines: neighbours where it loads 16 bytes of them at once, else every 32nd.
template <bool DIRECT>
__device__ __forceinline__ int few_lane_line(int j) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return DIRECT ? lane * FEW_VECTOR + j : j * 32 + lane;
}

template <bool DIRECT, class Side, int LINES, class P>
__device__ __forceinline__ void few_across_sums(const P& p, Index z, Index tile, Index begin, int length, const accum* few,
                                                accum (&sums)[LINES][FEW_VECTOR]) {
  constexpr int V = FEW_VECTOR, STEPS = DIRECT || V < 4 ? 8 : 16 / V;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const Index last = Side::many(p) - 1;
  typename Side::Many::Line lines[DIRECT ? 1 : V];
#pragma unroll
  for (int j = 0; j < (DIRECT ? 1 : V); ++j) {
    const Index line = tile + few_lane_line<DIRECT>(j);
    lines[j] = Side::Many::line(p, z, last - tile < few_lane_line<DIRECT>(j) ? last : line);
  }
#pragma unroll 1
  for (int k0 = warp; k0 < length; k0 += STEPS * FEW_WARPS) {
    uint4 raw[STEPS];
    accum single[STEPS][V];
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      const int k = k0 + s * FEW_WARPS;
      if constexpr (DIRECT) {
        raw[s] = make_uint4(0, 0, 0, 0);
        if (k < length) raw[s] = __ldg(reinterpret_cast<const uint4*>(Side::from(p, lines[0], begin + k)));
      } else {
#pragma unroll
        for (int j = 0; j < V; ++j) single[s][j] = k < length ? Side::Many::at(p, lines[j], begin + k) : accum(0);
      }
    }
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      const int k = k0 + s * FEW_WARPS;
      if (k >= length) break;
      if constexpr (DIRECT) few_unpack(raw[s], single[s]);
      accum x[LINES];
      few_read(few + k * LINES, x);
#pragma unroll
      for (int r = 0; r < LINES; ++r)
#pragma unroll
        for (int j = 0; j < V; ++j) sums[r][j] = fma(x[r], single[s][j], sums[r][j]);
    }
  }
}

template <class Side, int LINES, class P>
__device__ __forceinline__ void few_across(const P& p, Index z, Index first, int block, Index begin, int length,
                                           accum* shared, accum* parts) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const Index tile = static_cast<Index>(block) * FEW_STEP, left = Side::many(p) - tile;
  constexpr int DEEPEST = few_deepest(LINES, false);
  accum sums[LINES][FEW_VECTOR];
#pragma unroll
  for (int r = 0; r < LINES; ++r)
#pragma unroll
    for (int j = 0; j < FEW_VECTOR; ++j) sums[r][j] = 0;
  bool direct = Side::direct && left >= FEW_STEP;
  if constexpr (Side::direct) {
    const auto line = Side::Many::line(p, z, tile);
    direct = direct && few_aligned(Side::from(p, line, begin)) && (length == 1 || few_aligned(Side::from(p, line, begin + 1)));
  }
#pragma unroll 1
  for (int done = 0; done < length; done += DEEPEST) {
    const int now = length - done < DEEPEST ? length - done : DEEPEST;
    const Index from = begin + done;
    few_stage<Side, LINES>(p, z, first, from, now,
                           [shared](int k, const accum (&numbers)[LINES]) { few_write(shared + k * LINES, numbers); });
    if constexpr (Side::direct) {
      if (direct) few_across_sums<true, Side, LINES>(p, z, tile, from, now, shared, sums);
    }
    if (!direct) few_across_sums<false, Side, LINES>(p, z, tile, from, now, shared, sums);
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < LINES; ++r) {
    // Two buffers: who writes the next sums has passed the barrier behind the last sums' reading.
    accum* const meet = shared + r % 2 * FEW_WARPS * FEW_STEP;
#pragma unroll
    for (int j = 0; j < FEW_VECTOR; ++j)
      meet[warp * FEW_STEP + (direct ? few_lane_line<true>(j) : few_lane_line<false>(j))] = sums[r][j];
    __syncthreads();
    if (first + r >= Side::few(p)) break;  // the same for the whole block
    for (int c = static_cast<int>(threadIdx.x); c < FEW_STEP && c < left; c += FEW_THREADS) {
      accum sum = 0;
#pragma unroll
      for (int w = 0; w < FEW_WARPS; ++w) sum += meet[w * FEW_STEP + c];
      parts[Side::place(p, first + r, tile + c)] = sum;
    }
  }
}

// ---- kernels

template <class Side, int LINES, class P>
__global__ void __launch_bounds__(FEW_THREADS, few_resident(LINES))
    contract_few_kernel(const __grid_constant__ P p, const __grid_constant__ FewShape shape, accum* parts) {
  follow();
  extern __shared__ __align__(16) unsigned char few_shared[];
  const int of_all = static_cast<int>(blockIdx.x) / shape.passes, block = of_all % shape.blocks;
  const Index z = of_all / shape.blocks, first = static_cast<Index>(blockIdx.x % shape.passes * LINES);
  const Index begin = static_cast<Index>(blockIdx.y) * shape.share, left = p.depth() - begin;
  const int length = left < shape.share ? static_cast<int>(left) : shape.share;
  accum* const to = parts + (static_cast<int64_t>(blockIdx.y) * p.batches() + z) * p.rows() * p.cols();
  accum* const few = reinterpret_cast<accum*>(few_shared);
  if constexpr (Side::Many::along_k)
    few_along<Side, LINES>(p, shape, z, first, block, begin, length, few, to);
  else
    few_across<Side, LINES>(p, z, first, block, begin, length, few, to);
}

// A thread for each element; where there are statistics or a tail, a warp for each row and tile of BN columns. `planned`: splits that
// the rest of the plan expects; all but one are zero.
enum : int { FEW_FINISH_THREADS = 64 };
template <int BN, class P>
__global__ void __launch_bounds__(FEW_FINISH_THREADS)
    contract_few_finish_kernel(const __grid_constant__ P p, const accum* parts, int splits, int planned) {
  follow();
  const int64_t rows = static_cast<int64_t>(p.batches()) * p.rows(), each = rows * p.cols();
  if constexpr (P::statistics || TailOf<P>::there) {  // and so nothing is planned
    const int64_t tiles = (static_cast<int64_t>(p.cols()) + BN - 1) / BN;
    const int64_t at = static_cast<int64_t>(blockIdx.x) * (FEW_FINISH_THREADS / 32) + threadIdx.x / 32, row = at / tiles;
    if (row >= rows) return;
    const PlainColumns<BN> columns(p, static_cast<Index>(at % tiles));
    accum values[1][PlainColumns<BN>::EACH];
#pragma unroll
    for (int j = 0; j < PlainColumns<BN>::EACH; ++j) values[0][j] = 0;
#pragma unroll 4
    for (int s = 0; s < splits; ++s)
#pragma unroll
      for (int j = 0; j < PlainColumns<BN>::EACH; ++j)
        if (columns.valid(0, j)) values[0][j] += parts[s * each + row * p.cols() + columns.column(0, j)];
    const Index m = static_cast<Index>(row % p.rows());
    finish_values(p, static_cast<Index>(row / p.rows()), m, m + 1, columns, 0, values);
  } else {
    const int64_t at = static_cast<int64_t>(blockIdx.x) * FEW_FINISH_THREADS + threadIdx.x, row = at / p.cols();
    if (at >= each) return;
    accum value = 0;
#pragma unroll 8
    for (int s = 0; s < splits; ++s) value += parts[s * each + at];
    const Index z = static_cast<Index>(row / p.rows()), m = static_cast<Index>(row % p.rows()), n = static_cast<Index>(at % p.cols());
    p.finish(z, m, n, 0, value, true);
    for (int s = 1; s < planned; ++s) p.finish(z, m, n, s, accum(0), true);
  }
}

#ifndef __CUDACC_RTC__
template <template <class> class Side_, class P>
FewShape few_shape(const P& p) {
  using Side = Side_<P>;
  constexpr bool along = Side::Many::along_k;
  const int64_t few = Side::few(p), many = Side::many(p), depth = p.depth(), batches = p.batches();
  const auto parts_of = [](int64_t n, int64_t of) { return (n + of - 1) / of; };
  FewShape s{};
  s.lines = few <= 2 ? 2 : few <= 8 ? 8 : FEW_ROWS;
  s.passes = static_cast<int>(parts_of(few, s.lines));
  int64_t blocks = parts_of(many, along ? FEW_WARPS * FEW_LANE_LINES : FEW_STEP);
  const int deepest = few_deepest(s.lines, along);
  int64_t splits = parts_of(depth, deepest);
  const int64_t fill = parts_of(FEW_BLOCKS, blocks * batches * s.passes), fair = depth / FEW_SHARE;
  int64_t more = fill < fair ? fill : fair;
  if (more > FEW_SPLITS) more = FEW_SPLITS;
  if (splits < more) splits = more;
  const bool deep = splits > FEW_SPLITS;  // then several stages follow each other
  if (deep) splits = FEW_SPLITS;
  s.share = static_cast<int>(parts_of(parts_of(depth, splits), FEW_STEP) * FEW_STEP);
  s.splits = static_cast<int>(parts_of(depth, s.share));
  if (along && !deep) {  // a block walks over many lines rather than that others stage the few again
    const int64_t enough = parts_of(FEW_BLOCKS, s.splits * batches * s.passes);
    if (blocks > enough) blocks = enough;
  }
  s.blocks = static_cast<int>(blocks);
  return s;
}

// Whether this way pays.
template <template <class> class Side_, class P>
bool few_pays(const P& p) {
  using Side = Side_<P>;
  const int64_t few = Side::few(p), many = Side::many(p), depth = p.depth(), batches = p.batches();
  if (few < 1 || few > FEW_LINES || few > many || batches < 1 || depth < FEW_DEPTH) return false;
  return many * depth >= (FEW_ELEMENTS + batches - 1) / batches;
}

// Of the splits' sums.
template <template <class> class Side_, class P>
int64_t few_bytes(const P& p) {
  return few_shape<Side_>(p).splits * static_cast<int64_t>(p.batches()) * p.rows() * p.cols() * static_cast<int64_t>(sizeof(accum));
}

template <class Side, int LINES, class P>
cudaError_t launch_few_sums(const P& p, const FewShape& s, accum* parts, cudaStream_t stream) {
  constexpr int bytes = few_shared_bytes<LINES, Side::Many::along_k>();
  const cudaError_t refused = allow_shared(contract_few_kernel<Side, LINES, P>, bytes);
  if (refused != cudaSuccess) return refused;
  const int64_t blocks = static_cast<int64_t>(s.blocks) * p.batches() * s.passes;
  if (blocks > 0x7fffffff) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(s.splits));
  return cudaLaunchKernelEx(After(grid, FEW_THREADS, bytes, stream), contract_few_kernel<Side, LINES, P>, p, s, parts);
}

// `workspace` has few_bytes(). D is not empty and has a depth: ask few_pays() first. cudaErrorInvalidValue: too many blocks.
template <template <class> class Side_, int BN, class P>
cudaError_t launch_contract_few(const P& p, int planned, void* workspace, cudaStream_t stream) {
  static_assert(!P::boxed, "columns are columns");
  using Side = Side_<P>;
  const FewShape s = few_shape<Side_>(p);
  accum* const parts = static_cast<accum*>(workspace);
  constexpr bool tiled = P::statistics || TailOf<P>::there;
  if (tiled && planned > 1) return cudaErrorInvalidValue;
  const int64_t tiles = (static_cast<int64_t>(p.cols()) + BN - 1) / BN, rows = static_cast<int64_t>(p.batches()) * p.rows();
  const int64_t threads = tiled ? rows * tiles * 32 : rows * p.cols();
  const int64_t blocks = (threads + FEW_FINISH_THREADS - 1) / FEW_FINISH_THREADS;
  if (blocks > 0x7fffffff) return cudaErrorInvalidValue;
  cudaError_t error = cudaSuccess;
  if (s.lines == 2)
    error = launch_few_sums<Side, 2, P>(p, s, parts, stream);
  else if (s.lines == 8)
    error = launch_few_sums<Side, 8, P>(p, s, parts, stream);
  else if constexpr (FEW_ROWS > 8)
    error = launch_few_sums<Side, FEW_ROWS, P>(p, s, parts, stream);
  if (error != cudaSuccess) return error;
  return cudaLaunchKernelEx(After(static_cast<unsigned>(blocks), FEW_FINISH_THREADS, 0, stream),
                            contract_few_finish_kernel<BN, P>, p, parts, s.splits, planned);
}
#endif

}  // namespace crucible

// Hopper's matrix instructions and what goes with them (compute capability 9.0a): barriers in shared memory on which
// producers and consumers wait for each other, bulk copies, and descriptors of operands.
//
// Wgmma<N, kind>::multiply(d, a, b, more) adds the product of 64 x K values at descriptor a and N x K values at b (K is 32
// bytes: 16 half or bfloat16, 8 tf32) to d, or starts d anew; the including file brings the instructions for its N.
// Of d[4j + 2h + i], row 16 * (warp % 4) + 8h + lane / 4 and column 8j + 2 * (lane % 4) + i are this thread's.

#if CRUCIBLE_HOPPER
namespace crucible {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define CRUCIBLE_HAS_WGMMA 1
#else
#define CRUCIBLE_HAS_WGMMA 0
#endif

// What the tensor cores multiply: floats scaled and rounded to half, floats rounded to tf32, elements as they are, or floats
// split into two tf32 numbers.
enum class Operands { Half, Tf32, Native, Split };

template <int N, Operands kind>
struct Wgmma;

#if CRUCIBLE_HAS_WGMMA
__device__ __forceinline__ unsigned shared_address(const void* at) {
  return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

// Barriers. `parity` is that of the phase waited for: a fresh barrier is in phase 0, and waiting for parity 1 passes.
__device__ __forceinline__ void barrier_init(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_inits_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ bool barrier_try(unsigned barrier, unsigned parity) {
  unsigned passed;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(passed)
      : "r"(barrier), "r"(parity)
      : "memory");
  return passed != 0;
}
__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned parity) {
  while (!barrier_try(barrier, parity)) {
  }
}

// Arrives when this thread's copies have come.
__device__ __forceinline__ void copies_arrive(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// Bytes (a multiple of 16) from global to shared memory; they count on the barrier.
__device__ __forceinline__ void bulk_copy(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
               : "memory");
}

// Makes what this thread stored to shared memory visible to the tensor cores.
__device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A warp's stores to global memory, counted at `count`, for bulk copies of whoever has waited for the count.
__device__ __forceinline__ void hand_over(unsigned* count) {
  asm volatile("fence.proxy.async.global;" ::: "memory");
  __syncwarp();
  if (threadIdx.x % 32 == 0)
    asm volatile("fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(__cvta_generic_to_global(count))
                 : "memory");
}
// Raises a count, behind a fence.
__device__ __forceinline__ void count_up_to(unsigned* count, unsigned now) {
  asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(count)), "r"(now) : "memory");
}
__device__ __forceinline__ unsigned count_now(const unsigned* count) {
  unsigned there;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(there) : "l"(__cvta_generic_to_global(count)) : "memory");
  return there;
}
__device__ __forceinline__ void count_wait(const unsigned* count, unsigned wanted) {
  while (count_now(count) < wanted) {
  }
}

// Threads of two warpgroups taking turns: one waits for its turn, the other gives it.
__device__ __forceinline__ void turn_wait(int id) { asm volatile("bar.sync %0, 256;" ::"r"(id) : "memory"); }
__device__ __forceinline__ void turn_give(int id) { asm volatile("bar.arrive %0, 256;" ::"r"(id) : "memory"); }

__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most LEFT batches of products are under way.
template <int LEFT>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// Keeps the compiler from reading sums before the wait.
template <int COUNT>
__device__ __forceinline__ void settle(float (&d)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// An operand whose lines (rows of A, columns of B) are 16 bytes long and follow each other, eight to a matrix; `deeper`
// bytes lead to the second 16 bytes of each line. A shift by one line is one more in the lowest field.
__device__ __forceinline__ uint64_t lines_at(unsigned address, unsigned deeper) {
  return static_cast<uint64_t>((address & 0x3ffffu) >> 4) | static_cast<uint64_t>(deeper >> 4) << 16 | uint64_t(8) << 32;
}

// Two numbers as half in one word, the first in the low half.
__device__ __forceinline__ unsigned pack_half(float first, float second) {
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

template <int KEEP>
__device__ __forceinline__ void registers_up() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(KEEP)); }
template <int KEEP>
__device__ __forceinline__ void registers_down() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(KEEP)); }
#endif

// A number below `extent` that looks random, to spread a sample over everything.
__device__ __forceinline__ Index spread(unsigned i, unsigned salt, Index extent) {
  unsigned h = (i * 8u + salt) * 2654435761u;
  h ^= h >> 15;
  h *= 2246822519u;
  h ^= h >> 13;
  return static_cast<Index>(h % static_cast<unsigned>(extent));
}
// The exponent that brings a number of these bits (without its sign) to [2^peak, 2^(peak + 1)); none for inf and nan.
__device__ __forceinline__ int exponent_to(int peak, unsigned bits) {
  const int e = static_cast<int>(bits >> 23);
  return e == 255 ? 0 : peak + 127 - (e == 0 ? 1 : e);
}
// 2^e, and x * 2^e for |e| up to 252 without a detour through infinity or zero.
__device__ __forceinline__ float power_of_two(int e) { return __int_as_float((e + 127) << 23); }
__device__ __forceinline__ float scaled(float x, int e) { return x * power_of_two(e / 2) * power_of_two(e - e / 2); }

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

// Operands of a contraction for Hopper's tensor cores, read through the functor and written in the order of shared memory.
//
// For each tile of lines (BM rows of A, BN columns of B) and each 64 k there is one contiguous piece of
// [plane][line][64 k]: lines of 128 bytes whose 16-byte chunks are permuted by the line's number (the hardware's 128-byte
// swizzle), zeros where a tile reaches past the end. So the product's kernel fetches with plain bulk copies. A word holds
// k and k + 32 of the 64, in both operands alike: sums do not mind, and neighbouring lanes read neighbours.
// In grade Fp32 the planes are hi and lo, two half numbers whose sum is the element times a power of two that brings the
// line's largest to [2^14, 2^15): 22 bits. In grade Tf32 hi alone: half has the 11 bits of tf32 at twice the rate. In
// grade Native the elements as they are.
//
// The range: elements below 2^-18 of their line's largest (2^-29 in grade Tf32) lose up to 2^-25 (scaled) each. They are
// counted for each line, and its elements added up without signs, so that the product can tell whether it matters.
// Bytes: each element read once or twice (once where k runs along memory and there are at most 8192), its planes written.
//
// Who packs: what the product's first tiles need, a launch before it. The rest the warps that the product leaves idle, while
// tensor cores work on those first tiles: a counter hands out work (a line, or a chunk of 32) in the order in which tiles
// need it, and each tile of lines counts what is ready. Where many tiles of rows share B, contract_roll.cuh packs it instead.

#if CRUCIBLE_HOPPER && CRUCIBLE_SCALAR != 1  // tensor cores sum in float
#include <cuda_fp16.h>

namespace crucible {

// BN columns: 32, 64 or 128.
template <int BN_, Grade grade_>
struct WgmmaTile {
  static constexpr Grade grade = grade_;
  static constexpr int BM = 128, BN = BN_, BK = 64;
  static constexpr int PLANES = grade == Grade::Fp32 ? 2 : 1;
  static constexpr int A_BYTES = PLANES * BM * 128, B_BYTES = PLANES * BN * 128, STAGE = A_BYTES + B_BYTES;
  static constexpr int CONSUMERS = 256, threads = 128 + CONSUMERS;
  // Of a thread. Three warpgroups begin with 168 each; the packers' and twice the consumers' must fit there.
  static constexpr int PACKER_REGISTERS = 104, CONSUMER_REGISTERS = 200;
  // Lines that a processor's idle warps pack while it computes a tile (of any depth, for both take as long as that).
  static constexpr int PACE = (grade == Grade::Fp32 ? 8 : 3) * BN / 128;
  static constexpr int row_stride = BN + 8;  // of rows on their way out
  static constexpr int OUT_BYTES = CONSUMERS / 32 * 8 * row_stride * 4;
  static constexpr int BARRIERS = 256;  // bytes
  static constexpr int STAGES = smaller((227 * 1024 - OUT_BYTES - BARRIERS) / STAGE, 8);
  static constexpr int shared_bytes = STAGES * STAGE + OUT_BYTES + BARRIERS;
  static constexpr bool scaled = grade != Grade::Native;
  static constexpr Operands kind = scaled ? Operands::Half : Operands::Native;
  // What is done again is done with this.
  using Other = Mma<128, BN, grade == Grade::Native || BN == 128 ? 32 : 16, BN == 32 ? 32 : 64, 32, grade>;
  static_assert(STAGES >= 2, "no room for two stages");
  static_assert(PACKER_REGISTERS + 2 * CONSUMER_REGISTERS <= 3 * 168, "whoever asks for more than there are waits for ever");
};

// Threads of a block; steps whose elements stay in registers; the same where few registers are left; pieces in a chunk of k.
enum : int { PACK_THREADS = 256, PACK_KEPT = 16, PACK_AHEAD = 12, PACK_CHUNK = 8 };
// Of a rolling operand: pieces in a team's ring; lines of a warp; pieces of a line that are looked at beforehand.
enum : int { ROLL_SLOTS = 32, ROLL_LINES = 16, ROLL_SAMPLES = 8 };
// Processors of a chip, and the most there are: what the workspace holds must not depend on the chip.
enum : int { HOPPER_PROCESSORS = 132, MOST_PROCESSORS = 144 };

// What undoes a line's scale, and how many of its elements lost bits: nan for a line with inf or nan, -inf for zeros.
struct LineScale {
  float factor, lossy;
};

struct PackedOperand {
  unsigned char* pieces;
  LineScale* scales;  // [batch][line], whole tiles
  unsigned* weights;  // [batch][line]: the sum of |scaled elements| / 2^15, in 256ths, rounded up
  unsigned* peaks;    // [chunk of k][batch][line], where neighbours are not along k
  unsigned* ready;    // [batch][tile]: work done beside the product; of a rolling operand [team][slot]: warps that filled it
  unsigned* free;     // of a rolling operand, [team][block]: pieces that the block needs no more
  float* multipliers; // of a rolling operand, [batch][line]: powers of two
  int64_t lines;      // of all batches, whole tiles
  int64_t early;      // tiles that are packed before the product
  int each, blocks;   // of a tile: work for warps beside the product, thread blocks before it
};

struct Packing {
  PackedOperand a, b;
  int* again;         // the flag
  unsigned* next;     // the next work beside the product
  int64_t depth;      // in pieces
  int64_t counters;   // the flag and what follows it, to be cleared
  int tiles_m, tiles_n, batches;
  int warps;          // that share a line in packing, where neighbours are along k
  int cluster;        // blocks that share pieces: 2, or 1 where there are no clusters
  int high, wide;     // tiles of a cluster in m (two share B) and in n (two share A)
  int pairs_m, pairs_n;  // clusters' tiles
  int height;         // blocks of a team, for which B is packed piece by piece (contract_roll.cuh); 0: it is not

  __host__ __device__ int64_t pairs() const { return static_cast<int64_t>(pairs_m) * pairs_n * batches; }
  // A tile's first column, counted through all batches.
  template <class W>
  __host__ __device__ int64_t column(const TilePlace& tile) const {
    return (tile.z * static_cast<int64_t>(tiles_n) + tile.n) * W::BN;
  }
  // Blocks that look at samples before the product.
  __host__ __device__ int64_t sample_blocks(bool along) const {
    return height == 0 ? 0 : along ? (b.lines - 1) / (PACK_THREADS / 32) + 1 : b.lines / 32;
  }
  // On so many processors.
  int64_t teams(int processors) const {
    const int64_t tiles = static_cast<int64_t>(tiles_n) * batches, most = smaller(processors, MOST_PROCESSORS) / height;
    return tiles < most ? tiles : most;
  }
  // Tiles of A in the first band of tile_place().
  __host__ __device__ int64_t band() const { return tiles_m < TILE_BAND * high ? tiles_m : TILE_BAND * high; }
};

// A team's tiles, one after another: this block's of each. It may lie past the last row.
struct TeamTiles {
  unsigned next;  // the team's number at first
  __device__ __forceinline__ bool take(const Packing& all, TilePlace& tile) {
    if (next >= static_cast<unsigned>(all.tiles_n) * all.batches) return false;
    tile = {static_cast<Index>(next / all.tiles_n), static_cast<Index>(blockIdx.x % all.height),
            static_cast<Index>(next % all.tiles_n)};
    next += gridDim.x / all.height;
    return true;
  }
};

// Work in the order in which the product's tiles need it: for each batch A's first band, all of B, the rest of A.
// A tile of A is a_each pieces of work, one of B b_each.
struct PackTurn {
  bool of_b;
  int64_t tile, part;
  __host__ __device__ __forceinline__ PackTurn(const Packing& all, int64_t turn, int a_each, int b_each) {
    const int64_t band = all.band() * a_each, b = static_cast<int64_t>(all.tiles_n) * b_each;
    const int64_t batch = static_cast<int64_t>(all.tiles_m) * a_each + b, z = turn / batch;
    turn -= z * batch;
    of_b = turn >= band && turn < band + b;
    if (of_b) turn -= band;
    if (turn >= band && !of_b) turn -= b;
    const int each = of_b ? b_each : a_each;
    tile = z * (of_b ? all.tiles_n : all.tiles_m) + turn / each;
    part = turn % each;
  }
};

#if CRUCIBLE_HAS_MMA
// The exponent that brings a line's largest element to [2^14, 2^15).
__device__ __forceinline__ int line_exponent(unsigned peak) { return exponent_to(14, peak); }
__device__ __forceinline__ LineScale line_scale(unsigned peak, float lossy) {
  const int e = line_exponent(peak);
  return {scaled(1.0f, -e), peak == 0 ? -INFINITY : peak >= 0x7f800000u ? NAN : lossy};
}
__device__ __forceinline__ unsigned absolute_bits(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// What a line's elements add up to: how many lost bits, and their sum without signs, scaled.
struct Losses {
  int lossy = 0;
  float sum = 0;
  __device__ __forceinline__ unsigned weight() const { return __float2uint_ru(sum * 0x1p-7f); }
};

// Two k, scaled, as words of the planes.
template <class W>
__device__ __forceinline__ void pack_scaled(float2 from, unsigned (&words)[W::PLANES], Losses& losses) {
  const __half2 hi = __floats2half2_rn(from.x, from.y);
  words[0] = reinterpret_cast<const unsigned&>(hi);
  const float2 near = __half22float2(hi);
  float2 rest = {from.x - near.x, from.y - near.y};
  if constexpr (W::PLANES == 2) {
    const __half2 lo = __floats2half2_rn(rest.x, rest.y);
    words[1] = reinterpret_cast<const unsigned&>(lo);
    const float2 low = __half22float2(lo);
    rest = {rest.x - low.x, rest.y - low.y};
  }
  constexpr float fair = W::PLANES == 2 ? 0x1p-22f : 0x1p-11f;  // what rounding may cost
  losses.lossy += (fabsf(rest.x) > fair * fabsf(from.x)) + (fabsf(rest.y) > fair * fabsf(from.y));
  losses.sum += fabsf(from.x) + fabsf(from.y);
}
template <class W>
__device__ __forceinline__ void pack_pair(float x, float y, int exponent, unsigned (&words)[W::PLANES], Losses& losses) {
  if constexpr (W::scaled)
    pack_scaled<W>({scaled(x, exponent), scaled(y, exponent)}, words, losses);
  else
    words[0] = pack(x, y);
}

// A line's elements: zeros past the operand's end.
template <class Operand, class P>
struct PackSource {
  const P& p;
  Index depth;
  typename Operand::Line place;
  __device__ __forceinline__ PackSource(const P& from, Index z, Index of_batch) : p(from), depth(0) {
    const bool there = of_batch < Operand::lines(p);
    if (there) depth = p.depth();
    place = Operand::line(p, there ? z : 0, there ? of_batch : 0);
  }
  // Lines counted through all batches.
  __device__ __forceinline__ PackSource(const P& from, const Packing& all, const PackedOperand& to, int64_t line)
      : PackSource(from, static_cast<Index>(line / (to.lines / all.batches)),
                   static_cast<Index>(line % (to.lines / all.batches))) {}
  __device__ __forceinline__ float operator()(Index k) const {
    return k < depth ? static_cast<float>(Operand::at(p, place, k)) : 0.0f;
  }
};

// A warp writes 64 k of a line, a word of each plane a lane.
template <class W, int LINES>
__device__ __forceinline__ void put_words(const PackedOperand& to, int64_t depth, int64_t line, int64_t piece,
                                          const unsigned (&words)[W::PLANES]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, r = static_cast<int>(line % LINES);
  unsigned char* at = to.pieces + (line / LINES * depth + piece) * (W::PLANES * LINES * 128) + r * 128 +
                      (((lane / 4) ^ (r & 7)) * 16 + lane % 4 * 4);
#pragma unroll
  for (int plane = 0; plane < W::PLANES; ++plane)
    *reinterpret_cast<unsigned*>(at + plane * LINES * 128) = words[plane];
}

// Where neighbours are along k: 1, 2, 4 or 8 warps to a line, 64 k a step, k and k + 32 to a lane. What a lane
// reads in its first PACK_KEPT steps it keeps until the line's largest element is known; more is read twice.
template <class W, class Operand, int LINES, class P>
__device__ __forceinline__ void pack_along(const P& p, const Packing& all, const PackedOperand& to, int64_t first_line) {
  __shared__ unsigned shared_peaks[PACK_THREADS / 32];
  __shared__ int shared_lossy[PACK_THREADS / 32];
  __shared__ unsigned shared_weights[PACK_THREADS / 32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = all.warps, first = warp / warps * warps, part = warp - first;
  const int64_t line = first_line + warp / warps;
  const PackSource<Operand, P> at(p, all, to, line);

  float kept[PACK_KEPT][2];
  unsigned peak = 0;
#pragma unroll
  for (int s = 0; s < PACK_KEPT; ++s) {
    const Index k = (part + s * warps) * 64 + lane;
    kept[s][0] = at(k);
    kept[s][1] = at(k + 32);
  }
  int exponent = 0;
  Losses losses;
  if constexpr (W::scaled) {
#pragma unroll
    for (int s = 0; s < PACK_KEPT; ++s) peak = max(peak, max(absolute_bits(kept[s][0]), absolute_bits(kept[s][1])));
#pragma unroll 4
    for (int64_t piece = part + PACK_KEPT * warps; piece < all.depth; piece += warps) {
      const Index k = static_cast<Index>(piece * 64) + lane;
      peak = max(peak, max(absolute_bits(at(k)), absolute_bits(at(k + 32))));
    }
    peak = __reduce_max_sync(0xffffffffu, peak);
    if (lane == 0) shared_peaks[warp] = peak;
    __syncthreads();
    for (int i = 0; i < warps; ++i) peak = max(peak, shared_peaks[first + i]);
    exponent = line_exponent(peak);
  }
  unsigned words[W::PLANES];
#pragma unroll
  for (int s = 0; s < PACK_KEPT; ++s) {
    const int64_t piece = part + s * warps;
    if (piece >= all.depth) break;
    pack_pair<W>(kept[s][0], kept[s][1], exponent, words, losses);
    put_words<W, LINES>(to, all.depth, line, piece, words);
  }
#pragma unroll 4
  for (int64_t piece = part + PACK_KEPT * warps; piece < all.depth; piece += warps) {
    const Index k = static_cast<Index>(piece * 64) + lane;
    pack_pair<W>(at(k), at(k + 32), exponent, words, losses);
    put_words<W, LINES>(to, all.depth, line, piece, words);
  }
  if constexpr (W::scaled) {
    int lossy = __reduce_add_sync(0xffffffffu, losses.lossy);
    unsigned weight = __reduce_add_sync(0xffffffffu, losses.weight());
    if (lane == 0) {
      shared_lossy[warp] = lossy;
      shared_weights[warp] = weight;
    }
    __syncthreads();
    if (part == 0 && lane == 0) {
      for (int i = 1; i < warps; ++i) {
        lossy += shared_lossy[first + i];
        weight += shared_weights[first + i];
      }
      to.scales[line] = line_scale(peak, static_cast<float>(lossy));
      to.weights[line] = weight;
    }
  }
}

// The same for one warp that has few registers: everything is read twice, the second time from L2.
template <class W, class Operand, int LINES, class P>
__device__ __forceinline__ void pack_line(const P& p, const Packing& all, const PackedOperand& to, int64_t line) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const PackSource<Operand, P> at(p, all, to, line);
  float ahead[PACK_AHEAD][2];
  const auto fetch = [&](int64_t piece) {
#pragma unroll
    for (int s = 0; s < PACK_AHEAD; ++s) {
      const Index k = static_cast<Index>((piece + s) * 64) + lane;
      ahead[s][0] = at(k);
      ahead[s][1] = at(k + 32);
    }
  };
  unsigned peak = 0;
  if constexpr (W::scaled) {
#pragma unroll 1
    for (int64_t piece = 0; piece < all.depth; piece += PACK_AHEAD) {
      fetch(piece);
#pragma unroll
      for (int s = 0; s < PACK_AHEAD; ++s) peak = max(peak, max(absolute_bits(ahead[s][0]), absolute_bits(ahead[s][1])));
    }
    peak = __reduce_max_sync(0xffffffffu, peak);
  }
  const int exponent = line_exponent(peak);
  Losses losses;
#pragma unroll 1
  for (int64_t piece = 0; piece < all.depth; piece += PACK_AHEAD) {
    fetch(piece);
#pragma unroll
    for (int s = 0; s < PACK_AHEAD; ++s) {
      unsigned words[W::PLANES];
      pack_pair<W>(ahead[s][0], ahead[s][1], exponent, words, losses);
      if (piece + s < all.depth) put_words<W, LINES>(to, all.depth, line, piece + s, words);
    }
  }
  if constexpr (W::scaled) {
    const int lossy = __reduce_add_sync(0xffffffffu, losses.lossy);
    const unsigned weight = __reduce_add_sync(0xffffffffu, losses.weight());
    if (lane == 0) {
      to.scales[line] = line_scale(peak, static_cast<float>(lossy));
      to.weights[line] = weight;
    }
  }
}

// Where neighbours are not along k, a block takes 32 lines and a chunk of k, a lane for each line. Peaks come first, in
// a launch of their own, for each chunk; then everything is read again and turned through shared memory.
struct Across {
  int64_t line;  // the first
  int64_t chunk;
};

template <class Operand, class P>
__device__ __forceinline__ void peaks_across(const P& p, const Packing& all, const PackedOperand& to, int64_t block) {
  __shared__ unsigned shared_peaks[PACK_THREADS / 32][32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const Across part{block % (to.lines / 32) * 32, block / (to.lines / 32)};
  const int64_t line = part.line + lane;
  const PackSource<Operand, P> at(p, all, to, line);
  const Index begin = static_cast<Index>(part.chunk * PACK_CHUNK * 64);
  unsigned peak = 0;
#pragma unroll 16
  for (int k = warp; k < PACK_CHUNK * 64; k += PACK_THREADS / 32) peak = max(peak, absolute_bits(at(begin + k)));
  shared_peaks[warp][lane] = peak;
  __syncthreads();
  if (warp > 0) return;
#pragma unroll
  for (int i = 1; i < PACK_THREADS / 32; ++i) peak = max(peak, shared_peaks[i][lane]);
  to.peaks[part.chunk * to.lines + line] = peak;
  if (part.chunk == 0) {
    to.scales[line].lossy = 0;
    to.weights[line] = 0;
  }
}

// The line's largest element. Whoever packs its first chunk also leaves its scale.
__device__ __forceinline__ unsigned peak_across(const Packing& all, const PackedOperand& to, int64_t line, int64_t chunk) {
  const int64_t chunks = (all.depth - 1) / PACK_CHUNK + 1;
  unsigned peak = 0;
  for (int64_t c = 0; c < chunks; ++c) peak = max(peak, to.peaks[c * to.lines + line]);
  if (chunk == 0) {
    const LineScale made = line_scale(peak, 0);
    to.scales[line].factor = made.factor;
    if (made.lossy != 0) atomicAdd(&to.scales[line].lossy, made.lossy);  // inf and nan swallow every count
  }
  return peak;
}

template <class W, class Operand, int LINES, class P>
__device__ __forceinline__ void pack_across(const P& p, const Packing& all, const PackedOperand& to, const Across& part) {
  constexpr int WARPS = PACK_THREADS / 32, OWN = 32 / WARPS;  // lines that a warp writes
  __shared__ float turned[64][33];
  __shared__ unsigned line_peaks[32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t line = part.line + lane;
  const PackSource<Operand, P> at(p, all, to, line);
  int exponents[OWN] = {};
  Losses losses[OWN];
  if constexpr (W::scaled) {
    if (warp == 0) line_peaks[lane] = peak_across(all, to, line, part.chunk);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < OWN; ++i) exponents[i] = line_exponent(line_peaks[warp * OWN + i]);
  }
  const int64_t begin = part.chunk * PACK_CHUNK, end = all.depth - begin < PACK_CHUNK ? all.depth : begin + PACK_CHUNK;
#pragma unroll 1
  for (int64_t piece = begin; piece < end; ++piece) {
    float values[64 / WARPS];
#pragma unroll
    for (int i = 0; i < 64 / WARPS; ++i) values[i] = at(static_cast<Index>(piece * 64) + warp + i * WARPS);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 64 / WARPS; ++i) turned[warp + i * WARPS][lane] = values[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      unsigned words[W::PLANES];
      const int own = warp * OWN + i;
      pack_pair<W>(turned[lane][own], turned[lane + 32][own], exponents[i], words, losses[i]);
      put_words<W, LINES>(to, all.depth, part.line + own, piece, words);
    }
  }
  if constexpr (W::scaled) {
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      const int lossy = __reduce_add_sync(0xffffffffu, losses[i].lossy);
      const unsigned weight = __reduce_add_sync(0xffffffffu, losses[i].weight());
      const int64_t own = part.line + warp * OWN + i;
      if (lane == 0 && lossy > 0) atomicAdd(&to.scales[own].lossy, static_cast<float>(lossy));  // whole numbers: exact
      if (lane == 0) atomicAdd(&to.weights[own], weight);
    }
  }
}

// The same for one warp without shared memory, a lane for each line: 16 bytes of a plane at a time.
template <class W, class Operand, int LINES, class P>
__device__ __forceinline__ void pack_lines(const P& p, const Packing& all, const PackedOperand& to, const Across& part) {
  constexpr int AHEAD = 2;  // chunks of 16 bytes
  const int64_t line = part.line + threadIdx.x % 32;
  const PackSource<Operand, P> at(p, all, to, line);
  int exponent = 0;
  if constexpr (W::scaled) exponent = line_exponent(peak_across(all, to, line, part.chunk));
  Losses losses;
  const int64_t begin = part.chunk * PACK_CHUNK, end = all.depth - begin < PACK_CHUNK ? all.depth : begin + PACK_CHUNK;
  const int r = static_cast<int>(line % LINES);
  unsigned char* to_piece = to.pieces + (line / LINES * all.depth + begin) * (W::PLANES * LINES * 128) + r * 128;
#pragma unroll 1
  for (int64_t piece = begin; piece < end; ++piece, to_piece += W::PLANES * LINES * 128)
#pragma unroll 1
    for (int c = 0; c < 8; c += AHEAD) {
      float ahead[AHEAD][4][2];
#pragma unroll
      for (int i = 0; i < AHEAD; ++i)
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const Index k = static_cast<Index>(piece * 64) + (c + i) * 4 + w;
          ahead[i][w][0] = at(k);
          ahead[i][w][1] = at(k + 32);
        }
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) {
        unsigned words[4][W::PLANES];
#pragma unroll
        for (int w = 0; w < 4; ++w) pack_pair<W>(ahead[i][w][0], ahead[i][w][1], exponent, words[w], losses);
#pragma unroll
        for (int plane = 0; plane < W::PLANES; ++plane)
          *reinterpret_cast<uint4*>(to_piece + plane * LINES * 128 + ((c + i) ^ (r & 7)) * 16) =
              make_uint4(words[0][plane], words[1][plane], words[2][plane], words[3][plane]);
      }
    }
  if constexpr (W::scaled) {
    if (losses.lossy > 0) atomicAdd(&to.scales[line].lossy, static_cast<float>(losses.lossy));
    atomicAdd(&to.weights[line], losses.weight());
  }
}

// A block's work before the product: lines, or a chunk of 32.
template <class W, class Operand, int LINES, class P>
__device__ __forceinline__ void pack_early(const P& p, const Packing& all, const PackedOperand& to, const PackTurn& turn) {
  if constexpr (Operand::along_k)
    pack_along<W, Operand, LINES>(p, all, to, turn.tile * LINES + turn.part * (PACK_THREADS / 32 / all.warps));
  else
    pack_across<W, Operand, LINES>(p, all, to, {turn.tile * LINES + turn.part % (LINES / 32) * 32, turn.part / (LINES / 32)});
}

template <class W, class P>
__device__ __forceinline__ void pack_block(const P& p, const Packing& all, int64_t block) {
  const PackTurn turn(all, block, all.a.blocks, all.b.blocks);
  if (turn.of_b)
    pack_early<W, OperandB<P>, W::BN>(p, all, all.b, turn);
  else
    pack_early<W, OperandA<P>, W::BM>(p, all, all.a, turn);
}

#if CRUCIBLE_HAS_WGMMA
// A warp's work beside the product.
template <class W, class Operand, int LINES, class P>
__device__ __forceinline__ void pack_late(const P& p, const Packing& all, const PackedOperand& to, const PackTurn& turn) {
  if constexpr (Operand::along_k)
    pack_line<W, Operand, LINES>(p, all, to, turn.tile * LINES + turn.part);
  else
    pack_lines<W, Operand, LINES>(p, all, to, {turn.tile * LINES + turn.part % (LINES / 32) * 32, turn.part / (LINES / 32)});
  hand_over(to.ready + turn.tile);
}

// Until there is no more.
template <class W, class P>
__device__ __forceinline__ void pack_beside(const P& p, const Packing& all) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t begin = all.a.early * all.a.each + all.b.early * all.b.each;
  const int64_t end = all.a.lines / W::BM * all.a.each + all.b.lines / W::BN * all.b.each;
  if (begin == end) return;
#pragma unroll 1
  for (;;) {
    const unsigned taken = lane == 0 ? atomicAdd(all.next, 1u) : 0;
    const int64_t work = begin + __shfl_sync(0xffffffffu, taken, 0);
    if (work >= end) return;
    const PackTurn turn(all, work, all.a.each, all.b.each);
    if (turn.of_b)
      pack_late<W, OperandB<P>, W::BN>(p, all, all.b, turn);
    else
      pack_late<W, OperandA<P>, W::BM>(p, all, all.a, turn);
  }
}
#endif

// Of A's lines in groups of 32, and each group's chunks, then of B's.
template <class P>
__device__ __forceinline__ void peaks_block(const P& p, const Packing& all, int64_t block) {
  const int64_t chunks = (all.depth - 1) / PACK_CHUNK + 1, first = P::a_along_k ? 0 : all.a.lines / 32 * chunks;
  if (block < first) {
    if constexpr (!P::a_along_k) peaks_across<OperandA<P>>(p, all, all.a, block);
  } else {
    if constexpr (!P::b_along_k) peaks_across<OperandB<P>>(p, all, all.b, block - first);
  }
}
#endif

template <class P>
__global__ void __launch_bounds__(PACK_THREADS) wgmma_peaks_kernel(const __grid_constant__ P p,
                                                                   const __grid_constant__ Packing all) {
  follow();
#if CRUCIBLE_HAS_MMA
  peaks_block(p, all, blockIdx.x);
#endif
}

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

// The operand that a product's tiles of rows share, packed piece by piece while the product goes on: it never lies in memory
// as a whole, and nobody waits for it beforehand.
//
// `height` blocks, one for each of as many tiles of rows, form a team: they take the same columns at the same time, and so
// the same pieces of B, 64 k deep each. Their idle warps read B and pack those pieces into the team's ring of ROLL_SLOTS in
// memory (which stays in L2). Each piece is packed once for the whole team: a warp always takes the same lines of a tile, and
// every so many pieces. For each slot the warps that have filled their part are counted, and each block counts the pieces
// that it is through with. All blocks of the launch must be there at a time, or a team would wait for ever: the launch is
// cooperative.
//
// The scale of a line is not known before all of it is read. ROLL_SAMPLES pieces of it tell its size: their largest element
// is brought to [2^9, 2^10), so that others may be 32 times as large. Whoever packs a larger one (or inf, or nan) raises the
// flag. Elements below 2^-12 of the samples' largest lose up to 2^-25 each and are counted, as contract_pack.cuh counts them.
//
// Bytes: B read once for each band of `height` tiles of rows, its planes written and read in L2 alone. Beside A's planes
// the workspace holds ROLL_SLOTS * BN * 256 bytes for each team.

#if CRUCIBLE_HOPPER && CRUCIBLE_SCALAR != 1  // tensor cores sum in float
namespace crucible {

#if CRUCIBLE_HAS_MMA
__device__ __forceinline__ void put_sampled(const Packing& all, int64_t line, unsigned peak) {
  const int exponent = min(exponent_to(9, peak), 126);  // one factor will do
  all.b.multipliers[line] = power_of_two(exponent);
  all.b.scales[line] = {power_of_two(-exponent), peak == 0 ? -INFINITY : 0.0f};
  all.b.weights[line] = 0;
}

// A warp for each line where neighbours are along k, a lane otherwise. Where all samples are zeros everything is read.
template <class P>
__device__ __forceinline__ void sample_block(const P& p, const Packing& all, int64_t block) {
  using Operand = OperandB<P>;
  constexpr int WARPS = PACK_THREADS / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  unsigned peak = 0;
  if constexpr (Operand::along_k) {
    const int64_t line = block * WARPS + warp;
    if (line >= all.b.lines) return;
    const PackSource<Operand, P> at(p, all, all.b, line);
    const auto look = [&](int64_t piece) {
      const Index k = static_cast<Index>(piece * 64) + lane;
      peak = max(peak, max(absolute_bits(at(k)), absolute_bits(at(k + 32))));
    };
#pragma unroll
    for (int s = 0; s < ROLL_SAMPLES; ++s) look(s * (all.depth - 1) / (ROLL_SAMPLES - 1));
    peak = __reduce_max_sync(0xffffffffu, peak);
    if (peak == 0) {
#pragma unroll 4
      for (int64_t piece = 0; piece < all.depth; ++piece) look(piece);
      peak = __reduce_max_sync(0xffffffffu, peak);
    }
    if (lane == 0) put_sampled(all, line, peak);
  } else {
    __shared__ unsigned shared_peaks[WARPS][32];
    const int64_t line = block * 32 + lane;
    const PackSource<Operand, P> at(p, all, all.b, line);
    const Index depth = p.depth(), last = depth - 1;
    const auto look = [&](Index first, Index step) {
#pragma unroll 8
      for (Index k = first; k < depth; k += step) peak = max(peak, absolute_bits(at(k)));
      shared_peaks[warp][lane] = peak;
      __syncthreads();
#pragma unroll
      for (int i = 0; i < WARPS; ++i) peak = max(peak, shared_peaks[i][lane]);
    };
    const Index step = last / (ROLL_SAMPLES * 32) + 1;
    look(warp * step, WARPS * step);
    if (__syncthreads_or(peak == 0)) look(warp, WARPS);
    if (warp == 0) put_sampled(all, line, peak);
  }
}
#endif

#if CRUCIBLE_HAS_WGMMA
// Of the pieces that a team's ring takes one after another.
struct RollSlot {
  unsigned at;   // among the slots of all teams
  unsigned use;  // how often it was used before
  __device__ __forceinline__ RollSlot(unsigned team, unsigned number)
      : at(team * ROLL_SLOTS + number % ROLL_SLOTS), use(number / ROLL_SLOTS) {}
};

// How many pieces a block's producer is through with, in shared memory.
__device__ __forceinline__ void fetched_is(unsigned* fetched, unsigned now) {
  __threadfence_block();
  atomicMax(fetched, now);
}
__device__ __forceinline__ unsigned fetched_now(unsigned* fetched) {
  return __shfl_sync(0xffffffffu, threadIdx.x % 32 == 0 ? atomicAdd(fetched, 0u) : 0u, 0);
}
// Tells other blocks. Returns the number.
__device__ __forceinline__ unsigned hand_back(unsigned* free, unsigned* fetched) {
  const unsigned now = fetched_now(fetched);
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
  if (threadIdx.x % 32 == 0) count_up_to(free, now);
  return now;
}

// A warp's part of a piece: of 16 lines where neighbours are along k, otherwise of 32 lines half a piece. A lane has four
// chunks of 16 bytes of each plane, four words of k and k + 32 each: one of every fourth line, or four of its own line.
template <class W, class P>
struct RollPart {
  using Operand = OperandB<P>;
  static constexpr bool ALONG = Operand::along_k, DIRECT = ALONG && P::b_direct && sizeof(scalar) == 4;
  static constexpr int PARTS = W::BN / ROLL_LINES;
  int lane, line, chunk;  // the lane's first line in the tile, and its first chunk
  float x[4][4][2];
  float weight = 0;    // the sum of a line's elements without signs, scaled: of own_line()
  unsigned lossy = 0;  // where a lane has a line: elements that lost bits
  bool large = false;

  __device__ __forceinline__ explicit RollPart(int part) : lane(static_cast<int>(threadIdx.x) % 32) {
    line = ALONG ? part * 16 + lane / 8 : part / 2 * 32 + lane;
    chunk = ALONG ? lane % 8 : part % 2 * 4;
  }
  // Of chunk i.
  __device__ __forceinline__ int line_of(int i) const { return ALONG ? line + i * 4 : line; }
  __device__ __forceinline__ int chunk_of(int i) const { return ALONG ? chunk : chunk + i; }
  __device__ __forceinline__ int own_line() const { return ALONG ? line + lane % 4 * 4 : line; }

  __device__ __forceinline__ void load(const P& p, const TilePlace& tile, Index k) {
    const Index first = tile.n * W::BN, last = Operand::lines(p) - 1;
    if constexpr (DIRECT) {  // 16 bytes at a time where that is possible
      const scalar* from[4];
      bool vectors = k + 64 <= p.depth() && first + line_of(3) <= last;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Index at = first + line_of(i) < last ? first + line_of(i) : last;
        from[i] = p.b_from(Operand::line(p, tile.z, at), k + chunk * 4);
        vectors = vectors && reinterpret_cast<uintptr_t>(from[i]) % 16 == 0;
      }
      if (__all_sync(0xffffffffu, vectors)) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float4 near = read(*reinterpret_cast<const float4*>(from[i]));
          const float4 far = read(*reinterpret_cast<const float4*>(from[i] + 32));
          const float both[4][2] = {{near.x, far.x}, {near.y, far.y}, {near.z, far.z}, {near.w, far.w}};
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            x[i][w][0] = both[w][0];
            x[i][w][1] = both[w][1];
          }
        }
        return;
      }
    }
    // Not to be seen through: the compiler would carry a place for each of a line's 32 elements from piece to piece, in
    // registers that a packer does not have.
    int own = chunk;
    if constexpr (!ALONG) asm volatile("" : "+r"(own));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const PackSource<Operand, P> at(p, tile.z, first + line_of(i));
      const Index from = k + (ALONG ? own : own + i) * 4;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        x[i][w][0] = at(from + w);
        x[i][w][1] = at(from + w + 32);
      }
    }
  }

  // Packs what was loaded. Elements that lose bits are few: they are counted where they are found.
  __device__ __forceinline__ void store(const Packing& all, const TilePlace& tile, float multiplier, unsigned char* piece) {
    float sums[4];
    unsigned counts = 0;  // of chunk i, four bits
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float scale = ALONG ? __shfl_sync(0xffffffffu, multiplier, i * 4 + lane / 8) : multiplier;
      unsigned words[4][W::PLANES];
      Losses found;
#pragma unroll
      for (int w = 0; w < 4; ++w) pack_scaled<W>({x[i][w][0] * scale, x[i][w][1] * scale}, words[w], found);
      sums[i] = found.sum;
      large |= !(found.sum < 0x1p15f);
      counts |= static_cast<unsigned>(found.lossy) << 4 * i;
      unsigned char* const at = piece + line_of(i) * 128 + (chunk_of(i) ^ (line_of(i) & 7)) * 16;
#pragma unroll
      for (int plane = 0; plane < W::PLANES; ++plane)
        *reinterpret_cast<uint4*>(at + plane * W::BN * 128) =
            make_uint4(words[0][plane], words[1][plane], words[2][plane], words[3][plane]);
    }
    if constexpr (ALONG) {
      // Neighbours give each other what they have of the other's lines, until each has one line's.
      const bool odd = lane % 2 != 0, upper = lane % 4 > 1;
      const auto give = [&](float low, float high, bool second, int step) {
        return (second ? high : low) + __shfl_xor_sync(0xffffffffu, second ? low : high, step);
      };
      const float both[2] = {give(sums[0], sums[2], upper, 2), give(sums[1], sums[3], upper, 2)};
      weight += give(both[0], both[1], odd, 1);
      while (counts != 0) {
        const int i = (__ffs(counts) - 1) / 4;
        atomicAdd(&all.b.scales[all.column<W>(tile) + line_of(i)].lossy, static_cast<float>(counts >> 4 * i & 15));  // exact
        counts &= ~(15u << 4 * i);
      }
    } else {
      weight += (sums[0] + sums[1]) + (sums[2] + sums[3]);
#pragma unroll
      for (int i = 0; i < 4; ++i) lossy += counts >> 4 * i & 15;
    }
  }

  // What was found out about the lines of a tile, in the end.
  __device__ __forceinline__ void tell(const Packing& all, const TilePlace& tile) {
    const int64_t at = all.column<W>(tile) + own_line();
    atomicAdd(&all.b.weights[at], __float2uint_ru(weight * 1.001f * 0x1p-7f));
    if (lossy > 0) atomicAdd(&all.b.scales[at].lossy, static_cast<float>(lossy));
    if (large) *all.again = 1;
    weight = 0;
    lossy = 0;
    large = false;
  }
};

// The idle warps of a block. A warp has one part of a piece in its registers, and asks for the next one before it waits
// until the present one is seen by everybody. Beside that they tell other blocks how far this one is (`fetched`, in shared
// memory): the producer itself would have to wait for its copies before it could.
template <class W, class P>
__device__ __forceinline__ void roll_beside(const P& p, const Packing& all, unsigned* fetched) {
  using Part = RollPart<W, P>;
  const unsigned team = blockIdx.x / all.height, member = blockIdx.x % all.height;
  const int lane = static_cast<int>(threadIdx.x) % 32, idle = static_cast<int>(threadIdx.x) / 32 - 1;
  const unsigned depth = static_cast<unsigned>(all.depth);
  const unsigned number = member * 3 + idle, step = all.height * 3 / Part::PARTS;
  Part part(number % Part::PARTS);
  TeamTiles tiles{team};
  TilePlace tile;
  unsigned next = number / Part::PARTS, begin = 0, through = 0;
  float multiplier = 0;
  const auto seek = [&] {  // the tile of the next piece
    while (next >= begin + depth) {
      begin += depth;
      if (!tiles.take(all, tile)) return false;
    }
    multiplier = all.b.multipliers[all.column<W>(tile) + (Part::ALONG ? number % Part::PARTS * 16 + lane % 16 : part.line)];
    part.load(p, tile, static_cast<Index>(next - begin) * 64);
    return true;
  };
  unsigned* const free = all.b.free + team * all.height;
  bool more = number < step * Part::PARTS && tiles.take(all, tile) && seek();  // some may be too many
#pragma unroll 1
  while (more) {
    // Until all blocks are through with what lies there.
    while (through + ROLL_SLOTS <= next) {
      hand_back(free + member, fetched);
      through = __reduce_min_sync(0xffffffffu, lane < all.height ? count_now(free + lane) : ~0u);
      __syncwarp();
    }
    const RollSlot slot(team, next);
    part.store(all, tile, multiplier, all.b.pieces + static_cast<int64_t>(slot.at) * W::B_BYTES);
    if (next + step >= begin + depth) part.tell(all, tile);  // seen by whoever sees the last piece
    next += step;
    more = seek();
    const unsigned now = fetched_now(fetched);
    hand_over(all.b.ready + slot.at);
    if (lane == 0) count_up_to(free + member, now);
  }
  if (idle > 0) return;
  // Others may go on for a while.
  const unsigned all_tiles = static_cast<unsigned>(all.tiles_n) * all.batches, teams = gridDim.x / all.height;
  const unsigned pieces = ((all_tiles - team - 1) / teams + 1) * depth;
  while (hand_back(free + member, fetched) + ROLL_SLOTS < pieces) {
  }
}
#endif

// All that comes before the product: samples of lines that roll, and what is packed early. Of that, what the product reads
// first comes last: then it is still in L2.
template <class W, class P>
__global__ void __launch_bounds__(PACK_THREADS, 3) wgmma_pack_kernel(const __grid_constant__ P p,
                                                                     const __grid_constant__ Packing all) {
  follow();
#if CRUCIBLE_HAS_MMA
  for (int64_t i = blockIdx.x * int64_t(PACK_THREADS) + threadIdx.x; i < all.counters; i += gridDim.x * int64_t(PACK_THREADS))
    all.again[i] = 0;
  const int64_t samples = all.sample_blocks(P::b_along_k);
  if (blockIdx.x < samples)
    sample_block(p, all, blockIdx.x);
  else
    pack_block<W>(p, all, static_cast<int64_t>(gridDim.x) - 1 - blockIdx.x);
#endif
}

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

// The host's part of packing operands for Hopper's matrix instructions (contract_pack.cuh, contract_roll.cuh): where they
// lie, whether B is packed piece by piece, and what is packed before the product, what beside it.

#if CRUCIBLE_HOPPER && CRUCIBLE_SCALAR != 1 && !defined(__CUDACC_RTC__)
namespace crucible {

constexpr int64_t whole(int64_t n, int64_t of) { return (n + of - 1) / of; }

// How many blocks form a team, for which B is packed piece by piece: 0 where that would be slower. A team of fewer than
// eight has too few warps for it. With more tiles of rows, of which one round alone waits for packing, what packing the
// whole beforehand costs is less than the tenth that the product loses (on an H200 with 1024 rows 0.68 instead of 0.71 ms,
// with 1536 rows 0.31 instead of 0.30), and so it is where whole teams need more rounds than pairs of blocks.
template <class W>
int rolling_height(int64_t tiles_m, int64_t tiles_n, int64_t batches, int64_t depth) {
  const int64_t height = whole(tiles_m, 2) * 2, rounds = whole(tiles_m * tiles_n * batches, HOPPER_PROCESSORS);
  const bool slow = W::grade != Grade::Fp32 || height < 8 || height > 10 || depth == 0 || tiles_n * batches > (1 << 30) / depth;
  return slow || whole(tiles_n * batches, HOPPER_PROCESSORS / height) > rounds ? 0 : static_cast<int>(height);
}

// The packed operands' places (1024-byte aligned): A's pieces lie apart, so that they find room where all would not.
// `bytes`: what the workspace must have, and what the pieces.
template <class W, class P>
Packing wgmma_packing(const P& p, void* workspace, void* pieces, int64_t* bytes, int height = -1) {
  Packing all{};
  all.batches = static_cast<int>(p.batches());
  all.tiles_m = static_cast<int>(whole(p.rows(), W::BM));
  all.tiles_n = static_cast<int>(whole(p.cols(), W::BN));
  all.depth = whole(p.depth(), W::BK);
  all.warps = 1;
  while (all.warps < PACK_THREADS / 32 && all.warps * PACK_KEPT < all.depth) all.warps *= 2;
  const int64_t chunks = all.depth == 0 ? 1 : whole(all.depth, PACK_CHUNK);
  int64_t used = 0;
  const auto take = [&](int64_t size) {
    unsigned char* at = static_cast<unsigned char*>(workspace) + used;
    used += whole(size, 1024) * 1024;
    return at;
  };
  const auto place = [&](PackedOperand& o, int64_t tiles, int lines, bool along) {
    o.lines = tiles * lines;
    o.early = tiles;
    o.each = along ? lines : static_cast<int>(lines / 32 * chunks);
    o.blocks = along ? lines / (PACK_THREADS / 32 / all.warps) : o.each;
    o.scales = reinterpret_cast<LineScale*>(take(o.lines * sizeof(LineScale)));
    o.weights = reinterpret_cast<unsigned*>(take(o.lines * 4));
    o.peaks = reinterpret_cast<unsigned*>(take(along ? 0 : chunks * o.lines * 4));
  };
  const auto piece_bytes = [&](const PackedOperand& o) { return o.lines * all.depth * W::PLANES * 128; };
  const auto roll = [&](PackedOperand& o, int64_t tiles, int lines) {
    o.lines = tiles * lines;
    o.each = lines / ROLL_LINES;
    o.pieces = take(all.teams(MOST_PROCESSORS) * ROLL_SLOTS * W::PLANES * 128 * lines);
    o.scales = reinterpret_cast<LineScale*>(take(o.lines * sizeof(LineScale)));
    o.weights = reinterpret_cast<unsigned*>(take(o.lines * 4));
    o.multipliers = reinterpret_cast<float*>(take(o.lines * 4));
  };
  const int64_t a_tiles = static_cast<int64_t>(all.batches) * all.tiles_m;
  const int64_t b_tiles = static_cast<int64_t>(all.batches) * all.tiles_n;
  all.height = height < 0 ? rolling_height<W>(all.tiles_m, all.tiles_n, all.batches, all.depth) : height;
  const int64_t slots = all.height > 0 ? all.teams(MOST_PROCESSORS) * ROLL_SLOTS : 0;
  all.counters = 2 + a_tiles + (all.height > 0 ? slots + all.teams(MOST_PROCESSORS) * all.height : b_tiles);
  all.again = reinterpret_cast<int*>(take(all.counters * 4));
  all.next = reinterpret_cast<unsigned*>(all.again) + 1;
  all.a.ready = all.next + 1;
  all.b.ready = all.a.ready + a_tiles;
  all.b.free = all.b.ready + slots;
  place(all.a, a_tiles, W::BM, P::a_along_k);
  all.a.pieces = static_cast<unsigned char*>(pieces);
  if (all.height > 0) {
    roll(all.b, b_tiles, W::BN);
  } else {
    place(all.b, b_tiles, W::BN, P::b_along_k);
    all.b.pieces = take(piece_bytes(all.b));
  }
  if (bytes != nullptr) bytes[0] = used, bytes[1] = piece_bytes(all.a);
  return all;
}

// Tiles of A and B that the first `pairs` clusters' tiles need.
inline void tiles_needed(const Packing& all, int64_t pairs, int64_t* a, int64_t* b) {
  const int64_t of_batch = static_cast<int64_t>(all.pairs_m) * all.pairs_n, z = (pairs - 1) / of_batch, within = (pairs - 1) % of_batch;
  const int64_t band = within / (TILE_BAND * static_cast<int64_t>(all.pairs_n)), column = within / smaller(TILE_BAND, all.pairs_m);
  const int64_t rows = (band + 1) * TILE_BAND * all.high, columns = band > 0 ? all.tiles_n : (column + 1) * all.wide;
  *a = z * all.tiles_m + (rows < all.tiles_m ? rows : all.tiles_m);
  *b = z * all.tiles_n + (columns < all.tiles_n ? columns : all.tiles_n);
}

// Who packs what: before the product what the first tiles of all processors need, and so much more that the idle warps,
// which pack `pace` lines on a processor while it computes a tile, have the rest in time.
template <class W>
void share_packing(Packing& all, int processors, int clusters, int pace) {
  const bool rows = all.height > 0 || all.tiles_m % 2 == 0 || (all.tiles_n % 2 != 0 && all.tiles_m >= all.tiles_n);
  all.cluster = clusters ? 2 : 1;
  all.high = rows ? all.cluster : 1;
  all.wide = rows ? 1 : all.cluster;
  all.pairs_m = static_cast<int>(whole(all.tiles_m, all.high));
  all.pairs_n = static_cast<int>(whole(all.tiles_n, all.wide));
  const int64_t pairs = all.pairs(), at_once = processors / all.cluster, a_all = all.a.early, b_all = all.b.early;
  if (pairs <= at_once || pace == 0 || all.depth == 0 || all.height > 0) return;  // without pieces consumers wait for nobody
  const int64_t in_time = whole(pairs - at_once, at_once) * processors * pace;
  int64_t low = at_once, high = pairs;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    tiles_needed(all, middle, &all.a.early, &all.b.early);
    const int64_t late = (a_all - all.a.early) * W::BM + (b_all - all.b.early) * W::BN;
    if (late <= in_time)
      high = middle;
    else
      low = middle + 1;
  }
  tiles_needed(all, low, &all.a.early, &all.b.early);
}

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

// The contraction engine on Hopper's tensor cores (wgmma, compute capability 9.0a), for the functors of contract.cuh.
//
// 1. A kernel packs of both operands what the first tiles need (contract_pack.cuh).
// 2. The product: blocks that stay on their processors, in clusters of two that share one operand's pieces. One thread
//    produces (bulk copies; of the shared operand each block brings half, for both), two warpgroups consume, 64 x BN each.
//    They take turns at the tensor cores, so that one adds while the other multiplies. Three more warps pack what later
//    tiles need; a producer waits until its tile's lines are ready. Those warps wait for nothing, so that nobody waits
//    for ever, however few blocks are there at a time. Or they pack B alone, a few pieces ahead (contract_roll.cuh).
// 3. The functor's epilogue, a warp for each row, through shared memory of its own: the next tile's copies go on meanwhile.
// 4. Where half numbers cannot hold the operands, a flag is raised, and the last launch, which otherwise returns at once,
//    does everything again with the mma engine of the same grade and as many columns in a tile.
//
// Grades:
//   Fp32    three products of half numbers; every 64 k start a fresh accumulator, the small products first (tensor cores
//           cut what they add), which goes to ordinary registers by rounded adds
//   Tf32    one product of half numbers
//   Native  one product of elements as they are (half or bfloat16). Never done again.
// The range: with n elements of a row and m of a column that lost bits, a sum is off by at most 2^-25 * 2^15 * (n + m), and
// that must be small against the sums themselves: for each row of a tile and for each column within a warp's 16 rows some
// sum must be 2^20 (2^14 in grade Tf32) times larger. A sum that cancels does no harm, a row or column of losses is seen.
// A line with inf or nan always raises the flag.
//
// Shared memory: STAGES of PLANES * (128 + BN) * 128 bytes, and 8 rows of each consumer warp on their way out.
// Registers: BN / 2 accumulators and BN / 2 sums.
// Bytes: A's planes come from L2 once for each tile of columns, B's once for each tile of rows, those of the shared
// operand half as often. Operations: 2 * M * N * K, three times that in grade Fp32.

#if CRUCIBLE_HOPPER && CRUCIBLE_SCALAR != 1  // tensor cores sum in float
namespace crucible {

// ---- instructions beside those of wgmma.cuh
#if CRUCIBLE_HAS_WGMMA
// Lines of 128 bytes in groups of eight, chunks swizzled; 16 k further is 2 more in the lowest field.
__device__ __forceinline__ uint64_t swizzled_at(unsigned address) {
  return static_cast<uint64_t>((address & 0x3ffffu) >> 4) | uint64_t(1) << 16 | uint64_t(64) << 32 | uint64_t(1) << 62;
}
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_meet() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// At the same barrier of a block of the cluster. Nothing is released: what was read, tensor cores read. (A release to the
// cluster would be a fence in the main loop: a tenth of the whole time.)
__device__ __forceinline__ void barrier_arrive_at(unsigned barrier, unsigned block) {
  asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
               "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(barrier), "r"(block) : "memory");
}
__device__ __forceinline__ void barrier_wait_cluster(unsigned barrier, unsigned parity) {
  unsigned passed;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(passed) : "r"(barrier), "r"(parity) : "memory");
  } while (!passed);
}
// To the same place of both blocks of the cluster; the bytes count on the same barrier of each.
__device__ __forceinline__ void bulk_copy_both(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
      ::"r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier), "h"(static_cast<unsigned short>(3))
      : "memory");
}
#endif

// ---- the product

#if CRUCIBLE_HAS_WGMMA
// From L2, for other processors may have written them a moment ago: of one line, of two neighbouring ones.
__device__ __forceinline__ LineScale one_scale(const LineScale* at) {
  const float2 two = __ldcg(reinterpret_cast<const float2*>(at));
  return {two.x, two.y};
}
__device__ __forceinline__ float4 two_scales(const LineScale* at) { return __ldcg(reinterpret_cast<const float4*>(at)); }

// Whether what half numbers lost is small against a warp's sums. Scales and weights are this thread's first.
template <class W>
__device__ __forceinline__ bool sums_hold(const float (&sums)[W::BN / 2], const LineScale (&rows)[2],
                                          const LineScale* columns, const unsigned* row_weights,
                                          const unsigned* column_weights) {
  constexpr float LIMIT = W::grade == Grade::Fp32 ? 0x1p10f : 0x1p4f;
  bool bad = false;
#pragma unroll
  for (int j = 0; j < W::BN / 8; ++j) {
    const float4 two = two_scales(columns + j * 8);
#pragma unroll
    for (int r = 0; r < 4; ++r)
      bad |= !(fabsf(sums[j * 4 + r]) >= LIMIT * (rows[r / 2].lossy + (r % 2 ? two.w : two.y)));
  }
  if (!__any_sync(0xffffffffu, bad)) return true;
  // Some sum is small. A closer bound: n lost elements meet at most n of the largest, and at most the partner's weight.
  // A row or a column of small ones? Zero rows and columns (-inf) say nothing; a nan spoils every comparison.
  bool row_bad[2] = {false, false}, row_good[2] = {false, false}, hold = true;
  const float row_weight[2] = {__ldcg(row_weights) * 0x1p-8f, __ldcg(row_weights + 8) * 0x1p-8f};
#pragma unroll
  for (int j = 0; j < W::BN / 8; ++j) {
    const float4 two = two_scales(columns + j * 8);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float lossy = i ? two.w : two.y, weight = __ldcg(column_weights + j * 8 + i) * 0x1p-8f;
      bool column_bad = false, column_good = false;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float bound = fminf(rows[h].lossy, weight) + fminf(lossy, row_weight[h]);
        const float least = LIMIT * (isnan(rows[h].lossy + lossy) ? NAN : bound);
        const bool good = fabsf(sums[j * 4 + h * 2 + i]) >= least;
        row_bad[h] |= !good;
        column_bad |= !good;
        row_good[h] |= good && least >= 0;
        column_good |= good && least >= 0;
      }
      unsigned some = __ballot_sync(0xffffffffu, column_good), none = __ballot_sync(0xffffffffu, column_bad);
#pragma unroll
      for (int shift = 16; shift >= 4; shift /= 2) {
        some |= some >> shift;
        none |= none >> shift;
      }
      hold = hold && (none & ~some & 0xfu) == 0;
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    unsigned some = __ballot_sync(0xffffffffu, row_good[h]), none = __ballot_sync(0xffffffffu, row_bad[h]);
#pragma unroll
    for (int shift = 2; shift >= 1; shift /= 2) {
      some |= some >> shift;
      none |= none >> shift;
    }
    hold = hold && (none & ~some & 0x11111111u) == 0;
  }
  return hold;
}

// A cluster's tiles, one after another, or those of a team of clusters.
struct ClusterTiles {
  unsigned next;
  __device__ __forceinline__ explicit ClusterTiles(const Packing& all)
      : next(blockIdx.x / (all.height > 0 ? all.height : all.cluster)) {}
  // This block's tile of the next pair; it may lie past the last.
  __device__ __forceinline__ bool take(const Packing& all, unsigned rank, TilePlace& tile) {
    if (all.height > 0) {
      TeamTiles tiles{next};
      const bool there = tiles.take(all, tile);
      next = tiles.next;
      return there;
    }
    if (next >= static_cast<unsigned>(all.pairs_m) * all.pairs_n * all.batches) return false;
    tile = tile_place(next, all.pairs_m, all.pairs_n);
    next += gridDim.x / all.cluster;
    tile.m = tile.m * all.high + (all.high > 1 ? static_cast<Index>(rank) : 0);
    tile.n = tile.n * all.wide + (all.wide > 1 ? static_cast<Index>(rank) : 0);
    return true;
  }
};

template <class W>
struct Ring {
  int slot = 0;
  unsigned parity = 0;
  __device__ __forceinline__ void advance() {
    if (++slot == W::STAGES) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// Where things lie in shared memory.
template <class W>
struct WgmmaShared {
  unsigned base;
  __device__ __forceinline__ unsigned a(int slot) const { return base + slot * W::STAGE; }
  __device__ __forceinline__ unsigned b(int slot) const { return base + slot * W::STAGE + W::A_BYTES; }
  __device__ __forceinline__ unsigned full(int slot) const { return base + W::STAGES * W::STAGE + W::OUT_BYTES + 8 * slot; }
  __device__ __forceinline__ unsigned empty(int slot) const { return full(slot) + 8 * W::STAGES; }
};

// A piece of the operand that both blocks of a cluster need: each brings half for both.
__device__ __forceinline__ void shared_copy(unsigned to, const unsigned char* from, unsigned bytes, unsigned barrier,
                                            unsigned rank, int blocks) {
  const unsigned half = rank * (bytes / 2);
  if (blocks > 1)
    bulk_copy_both(to + half, from + half, bytes / 2, barrier);
  else
    bulk_copy(to, from, bytes, barrier);
}

// The producer, one thread. A tile past the last takes the last one's place: the partner needs its half.
template <class W>
__device__ __forceinline__ void produce(const Packing& all, const WgmmaShared<W>& shared, unsigned rank,
                                        unsigned* fetched) {
  ClusterTiles tiles(all);
  TilePlace tile;
  Ring<W> ring;
  unsigned rolled = 0;  // pieces of a rolling operand
  while (tiles.take(all, rank, tile)) {
    const int64_t m = tile.z * static_cast<int64_t>(all.tiles_m) + (tile.m < all.tiles_m ? tile.m : all.tiles_m - 1);
    const int64_t n = tile.z * static_cast<int64_t>(all.tiles_n) + (tile.n < all.tiles_n ? tile.n : all.tiles_n - 1);
    if (m >= all.a.early) count_wait(all.a.ready + m, static_cast<unsigned>(all.a.each));
    if (all.height == 0 && n >= all.b.early) count_wait(all.b.ready + n, static_cast<unsigned>(all.b.each));
    const unsigned char* a = all.a.pieces + m * all.depth * W::A_BYTES;
    const unsigned char* b = all.b.pieces + n * all.depth * W::B_BYTES;
    for (int64_t piece = 0; piece < all.depth; ++piece) {
      const unsigned full = shared.full(ring.slot);
      if (all.height > 0) {
        const RollSlot slot(blockIdx.x / all.height, rolled);
        count_wait(all.b.ready + slot.at, static_cast<unsigned>(all.b.each) * (slot.use + 1));
        b = all.b.pieces + static_cast<int64_t>(slot.at) * W::B_BYTES;
      }
      barrier_wait_cluster(shared.empty(ring.slot), ring.parity ^ 1);
      barrier_expect(full, W::STAGE);
      if (all.high > 1) {
        bulk_copy(shared.a(ring.slot), a, W::A_BYTES, full);
        shared_copy(shared.b(ring.slot), b, W::B_BYTES, full, rank, all.cluster);
      } else {
        bulk_copy(shared.b(ring.slot), b, W::B_BYTES, full);
        shared_copy(shared.a(ring.slot), a, W::A_BYTES, full, rank, all.cluster);
      }
      ++rolled;
      // Both blocks are through with the piece that lay there before: whoever packs may have its slot.
      if (all.height > 0 && rolled > W::STAGES) fetched_is(fetched, rolled - W::STAGES);
      a += W::A_BYTES;
      b += W::B_BYTES;
      ring.advance();
    }
  }
}

// Whether lanes take whole groups of columns, in eight rows of a tile at once: then there are four of them at least.
template <class W, class P>
constexpr bool groups_fit = P::statistics && P::group >= 4 && P::group <= W::BN / 4 && W::BN <= 32 * P::group;

// What a tail wants to know of a lane's groups: each takes every 32nd.
template <class W, class P>
struct TileGroups {
  static constexpr int GROUPS = W::BN / P::group, TURNS = GROUPS / 4, ROWS = 32 / GROUPS;  // rows of a turn
  typename TailOf<P>::Group of[TURNS];
};

// Statistics of groups in eight rows of finished values: a lane takes whole groups, one after another, so that lanes need
// not talk to each other (finish_row's shuffles cost a seventh of the whole time). 16-byte loads in an order in which
// neighbouring groups hit distinct banks.
template <class W, class P>
__device__ __forceinline__ TileGroups<W, P> sink_groups(const P& p, Index z, Index first, int rows, Index n0, const float* out) {
  using Groups = TileGroups<W, P>;
  constexpr int GROUPS = Groups::GROUPS, QUADS = P::group / 4, NEAR = 32 / P::group > 0 ? 32 / P::group : 1;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Groups found;
#pragma unroll
  for (int turn = 0; turn < Groups::TURNS; ++turn) {
    const int pair = turn * 32 + lane, r = pair / GROUPS, g = pair % GROUPS;
    const float* from = out + r * W::row_stride + g * P::group;
    float4 v[QUADS];
    float sum = 0;
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
      v[q] = reinterpret_cast<const float4*>(from)[(q + g / NEAR) % QUADS];
      sum += (v[q].x + v[q].y) + (v[q].z + v[q].w);
    }
    const float near = sum / P::group;
    float off = 0, squares = 0;
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
      const float d[4] = {v[q].x - near, v[q].y - near, v[q].z - near, v[q].w - near};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        off += d[i];
        squares = fmaf(d[i], d[i], squares);
      }
    }
    off /= P::group;
    const float mean = near + off, m2 = squares - P::group * off * off;
    found.of[turn] = TailOf<P>::group(p, P::group, mean, m2);
    if (r < rows && n0 + g * P::group < p.cols()) p.sink(z, first + r, n0 / P::group + g, P::group, mean, m2);
  }
  return found;
}

// Eight rows of a tile, column by column, so that what is read for a column is read once: a lane takes every 32nd.
// WHOLE: all are there, and nothing is asked.
template <bool WHOLE, class W, class P, class C>
__device__ __forceinline__ void finish_rows(const P& p, Index z, Index first, int rows, const C& columns, float* out) {
#pragma unroll (WHOLE ? 4 : 1)
  for (int j = 0; j < W::BN / 32; ++j)
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      float& at = out[r * W::row_stride + columns.from(j)];
      if (WHOLE || (r < rows && columns.valid(0, j))) at = p.finish(z, first + r, columns.column(0, j), 0, at, true);
    }
}

// What follows the statistics, in the same order. Lanes ask who knows of a group.
template <bool WHOLE, class W, class P, class C>
__device__ __forceinline__ void tail_rows(const P& p, Index z, Index first, int rows, const C& columns,
                                          const TileGroups<W, P>& found, const float* out) {
  using Groups = TileGroups<W, P>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  typename P::Tail tails[8];
#pragma unroll (WHOLE ? 4 : 1)
  for (int j = 0; j < W::BN / 32; ++j)
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      const int turn = r / Groups::ROWS, from = r % Groups::ROWS * Groups::GROUPS + columns.from(j) / P::group;
      const auto own = shuffled(found.of[turn], [from](uint32_t word) { return __shfl_sync(0xffffffffu, word, from); });
      if (WHOLE || (r < rows && columns.valid(0, j)))
        p.tail(z, first + r, columns.column(0, j), out[r * W::row_stride + columns.from(j)], own, tails[r]);
    }
  if constexpr (P::reduces) {
    const auto row = scattered_join(tails);
    if (lane % 4 == 0 && lane / 4 < rows) p.tail_out(z, first + lane / 4, columns.tile, row);
  }
}

// Eight rows of sums that lie in shared memory, by a warp.
template <bool WHOLE, class W, class P, class C>
__device__ __forceinline__ void hand_groups(const P& p, const TilePlace& tile, Index first, int rows, const C& columns, float* out) {
  finish_rows<WHOLE, W>(p, tile.z, first, rows, columns, out);
  __syncwarp();
  const auto found = sink_groups<W>(p, tile.z, first, rows, tile.n * W::BN, out);
  if constexpr (TailOf<P>::there) tail_rows<WHOLE, W>(p, tile.z, first, rows, columns, found, out);
}

// Sums leave the registers, eight rows of a warp at a time, and go through the functor.
template <class W, class P>
__device__ __forceinline__ void hand_out(const P& p, const Packing& all, const TilePlace& tile, int group,
                                         const float (&sums)[W::BN / 2], float* out) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4, lane = static_cast<int>(threadIdx.x) % 32;
  const Index first = tile.m * W::BM + group * 64 + warp * 16;
  LineScale rows[2] = {};
  const LineScale* columns = nullptr;
  if constexpr (W::scaled) {
    const LineScale* at = all.a.scales + tile.z * static_cast<int64_t>(all.tiles_m) * W::BM + first + lane / 4;
    rows[0] = one_scale(at);
    rows[1] = one_scale(at + 8);
    columns = all.b.scales + all.column<W>(tile) + lane % 4 * 2;
    const int64_t row = at - all.a.scales, column = columns - all.b.scales;
    if (!sums_hold<W>(sums, rows, columns, all.a.weights + row, all.b.weights + column) && lane == 0) *all.again = 1;
  }
  const auto place = columns_of<W>(p, tile.n);
  const Index left = p.rows() - first;
#pragma unroll 1
  for (int h = 0; h < 2; ++h) {
    if (h * 8 >= left) break;
    __syncwarp();
    const float row = h ? rows[1].factor : rows[0].factor;
#pragma unroll
    for (int j = 0; j < W::BN / 8; ++j) {
      float2 two = {h ? sums[j * 4 + 2] : sums[j * 4], h ? sums[j * 4 + 3] : sums[j * 4 + 1]};
      if constexpr (W::scaled) {  // what makes smaller comes first: nothing overflows on the way
        const float4 c = two_scales(columns + j * 8);
        two.x = two.x * fminf(row, c.x) * fmaxf(row, c.x);
        two.y = two.y * fminf(row, c.z) * fmaxf(row, c.z);
      }
      *reinterpret_cast<float2*>(out + lane / 4 * W::row_stride + j * 8 + lane % 4 * 2) = two;
    }
    __syncwarp();
    if constexpr (groups_fit<W, P>) {
      const int there = left - h * 8 < 8 ? static_cast<int>(left) - h * 8 : 8;
      if (there == 8 && place.count == W::BN)
        hand_groups<true, W>(p, tile, first + h * 8, there, place, out);
      else
        hand_groups<false, W>(p, tile, first + h * 8, there, place, out);
    } else {
#pragma unroll 1
      for (int r = 0; r < 8; ++r)
        if (h * 8 + r < left) finish_row<W>(p, tile.z, first + h * 8 + r, place, 0, out + r * W::row_stride);
    }
  }
}

// Two warpgroups, 64 rows of the tile each.
template <class W, class P>
__device__ __forceinline__ void consume(const P& p, const Packing& all, const WgmmaShared<W>& shared, unsigned rank,
                                        float* out) {
  using Instruction = Wgmma<W::BN, W::kind>;
  const int group = static_cast<int>(threadIdx.x) / 128 - 1, lane = static_cast<int>(threadIdx.x) % 32;
  ClusterTiles tiles(all);
  TilePlace tile;
  Ring<W> ring;
  if (group == 1) turn_give(1);  // the first group begins
  while (tiles.take(all, rank, tile)) {
    float sums[W::BN / 2], part[W::BN / 2];
#pragma unroll
    for (int i = 0; i < W::BN / 2; ++i) sums[i] = part[i] = 0;
#pragma unroll 1
    for (int64_t piece = 0; piece < all.depth; ++piece) {
      const uint64_t a = swizzled_at(shared.a(ring.slot) + group * 64 * 128), b = swizzled_at(shared.b(ring.slot));
      barrier_wait(shared.full(ring.slot), ring.parity);
      turn_wait(1 + group);
      settle(part);
      wgmma_begin();
      if constexpr (W::PLANES == 2) {
        const uint64_t a_low = a + W::BM * 128 / 16, b_low = b + W::BN * 128 / 16;
#pragma unroll
        for (int k = 0; k < 4; ++k) Instruction::multiply(part, a + 2 * k, b_low + 2 * k, k > 0);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          Instruction::multiply(part, a_low + 2 * k, b + 2 * k, 1);
          if (k == 1) wgmma_end();
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) Instruction::multiply(part, a + 2 * k, b + 2 * k, 1);
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          Instruction::multiply(part, a + 2 * k, b + 2 * k, k > 0);
          if (k == 1) wgmma_end();
        }
      }
      wgmma_end();
      wgmma_wait<1>();
      turn_give(1 + (group ^ 1));  // half is done: the other's products queue up behind the rest
      wgmma_wait<0>();
      settle(part);
      if (lane < all.cluster) barrier_arrive_at(shared.empty(ring.slot), lane);
      ring.advance();
#pragma unroll
      for (int i = 0; i < W::BN / 2; ++i) sums[i] += part[i];
    }
    if (tile.m < all.tiles_m && tile.n < all.tiles_n) hand_out<W>(p, all, tile, group, sums, out);
  }
  if (group == 0) turn_wait(1);  // the last turn given
}
#endif

template <class W, class P>
__global__ void __launch_bounds__(W::threads, 1)
    contract_wgmma_kernel(const __grid_constant__ P p, const __grid_constant__ Packing all) {
  follow();
#if CRUCIBLE_HAS_WGMMA
  extern __shared__ __align__(1024) unsigned char wgmma_shared[];
  const WgmmaShared<W> shared{shared_address(wgmma_shared)};
  unsigned* const fetched = reinterpret_cast<unsigned*>(wgmma_shared + W::shared_bytes - 4);
  const unsigned rank = cluster_rank();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < W::STAGES; ++s) {
      barrier_init(shared.full(s), 1);
      barrier_init(shared.empty(s), all.cluster * W::CONSUMERS / 32);  // the consumers' warps of both blocks
    }
    barrier_inits_done();
    *fetched = 0;
  }
  cluster_meet();
  if (warp < 4) {
    registers_down<W::PACKER_REGISTERS>();
    if (threadIdx.x == 0) produce<W>(all, shared, rank, fetched);
    if (warp > 0 && all.height == 0) pack_beside<W>(p, all);
    if (warp > 0 && all.height > 0) roll_beside<W>(p, all, fetched);
    __syncwarp();
  } else {
    registers_up<W::CONSUMER_REGISTERS>();
    float* const out = reinterpret_cast<float*>(wgmma_shared + W::STAGES * W::STAGE) + (warp - 4) * 8 * W::row_stride;
    consume<W>(p, all, shared, rank, out);
  }
  cluster_meet();  // neither block leaves while the other may write to it
#else
  __trap();  // the host chose an engine that this chip does not have
#endif
}

// ---- doing it again

// A block for each tile: one that returns at once costs far less than the tile did. (A loop over tiles would cost the
// registers that this engine is short of.)
template <class Config, class P>
__global__ void __launch_bounds__(Config::threads, Config::blocks_per_sm)
    contract_again_kernel(const __grid_constant__ P p, const int* again) {
  follow();
  extern __shared__ __align__(16) unsigned char again_shared[];
  if (*again != 0) contract_tile<Config>(p, blockIdx.x, 0, 1, again_shared);
}

#ifndef __CUDACC_RTC__
template <class W, class P>
cudaError_t launch_wgmma_pack(const P& p, const Packing& all, cudaStream_t stream) {
  const int64_t most = 0x7fffffff, chunks = all.depth == 0 ? 1 : whole(all.depth, PACK_CHUNK);
  const int64_t blocks = all.a.early * all.a.blocks + all.b.early * all.b.blocks + all.sample_blocks(P::b_along_k);
  const int64_t peaks = ((P::a_along_k ? 0 : all.a.lines) + (P::b_along_k || all.height > 0 ? 0 : all.b.lines)) / 32 * chunks;
  if (blocks > most || peaks > most) return cudaErrorInvalidValue;
  if constexpr (W::scaled && !(P::a_along_k && P::b_along_k)) {
    After after(static_cast<unsigned>(peaks), PACK_THREADS, 0, stream);
    const cudaError_t refused = peaks == 0 ? cudaSuccess : cudaLaunchKernelEx(after, wgmma_peaks_kernel<P>, p, all);
    if (refused != cudaSuccess) return refused;
  }
  return cudaLaunchKernelEx(After(static_cast<unsigned>(blocks), PACK_THREADS, 0, stream), wgmma_pack_kernel<W, P>, p, all);
}

template <class W, class P>
cudaError_t launch_wgmma_multiply(const P& p, const Packing& all, int processors, cudaStream_t stream) {
  const cudaError_t refused = allow_shared(contract_wgmma_kernel<W, P>, W::shared_bytes);
  if (refused != cudaSuccess) return refused;
  const unsigned cluster = static_cast<unsigned>(all.cluster);
  const int64_t pairs = all.pairs(), at_once = processors / all.cluster;
  const int64_t blocks = all.height > 0 ? all.teams(processors) * all.height : cluster * (pairs < at_once ? pairs : at_once);
  After after(static_cast<unsigned>(blocks), W::threads, W::shared_bytes, stream, cluster, all.height > 0);  // teams wait for each other
  return cudaLaunchKernelEx(after, contract_wgmma_kernel<W, P>, p, all);
}

template <class W, class P>
cudaError_t launch_wgmma_again(const P& p, const Packing& all, cudaStream_t stream) {
  using Config = typename W::Other;
  static_assert(W::BM == Config::BM && W::BN == Config::BN, "the same tiles, so that partial results have the same places");
  const cudaError_t refused = allow_shared(contract_again_kernel<Config, P>, Config::shared_bytes);
  if (refused != cudaSuccess) return refused;
  const unsigned tiles = static_cast<unsigned>(all.batches) * all.tiles_m * all.tiles_n;
  return cudaLaunchKernelEx(After(tiles, Config::threads, Config::shared_bytes, stream), contract_again_kernel<Config, P>, p, all.again);
}

// Launches nothing where D is empty. cudaErrorInvalidValue: too many tiles.
template <class W, class P>
cudaError_t launch_contract_wgmma(const P& p, void* workspace, void* pieces, cudaStream_t stream) {
  static_assert(!P::boxed, "columns are columns");
  if (p.batches() == 0 || p.rows() == 0 || p.cols() == 0) return cudaSuccess;
  const int64_t tiles_m = whole(p.rows(), W::BM), tiles_n = whole(p.cols(), W::BN), most = 0x7fffffff;
  if (tiles_m > most / tiles_n || p.batches() > most / (tiles_m * tiles_n)) return cudaErrorInvalidValue;
  int device = 0, processors = 0, clusters = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  if (clusters == 0) return launch_contract<typename W::Other>(p, 1, stream);  // simulated, a product of small tiles is faster
  Packing all = wgmma_packing<W>(p, workspace, pieces, nullptr);
  share_packing<W>(all, processors, clusters, W::PACE);
  if (all.height > processors) return launch_contract<typename W::Other>(p, 1, stream);  // a small part of a chip
  error = launch_wgmma_pack<W>(p, all, stream);
  if (error == cudaSuccess) error = launch_wgmma_multiply<W>(p, all, processors, stream);
  if constexpr (W::scaled)
    if (error == cudaSuccess) error = launch_wgmma_again<W>(p, all, stream);
  return error;
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

// Neighbours in memory, 16 bytes of the file's element type at a time.
//
// A walk goes over places `from` .. `to`. Where its tensors begin alike (all elements of one place at the same distance
// from a multiple of a vector's length) it is a few single elements, then vectors, then a few single ones; else all are
// single. A thread asks for IN_FLIGHT vectors before it waits for the first.
//   CRUCIBLE_VECTORS     0: single elements only, for comparisons
//   CRUCIBLE_IN_FLIGHT   how many vectors a thread asks for at once
//   CRUCIBLE_STREAMING   1: what nothing reads again leaves the caches first

#ifndef CRUCIBLE_VECTORS
#define CRUCIBLE_VECTORS 1
#endif
#ifndef CRUCIBLE_IN_FLIGHT
#define CRUCIBLE_IN_FLIGHT 2
#endif
#ifndef CRUCIBLE_STREAMING
#define CRUCIBLE_STREAMING 1
#endif

namespace crucible {

constexpr int VECTOR = 16 / sizeof(scalar), IN_FLIGHT = CRUCIBLE_IN_FLIGHT;

template <int BYTES>
struct WordOf { using type = uint4; };
template <>
struct WordOf<8> { using type = uint2; };
template <>
struct WordOf<4> { using type = unsigned; };
template <>
struct WordOf<2> { using type = unsigned short; };

// So many elements of any type: 16 bytes, or several times that, or less.
template <class T>
struct Vector {
  using Word = typename WordOf<VECTOR * sizeof(T)>::type;
  static constexpr int WORDS = VECTOR * sizeof(T) / sizeof(Word);
  T elements[VECTOR];
  __device__ __forceinline__ const T& operator[](int u) const { return elements[u]; }
  __device__ __forceinline__ T& operator[](int u) { return elements[u]; }
};

// Of a tensor that this kernel only reads; `LAST`: and that nothing reads after it.
template <bool LAST = false, class T>
__device__ __forceinline__ Vector<T> read_vector(const T* at) {
  using V = Vector<T>;
  const auto* const from = reinterpret_cast<const typename V::Word*>(at);
  typename V::Word words[V::WORDS];
#pragma unroll
  for (int i = 0; i < V::WORDS; ++i) words[i] = LAST && CRUCIBLE_STREAMING ? __ldcs(from + i) : __ldg(from + i);
  V v;
  memcpy(&v, words, sizeof(V));
  return v;
}

template <bool LAST = false, class T>
__device__ __forceinline__ void write_vector(T* at, const Vector<T>& v) {
  using V = Vector<T>;
  auto* const to = reinterpret_cast<typename V::Word*>(at);
  typename V::Word words[V::WORDS];
  memcpy(words, &v, sizeof(V));
#pragma unroll
  for (int i = 0; i < V::WORDS; ++i) {
    if constexpr (LAST && CRUCIBLE_STREAMING) {
      __stcs(to + i, words[i]);
    } else {
#if CRUCIBLE_WIDE
      __stwb(to + i, words[i]);  // at an address from 64-bit numbers the compiler would store a word's parts one by one
#else
      to[i] = words[i];
#endif
    }
  }
}

// How far elements lie from where a vector may begin: the same for all, or -1.
template <class T>
__host__ __device__ __forceinline__ int alike(const T* at) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(at) / sizeof(T) % VECTOR);
}
template <class T, class... Others>
__host__ __device__ __forceinline__ int alike(const T* at, const Others*... others) {
  const int one = alike(at), other = alike(others...);
  return one == other ? one : -1;
}

// The places of a walk as vectors and single elements.
struct Stretch {
  Index from, to, begin, vectors;
  __host__ __device__ __forceinline__ Index singles() const { return to - from - vectors * VECTOR; }
  __host__ __device__ __forceinline__ Index single(int64_t k) const {
    const Index place = from + static_cast<Index>(k);
    return place < begin ? place : place + vectors * VECTOR;
  }
};

// `distance`: of the element at place 0 from where a vector may begin, or less than 0 where there are none.
__host__ __device__ __forceinline__ Stretch stretch(int64_t first, int64_t last, int distance) {
  const Index from = static_cast<Index>(first), to = static_cast<Index>(last), wanted = -(from + distance) & (VECTOR - 1);
  if (!CRUCIBLE_VECTORS || distance < 0 || wanted >= to - from) return {from, to, to, 0};
  return {from, to, from + wanted, (to - from - wanted) / VECTOR};
}

}  // namespace crucible

// A thread an element, or several that lie together: the functor computes and stores them.
//
// A functor M has `Index count() const` and either `void operator()(Index i) const`, or, where M::in_vectors,
//   Stretch places() const;  void walk(const MapThreads& threads, const Stretch& places) const;
// Reads and writes what the functor does; neighbouring threads take neighbouring elements, or vectors, and a block takes
// IN_FLIGHT vectors a thread side by side.

namespace crucible {

constexpr int MAP_THREADS = 256;

struct MapThreads {
  __device__ __forceinline__ int64_t first() const { return static_cast<int64_t>(blockIdx.x) * MAP_THREADS + threadIdx.x; }
  __device__ __forceinline__ int64_t step() const { return static_cast<int64_t>(gridDim.x) * MAP_THREADS; }
  __device__ __forceinline__ Index vector() const {
    return static_cast<Index>(blockIdx.x) * IN_FLIGHT * MAP_THREADS + static_cast<Index>(threadIdx.x);
  }
  __device__ __forceinline__ Index turn() const { return static_cast<Index>(gridDim.x) * IN_FLIGHT * MAP_THREADS; }
};

template <class M>
__global__ void __launch_bounds__(MAP_THREADS) map_kernel(const M m) {
  follow();
  const MapThreads threads;
  if constexpr (M::in_vectors) {
    m.walk(threads, m.places());
  } else {
    const int64_t count = m.count();
    for (int64_t i = threads.first(); i < count; i += threads.step()) m(static_cast<Index>(i));
  }
}

template <class M>
cudaError_t launch_map(const M& m, cudaStream_t stream) {
  int64_t wanted = m.count();
  if (wanted <= 0) return cudaSuccess;
  if constexpr (M::in_vectors) {
    const Stretch places = m.places();
    const int64_t vectors = (places.vectors + IN_FLIGHT - 1) / IN_FLIGHT, singles = places.singles();
    wanted = vectors > singles ? vectors : singles;
  }
  const int64_t blocks = (wanted + MAP_THREADS - 1) / MAP_THREADS, most = 1 << 20;
  return cudaLaunchKernelEx(After(static_cast<unsigned>(blocks < most ? blocks : most), MAP_THREADS, 0, stream), map_kernel<M>, m);
}

}  // namespace crucible

// A group of N threads a row: the functor walks over the row, reduces, and stores what depends on the results.
//
// N is 1 (a thread for each row: short rows, or rows whose neighbours are neighbours in memory), 32 (a warp) or 256 (a
// block). A functor R has `Index rows() const` and
//   template <class L> void operator()(const L& lanes, Index row) const;
// where `lanes.first()` and `lanes.step()` deal out the row, `lanes.join(acc)` leaves the joined result with every
// thread, and `lanes.leads()` is true in one of them. Partial results travel by shuffles, between warps through N/32
// slots of shared memory.
// A functor whose later walks need again what the first one computes may also have
//   int64_t kept() const;  void keeping(const L&, Index row, accum* kept) const;
// which keeps that in shared memory, so many numbers a row; each thread reads what it wrote itself.
//
// A sliced functor, where what is reduced is short (partial results) and what follows is long, has
//   struct Found;  Found reduce(const L&, Index row) const;  int64_t length() const;  Index repeats() const;
//   void walk(const L&, Index row, Index part, int64_t from, int64_t to, const Found&) const;
// and takes two launches: the rows, then pieces of SLICE_VECTORS vectors a thread of each of a row's parts.
//
// A split functor, for few long rows, which may be the same stretch of places several times (a channel of every sample), has
//   struct Acc;  int64_t length() const;  Index repeats() const;   of the stretch, and how many times
//   void walk(const L&, Index row, Index first, Index last, int64_t from, int64_t to, Acc&) const;   some of both
//   void finish(const L&, Index row, const Acc&) const;
// and takes two launches: every part of every row, then the rows. Nothing depends on timing.
//   CRUCIBLE_SLICE_VECTORS   how many vectors a thread of a sliced walk has, all asked for before the first is used
//   CRUCIBLE_LAST_FIRST      1: slices and kept rows go from the last to the first, as the end of what was written just before is still
//                            in the cache

#ifndef CRUCIBLE_SLICE_VECTORS
#define CRUCIBLE_SLICE_VECTORS 4
#endif
#ifndef CRUCIBLE_LAST_FIRST
#define CRUCIBLE_LAST_FIRST 1
#endif

namespace crucible {

constexpr int ROW_THREADS = 256, SLICE_VECTORS = CRUCIBLE_SLICE_VECTORS, GRID_MOST = 65535;

// What an earlier kernel left, whole.
template <class T>
__device__ __forceinline__ T read_words(const T* at) {
  static_assert(sizeof(T) % 4 == 0 && alignof(T) % 4 == 0, "partial results are whole words");
  uint32_t words[sizeof(T) / 4];
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 4); ++i) words[i] = __ldg(reinterpret_cast<const uint32_t*>(at) + i);
  T value;
  memcpy(&value, words, sizeof(T));
  return value;
}

template <int N>
struct Lanes {
  static_assert(N == 1 || N == 32 || N == ROW_THREADS, "a thread, a warp or a block");
  __device__ __forceinline__ int first() const { return static_cast<int>(threadIdx.x) % N; }
  __device__ __forceinline__ int step() const { return N; }
  __device__ __forceinline__ bool leads() const { return first() == 0; }
  // Where warps take parts of a row, each alone.
  static constexpr int WIDTH = N < 32 ? N : 32, WARPS = N / WIDTH;
  __device__ __forceinline__ int lane() const { return first() % WIDTH; }
  __device__ __forceinline__ int warp() const { return first() / WIDTH; }

  template <class Acc>
  __device__ __forceinline__ void join(Acc& a) const {
    if constexpr (N > 1) a = join_lanes<32>(a);
    if constexpr (N > 32) {
      constexpr int WARPS = ROW_THREADS / 32;
      __shared__ __align__(16) unsigned char slots[WARPS * sizeof(Acc)];
      Acc* const slot = reinterpret_cast<Acc*>(slots);
      __syncthreads();  // the last join's readers are done
      if (threadIdx.x % 32 == 0) slot[threadIdx.x / 32] = a;
      __syncthreads();
      a = join_lanes<WARPS>(slot[threadIdx.x % WARPS]);
    }
  }
};

template <int N>
__device__ __forceinline__ int64_t row_of_thread() {
  return (static_cast<int64_t>(blockIdx.x) * ROW_THREADS + threadIdx.x) / N;
}

// The length of a part, where a row is cut into so many: whole vectors, and lines of memory.
__host__ __device__ inline int64_t row_share(int64_t length, int parts) {
  constexpr int LINE = 128 / sizeof(scalar);
  const int64_t share = (length + parts - 1) / parts;
  return (share + LINE - 1) / LINE * LINE;
}

template <int N, class R>
__global__ void __launch_bounds__(ROW_THREADS) row_kernel(const R r) {
  follow();
  const int64_t row = row_of_thread<N>();
  if (row < r.rows()) r(Lanes<N>(), static_cast<Index>(row));
}

template <int N, class R>
__global__ void __launch_bounds__(ROW_THREADS) row_keeping_kernel(const R r) {
  follow();
  extern __shared__ __align__(16) unsigned char row_kept[];
  const int64_t after = row_of_thread<N>(), row = CRUCIBLE_LAST_FIRST ? r.rows() - 1 - after : after;
  accum* const kept = reinterpret_cast<accum*>(row_kept) + threadIdx.x / N * r.kept();
  if (after < r.rows()) r.keeping(Lanes<N>(), static_cast<Index>(row), kept);
}

template <int N, class R>
__global__ void __launch_bounds__(ROW_THREADS) row_found_kernel(const R r, typename R::Found* found) {
  follow();
  const int64_t row = row_of_thread<N>();
  if (row >= r.rows()) return;
  const Lanes<N> lanes;
  const typename R::Found mine = r.reduce(lanes, static_cast<Index>(row));
  if (lanes.leads()) found[row] = mine;
}

// Slices are blockIdx.x, parts of rows the rest. No division, and all of `found` at once: each would be waited for before
// elements are asked for.
template <class R>
__global__ void __launch_bounds__(ROW_THREADS) row_slices_kernel(const R r, const typename R::Found* found, Index share) {
  follow();
  const int64_t count = static_cast<int64_t>(r.rows()) * r.repeats(), after = blockIdx.z * int64_t(GRID_MOST) + blockIdx.y;
  if (after >= count) return;
  const Index place = static_cast<Index>(CRUCIBLE_LAST_FIRST ? count - 1 - after : after), row = place / r.repeats();
  const Index length = static_cast<Index>(r.length());
  const Index from = share * static_cast<Index>(CRUCIBLE_LAST_FIRST ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
  const Index to = length - from < share ? length : from + share;
  r.walk(Lanes<ROW_THREADS>(), row, place % r.repeats(), from, to, read_words(found + row));
}

// How a long row is cut: its stretch into so many, and, where that is short, the times into so many.
struct RowCuts {
  int along, across;
};
template <int N, class R>
__host__ __device__ inline RowCuts row_cuts(const R& r, int splits) {
  const int64_t most = r.length() / (16 * N), repeats = r.repeats();
  const int along = most < 1 ? 1 : most < splits ? static_cast<int>(most) : splits, across = splits / along;
  return {along, repeats < 1 ? 1 : repeats < across ? static_cast<int>(repeats) : across};
}

template <int N, class R>
__global__ void __launch_bounds__(ROW_THREADS) row_parts_kernel(const R r, typename R::Acc* parts, RowCuts cuts) {
  follow();
  const int64_t row = row_of_thread<N>(), length = r.length(), each = row_share(length, cuts.along);
  if (row >= r.rows()) return;
  const int64_t from = each * (blockIdx.y % cuts.along), to = from + each < length ? from + each : length;
  const Index repeats = r.repeats(), times = (repeats + cuts.across - 1) / cuts.across;
  const Index first = times * static_cast<Index>(blockIdx.y / cuts.along), left = repeats - first;
  typename R::Acc a;
  const Lanes<N> lanes;
  if (left > 0) r.walk(lanes, static_cast<Index>(row), first, left < times ? repeats : first + times, from, to, a);
  lanes.join(a);
  if (lanes.leads()) parts[static_cast<int64_t>(blockIdx.y) * r.rows() + row] = a;
}

template <class R>
__global__ void __launch_bounds__(ROW_THREADS) row_whole_kernel(const R r, const typename R::Acc* parts, int splits) {
  follow();
  const int64_t row = row_of_thread<32>();
  if (row >= r.rows()) return;
  typename R::Acc a;
  const Lanes<32> lanes;
  for (int s = lanes.first(); s < splits; s += lanes.step()) a.join(parts[static_cast<int64_t>(s) * r.rows() + row]);
  lanes.join(a);
  r.finish(lanes, static_cast<Index>(row), a);
}

inline unsigned row_blocks(int64_t rows, int lanes) {
  return static_cast<unsigned>((rows * lanes + ROW_THREADS - 1) / ROW_THREADS);
}

template <int N, class R>
cudaError_t launch_rows(const R& r, cudaStream_t stream) {
  const int64_t rows = r.rows();
  if (rows <= 0) return cudaSuccess;
  return cudaLaunchKernelEx(After(row_blocks(rows, N), ROW_THREADS, 0, stream), row_kernel<N, R>, r);
}

// Rows that fit in shared memory keep what their first walk computes.
template <int N, class R>
cudaError_t launch_keeping_rows(const R& r, cudaStream_t stream) {
  const int64_t rows = r.rows(), bytes = r.kept() * (ROW_THREADS / N) * static_cast<int64_t>(sizeof(accum));
  if (rows <= 0 || bytes > 48 * 1024) return launch_rows<N>(r, stream);
  return cudaLaunchKernelEx(After(row_blocks(rows, N), ROW_THREADS, static_cast<size_t>(bytes), stream), row_keeping_kernel<N, R>, r);
}

// `found` has room for a Found for each row.
template <int N, class R>
cudaError_t launch_sliced_rows(const R& r, void* found, cudaStream_t stream) {
  constexpr int SLICE = SLICE_VECTORS * VECTOR * ROW_THREADS;
  const int64_t rows = r.rows(), length = r.length(), slices = (length + SLICE - 1) / SLICE;
  if (rows <= 0) return cudaSuccess;
  auto* const results = static_cast<typename R::Found*>(found);
  const cudaError_t error = cudaLaunchKernelEx(After(row_blocks(rows, N), ROW_THREADS, 0, stream), row_found_kernel<N, R>, r, results);
  if (error != cudaSuccess) return error;
  const int64_t places = rows * r.repeats();
  if (places <= 0 || slices <= 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(slices), static_cast<unsigned>(places < GRID_MOST ? places : GRID_MOST),
                  static_cast<unsigned>((places + GRID_MOST - 1) / GRID_MOST));
  return cudaLaunchKernelEx(After(grid, ROW_THREADS, 0, stream),
                            row_slices_kernel<R>, r, results, static_cast<Index>(row_share(length, static_cast<int>(slices))));
}

// `parts` has room for rows * splits partial results.
template <int N, class R>
cudaError_t launch_split_rows(const R& r, void* parts, int splits, cudaStream_t stream) {
  const int64_t rows = r.rows();
  if (rows <= 0) return cudaSuccess;
  auto* const acc = static_cast<typename R::Acc*>(parts);
  const RowCuts cuts = row_cuts<N>(r, splits);
  const int count = cuts.along * cuts.across;
  const cudaError_t error = cudaLaunchKernelEx(After(dim3(row_blocks(rows, N), count), ROW_THREADS, 0, stream),
                                               row_parts_kernel<N, R>, r, acc, cuts);
  if (error != cudaSuccess) return error;
  return cudaLaunchKernelEx(After(row_blocks(rows, 32), ROW_THREADS, 0, stream), row_whole_kernel<R>, r, acc, count);
}

}  // namespace crucible

// ---- the stages of this file

#if CRUCIBLE_HOPPER
namespace crucible {
#if CRUCIBLE_SCALAR == 0
template <>
struct Wgmma<128, Operands::Half> {
  static __device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 0
template <>
struct Wgmma<128, Operands::Tf32> {
  static __device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63"
        "}, %64, %65, p, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 2
template <>
struct Wgmma<128, Operands::Native> {
  static __device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 3
template <>
struct Wgmma<128, Operands::Native> {
  static __device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

using namespace crucible;

inline void check(cudaError_t error, const char* kernel) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // whoever launches next is not to find it
  throw std::runtime_error(std::string(kernel) + ": " + cudaGetErrorString(error));
}

// addmm, var_mean, min_1
struct contract_1 {
  const scalar* __restrict__ p_gemm_bias;
  const scalar* __restrict__ p_gemm_weight;
  const scalar* __restrict__ p_group_norm_bias;
  const scalar* __restrict__ p_group_norm_weight;
  const scalar* __restrict__ p_x;
  scalar* __restrict__ p_addmm_product_0_kept;
  accum* __restrict__ p_min_1_tile_0;
  int64_t* __restrict__ p_min_1_tile_1;
  accum* __restrict__ p_var_mean_m2;
  accum* __restrict__ p_var_mean_mean;
  Index s77;

  static constexpr bool a_along_k = true, b_along_k = true, statistics = true;
  static constexpr int group = 16;
  static constexpr bool boxed = false;
  __host__ __device__ Index batches() const { return 1; }
  __host__ __device__ Index rows() const { return s77; }
  __host__ __device__ Index cols() const { return 8192; }
  __host__ __device__ Index depth() const { return 8192; }
  struct ARow { Index m1; };
  __device__ __forceinline__ ARow a_row(Index z, Index m) const {
    return {m};
  }
  __device__ __forceinline__ accum a(const ARow& at, Index k) const {
    return to_accum(read(p_x[k + at.m1 * 8192]));
  }
  static constexpr bool a_direct = true;  // an element of memory as it is
  __device__ __forceinline__ const scalar* a_from(const ARow& at, Index k) const {
    return &p_x[k + at.m1 * 8192];
  }
  struct BCol { Index n2; };
  __device__ __forceinline__ BCol b_col(Index z, Index n) const {
    return {n};
  }
  __device__ __forceinline__ accum b(const BCol& at, Index k) const {
    return to_accum(read(p_gemm_weight[k + at.n2 * 8192]));
  }
  static constexpr bool b_direct = true;  // an element of memory as it is
  __device__ __forceinline__ const scalar* b_from(const BCol& at, Index k) const {
    return &p_gemm_weight[k + at.n2 * 8192];
  }
  __device__ __forceinline__ accum finish(Index z, Index m, Index n, int split, accum value,
                                          bool there) const {
    if (there) p_addmm_product_0_kept[m * 8192 + n] = to_scalar(value);
    return (value + to_accum(read(p_gemm_bias[n])));
  }
  __device__ __forceinline__ void sink(Index z, Index m, Index tile_n, accum count, accum mean,
                                       accum m2) const {
    const Index at = tile_n + m * 512;
    p_var_mean_mean[at] = mean;
    p_var_mean_m2[at] = m2;
  }
  struct Group { accum g0, g1; };
  __device__ __forceinline__ Group grouped(accum group_count, accum group_mean, accum group_m2) const {
    return {group_mean, f_rsqrt(((group_m2 / accum(16)) + accum(1e-05)))};
  }
  struct Tail {
    ArgMin r0;  // min_1
    __device__ __forceinline__ void join(const Tail& b) { r0.join(b.r0); }
  };
  static constexpr bool reduces = true;
  __device__ __forceinline__ void tail(Index z, Index m, Index n, accum finished, const Group& of,
                                       Tail& row) const {
    const accum v1 = ((finished - of.g0) * of.g1) * to_accum(read(p_group_norm_weight[n]));
    row.r0.step((v1 + to_accum(read(p_group_norm_bias[n]))), int64_t(n));
  }
  __device__ __forceinline__ void tail_out(Index z, Index m, Index tile_n, const Tail& row) const {
    const Index at = m * 64 + tile_n;
    p_min_1_tile_0[at] = row.r0.value();
    p_min_1_tile_1[at] = row.r0.index();
  }
};

void run_contract_1(uint64_t p_gemm_bias, uint64_t p_gemm_weight, uint64_t p_group_norm_bias, uint64_t p_group_norm_weight, uint64_t p_x, uint64_t p_addmm_product_0_kept, uint64_t p_min_1_tile_0, uint64_t p_min_1_tile_1, uint64_t p_var_mean_m2, uint64_t p_var_mean_mean, int64_t s77, uint64_t packed, uint64_t pieces, uint64_t stream) {
  const contract_1 stage{reinterpret_cast<const scalar*>(p_gemm_bias), reinterpret_cast<const scalar*>(p_gemm_weight), reinterpret_cast<const scalar*>(p_group_norm_bias), reinterpret_cast<const scalar*>(p_group_norm_weight), reinterpret_cast<const scalar*>(p_x), reinterpret_cast<scalar*>(p_addmm_product_0_kept), reinterpret_cast<accum*>(p_min_1_tile_0), reinterpret_cast<int64_t*>(p_min_1_tile_1), reinterpret_cast<accum*>(p_var_mean_m2), reinterpret_cast<accum*>(p_var_mean_mean), static_cast<Index>(s77)};
  if (few_pays<FewRows>(stage)) return check(launch_contract_few<FewRows, 128>(stage, 1, reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #if CRUCIBLE_HOPPER && CRUCIBLE_MATMUL == 2
  check(launch_contract_wgmma<WgmmaTile<128, Grade::Fp32>>(stage, reinterpret_cast<void*>(packed), reinterpret_cast<void*>(pieces), reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #elif CRUCIBLE_MATMUL == 1
  check(launch_contract<Mma<128, 128, 32, 64, 32, Grade::Tf32>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #elif CRUCIBLE_MATMUL == 2
  check(launch_contract<Mma<128, 128, 32, 64, 32, Grade::Fp32>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #elif CRUCIBLE_MATMUL == 3
  check(launch_contract<Mma<128, 128, 32, 64, 32, Grade::Native>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #else
  check(launch_contract<Simt<128, 128, 8, 8, 8>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #endif
}

int64_t packed_contract_1(int64_t s77) {
  const contract_1 stage{nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, static_cast<Index>(s77)};
  if (few_pays<FewRows>(stage)) return few_bytes<FewRows>(stage);
  #if CRUCIBLE_HOPPER && CRUCIBLE_MATMUL == 2
  int64_t bytes[2];
  wgmma_packing<WgmmaTile<128, Grade::Fp32>>(stage, nullptr, nullptr, bytes);
  return bytes[0];
  #else
  return 0;
  #endif
}

int64_t pieces_contract_1(int64_t s77) {
  const contract_1 stage{nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, static_cast<Index>(s77)};
  if (few_pays<FewRows>(stage)) return 0;
  #if CRUCIBLE_HOPPER && CRUCIBLE_MATMUL == 2
  int64_t bytes[2];
  wgmma_packing<WgmmaTile<128, Grade::Fp32>>(stage, nullptr, nullptr, bytes);
  return bytes[1];
  #else
  return 0;
  #endif
}

// min_1
struct rows_1 {
  const accum* __restrict__ p_min_1_tile_0;
  const int64_t* __restrict__ p_min_1_tile_1;
  accum* __restrict__ p_min_1_0_kept;
  int64_t* __restrict__ p_min_1_1_kept;
  Index s77;

  __host__ __device__ Index rows() const { return s77; }
  struct Acc0 {
    ArgMin r0;  // min_1
    __device__ __forceinline__ void join(const Acc0& b) { r0.join(b.r0); }
  };
  template <class L>
  __device__ __forceinline__ void operator()(const L& lanes, Index row) const {
    Acc0 a0;
    #pragma unroll 4
    for (int64_t jj = lanes.first(); jj < 64; jj += lanes.step()) {
      const Index j = static_cast<Index>(jj);
      a0.r0.step(read(p_min_1_tile_0[j + row * 64]), read(p_min_1_tile_1[j + row * 64]));
    }
    lanes.join(a0);
    const accum min_1_0 = a0.r0.value();
    const int64_t min_1_1 = a0.r0.index();
    if (lanes.leads()) {
      p_min_1_0_kept[row] = min_1_0;
      p_min_1_1_kept[row] = min_1_1;
    }
  }
};

void run_rows_1(uint64_t p_min_1_tile_0, uint64_t p_min_1_tile_1, uint64_t p_min_1_0_kept, uint64_t p_min_1_1_kept, int64_t s77, uint64_t stream) {
  const rows_1 stage{reinterpret_cast<const accum*>(p_min_1_tile_0), reinterpret_cast<const int64_t*>(p_min_1_tile_1), reinterpret_cast<accum*>(p_min_1_0_kept), reinterpret_cast<int64_t*>(p_min_1_1_kept), static_cast<Index>(s77)};
  check(launch_rows<32>(stage, reinterpret_cast<cudaStream_t>(stream)), "rows_1");
}

// min_1, add_2
struct map_1 {
  const scalar* __restrict__ p_bias;
  const accum* __restrict__ p_min_1_0_kept;
  scalar* __restrict__ p_add_2;
  Index s77;

  static constexpr bool in_vectors = true;
  __host__ __device__ Index count() const { return s77 * 8192; }
  __host__ __device__ Stretch places() const {
    return stretch(0, count(), s77 % VECTOR == 0 && alike(&p_min_1_0_kept[0], &p_add_2[0]) == 0 ? 0 : -1);
  }
  __device__ __forceinline__ void walk(const MapThreads& threads, const Stretch& run) const {
    scalar* const at1 = &p_add_2[0];
    for (Index k = threads.vector(); k < run.vectors; k += threads.turn()) {
      Vector<accum> x2[IN_FLIGHT];
      #pragma unroll
      for (int d = 0; d < IN_FLIGHT; ++d) {
        const Index kk = k + d * MAP_THREADS;
        if (kk < run.vectors) {
          const Index i = run.begin + kk * VECTOR;
          const Index e3 = i % s77;
          x2[d] = read_vector(&p_min_1_0_kept[e3]);
        }
      }
      #pragma unroll
      for (int d = 0; d < IN_FLIGHT; ++d) {
        const Index kk = k + d * MAP_THREADS;
        if (kk >= run.vectors) break;
        const Index i = run.begin + kk * VECTOR;
        Vector<scalar> y4;
        const Index q5 = i / s77;
        const accum v6 = to_accum(read(p_bias[q5]));
        #pragma unroll
        for (int u = 0; u < VECTOR; ++u) {
          y4[u] = to_scalar(x2[d][u] + v6);
        }
        write_vector<true>(at1 + i, y4);
      }
    }
    for (int64_t k = threads.first(); k < run.singles(); k += threads.step()) {
      const Index i = run.single(k);
      const Index e7 = i % s77;
      const Index q8 = i / s77;
      const accum v9 = to_accum(read(p_bias[q8]));
      at1[i] = to_scalar(read(p_min_1_0_kept[e7]) + v9);
    }
  }
};

void run_map_1(uint64_t p_bias, uint64_t p_min_1_0_kept, uint64_t p_add_2, int64_t s77, uint64_t stream) {
  const map_1 stage{reinterpret_cast<const scalar*>(p_bias), reinterpret_cast<const accum*>(p_min_1_0_kept), reinterpret_cast<scalar*>(p_add_2), static_cast<Index>(s77)};
  check(launch_map(stage, reinterpret_cast<cudaStream_t>(stream)), "map_1");
}

// addmm, var_mean, min_1
struct contract_2 {
  const scalar* __restrict__ p_gemm_bias;
  const scalar* __restrict__ p_gemm_weight;
  const scalar* __restrict__ p_group_norm_bias;
  const scalar* __restrict__ p_group_norm_weight;
  const scalar* __restrict__ p_x;
  accum* __restrict__ p_min_1_tile_0;
  Index s77;

  static constexpr bool a_along_k = true, b_along_k = true, statistics = true;
  static constexpr int group = 16;
  static constexpr bool boxed = false;
  __host__ __device__ Index batches() const { return 1; }
  __host__ __device__ Index rows() const { return s77; }
  __host__ __device__ Index cols() const { return 8192; }
  __host__ __device__ Index depth() const { return 8192; }
  struct ARow { Index m1; };
  __device__ __forceinline__ ARow a_row(Index z, Index m) const {
    return {m};
  }
  __device__ __forceinline__ accum a(const ARow& at, Index k) const {
    return to_accum(read(p_x[k + at.m1 * 8192]));
  }
  static constexpr bool a_direct = true;  // an element of memory as it is
  __device__ __forceinline__ const scalar* a_from(const ARow& at, Index k) const {
    return &p_x[k + at.m1 * 8192];
  }
  struct BCol { Index n2; };
  __device__ __forceinline__ BCol b_col(Index z, Index n) const {
    return {n};
  }
  __device__ __forceinline__ accum b(const BCol& at, Index k) const {
    return to_accum(read(p_gemm_weight[k + at.n2 * 8192]));
  }
  static constexpr bool b_direct = true;  // an element of memory as it is
  __device__ __forceinline__ const scalar* b_from(const BCol& at, Index k) const {
    return &p_gemm_weight[k + at.n2 * 8192];
  }
  __device__ __forceinline__ accum finish(Index z, Index m, Index n, int split, accum value,
                                          bool there) const {
    return (value + to_accum(read(p_gemm_bias[n])));
  }
  __device__ __forceinline__ void sink(Index z, Index m, Index tile_n, accum count, accum mean,
                                       accum m2) const {
  }
  struct Group { accum g0, g1; };
  __device__ __forceinline__ Group grouped(accum group_count, accum group_mean, accum group_m2) const {
    return {group_mean, f_rsqrt(((group_m2 / accum(16)) + accum(1e-05)))};
  }
  struct Tail {
    Min r0;  // min_1
    __device__ __forceinline__ void join(const Tail& b) { r0.join(b.r0); }
  };
  static constexpr bool reduces = true;
  __device__ __forceinline__ void tail(Index z, Index m, Index n, accum finished, const Group& of,
                                       Tail& row) const {
    const accum v1 = ((finished - of.g0) * of.g1) * to_accum(read(p_group_norm_weight[n]));
    row.r0.step((v1 + to_accum(read(p_group_norm_bias[n]))));
  }
  __device__ __forceinline__ void tail_out(Index z, Index m, Index tile_n, const Tail& row) const {
    const Index at = m * 64 + tile_n;
    p_min_1_tile_0[at] = row.r0.total();
  }
};

void run_contract_2(uint64_t p_gemm_bias, uint64_t p_gemm_weight, uint64_t p_group_norm_bias, uint64_t p_group_norm_weight, uint64_t p_x, uint64_t p_min_1_tile_0, int64_t s77, uint64_t packed, uint64_t pieces, uint64_t stream) {
  const contract_2 stage{reinterpret_cast<const scalar*>(p_gemm_bias), reinterpret_cast<const scalar*>(p_gemm_weight), reinterpret_cast<const scalar*>(p_group_norm_bias), reinterpret_cast<const scalar*>(p_group_norm_weight), reinterpret_cast<const scalar*>(p_x), reinterpret_cast<accum*>(p_min_1_tile_0), static_cast<Index>(s77)};
  if (few_pays<FewRows>(stage)) return check(launch_contract_few<FewRows, 128>(stage, 1, reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #if CRUCIBLE_HOPPER && CRUCIBLE_MATMUL == 2
  check(launch_contract_wgmma<WgmmaTile<128, Grade::Fp32>>(stage, reinterpret_cast<void*>(packed), reinterpret_cast<void*>(pieces), reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #elif CRUCIBLE_MATMUL == 1
  check(launch_contract<Mma<128, 128, 32, 64, 32, Grade::Tf32>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #elif CRUCIBLE_MATMUL == 2
  check(launch_contract<Mma<128, 128, 32, 64, 32, Grade::Fp32>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #elif CRUCIBLE_MATMUL == 3
  check(launch_contract<Mma<128, 128, 32, 64, 32, Grade::Native>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #else
  check(launch_contract<Simt<128, 128, 8, 8, 8>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #endif
}

int64_t packed_contract_2(int64_t s77) {
  const contract_2 stage{nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, static_cast<Index>(s77)};
  if (few_pays<FewRows>(stage)) return few_bytes<FewRows>(stage);
  #if CRUCIBLE_HOPPER && CRUCIBLE_MATMUL == 2
  int64_t bytes[2];
  wgmma_packing<WgmmaTile<128, Grade::Fp32>>(stage, nullptr, nullptr, bytes);
  return bytes[0];
  #else
  return 0;
  #endif
}

int64_t pieces_contract_2(int64_t s77) {
  const contract_2 stage{nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, static_cast<Index>(s77)};
  if (few_pays<FewRows>(stage)) return 0;
  #if CRUCIBLE_HOPPER && CRUCIBLE_MATMUL == 2
  int64_t bytes[2];
  wgmma_packing<WgmmaTile<128, Grade::Fp32>>(stage, nullptr, nullptr, bytes);
  return bytes[1];
  #else
  return 0;
  #endif
}

// min_1
struct rows_2 {
  const accum* __restrict__ p_min_1_tile_0;
  accum* __restrict__ p_min_1_0_kept;
  Index s77;

  __host__ __device__ Index rows() const { return s77; }
  struct Acc0 {
    Min r0;  // min_1
    __device__ __forceinline__ void join(const Acc0& b) { r0.join(b.r0); }
  };
  template <class L>
  __device__ __forceinline__ void operator()(const L& lanes, Index row) const {
    Acc0 a0;
    #pragma unroll 4
    for (int64_t jj = lanes.first(); jj < 64; jj += lanes.step()) {
      const Index j = static_cast<Index>(jj);
      a0.r0.step(read(p_min_1_tile_0[j + row * 64]));
    }
    lanes.join(a0);
    const accum min_1_0 = a0.r0.total();
    if (lanes.leads()) {
      p_min_1_0_kept[row] = min_1_0;
    }
  }
};

void run_rows_2(uint64_t p_min_1_tile_0, uint64_t p_min_1_0_kept, int64_t s77, uint64_t stream) {
  const rows_2 stage{reinterpret_cast<const accum*>(p_min_1_tile_0), reinterpret_cast<accum*>(p_min_1_0_kept), static_cast<Index>(s77)};
  check(launch_rows<32>(stage, reinterpret_cast<cudaStream_t>(stream)), "rows_2");
}

// One after another, those that are asked for.
void run_model_forward(uint64_t stages, uint64_t p_bias, uint64_t p_gemm_weight, uint64_t p_gemm_bias, uint64_t p_group_norm_weight, uint64_t p_group_norm_bias, uint64_t p_x, uint64_t p_addmm_product_0_kept, uint64_t p_var_mean_mean, uint64_t p_var_mean_m2, uint64_t p_min_1_1_kept, uint64_t p_add_2, uint64_t memory, int64_t in_min_1_tile_0, int64_t at_min_1_tile_0, int64_t in_min_1_tile_1, int64_t at_min_1_tile_1, int64_t in_packed_contract_0, int64_t at_packed_contract_0, int64_t in_pieces_contract_0, int64_t at_pieces_contract_0, int64_t in_min_1_0_kept, int64_t at_min_1_0_kept, int64_t s77, uint64_t stream) {
  const uint64_t holders[] = {memory, p_addmm_product_0_kept, p_var_mean_mean, p_var_mean_m2, p_min_1_1_kept, p_add_2};
  const uint64_t p_min_1_tile_0 = holders[in_min_1_tile_0] + at_min_1_tile_0;
  const uint64_t p_min_1_tile_1 = holders[in_min_1_tile_1] + at_min_1_tile_1;
  const uint64_t packed_contract_0 = holders[in_packed_contract_0] + at_packed_contract_0;
  const uint64_t pieces_contract_0 = holders[in_pieces_contract_0] + at_pieces_contract_0;
  const uint64_t p_min_1_0_kept = holders[in_min_1_0_kept] + at_min_1_0_kept;
  if (stages & 1) run_contract_1(p_gemm_bias, p_gemm_weight, p_group_norm_bias, p_group_norm_weight, p_x, p_addmm_product_0_kept, p_min_1_tile_0, p_min_1_tile_1, p_var_mean_m2, p_var_mean_mean, s77, packed_contract_0, pieces_contract_0, stream);
  if (stages & 2) run_rows_1(p_min_1_tile_0, p_min_1_tile_1, p_min_1_0_kept, p_min_1_1_kept, s77, stream);
  if (stages & 4) run_map_1(p_bias, p_min_1_0_kept, p_add_2, s77, stream);
}

// One after another, those that are asked for.
void run_model_inference(uint64_t stages, uint64_t p_bias, uint64_t p_gemm_weight, uint64_t p_gemm_bias, uint64_t p_group_norm_weight, uint64_t p_group_norm_bias, uint64_t p_x, uint64_t p_add_2, uint64_t memory, int64_t in_min_1_tile_0, int64_t at_min_1_tile_0, int64_t in_packed_contract_0, int64_t at_packed_contract_0, int64_t in_pieces_contract_0, int64_t at_pieces_contract_0, int64_t in_min_1_0_kept, int64_t at_min_1_0_kept, int64_t s77, uint64_t stream) {
  const uint64_t holders[] = {memory, p_add_2};
  const uint64_t p_min_1_tile_0 = holders[in_min_1_tile_0] + at_min_1_tile_0;
  const uint64_t packed_contract_0 = holders[in_packed_contract_0] + at_packed_contract_0;
  const uint64_t pieces_contract_0 = holders[in_pieces_contract_0] + at_pieces_contract_0;
  const uint64_t p_min_1_0_kept = holders[in_min_1_0_kept] + at_min_1_0_kept;
  if (stages & 1) run_contract_2(p_gemm_bias, p_gemm_weight, p_group_norm_bias, p_group_norm_weight, p_x, p_min_1_tile_0, s77, packed_contract_0, pieces_contract_0, stream);
  if (stages & 2) run_rows_2(p_min_1_tile_0, p_min_1_0_kept, s77, stream);
  if (stages & 4) run_map_1(p_bias, p_min_1_0_kept, p_add_2, s77, stream);
}
"""

_BACKWARD_SOURCE = r"""
#include <stdexcept>
#include <string>
#include <cstring>

// ---- kernel bodies and what they share

// What every stage shares: the element type of the file, the type sums are kept in, and the width of an index.
//
// The including file is compiled once for each element type it meets, with
//   CRUCIBLE_SCALAR   0 float, 1 double, 2 __half, 3 __nv_bfloat16
//   CRUCIBLE_WIDE     1 when an index may pass 2^31
//   CRUCIBLE_HOPPER   1 for a chip with Hopper's matrix instructions (compute capability 9.0a)

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#ifndef CRUCIBLE_SCALAR
#define CRUCIBLE_SCALAR 0
#endif
#ifndef CRUCIBLE_WIDE
#define CRUCIBLE_WIDE 0
#endif
#ifndef CRUCIBLE_HOPPER
#define CRUCIBLE_HOPPER 0
#endif

#if CRUCIBLE_SCALAR == 2
#include <cuda_fp16.h>
#elif CRUCIBLE_SCALAR == 3
#include <cuda_bf16.h>
#endif

namespace crucible {

#if CRUCIBLE_SCALAR == 0
using scalar = float;
using accum = float;
#elif CRUCIBLE_SCALAR == 1
using scalar = double;
using accum = double;
#elif CRUCIBLE_SCALAR == 2
using scalar = __half;
using accum = float;
#else
using scalar = __nv_bfloat16;
using accum = float;
#endif

#if CRUCIBLE_WIDE
using Index = int64_t;
#else
using Index = int32_t;
#endif

// Kernels follow each other closely: on Hopper one is set up while the one before it on the stream ends. So each begins with
// follow(), which waits until all of that is done and seen, and is launched by
//   cudaLaunchKernelEx(After(blocks, threads, shared bytes, stream), kernel, arguments...)
__device__ __forceinline__ void follow() {
#if CRUCIBLE_HOPPER
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#ifndef __CUDACC_RTC__
struct After {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[3]{};
  // Blocks in clusters of so many, which a simulator does not have; or all of them there at a time, to wait for each other.
  After(dim3 blocks, unsigned threads, size_t shared, cudaStream_t stream, unsigned cluster = 1, bool together = false) {
    config.gridDim = blocks;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
#if CRUCIBLE_HOPPER && CUDART_VERSION >= 12030  // with which such launches can be captured in graphs
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
#endif
    if (cluster > 1) {
      attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
      attributes[config.numAttrs++].val.clusterDim = {cluster, 1, 1};
    }
    if (together) {
      attributes[config.numAttrs].id = cudaLaunchAttributeCooperative;
      attributes[config.numAttrs++].val.cooperative = 1;
    }
  }
  operator const cudaLaunchConfig_t*() {
    config.attrs = attributes;
    return &config;
  }
};
#endif

// An element of a tensor that this kernel only reads: such loads need not wait for stores before them.
template <class T>
__device__ __forceinline__ T read(const T& x) { return __ldg(&x); }
__device__ __forceinline__ bool read(const bool& x) { return __ldg(reinterpret_cast<const unsigned char*>(&x)) != 0; }
#if CRUCIBLE_SCALAR == 3  // before CUDA 12.2 there is no __ldg() of it for chips before 8.0
__device__ __forceinline__ __nv_bfloat16 read(const __nv_bfloat16& x) {
  return __nv_bfloat16(__nv_bfloat16_raw{__ldg(reinterpret_cast<const unsigned short*>(&x))});
}
#endif

// Asks for an element that is loaded later.
template <class T>
__device__ __forceinline__ void prefetch(const T* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

__device__ __forceinline__ bool inside(Index i, Index n) { return i >= 0 && i < n; }
__device__ __forceinline__ Index nearest(Index i, Index n) { return i < 0 ? 0 : i < n ? i : n - 1; }

// Elements as values of the type that arithmetic is done in.
template <class T>
__device__ __forceinline__ T to_accum(T x) { return x; }

#if CRUCIBLE_SCALAR == 2
__device__ __forceinline__ float to_accum(__half x) { return __half2float(x); }
__device__ __forceinline__ scalar to_scalar(accum x) { return __float2half_rn(x); }
#elif CRUCIBLE_SCALAR == 3
__device__ __forceinline__ float to_accum(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ scalar to_scalar(accum x) { return __float2bfloat16_rn(x); }
#else
__device__ __forceinline__ scalar to_scalar(accum x) { return x; }
#endif

}  // namespace crucible

namespace crucible {

__device__ __forceinline__ accum f_rsqrt(accum x) { return accum(1) / sqrt(x); }

}  // namespace crucible

namespace crucible {

// A sum that carries what rounding took from it: as good as a pairwise sum, however long.
struct Sum {
  accum sum = 0, low = 0;
  __device__ __forceinline__ void step(accum y) {
    const accum t = sum + y;
    if (t - t == 0) low += fabs(sum) >= fabs(y) ? (sum - t) + y : (y - t) + sum;  // not where it is inf or nan
    sum = t;
  }
  __device__ __forceinline__ void join(const Sum& b) {
    step(b.sum);
    low += b.low;
  }
  __device__ __forceinline__ accum total() const { return sum + low; }
};

}  // namespace crucible

// Boxes of output pixels and the input under them, in up to four dimensions.
//
// A functor whose columns are pixels names its form by types: Box, Kernel, Stride, Dilation, Shift (all Dims), and gives
// the output's extents. Column i of a box is a pixel of it, the last dimension fastest. Input pixel
// y * stride + tap * dilation + shift is under tap of output pixel y; the halo of a box is all input pixels under it.

namespace crucible {

template <int A, int B, int C, int D>
struct Dims {
  static constexpr int product = A * B * C * D;
  __host__ __device__ static constexpr int at(int d) { return d == 0 ? A : d == 1 ? B : d == 2 ? C : D; }
  // How far apart neighbours along dimension d are.
  __host__ __device__ static constexpr int pitch(int d) { return d == 0 ? B * C * D : d == 1 ? C * D : d == 2 ? D : 1; }
  __host__ __device__ static constexpr int index(int i, int d) { return i / pitch(d) % at(d); }
};

// The input under so many pixels in a row, or under a box's.
template <class P>
__host__ __device__ constexpr int halo_extent(int d, int pixels) {
  return (pixels - 1) * P::Stride::at(d) + (P::Kernel::at(d) - 1) * P::Dilation::at(d) + 1;
}
template <class P>
__host__ __device__ constexpr int halo_extent(int d) { return halo_extent<P>(d, P::Box::at(d)); }
template <class P>
using HaloOf = Dims<halo_extent<P>(0), halo_extent<P>(1), halo_extent<P>(2), halo_extent<P>(3)>;

// Where the first tap of a box's pixel i lies in the halo; pixels past the box take its last one.
template <class P>
__device__ __forceinline__ int halo_offset(int i) {
  using Box = typename P::Box;
  if (i >= Box::product) i = Box::product - 1;
  int at = 0;
#pragma unroll
  for (int d = 0; d < 4; ++d) at += Box::index(i, d) * P::Stride::at(d) * HaloOf<P>::pitch(d);
  return at;
}
// How far a tap lies from the first.
template <class P>
__device__ __forceinline__ int tap_offset(int tap) {
  int at = 0;
#pragma unroll
  for (int d = 0; d < 4; ++d) at += P::Kernel::index(tap, d) * P::Dilation::at(d) * HaloOf<P>::pitch(d);
  return at;
}

// A functor may have a pool, of windows that lie side by side and divide its boxes.
template <class T>
struct Named { using type = void; };
template <class P, class = void>
struct PoolOf {
  static constexpr bool pooled = false;
  using Window = Dims<1, 1, 1, 1>;
};
template <class P>
struct PoolOf<P, typename Named<typename P::Pool>::type> {
  static constexpr bool pooled = true;
  using Window = typename P::Pool;
};

// A functor of phases knows elements by their places in a box; some may not exist, alike in all rows or not, and phases may lack some of the taps
// (as the weights count them).
template <class P, class = void>
struct PhasedOf { static constexpr bool phased = false; };
template <class P>
struct PhasedOf<P, typename Named<typename P::Phased>::type> { static constexpr bool phased = true; };
template <class P, class = void>
struct RaggedOf { static constexpr bool ragged = false, alike = true; };
template <class P>
struct RaggedOf<P, typename Named<typename P::Ragged>::type> { static constexpr bool ragged = true, alike = P::ALIKE; };
// Groups that read the same input: phases. So many of them, neighbours, have elements of which one lies beside the other.
template <class P, class = void>
struct InsideOf { static constexpr int groups = 1, beside = 1; };
template <class P>
struct InsideOf<P, typename Named<typename P::Inside>::type> { static constexpr int groups = P::PHASES, beside = P::BESIDE; };
template <class P, class = void>
struct TapsOf {
  static constexpr bool sparse = false;
  static __device__ __forceinline__ bool has(const P&, Index, int) { return true; }
};
template <class P>
struct TapsOf<P, typename Named<typename P::Sparse>::type> {
  static constexpr bool sparse = true;
  static __device__ __forceinline__ bool has(const P& p, Index group, int t) {
    return p.has(group, P::flipped ? P::Kernel::product - 1 - t : t);
  }
};

// The taps of a group's phase, in the order of the window.
template <class P>
struct Taps {
  uint64_t there = 0;
  Taps() = default;
  __device__ __forceinline__ Taps(const P& p, Index group) {
    static_assert(!TapsOf<P>::sparse || P::Kernel::product <= 64, "a bit for each");
    if (TapsOf<P>::sparse)
      for (int t = 0; t < P::Kernel::product; ++t) there |= uint64_t(TapsOf<P>::has(p, group, t)) << t;
  }
  __device__ __forceinline__ bool has(int t) const { return !TapsOf<P>::sparse || (there >> t & 1u); }
  // Whether a tap is the first, and whether there is none.
  __device__ __forceinline__ bool first(int t) const {
    return TapsOf<P>::sparse ? (there & ((uint64_t(1) << t) - 1)) == 0 : t == 0;
  }
  __device__ __forceinline__ bool none() const { return TapsOf<P>::sparse && there == 0; }
};

template <class P>
__host__ __device__ __forceinline__ Index box_count(const P& p) {
  Index count = 1;
#pragma unroll
  for (int d = 0; d < 4; ++d) count *= (p.extent(d) + P::Box::at(d) - 1) / P::Box::at(d);
  return count;
}

template <class P>
struct BoxPlace {
  Index first[4];  // the box's first pixel
  int there[4];    // how many pixels of it exist, by dimension

  __device__ __forceinline__ BoxPlace(const Index (&at)[4], const int (&of)[4]) {
#pragma unroll
    for (int d = 0; d < 4; ++d) first[d] = at[d], there[d] = of[d];
  }
  __device__ __forceinline__ BoxPlace(const P& p, Index box) {
#pragma unroll
    for (int d = 3; d >= 0; --d) {
      const Index extent = p.extent(d), count = (extent + P::Box::at(d) - 1) / P::Box::at(d);
      first[d] = (count == 1 ? 0 : box % count) * P::Box::at(d);
      if (count != 1) box /= count;
      there[d] = extent - first[d] < P::Box::at(d) ? static_cast<int>(extent - first[d]) : P::Box::at(d);
    }
  }
  __device__ __forceinline__ bool exists(int i) const {
    bool all = i < P::Box::product;
#pragma unroll
    for (int d = 0; d < 4; ++d) all = all && P::Box::index(i, d) < there[d];
    return all;
  }
  __device__ __forceinline__ int count() const { return there[0] * there[1] * there[2] * there[3]; }
  // One more than the last pixel that exists.
  __device__ __forceinline__ int reach() const {
    int last = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) last += (there[d] - 1) * P::Box::pitch(d);
    return last + 1;
  }
  // The output pixel of a column, as a flat index; of one that does not exist, the nearest.
  __device__ __forceinline__ Index pixel(const P& p, int i) const {
    if (i >= P::Box::product) i = P::Box::product - 1;
    Index at = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      const int step = P::Box::index(i, d);
      at = at * p.extent(d) + first[d] + (step < there[d] ? step : there[d] - 1);
    }
    return at;
  }
  // Pixel i of the box itself.
  __device__ __forceinline__ auto plain(const P& p, Index z, int i) const {
    return p.a_at(z, first[0] + P::Box::index(i, 0), first[1] + P::Box::index(i, 1), first[2] + P::Box::index(i, 2),
                  first[3] + P::Box::index(i, 3));
  }
  // The input pixel number h of the halo.
  __device__ __forceinline__ typename P::BAt halo(const P& p, Index z, int h) const {
    Index at[4];
#pragma unroll
    for (int d = 0; d < 4; ++d) at[d] = first[d] * P::Stride::at(d) + P::Shift::at(d) + HaloOf<P>::index(h, d);
    return p.b_at(z, at[0], at[1], at[2], at[3]);
  }
};

// The pixels of a box that a lane finishes: every 32nd (so many times), or all those of every 32nd window of a pool.
template <class P, int TIMES>
struct LanePixels {
  using Box = typename P::Box;
  using Window = typename PoolOf<P>::Window;
  using Windows = Dims<Box::at(0) / Window::at(0), Box::at(1) / Window::at(1), Box::at(2) / Window::at(2),
                       Box::at(3) / Window::at(3)>;
  static_assert(Windows::product * Window::product == Box::product, "a box has whole windows");
  static constexpr int TAKES = Window::product;  // pixels of a window
  static constexpr int ROUNDS = PoolOf<P>::pooled ? (Windows::product + 31) / 32 : TIMES, EACH = ROUNDS * TAKES;
  static_assert(EACH <= 32, "a bit for each");

  static __device__ __forceinline__ int window(int round) { return static_cast<int>(threadIdx.x) % 32 + round * 32; }
  static __device__ __forceinline__ int pixel(int j) {
    const int w = window(j / TAKES);
    if (!PoolOf<P>::pooled) return w;
    int i = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) i += (Windows::index(w, d) * Window::at(d) + Window::index(j % TAKES, d)) * Box::pitch(d);
    return w < Windows::product ? i : Box::product;
  }
  // A window among all of them, from the box's first.
  static __device__ __forceinline__ Index pooled(const P& p, int round) {
    Index at = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) at = at * (p.extent(d) / Window::at(d)) + Windows::index(window(round), d);
    return at;
  }
  static __device__ __forceinline__ Index first_pooled(const P& p, const BoxPlace<P>& place) {
    Index at = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) at = at * (p.extent(d) / Window::at(d)) + place.first[d] / Window::at(d);
    return at;
  }
};

// The columns of a box that a lane finishes.
template <class P, int BN>
struct BoxColumns {
  using Lanes = LanePixels<P, BN / 32>;
  static constexpr int EACH = Lanes::EACH;
  Index at[EACH], to[Lanes::ROUNDS];
  unsigned exists = 0;
  int count;
  Index tile;
  BoxPlace<P> place;

  __device__ __forceinline__ BoxColumns(const P& p, const BoxPlace<P>& of, Index box)
      : count(of.count()), tile(box), place(of) {
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      const int i = Lanes::pixel(j);
      at[j] = place.pixel(p, i);
      exists |= unsigned(place.exists(i)) << j;
    }
#pragma unroll
    for (int q = 0; q < Lanes::ROUNDS; ++q)
      to[q] = PoolOf<P>::pooled ? Lanes::first_pooled(p, place) + Lanes::pooled(p, q) : Index(0);
  }
  __device__ __forceinline__ bool valid(int, int j) const { return exists >> j & 1u; }
  __device__ __forceinline__ Index column(int, int j) const { return at[j]; }
  // The pixel of a column that exists, else the box's first.
  __device__ __forceinline__ Index pixel(int r, int j, int d) const {
    return place.first[d] + (valid(r, j) ? P::Box::index(Lanes::pixel(j), d) : 0);
  }
  // Where a row's value lies among those of the box.
  __device__ __forceinline__ int from(int j) const {
    const int i = Lanes::pixel(j);
    return PoolOf<P>::pooled && i >= P::Box::product ? P::Box::product - 1 : i;
  }
  // Whether all pixels of a window exist, and its place among all windows.
  __device__ __forceinline__ bool whole(int round) const {
    constexpr unsigned all = 0xffffffffu >> (32 - Lanes::TAKES);
    return (exists >> round * Lanes::TAKES & all) == all;
  }
  __device__ __forceinline__ Index pooled(int round) const { return to[round]; }
};

}  // namespace crucible

// One operand of a contraction on its way from global memory to registers.
//
// A line is a row of A or a column of B. The block's threads share a tile of LINES lines, DEPTH deep, cut into runs of
// RUN neighbouring k: each thread owns LINE_COUNT lines and RUN_COUNT runs, always the same places, so that a line is
// decoded once a block and a k is decoded once for all the thread's lines (the functor is inlined; the compiler sees
// the same k). Neighbouring threads follow the direction that is contiguous in memory.

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

// The contraction engine for any chip and any type: fused multiply-adds in `accum`.
//
// Block tile BM x BN, BK deep, (BM / TM) * (BN / TN) threads. Shared: two buffers of a BK x BM and a BK x BN panel,
// k outermost, each k padded by 16 bytes. Registers: TM x TN sums, where there is room also those of the last SPAN k, and the
// next tile's elements. A k costs a thread (TM + TN) * sizeof(accum) bytes of shared memory in 16-byte loads and TM * TN
// operations.

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

// Partial results of a warp's lanes (plain structs of whole words with a function join), by shuffles.

namespace crucible {

// What `shuffle` makes of each word.
template <class Acc, class Shuffle>
__device__ __forceinline__ Acc shuffled(const Acc& a, Shuffle shuffle) {
  static_assert(sizeof(Acc) % 4 == 0, "partial results are whole words");
  uint32_t words[sizeof(Acc) / 4];
  memcpy(words, &a, sizeof(Acc));
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Acc) / 4); ++i) words[i] = shuffle(words[i]);
  Acc b;
  memcpy(&b, words, sizeof(Acc));
  return b;
}

// The first COUNT lanes' results, joined, in the first of them. What the others join on the way nobody wants.
template <int COUNT, class Acc>
__device__ __forceinline__ Acc fold_lanes(Acc a) {
#pragma unroll
  for (int by = COUNT / 2; by > 0; by /= 2)
    a.join(shuffled(a, [by](uint32_t word) { return __shfl_down_sync(0xffffffffu, word, by); }));
  return a;
}

// The same, to all lanes.
template <int COUNT, class Acc>
__device__ __forceinline__ Acc join_lanes(const Acc& a) {
  return shuffled(fold_lanes<COUNT>(a), [](uint32_t word) { return __shfl_sync(0xffffffffu, word, 0); });
}

// Of N results in each lane, N a power of two: lane l gets a[l / (32 / N)], joined over the warp.
template <int N, class Acc>
__device__ __forceinline__ Acc scattered_join(Acc (&a)[N]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int step = 16;
  const auto across = [&step](const Acc& b) {
    return shuffled(b, [step](uint32_t word) { return __shfl_xor_sync(0xffffffffu, word, step); });
  };
#pragma unroll
  for (int n = N; n > 1; n /= 2, step /= 2)
#pragma unroll
    for (int i = 0; i < n / 2; ++i) {
      const Acc other = lane & step ? a[i] : a[i + n / 2];
      if (lane & step) a[i] = a[i + n / 2];
      a[i].join(across(other));
    }
#pragma unroll
  for (; step > 0; step /= 2) a[0].join(across(a[0]));
  return a[0];
}

}  // namespace crucible

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

// Batched contraction D[z][m][n] = sum over k of A(z, m, k) * B(z, k, n) with operands and result in the hands of a
// functor: matrix products, convolutions (implicit GEMM) and their gradients, with any prologue and epilogue.
//
// The functor P is trivially copyable:
//   static constexpr bool a_along_k;   neighbouring k are neighbours in memory for A (else neighbouring m)
//   static constexpr bool b_along_k;   likewise for B (else neighbouring n)
//   static constexpr bool statistics;  whether sink() is wanted
//   static constexpr int group;        columns of one statistic: a power of two that divides cols() and the tile, or 0
//   __host__ __device__ Index batches(), rows(), cols(), depth() const;
//   __device__ Row a_row(Index z, Index m) const;          what a(row, k) must know of the row; a small plain struct
//   __device__ accum a(const Row&, Index k) const;         an element, 0 where there is padding
//   __device__ Col b_col(Index z, Index n) const;
//   __device__ accum b(const Col&, Index k) const;
//   __device__ accum finish(Index z, Index m, Index n, int split, accum value, bool there) const;
// and for fragments.cuh, whose lanes have neighbours to store,
//   template <class To> __device__ accum finish_to(Index z, Index m, Index n, int split, accum value, To& to) const;
//                                      finish, but calls to(address, element) instead of storing
//   __device__ uintptr_t stored(Index z, Index m, Index n) const;  where in memory its first element goes, in elements
//   static constexpr bool in_pairs;    there is one such element at most, and neighbours among columns are so in memory
//   static constexpr bool reads;       finish reads what depends on the column
//   __device__ void sink(Index z, Index m, Index tile_n, accum count, accum mean, accum m2) const;
// a, b, finish are called for elements in range only; finish once for each (z, m, n, split) that is `there`, by neighbouring
// threads for neighbouring n: it applies the epilogue, stores, and returns the value that statistics are taken of. Called for
// one that is not there (a lane without an element of its own) it must store nothing, and its result is not used. sink is
// called once for each (z, m, tile or group of columns) with the count, mean and sum of squared deviations of finish's values.
// A functor whose groups are phases, which all read the same input, names a type Inside and has `static constexpr int PHASES`,
// their number.
// A functor of phases (plan/phases.py) whose columns are pixels of boxes names a type Phased. It has, for finish and exists,
// finish_at and exists_at, with a place in four dimensions (that of an element that is not there is any in range) for n.
// Where it names Ragged or Sparse there is
//   __device__ bool exists(Index z, Index m, Index n) const;  whether there is such an element; finish asks for itself
//   __device__ bool has(Index group, Index tap) const;        whether a group's phase has a tap of the window; else a is 0
// A functor whose columns are pixels of boxes may also pool, by windows that lie side by side:
//   using Pool = Dims<..>;             a window's extents, which divide the box's
//   using Pooling = ..;                a reduction (reduce.cuh) over a window's elements
//   __device__ accum pool_in(Index z, Index m, Index n, accum value) const;    an element of it
//   __device__ void pool_out(Index z, Index m, Index n, const Pooling&) const; n: the window's place among all whole ones
// A functor whose columns are no pixels may go on where finish ended, with what it returned and what its group has in common:
//   struct Group;                      of numbers, computed from the moments of a group once; without statistics empty
//   __device__ Group grouped(accum count, accum mean, accum m2) const;
//   struct Tail;                       reductions along a row, of the elements in a tile; it may have none
//   static constexpr bool reduces;     whether it has any
//   __device__ void tail(Index z, Index m, Index n, accum finished, const Group&, Tail&) const;   for elements in range only
//   __device__ void tail_out(Index z, Index m, Index tile_n, const Tail&) const;   once for each (z, m, tile of columns)
//
// Split s of `splits` sums a contiguous range of k (whole tiles); an empty range gives 0. Nothing depends on timing.
// The engine (Simt, Mma) is a template argument. Each block computes one tile and, through the shared memory that the
// operands no longer need, hands it out row by row: a warp for each row, a lane for each 32nd column.

#if CRUCIBLE_SCALAR != 1  // tensor cores sum in float
#endif

namespace crucible {

template <class Config>
constexpr int tile_cols() { return Config::BN; }

// Tiles in an order in which those that run together share operands: bands of 8 tiles of rows, columns outermost.
constexpr int TILE_BAND = 8;
struct TilePlace {
  Index z, m, n;  // m and n count tiles
};
__device__ __forceinline__ TilePlace tile_place(unsigned block, unsigned tiles_m, unsigned tiles_n) {
  constexpr unsigned BAND = TILE_BAND;
  const unsigned z = block / (tiles_m * tiles_n), within = block % (tiles_m * tiles_n);
  const unsigned first = within / (BAND * tiles_n) * BAND, rest = within % (BAND * tiles_n);
  const unsigned height = tiles_m - first < BAND ? tiles_m - first : BAND;
  return {static_cast<Index>(z), static_cast<Index>(first + rest % height), static_cast<Index>(rest / height)};
}

// Whether a functor goes on after finish, and with what.
template <class P, class = void>
struct TailOf {
  struct Row {};
  struct Group {};
  static __device__ __forceinline__ Group group(const P&, accum, accum, accum) { return {}; }
  static constexpr bool there = false, reduces = false;
};
template <class P>
struct TailOf<P, typename Named<typename P::Tail>::type> {
  using Row = typename P::Tail;
  using Group = typename P::Group;
  static __device__ __forceinline__ Group group(const P& p, accum count, accum mean, accum m2) { return p.grouped(count, mean, m2); }
  static constexpr bool there = true, reduces = P::reduces;
  static_assert(!P::statistics || P::group > 0, "what follows needs moments of whole groups");
};

// Sums over LANES neighbouring lanes.
template <int LANES, int N>
__device__ __forceinline__ void lanes_sums(accum (&x)[N]) {
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2)
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] += __shfl_xor_sync(0xffffffffu, x[i], step);
}

// Sums of N numbers over a warp, N a power of two: lane l gets that of x[l / (32 / N)].
template <int N>
__device__ __forceinline__ accum scattered_sum(accum (&x)[N]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int step = 16;
#pragma unroll
  for (int n = N; n > 1; n /= 2, step /= 2)
#pragma unroll
    for (int i = 0; i < n / 2; ++i) {
      const accum mine = lane & step ? x[i + n / 2] : x[i], other = lane & step ? x[i] : x[i + n / 2];
      x[i] = mine + __shfl_xor_sync(0xffffffffu, other, step);
    }
#pragma unroll
  for (; step > 0; step /= 2) x[0] += __shfl_xor_sync(0xffffffffu, x[0], step);
  return x[0];
}

// The columns of a tile that a lane finishes: every 32nd of BN neighbours.
template <int BN>
struct PlainColumns {
  static constexpr int EACH = BN / 32;
  Index first, tile;
  int count;

  template <class P>
  __device__ __forceinline__ PlainColumns(const P& p, Index tile_n) : first(tile_n * BN), tile(tile_n) {
    const Index left = p.cols() - first;
    count = left < BN ? static_cast<int>(left) : BN;
  }
  __device__ __forceinline__ bool valid(int, int j) const { return static_cast<int>(threadIdx.x) % 32 + j * 32 < count; }
  __device__ __forceinline__ Index column(int, int j) const { return first + static_cast<int>(threadIdx.x) % 32 + j * 32; }
  __device__ __forceinline__ int from(int j) const { return static_cast<int>(threadIdx.x) % 32 + j * 32; }
};

// Columns may be of several batches, neighbours from z on, and may know which elements exist: the same of all rows.
template <class C, class = void>
struct BatchOf {
  static constexpr bool knows = false;
  static __device__ __forceinline__ Index at(const C&, Index z, int) { return z; }
};
template <class C>
struct BatchOf<C, typename Named<typename C::Several>::type> {
  static constexpr bool knows = C::KNOWS;
  static __device__ __forceinline__ Index at(const C& columns, Index z, int j) { return z + columns.further(j); }
};

// Whether a lane's column of a row is an element.
template <class P, class C>
__device__ __forceinline__ bool is_there(const P& p, Index z, Index m, const C& columns, int r, int j) {
  if constexpr (BatchOf<C>::knows)
    return columns.valid(r, j);
  else if constexpr (RaggedOf<P>::ragged && PhasedOf<P>::phased)
    return columns.valid(r, j) && p.exists_at(BatchOf<C>::at(columns, z, j), m, columns.pixel(r, j, 0), columns.pixel(r, j, 1), columns.pixel(r, j, 2), columns.pixel(r, j, 3));
  else if constexpr (RaggedOf<P>::ragged)
    return columns.valid(r, j) && p.exists(z, m, columns.column(r, j));
  else
    return columns.valid(r, j);
}
template <class P, class C>
__device__ __forceinline__ accum finish_element(const P& p, Index z, Index m, const C& columns, int r, int j, int split,
                                                accum value, bool there) {
  if constexpr (PhasedOf<P>::phased)
    return p.finish_at(BatchOf<C>::at(columns, z, j), m, columns.pixel(r, j, 0), columns.pixel(r, j, 1), columns.pixel(r, j, 2), columns.pixel(r, j, 3), split, value,
                       there && columns.valid(r, j));
  else
    return p.finish(z, m, columns.valid(r, j) ? columns.column(r, j) : 0, split, value, there && columns.valid(r, j));
}
// Something near the mean of a row's elements, the same for LANES neighbours: the mean of those that they have, one each. Of
// deviations from it little cancels: n times its own squared deviation is not much of all of them, while that of a single
// element may be all. Zero where it is not finite, so that infinities stay what they are.
template <int LANES>
__device__ __forceinline__ accum near_mean(accum mine, int have) {
  accum sum = mine * accum(1.0 / LANES), count = static_cast<accum>(have);
  if (LANES == 32) count = static_cast<accum>(__popc(__ballot_sync(0xffffffffu, have != 0)));  // one each
#pragma unroll
  for (int by = LANES / 2; by > 0; by /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, by);
    if (LANES < 32) count += __shfl_xor_sync(0xffffffffu, count, by);
  }
  const accum mean = count > 0 ? sum * (accum(LANES) / count) : accum(0);
  return mean - mean == 0 ? mean : accum(0);
}
// The same of a row by all lanes, and how many elements there are.
template <int EACH, class P, class C>
__device__ __forceinline__ accum near_all(const P& p, Index z, Index m, const C& columns, int r, const accum (&kept)[EACH],
                                           int* found) {
  accum mine = 0;
  bool any = false;
#pragma unroll
  for (int j = EACH - 1; j >= 0; --j) {
    const bool there = is_there(p, z, m, columns, r, j);
    if (there) mine = kept[j];
    any |= there;
    if (!BatchOf<C>::knows) *found += __popc(__ballot_sync(0xffffffffu, there));
  }
  return near_mean<32>(mine, any);
}

// ROWS neighbouring rows of a tile (those there are, below `limit`) at a time, so that they need not wait for each other's
// shuffles: a warp's lanes take every 32nd column. The mean is computed first and the deviations from it, and then corrected
// by the deviations' own mean, so nothing cancels however far the values are from zero.
template <int ROWS, int EACH, class P, class C>
__device__ __forceinline__ void finish_values(const P& p, Index z, Index m, Index limit, const C& columns, int split,
                                              const accum (&values)[ROWS][EACH]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  accum kept[ROWS][EACH];
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
#pragma unroll
    for (int j = 0; j < EACH; ++j)
      // Elements that are not there are computed too, without a branch, and nothing is stored.
      kept[r][j] = finish_element(p, z, m + r < limit ? m + r : m, columns, r, j, split, values[r][j], m + r < limit);
  if constexpr (PoolOf<P>::pooled) {
    constexpr int TAKES = PoolOf<P>::Window::product;
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int q = 0; q < EACH / TAKES; ++q)
        if (m + r < limit && columns.whole(q)) {
          typename P::Pooling pool;
#pragma unroll
          for (int j = q * TAKES; j < (q + 1) * TAKES; ++j)
            pool.step(p.pool_in(z, m + r, columns.column(r, j), values[r][j]));
          p.pool_out(z, m + r, columns.pooled(q), pool);
        }
  }
  using Tail = TailOf<P>;
  [[maybe_unused]] typename Tail::Row tails[ROWS];
  if constexpr (P::statistics) {
    // LANES lanes take TAKES columns each of one statistic.
    constexpr int LANES = P::group > 0 && P::group < 32 ? P::group : 32;
    constexpr int TAKES = P::group == 0 ? EACH : P::group < 32 ? 1 : P::group / 32;
    constexpr int WIDTH = P::group == 0 ? 1 : P::group;
    constexpr bool ALL_KNOW = LANES < 32 || Tail::there;  // all lanes of a group get its moments
    static_assert(EACH % TAKES == 0, "a group of columns lies within a tile");
#pragma unroll
    for (int first = 0; ALL_KNOW && first < EACH; first += TAKES) {
      const accum size = static_cast<accum>(P::group > 0 ? P::group : columns.count);
      accum near[ROWS], both[2 * ROWS];  // means; deviations from them and their squares
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        near[r] = 0;
#pragma unroll
        for (int j = first; j < first + TAKES; ++j) near[r] += columns.valid(r, j) ? kept[r][j] : accum(0);
      }
      lanes_sums<LANES>(near);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        near[r] /= size;
        accum off = 0, squares = 0;
#pragma unroll
        for (int j = first; j < first + TAKES; ++j) {
          const accum d = columns.valid(r, j) ? kept[r][j] - near[r] : accum(0);
          off += d;
          squares = fma(d, d, squares);
        }
        both[2 * r] = off, both[2 * r + 1] = squares;
      }
      lanes_sums<LANES>(both);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const accum off = both[2 * r] / size, squares = both[2 * r + 1] - size * off * off;
        if (m + r < limit && lane % LANES == 0 && (P::group == 0 || columns.valid(0, first)))
          p.sink(z, m + r, P::group > 0 ? columns.column(0, first) / WIDTH : columns.tile, size, near[r] + off, squares);
        if constexpr (Tail::there) {
          const auto group = Tail::group(p, size, near[r] + off, squares);
#pragma unroll
          for (int j = first; j < first + TAKES; ++j)
            if (m + r < limit && columns.valid(r, j)) p.tail(z, m + r, columns.column(r, j), kept[r][j], group, tails[r]);
        }
      }
    }
    // The whole warp takes each of them, all rows in one go, with deviations from what is near the mean.
#pragma unroll
    for (int first = 0; !ALL_KNOW && first < EACH; first += TAKES) {
      constexpr int EVERY = 32 / ROWS;
      accum both[2 * ROWS], middle = 0;  // of row lane / EVERY, as is the size
      accum size = static_cast<accum>(P::group > 0 ? P::group : columns.count);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        accum near;
        if constexpr (RaggedOf<P>::ragged) {
          int found = columns.count;
          if (!BatchOf<C>::knows) found = 0;
          near = near_all(p, z, m + r, columns, r, kept[r], &found);
          if (lane / EVERY == r) size = static_cast<accum>(found);
        } else {
          const bool have = columns.valid(r, first);
          near = near_mean<32>(have ? kept[r][first] : accum(0), have);
        }
        if (lane / EVERY == r) middle = near;
        accum off = 0, squares = 0;
#pragma unroll
        for (int j = first; j < first + TAKES; ++j) {
          const accum d = is_there(p, z, m + r, columns, r, j) ? kept[r][j] - near : accum(0);
          off += d;
          squares = fma(d, d, squares);
        }
        both[2 * r] = off, both[2 * r + 1] = squares;
      }
      const accum part = RaggedOf<P>::ragged && size == 0 ? accum(0) : accum(1) / size;
      const accum mine = scattered_sum(both), other = __shfl_xor_sync(0xffffffffu, mine, EVERY / 2);
      const accum off = mine * part, squares = other - mine * off;
      if (lane % EVERY == 0 && m + lane / EVERY < limit && (P::group == 0 || columns.valid(0, first)))
        p.sink(z, m + lane / EVERY, P::group > 0 ? columns.column(0, first) / WIDTH : columns.tile, size, middle + off, squares < 0 ? accum(0) : squares);
    }
  } else if constexpr (Tail::there) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int j = 0; j < EACH; ++j)
        if (m + r < limit && columns.valid(r, j)) p.tail(z, m + r, columns.column(r, j), kept[r][j], {}, tails[r]);
  }
  if constexpr (Tail::reduces) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const auto row = fold_lanes<32>(tails[r]);
      if (lane == 0 && m + r < limit) p.tail_out(z, m + r, columns.tile, row);
    }
  }
}

template <class Config, class P, class C>
__device__ __forceinline__ void finish_row(const P& p, Index z, Index m, const C& columns, int split,
                                           const accum* values) {
  accum mine[1][C::EACH];
#pragma unroll
  for (int j = 0; j < C::EACH; ++j) mine[0][j] = values[columns.from(j)];
  finish_values(p, z, m, m + 1, columns, split, mine);
}

// Tiles of columns: boxes where the functor's columns are pixels of boxes.
template <class Config, class P>
__host__ __device__ __forceinline__ Index column_tiles(const P& p) {
  if constexpr (P::boxed)
    return box_count(p);
  else
    return p.cols() == 0 ? 0 : (p.cols() - 1) / Config::BN + 1;
}

template <class Config, class P>
__device__ __forceinline__ auto columns_of(const P& p, Index tile_n) {
  if constexpr (P::boxed)
    return BoxColumns<P, Config::BN>(p, BoxPlace<P>(p, tile_n), tile_n);
  else
    return PlainColumns<Config::BN>(p, tile_n);
}

// One tile of the result, and one split of its sums.
template <class Config, class P>
__device__ __forceinline__ void contract_tile(const P& p, unsigned block, int split, int splits,
                                              unsigned char* shared) {
  const Index rows = p.rows(), depth = p.depth();
  const TilePlace tile = tile_place(block, static_cast<unsigned>((rows - 1) / Config::BM + 1),
                                    static_cast<unsigned>(column_tiles<Config>(p)));
  const Index m0 = tile.m * Config::BM;

  const Index tiles = depth / Config::BK + (depth % Config::BK != 0), share = tiles / splits + (tiles % splits != 0);
  const Index first = share * split < tiles ? share * split : tiles;
  const Index last = tiles - first > share ? first + share : tiles;

  typename Config::Sums sums;
  Config::multiply(p, tile.z, m0, tile.n * Config::BN, first == tiles ? depth : first * Config::BK,
                   last == tiles ? depth : last * Config::BK, shared, sums);

  const auto columns = columns_of<Config>(p, tile.n);
  accum* staged = reinterpret_cast<accum*>(shared);
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll 1
  for (int pass = 0; pass < Config::passes; ++pass) {
    __syncthreads();
    Config::expose(sums, pass, staged);
    __syncthreads();
#pragma unroll 1
    for (int r = warp; r < Config::pass_rows; r += Config::threads / 32) {
      const int row = Config::row_of(pass, r);
      if (row < rows - m0) finish_row<Config>(p, tile.z, m0 + row, columns, split, staged + r * Config::pass_stride);
    }
  }
}

template <class Config, class P>
__global__ void __launch_bounds__(Config::threads, Config::blocks_per_sm)
    contract_kernel(const __grid_constant__ P p, int splits) {
  follow();
  extern __shared__ __align__(16) unsigned char contract_shared[];
  contract_tile<Config>(p, blockIdx.x, static_cast<int>(blockIdx.y), splits, contract_shared);
}

#ifndef __CUDACC_RTC__
// Kernels that this thread has asked for already. Static, and not in a template: a process has such only once for all
// libraries, and kernels of the same name in each.
static thread_local struct { const void* kernel; int device; } allowed[64];
static thread_local int allowed_count = 0;

// A block gets more than 48 KB only where its kernel was allowed to ask.
template <class Kernel>
cudaError_t allow_shared(Kernel* kernel, int bytes) {
  if (bytes <= 48 * 1024) return cudaSuccess;
  const void* const address = reinterpret_cast<const void*>(kernel);
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  for (int i = 0; i < allowed_count; ++i)
    if (allowed[i].kernel == address && allowed[i].device == device) return error;
  if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess && allowed_count < 64) allowed[allowed_count++] = {address, device};
  return error;
}

// Launches nothing where D is empty. cudaErrorInvalidValue: too many tiles, or statistics or a tail of split (partial) sums.
template <class Config, class P>
cudaError_t launch_contract(const P& p, int splits, cudaStream_t stream) {
  const int64_t tiles_m = (static_cast<int64_t>(p.rows()) + Config::BM - 1) / Config::BM;
  const int64_t tiles_n = column_tiles<Config>(p);
  const int64_t batches = p.batches(), most = 0x7fffffff;
  if (batches == 0 || tiles_m == 0 || tiles_n == 0) return cudaSuccess;
  if (tiles_m > most / tiles_n || batches > most / (tiles_m * tiles_n)) return cudaErrorInvalidValue;
  if (splits < 1 || splits > 65535 || ((P::statistics || TailOf<P>::there) && splits > 1)) return cudaErrorInvalidValue;
  const cudaError_t refused = allow_shared(contract_kernel<Config, P>, Config::shared_bytes);
  if (refused != cudaSuccess) return refused;
  const dim3 grid(static_cast<unsigned>(batches * tiles_m * tiles_n), static_cast<unsigned>(splits));
  return cudaLaunchKernelEx(After(grid, Config::threads, Config::shared_bytes, stream), contract_kernel<Config, P>, p, splits);
}
#endif

}  // namespace crucible

// A contraction in which one operand has few lines (rows of A, or columns of B) and the other many: a matrix times a few
// vectors. The large operand's bytes rule, and a tile of a contraction engine would be mostly empty.
//
// The large operand is streamed once, 16 bytes a lane where its elements lie so; the few lines wait in shared memory as
// accum, FEW_ROWS of them at most, and a thread's sums stay in registers: fused multiply-adds, as exact as any engine.
// The depth is split over blocks; the splits' sums go to memory, and a second kernel adds them up in order, finishes the
// elements and takes statistics as the engines do, tile by tile of their columns. Nothing depends on timing.
//
// Where the large operand's neighbours are along k, a warp takes FEW_LANE_LINES lines and its lanes share k. Where they
// are lines, a lane takes as many lines as 16 bytes have, its block's warps take turns in k, and their sums meet in
// shared memory.
//
// Bytes: the large operand once (from L2 again for each further FEW_ROWS lines), the few lines once a block, and 2 * splits
// sums for each element of the result. Operations: 2 a product, no tensor cores.
//
// Beside what contract.cuh asks of it, the functor has for a and b
//   static constexpr bool a_direct;    elements are those of memory, and neighbours (along k, or else rows) lie side by side
//   __device__ const scalar* a_from(const Row&, Index k) const;   where an element lies, if direct

namespace crucible {

// Lines of the smaller operand up to which this way is taken, set from measurement; the depth and the elements of the
// larger operand from which on; and the most splits, which one thread adds up.
constexpr int FEW_LINES = 16, FEW_DEPTH = 256, FEW_ELEMENTS = 1 << 15, FEW_SPLITS = 128;
// Thread blocks that fill a chip a few times over, and the least depth that is worth a split of its own.
constexpr int FEW_BLOCKS = 528, FEW_SHARE = 512;
constexpr int FEW_THREADS = 256, FEW_WARPS = FEW_THREADS / 32;
constexpr int FEW_LANE_LINES = 4;                        // of the large operand, for a warp
constexpr int FEW_VECTOR = 16 / sizeof(scalar);          // elements of a load
constexpr int FEW_CHUNK = 16 / sizeof(accum);            // numbers of a load from shared memory
constexpr int FEW_STEP = 32 * FEW_VECTOR;                // elements that a warp loads at once
constexpr int FEW_ROWS = sizeof(scalar) == 4 ? 16 : 8;   // few lines at a time: more would not leave registers for loads

// Which operand has few lines, and which element of the result two lines make.
template <class P>
struct FewRows {
  using Few = OperandA<P>;
  using Many = OperandB<P>;
  static constexpr bool direct = P::b_direct;
  static __host__ __device__ Index few(const P& p) { return p.rows(); }
  static __host__ __device__ Index many(const P& p) { return p.cols(); }
  static __device__ __forceinline__ const scalar* from(const P& p, const typename Many::Line& line, Index k) { return p.b_from(line, k); }
  static __device__ __forceinline__ int64_t place(const P& p, Index few, Index many) { return static_cast<int64_t>(few) * p.cols() + many; }
};
template <class P>
struct FewCols {
  using Few = OperandB<P>;
  using Many = OperandA<P>;
  static constexpr bool direct = P::a_direct;
  static __host__ __device__ Index few(const P& p) { return p.cols(); }
  static __host__ __device__ Index many(const P& p) { return p.rows(); }
  static __device__ __forceinline__ const scalar* from(const P& p, const typename Many::Line& line, Index k) { return p.a_from(line, k); }
  static __device__ __forceinline__ int64_t place(const P& p, Index few, Index many) { return static_cast<int64_t>(many) * p.cols() + few; }
};

// How the work is dealt out: blockIdx.x counts batches, blocks and passes (the latter side by side), blockIdx.y splits.
struct FewShape {
  int lines;      // few ones at a time: 2, 8 or 16
  int passes;     // over the few lines
  int splits;     // of the depth
  int share;      // a split's depth: whole steps, and one after another as many as are staged at once
  int blocks;     // that share the many lines
};

// How much of the few lines' depth is in shared memory (64 KB at most) at once.
__host__ __device__ constexpr int few_deepest(int lines, bool along_k) { return along_k && lines == 2 ? 4096 : 1024; }

// Blocks on a processor: as many as leave each thread its sums and the loads under way.
__host__ __device__ constexpr int few_resident(int lines) {
  return sizeof(scalar) == 8 ? (lines == 2 ? 2 : 1) : lines == 2 ? (sizeof(scalar) == 4 ? 4 : 3) : 2;
}

template <int LINES, bool ALONG_K>
constexpr int few_shared_bytes() {
  constexpr int lines = LINES * few_deepest(LINES, ALONG_K), sums = ALONG_K ? 0 : 2 * FEW_WARPS * FEW_STEP;
  return larger(lines, sums) * static_cast<int>(sizeof(accum));
}

// 16 bytes as numbers.
__device__ __forceinline__ void few_unpack(const uint4& from, accum (&to)[FEW_VECTOR]) {
#pragma unroll
  for (int i = 0; i < FEW_VECTOR; ++i) to[i] = to_accum(reinterpret_cast<const scalar*>(&from)[i]);
}

// N numbers from shared memory and to it, as many at once as may be.
template <int N>
__device__ __forceinline__ void few_read(const accum* from, accum (&to)[N]) {
  if constexpr (N % FEW_CHUNK == 0) {
#pragma unroll
    for (int i = 0; i < N; i += FEW_CHUNK) {
      const uint4 v = *reinterpret_cast<const uint4*>(from + i);
#pragma unroll
      for (int j = 0; j < FEW_CHUNK; ++j) to[i + j] = reinterpret_cast<const accum*>(&v)[j];
    }
  } else {
    static_assert(N == 2 && sizeof(accum) == 4, "two floats");
    const float2 v = *reinterpret_cast<const float2*>(from);
    to[0] = v.x, to[1] = v.y;
  }
}

template <int N>
__device__ __forceinline__ void few_write(accum* to, const accum (&from)[N]) {
  if constexpr (N % FEW_CHUNK == 0) {
#pragma unroll
    for (int i = 0; i < N; i += FEW_CHUNK) {
      uint4 v;
#pragma unroll
      for (int j = 0; j < FEW_CHUNK; ++j) reinterpret_cast<accum*>(&v)[j] = from[i + j];
      *reinterpret_cast<uint4*>(to + i) = v;
    }
  } else {
    *reinterpret_cast<float2*>(to) = make_float2(from[0], from[1]);
  }
}

__device__ __forceinline__ bool few_aligned(const scalar* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; }

// The few lines' numbers from k = begin on, for put(k, numbers); zeros past the last line, and past `length` to a whole step.
// Whole batches of loads are under way at once: nothing else happens meanwhile.
template <class Side, int LINES, class Put, class P>
__device__ __forceinline__ void few_stage(const P& p, Index z, Index first, Index begin, int length, Put put) {
  constexpr int AHEAD = LINES == 2 ? 8 : 2;
  const int padded = (length + FEW_STEP - 1) / FEW_STEP * FEW_STEP;
  const Index left = Side::few(p) - first;
  typename Side::Few::Line lines[LINES];
#pragma unroll
  for (int r = 0; r < LINES; ++r) lines[r] = Side::Few::line(p, z, r < left ? first + r : first);
  __syncthreads();  // nobody needs what was there
#pragma unroll AHEAD
  for (int k = static_cast<int>(threadIdx.x); k < padded; k += FEW_THREADS) {
    accum numbers[LINES];
#pragma unroll
    for (int r = 0; r < LINES; ++r) numbers[r] = r < left && k < length ? Side::Few::at(p, lines[r], begin + k) : accum(0);
    put(k, numbers);
  }
  __syncthreads();
}

// ---- neighbours along k

// Sums of COUNT numbers each over a warp's lanes: lane l gets that of x[l / (32 / COUNT)]. As scattered_sum(), for more
// numbers than the compiler would unroll by itself.
template <int COUNT, int STEP, int N>
__device__ __forceinline__ void few_lanes_sums(accum (&x)[N]) {
  if constexpr (STEP > 0) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (COUNT > 1) {
#pragma unroll
      for (int i = 0; i < COUNT / 2; ++i) {
        const accum mine = lane & STEP ? x[i + COUNT / 2] : x[i], other = lane & STEP ? x[i] : x[i + COUNT / 2];
        x[i] = mine + __shfl_xor_sync(0xffffffffu, other, STEP);
      }
    } else {
      x[0] += __shfl_xor_sync(0xffffffffu, x[0], STEP);
    }
    few_lanes_sums<(COUNT > 1 ? COUNT / 2 : 1), STEP / 2>(x);
  }
}

// Where number k of a line lies: what a lane reads at once is side by side, and so are neighbouring lanes.
__device__ __forceinline__ int few_along_place(int k) {
  const int within = k % FEW_STEP;
  return k - within + (within % FEW_VECTOR / FEW_CHUNK * 32 + within / FEW_VECTOR) * FEW_CHUNK + within % FEW_CHUNK;
}

// DIRECT: all lines lie on 16 bytes, and two steps' loads are under way at once; else single elements, 32 neighbours a time.
template <bool DIRECT, class Side, int LINES, class P>
__device__ __forceinline__ void few_along_sums(const P& p, const typename Side::Many::Line (&lines)[FEW_LANE_LINES], Index begin,
                                               int length, const accum* few, accum (&sums)[LINES * FEW_LANE_LINES]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // Single elements take a register more each, for where they lie, and two lines leave 64 in all.
  constexpr int L = FEW_LANE_LINES, V = FEW_VECTOR, STEPS = DIRECT || V < (LINES == 2 ? 4 : 8) ? 2 : 1;
  constexpr int PIECES = DIRECT ? V / FEW_CHUNK : V;
  constexpr int EACH = DIRECT ? FEW_CHUNK : 1;  // numbers of a few line's that are read at once
#pragma unroll 1
  for (int k0 = 0; k0 < length; k0 += STEPS * FEW_STEP) {
    uint4 raw[STEPS][L];
    accum single[STEPS][L][V];
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
#pragma unroll
      for (int l = 0; l < L; ++l) {
        const int k = k0 + s * FEW_STEP;
        if constexpr (DIRECT) {
          raw[s][l] = make_uint4(0, 0, 0, 0);
          if (k + lane * V < length) raw[s][l] = __ldg(reinterpret_cast<const uint4*>(Side::from(p, lines[l], begin + k + lane * V)));
        } else {
#pragma unroll
          for (int i = 0; i < V; ++i) {
            const int at = k + i * 32 + lane;
            single[s][l][i] = at < length ? Side::Many::at(p, lines[l], begin + at) : accum(0);
          }
        }
      }
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      const int k = k0 + s * FEW_STEP;
      if (k >= length) break;  // nothing was staged there
      if constexpr (DIRECT) {
#pragma unroll
        for (int l = 0; l < L; ++l) few_unpack(raw[s][l], single[s][l]);
      }
#pragma unroll
      for (int i = 0; i < PIECES; ++i)
#pragma unroll
        for (int r = 0; r < LINES; ++r) {
          const accum* const at = few + r * few_deepest(LINES, true) + (DIRECT ? k + (i * 32 + lane) * EACH : few_along_place(k + i * 32 + lane));
          accum x[EACH];
          if constexpr (DIRECT)
            few_read(at, x);
          else
            x[0] = *at;
#pragma unroll
          for (int l = 0; l < L; ++l)
#pragma unroll
            for (int j = 0; j < EACH; ++j)
              sums[r * L + l] = fma(x[j], single[s][l][i * EACH + j], sums[r * L + l]);
        }
    }
  }
}

template <class Side, int LINES, class P>
__device__ __forceinline__ void few_along(const P& p, const FewShape& shape, Index z, Index first, int block, Index begin,
                                          int length, accum* few, accum* parts) {
  constexpr int L = FEW_LANE_LINES, AT_ONCE = LINES * L < 32 ? LINES * L : 32, DEEPEST = few_deepest(LINES, true);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const Index many = Side::many(p), start = static_cast<Index>(block) * (FEW_WARPS * L);
#pragma unroll 1
  for (Index base = start; base < many; base += shape.blocks * (FEW_WARPS * L)) {
    const Index line = base + warp * L;
    typename Side::Many::Line lines[L];
#pragma unroll
    for (int l = 0; l < L; ++l) lines[l] = Side::Many::line(p, z, line + l < many ? line + l : many - 1);
    accum sums[LINES * L];
#pragma unroll
    for (int i = 0; i < LINES * L; ++i) sums[i] = 0;
#pragma unroll 1
    for (int done = 0; done < length; done += DEEPEST) {
      const int now = length - done < DEEPEST ? length - done : DEEPEST;
      const Index from = begin + done;
      if (base == start || length > DEEPEST)
        few_stage<Side, LINES>(p, z, first, from, now, [few](int k, const accum (&numbers)[LINES]) {
#pragma unroll
          for (int r = 0; r < LINES; ++r) few[r * few_deepest(LINES, true) + few_along_place(k)] = numbers[r];
        });
      if (line >= many) continue;
      bool direct = Side::direct && now % FEW_VECTOR == 0;
      if constexpr (Side::direct) {
#pragma unroll
        for (int l = 0; l < L; ++l) direct = direct && few_aligned(Side::from(p, lines[l], from));
        if (direct) few_along_sums<true, Side, LINES>(p, lines, from, now, few, sums);
      }
      if (!direct) few_along_sums<false, Side, LINES>(p, lines, from, now, few, sums);
    }
    if (line >= many) continue;
    int own = lane;
    asm volatile("" : "+r"(own));  // not to be seen through: places of sums, kept from the start, would cost the loads registers
#pragma unroll
    for (int i = 0; i < LINES * L; i += AT_ONCE) {
      accum some[AT_ONCE];
#pragma unroll
      for (int j = 0; j < AT_ONCE; ++j) some[j] = sums[i + j];
      few_lanes_sums<AT_ONCE, 16>(some);
      const int mine = i + own / (32 / AT_ONCE);
      const Index r = first + mine / L;
      if (own % (32 / AT_ONCE) == 0 && r < Side::few(p) && line + mine % L < many)
        parts[Side::place(p, r, line + mine % L)] = some[0];
    }
  }
}

// ---- neighbours are lines

// A lane's lines: neighbours where it loads 16 bytes of them at once, else every 32nd.
template <bool DIRECT>
__device__ __forceinline__ int few_lane_line(int j) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return DIRECT ? lane * FEW_VECTOR + j : j * 32 + lane;
}

template <bool DIRECT, class Side, int LINES, class P>
__device__ __forceinline__ void few_across_sums(const P& p, Index z, Index tile, Index begin, int length, const accum* few,
                                                accum (&sums)[LINES][FEW_VECTOR]) {
  constexpr int V = FEW_VECTOR, STEPS = DIRECT || V < 4 ? 8 : 16 / V;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const Index last = Side::many(p) - 1;
  typename Side::Many::Line lines[DIRECT ? 1 : V];
#pragma unroll
  for (int j = 0; j < (DIRECT ? 1 : V); ++j) {
    const Index line = tile + few_lane_line<DIRECT>(j);
    lines[j] = Side::Many::line(p, z, last - tile < few_lane_line<DIRECT>(j) ? last : line);
  }
#pragma unroll 1
  for (int k0 = warp; k0 < length; k0 += STEPS * FEW_WARPS) {
    uint4 raw[STEPS];
    accum single[STEPS][V];
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      const int k = k0 + s * FEW_WARPS;
      if constexpr (DIRECT) {
        raw[s] = make_uint4(0, 0, 0, 0);
        if (k < length) raw[s] = __ldg(reinterpret_cast<const uint4*>(Side::from(p, lines[0], begin + k)));
      } else {
#pragma unroll
        for (int j = 0; j < V; ++j) single[s][j] = k < length ? Side::Many::at(p, lines[j], begin + k) : accum(0);
      }
    }
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      const int k = k0 + s * FEW_WARPS;
      if (k >= length) break;
      if constexpr (DIRECT) few_unpack(raw[s], single[s]);
      accum x[LINES];
      few_read(few + k * LINES, x);
#pragma unroll
      for (int r = 0; r < LINES; ++r)
#pragma unroll
        for (int j = 0; j < V; ++j) sums[r][j] = fma(x[r], single[s][j], sums[r][j]);
    }
  }
}

template <class Side, int LINES, class P>
__device__ __forceinline__ void few_across(const P& p, Index z, Index first, int block, Index begin, int length,
                                           accum* shared, accum* parts) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const Index tile = static_cast<Index>(block) * FEW_STEP, left = Side::many(p) - tile;
  constexpr int DEEPEST = few_deepest(LINES, false);
  accum sums[LINES][FEW_VECTOR];
#pragma unroll
  for (int r = 0; r < LINES; ++r)
#pragma unroll
    for (int j = 0; j < FEW_VECTOR; ++j) sums[r][j] = 0;
  bool direct = Side::direct && left >= FEW_STEP;
  if constexpr (Side::direct) {
    const auto line = Side::Many::line(p, z, tile);
    direct = direct && few_aligned(Side::from(p, line, begin)) && (length == 1 || few_aligned(Side::from(p, line, begin + 1)));
  }
#pragma unroll 1
  for (int done = 0; done < length; done += DEEPEST) {
    const int now = length - done < DEEPEST ? length - done : DEEPEST;
    const Index from = begin + done;
    few_stage<Side, LINES>(p, z, first, from, now,
                           [shared](int k, const accum (&numbers)[LINES]) { few_write(shared + k * LINES, numbers); });
    if constexpr (Side::direct) {
      if (direct) few_across_sums<true, Side, LINES>(p, z, tile, from, now, shared, sums);
    }
    if (!direct) few_across_sums<false, Side, LINES>(p, z, tile, from, now, shared, sums);
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < LINES; ++r) {
    // Two buffers: who writes the next sums has passed the barrier behind the last sums' reading.
    accum* const meet = shared + r % 2 * FEW_WARPS * FEW_STEP;
#pragma unroll
    for (int j = 0; j < FEW_VECTOR; ++j)
      meet[warp * FEW_STEP + (direct ? few_lane_line<true>(j) : few_lane_line<false>(j))] = sums[r][j];
    __syncthreads();
    if (first + r >= Side::few(p)) break;  // the same for the whole block
    for (int c = static_cast<int>(threadIdx.x); c < FEW_STEP && c < left; c += FEW_THREADS) {
      accum sum = 0;
#pragma unroll
      for (int w = 0; w < FEW_WARPS; ++w) sum += meet[w * FEW_STEP + c];
      parts[Side::place(p, first + r, tile + c)] = sum;
    }
  }
}

// ---- kernels

template <class Side, int LINES, class P>
__global__ void __launch_bounds__(FEW_THREADS, few_resident(LINES))
    contract_few_kernel(const __grid_constant__ P p, const __grid_constant__ FewShape shape, accum* parts) {
  follow();
  extern __shared__ __align__(16) unsigned char few_shared[];
  const int of_all = static_cast<int>(blockIdx.x) / shape.passes, block = of_all % shape.blocks;
  const Index z = of_all / shape.blocks, first = static_cast<Index>(blockIdx.x % shape.passes * LINES);
  const Index begin = static_cast<Index>(blockIdx.y) * shape.share, left = p.depth() - begin;
  const int length = left < shape.share ? static_cast<int>(left) : shape.share;
  accum* const to = parts + (static_cast<int64_t>(blockIdx.y) * p.batches() + z) * p.rows() * p.cols();
  accum* const few = reinterpret_cast<accum*>(few_shared);
  if constexpr (Side::Many::along_k)
    few_along<Side, LINES>(p, shape, z, first, block, begin, length, few, to);
  else
    few_across<Side, LINES>(p, z, first, block, begin, length, few, to);
}

// A thread for each element; where there are statistics or a tail, a warp for each row and tile of BN columns. `planned`: splits that
// the rest of the plan expects; all but one are zero.
enum : int { FEW_FINISH_THREADS = 64 };
template <int BN, class P>
__global__ void __launch_bounds__(FEW_FINISH_THREADS)
    contract_few_finish_kernel(const __grid_constant__ P p, const accum* parts, int splits, int planned) {
  follow();
  const int64_t rows = static_cast<int64_t>(p.batches()) * p.rows(), each = rows * p.cols();
  if constexpr (P::statistics || TailOf<P>::there) {  // and so nothing is planned
    const int64_t tiles = (static_cast<int64_t>(p.cols()) + BN - 1) / BN;
    const int64_t at = static_cast<int64_t>(blockIdx.x) * (FEW_FINISH_THREADS / 32) + threadIdx.x / 32, row = at / tiles;
    if (row >= rows) return;
    const PlainColumns<BN> columns(p, static_cast<Index>(at % tiles));
    accum values[1][PlainColumns<BN>::EACH];
#pragma unroll
    for (int j = 0; j < PlainColumns<BN>::EACH; ++j) values[0][j] = 0;
#pragma unroll 4
    for (int s = 0; s < splits; ++s)
#pragma unroll
      for (int j = 0; j < PlainColumns<BN>::EACH; ++j)
        if (columns.valid(0, j)) values[0][j] += parts[s * each + row * p.cols() + columns.column(0, j)];
    const Index m = static_cast<Index>(row % p.rows());
    finish_values(p, static_cast<Index>(row / p.rows()), m, m + 1, columns, 0, values);
  } else {
    const int64_t at = static_cast<int64_t>(blockIdx.x) * FEW_FINISH_THREADS + threadIdx.x, row = at / p.cols();
    if (at >= each) return;
    accum value = 0;
#pragma unroll 8
    for (int s = 0; s < splits; ++s) value += parts[s * each + at];
    const Index z = static_cast<Index>(row / p.rows()), m = static_cast<Index>(row % p.rows()), n = static_cast<Index>(at % p.cols());
    p.finish(z, m, n, 0, value, true);
    for (int s = 1; s < planned; ++s) p.finish(z, m, n, s, accum(0), true);
  }
}

#ifndef __CUDACC_RTC__
template <template <class> class Side_, class P>
FewShape few_shape(const P& p) {
  using Side = Side_<P>;
  constexpr bool along = Side::Many::along_k;
  const int64_t few = Side::few(p), many = Side::many(p), depth = p.depth(), batches = p.batches();
  const auto parts_of = [](int64_t n, int64_t of) { return (n + of - 1) / of; };
  FewShape s{};
  s.lines = few <= 2 ? 2 : few <= 8 ? 8 : FEW_ROWS;
  s.passes = static_cast<int>(parts_of(few, s.lines));
  int64_t blocks = parts_of(many, along ? FEW_WARPS * FEW_LANE_LINES : FEW_STEP);
  const int deepest = few_deepest(s.lines, along);
  int64_t splits = parts_of(depth, deepest);
  const int64_t fill = parts_of(FEW_BLOCKS, blocks * batches * s.passes), fair = depth / FEW_SHARE;
  int64_t more = fill < fair ? fill : fair;
  if (more > FEW_SPLITS) more = FEW_SPLITS;
  if (splits < more) splits = more;
  const bool deep = splits > FEW_SPLITS;  // then several stages follow each other
  if (deep) splits = FEW_SPLITS;
  s.share = static_cast<int>(parts_of(parts_of(depth, splits), FEW_STEP) * FEW_STEP);
  s.splits = static_cast<int>(parts_of(depth, s.share));
  if (along && !deep) {  // a block walks over many lines rather than that others stage the few again
    const int64_t enough = parts_of(FEW_BLOCKS, s.splits * batches * s.passes);
    if (blocks > enough) blocks = enough;
  }
  s.blocks = static_cast<int>(blocks);
  return s;
}

// Whether this way pays.
template <template <class> class Side_, class P>
bool few_pays(const P& p) {
  using Side = Side_<P>;
  const int64_t few = Side::few(p), many = Side::many(p), depth = p.depth(), batches = p.batches();
  if (few < 1 || few > FEW_LINES || few > many || batches < 1 || depth < FEW_DEPTH) return false;
  return many * depth >= (FEW_ELEMENTS + batches - 1) / batches;
}

// Of the splits' sums.
template <template <class> class Side_, class P>
int64_t few_bytes(const P& p) {
  return few_shape<Side_>(p).splits * static_cast<int64_t>(p.batches()) * p.rows() * p.cols() * static_cast<int64_t>(sizeof(accum));
}

template <class Side, int LINES, class P>
cudaError_t launch_few_sums(const P& p, const FewShape& s, accum* parts, cudaStream_t stream) {
  constexpr int bytes = few_shared_bytes<LINES, Side::Many::along_k>();
  const cudaError_t refused = allow_shared(contract_few_kernel<Side, LINES, P>, bytes);
  if (refused != cudaSuccess) return refused;
  const int64_t blocks = static_cast<int64_t>(s.blocks) * p.batches() * s.passes;
  if (blocks > 0x7fffffff) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(s.splits));
  return cudaLaunchKernelEx(After(grid, FEW_THREADS, bytes, stream), contract_few_kernel<Side, LINES, P>, p, s, parts);
}

// `workspace` has few_bytes(). D is not empty and has a depth: ask few_pays() first. cudaErrorInvalidValue: too many blocks.
template <template <class> class Side_, int BN, class P>
cudaError_t launch_contract_few(const P& p, int planned, void* workspace, cudaStream_t stream) {
  static_assert(!P::boxed, "columns are columns");
  using Side = Side_<P>;
  const FewShape s = few_shape<Side_>(p);
  accum* const parts = static_cast<accum*>(workspace);
  constexpr bool tiled = P::statistics || TailOf<P>::there;
  if (tiled && planned > 1) return cudaErrorInvalidValue;
  const int64_t tiles = (static_cast<int64_t>(p.cols()) + BN - 1) / BN, rows = static_cast<int64_t>(p.batches()) * p.rows();
  const int64_t threads = tiled ? rows * tiles * 32 : rows * p.cols();
  const int64_t blocks = (threads + FEW_FINISH_THREADS - 1) / FEW_FINISH_THREADS;
  if (blocks > 0x7fffffff) return cudaErrorInvalidValue;
  cudaError_t error = cudaSuccess;
  if (s.lines == 2)
    error = launch_few_sums<Side, 2, P>(p, s, parts, stream);
  else if (s.lines == 8)
    error = launch_few_sums<Side, 8, P>(p, s, parts, stream);
  else if constexpr (FEW_ROWS > 8)
    error = launch_few_sums<Side, FEW_ROWS, P>(p, s, parts, stream);
  if (error != cudaSuccess) return error;
  return cudaLaunchKernelEx(After(static_cast<unsigned>(blocks), FEW_FINISH_THREADS, 0, stream),
                            contract_few_finish_kernel<BN, P>, p, parts, s.splits, planned);
}
#endif

}  // namespace crucible

// Hopper's matrix instructions and what goes with them (compute capability 9.0a): barriers in shared memory on which
// producers and consumers wait for each other, bulk copies, and descriptors of operands.
//
// Wgmma<N, kind>::multiply(d, a, b, more) adds the product of 64 x K values at descriptor a and N x K values at b (K is 32
// bytes: 16 half or bfloat16, 8 tf32) to d, or starts d anew; the including file brings the instructions for its N.
// Of d[4j + 2h + i], row 16 * (warp % 4) + 8h + lane / 4 and column 8j + 2 * (lane % 4) + i are this thread's.

#if CRUCIBLE_HOPPER
namespace crucible {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define CRUCIBLE_HAS_WGMMA 1
#else
#define CRUCIBLE_HAS_WGMMA 0
#endif

// What the tensor cores multiply: floats scaled and rounded to half, floats rounded to tf32, elements as they are, or floats
// split into two tf32 numbers.
enum class Operands { Half, Tf32, Native, Split };

template <int N, Operands kind>
struct Wgmma;

#if CRUCIBLE_HAS_WGMMA
__device__ __forceinline__ unsigned shared_address(const void* at) {
  return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

// Barriers. `parity` is that of the phase waited for: a fresh barrier is in phase 0, and waiting for parity 1 passes.
__device__ __forceinline__ void barrier_init(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_inits_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ bool barrier_try(unsigned barrier, unsigned parity) {
  unsigned passed;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(passed)
      : "r"(barrier), "r"(parity)
      : "memory");
  return passed != 0;
}
__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned parity) {
  while (!barrier_try(barrier, parity)) {
  }
}

// Arrives when this thread's copies have come.
__device__ __forceinline__ void copies_arrive(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// Bytes (a multiple of 16) from global to shared memory; they count on the barrier.
__device__ __forceinline__ void bulk_copy(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
               : "memory");
}

// Makes what this thread stored to shared memory visible to the tensor cores.
__device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A warp's stores to global memory, counted at `count`, for bulk copies of whoever has waited for the count.
__device__ __forceinline__ void hand_over(unsigned* count) {
  asm volatile("fence.proxy.async.global;" ::: "memory");
  __syncwarp();
  if (threadIdx.x % 32 == 0)
    asm volatile("fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(__cvta_generic_to_global(count))
                 : "memory");
}
// Raises a count, behind a fence.
__device__ __forceinline__ void count_up_to(unsigned* count, unsigned now) {
  asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(count)), "r"(now) : "memory");
}
__device__ __forceinline__ unsigned count_now(const unsigned* count) {
  unsigned there;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(there) : "l"(__cvta_generic_to_global(count)) : "memory");
  return there;
}
__device__ __forceinline__ void count_wait(const unsigned* count, unsigned wanted) {
  while (count_now(count) < wanted) {
  }
}

// Threads of two warpgroups taking turns: one waits for its turn, the other gives it.
__device__ __forceinline__ void turn_wait(int id) { asm volatile("bar.sync %0, 256;" ::"r"(id) : "memory"); }
__device__ __forceinline__ void turn_give(int id) { asm volatile("bar.arrive %0, 256;" ::"r"(id) : "memory"); }

__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most LEFT batches of products are under way.
template <int LEFT>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// Keeps the compiler from reading sums before the wait.
template <int COUNT>
__device__ __forceinline__ void settle(float (&d)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// An operand whose lines (rows of A, columns of B) are 16 bytes long and follow each other, eight to a matrix; `deeper`
// bytes lead to the second 16 bytes of each line. A shift by one line is one more in the lowest field.
__device__ __forceinline__ uint64_t lines_at(unsigned address, unsigned deeper) {
  return static_cast<uint64_t>((address & 0x3ffffu) >> 4) | static_cast<uint64_t>(deeper >> 4) << 16 | uint64_t(8) << 32;
}

// Two numbers as half in one word, the first in the low half.
__device__ __forceinline__ unsigned pack_half(float first, float second) {
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

template <int KEEP>
__device__ __forceinline__ void registers_up() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(KEEP)); }
template <int KEEP>
__device__ __forceinline__ void registers_down() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(KEEP)); }
#endif

// A number below `extent` that looks random, to spread a sample over everything.
__device__ __forceinline__ Index spread(unsigned i, unsigned salt, Index extent) {
  unsigned h = (i * 8u + salt) * 2654435761u;
  h ^= h >> 15;
  h *= 2246822519u;
  h ^= h >> 13;
  return static_cast<Index>(h % static_cast<unsigned>(extent));
}
// The exponent that brings a number of these bits (without its sign) to [2^peak, 2^(peak + 1)); none for inf and nan.
__device__ __forceinline__ int exponent_to(int peak, unsigned bits) {
  const int e = static_cast<int>(bits >> 23);
  return e == 255 ? 0 : peak + 127 - (e == 0 ? 1 : e);
}
// 2^e, and x * 2^e for |e| up to 252 without a detour through infinity or zero.
__device__ __forceinline__ float power_of_two(int e) { return __int_as_float((e + 127) << 23); }
__device__ __forceinline__ float scaled(float x, int e) { return x * power_of_two(e / 2) * power_of_two(e - e / 2); }

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

// Operands of a contraction for Hopper's tensor cores, read through the functor and written in the order of shared memory.
//
// For each tile of lines (BM rows of A, BN columns of B) and each 64 k there is one contiguous piece of
// [plane][line][64 k]: lines of 128 bytes whose 16-byte chunks are permuted by the line's number (the hardware's 128-byte
// swizzle), zeros where a tile reaches past the end. So the product's kernel fetches with plain bulk copies. A word holds
// k and k + 32 of the 64, in both operands alike: sums do not mind, and neighbouring lanes read neighbours.
// In grade Fp32 the planes are hi and lo, two half numbers whose sum is the element times a power of two that brings the
// line's largest to [2^14, 2^15): 22 bits. In grade Tf32 hi alone: half has the 11 bits of tf32 at twice the rate. In
// grade Native the elements as they are.
//
// The range: elements below 2^-18 of their line's largest (2^-29 in grade Tf32) lose up to 2^-25 (scaled) each. They are
// counted for each line, and its elements added up without signs, so that the product can tell whether it matters.
// Bytes: each element read once or twice (once where k runs along memory and there are at most 8192), its planes written.
//
// Who packs: what the product's first tiles need, a launch before it. The rest the warps that the product leaves idle, while
// tensor cores work on those first tiles: a counter hands out work (a line, or a chunk of 32) in the order in which tiles
// need it, and each tile of lines counts what is ready. Where many tiles of rows share B, contract_roll.cuh packs it instead.

#if CRUCIBLE_HOPPER && CRUCIBLE_SCALAR != 1  // tensor cores sum in float
#include <cuda_fp16.h>

namespace crucible {

// BN columns: 32, 64 or 128.
template <int BN_, Grade grade_>
struct WgmmaTile {
  static constexpr Grade grade = grade_;
  static constexpr int BM = 128, BN = BN_, BK = 64;
  static constexpr int PLANES = grade == Grade::Fp32 ? 2 : 1;
  static constexpr int A_BYTES = PLANES * BM * 128, B_BYTES = PLANES * BN * 128, STAGE = A_BYTES + B_BYTES;
  static constexpr int CONSUMERS = 256, threads = 128 + CONSUMERS;
  // Of a thread. Three warpgroups begin with 168 each; the packers' and twice the consumers' must fit there.
  static constexpr int PACKER_REGISTERS = 104, CONSUMER_REGISTERS = 200;
  // Lines that a processor's idle warps pack while it computes a tile (of any depth, for both take as long as that).
  static constexpr int PACE = (grade == Grade::Fp32 ? 8 : 3) * BN / 128;
  static constexpr int row_stride = BN + 8;  // of rows on their way out
  static constexpr int OUT_BYTES = CONSUMERS / 32 * 8 * row_stride * 4;
  static constexpr int BARRIERS = 256;  // bytes
  static constexpr int STAGES = smaller((227 * 1024 - OUT_BYTES - BARRIERS) / STAGE, 8);
  static constexpr int shared_bytes = STAGES * STAGE + OUT_BYTES + BARRIERS;
  static constexpr bool scaled = grade != Grade::Native;
  static constexpr Operands kind = scaled ? Operands::Half : Operands::Native;
  // What is done again is done with this.
  using Other = Mma<128, BN, grade == Grade::Native || BN == 128 ? 32 : 16, BN == 32 ? 32 : 64, 32, grade>;
  static_assert(STAGES >= 2, "no room for two stages");
  static_assert(PACKER_REGISTERS + 2 * CONSUMER_REGISTERS <= 3 * 168, "whoever asks for more than there are waits for ever");
};

// Threads of a block; steps whose elements stay in registers; the same where few registers are left; pieces in a chunk of k.
enum : int { PACK_THREADS = 256, PACK_KEPT = 16, PACK_AHEAD = 12, PACK_CHUNK = 8 };
// Of a rolling operand: pieces in a team's ring; lines of a warp; pieces of a line that are looked at beforehand.
enum : int { ROLL_SLOTS = 32, ROLL_LINES = 16, ROLL_SAMPLES = 8 };
// Processors of a chip, and the most there are: what the workspace holds must not depend on the chip.
enum : int { HOPPER_PROCESSORS = 132, MOST_PROCESSORS = 144 };

// What undoes a line's scale, and how many of its elements lost bits: nan for a line with inf or nan, -inf for zeros.
struct LineScale {
  float factor, lossy;
};

struct PackedOperand {
  unsigned char* pieces;
  LineScale* scales;  // [batch][line], whole tiles
  unsigned* weights;  // [batch][line]: the sum of |scaled elements| / 2^15, in 256ths, rounded up
  unsigned* peaks;    // [chunk of k][batch][line], where neighbours are not along k
  unsigned* ready;    // [batch][tile]: work done beside the product; of a rolling operand [team][slot]: warps that filled it
  unsigned* free;     // of a rolling operand, [team][block]: pieces that the block needs no more
  float* multipliers; // of a rolling operand, [batch][line]: powers of two
  int64_t lines;      // of all batches, whole tiles
  int64_t early;      // tiles that are packed before the product
  int each, blocks;   // of a tile: work for warps beside the product, thread blocks before it
};

struct Packing {
  PackedOperand a, b;
  int* again;         // the flag
  unsigned* next;     // the next work beside the product
  int64_t depth;      // in pieces
  int64_t counters;   // the flag and what follows it, to be cleared
  int tiles_m, tiles_n, batches;
  int warps;          // that share a line in packing, where neighbours are along k
  int cluster;        // blocks that share pieces: 2, or 1 where there are no clusters
  int high, wide;     // tiles of a cluster in m (two share B) and in n (two share A)
  int pairs_m, pairs_n;  // clusters' tiles
  int height;         // blocks of a team, for which B is packed piece by piece (contract_roll.cuh); 0: it is not

  __host__ __device__ int64_t pairs() const { return static_cast<int64_t>(pairs_m) * pairs_n * batches; }
  // A tile's first column, counted through all batches.
  template <class W>
  __host__ __device__ int64_t column(const TilePlace& tile) const {
    return (tile.z * static_cast<int64_t>(tiles_n) + tile.n) * W::BN;
  }
  // Blocks that look at samples before the product.
  __host__ __device__ int64_t sample_blocks(bool along) const {
    return height == 0 ? 0 : along ? (b.lines - 1) / (PACK_THREADS / 32) + 1 : b.lines / 32;
  }
  // On so many processors.
  int64_t teams(int processors) const {
    const int64_t tiles = static_cast<int64_t>(tiles_n) * batches, most = smaller(processors, MOST_PROCESSORS) / height;
    return tiles < most ? tiles : most;
  }
  // Tiles of A in the first band of tile_place().
  __host__ __device__ int64_t band() const { return tiles_m < TILE_BAND * high ? tiles_m : TILE_BAND * high; }
};

// A team's tiles, one after another: this block's of each. It may lie past the last row.
struct TeamTiles {
  unsigned next;  // the team's number at first
  __device__ __forceinline__ bool take(const Packing& all, TilePlace& tile) {
    if (next >= static_cast<unsigned>(all.tiles_n) * all.batches) return false;
    tile = {static_cast<Index>(next / all.tiles_n), static_cast<Index>(blockIdx.x % all.height),
            static_cast<Index>(next % all.tiles_n)};
    next += gridDim.x / all.height;
    return true;
  }
};

// Work in the order in which the product's tiles need it: for each batch A's first band, all of B, the rest of A.
// A tile of A is a_each pieces of work, one of B b_each.
struct PackTurn {
  bool of_b;
  int64_t tile, part;
  __host__ __device__ __forceinline__ PackTurn(const Packing& all, int64_t turn, int a_each, int b_each) {
    const int64_t band = all.band() * a_each, b = static_cast<int64_t>(all.tiles_n) * b_each;
    const int64_t batch = static_cast<int64_t>(all.tiles_m) * a_each + b, z = turn / batch;
    turn -= z * batch;
    of_b = turn >= band && turn < band + b;
    if (of_b) turn -= band;
    if (turn >= band && !of_b) turn -= b;
    const int each = of_b ? b_each : a_each;
    tile = z * (of_b ? all.tiles_n : all.tiles_m) + turn / each;
    part = turn % each;
  }
};

#if CRUCIBLE_HAS_MMA
// The exponent that brings a line's largest element to [2^14, 2^15).
__device__ __forceinline__ int line_exponent(unsigned peak) { return exponent_to(14, peak); }
__device__ __forceinline__ LineScale line_scale(unsigned peak, float lossy) {
  const int e = line_exponent(peak);
  return {scaled(1.0f, -e), peak == 0 ? -INFINITY : peak >= 0x7f800000u ? NAN : lossy};
}
__device__ __forceinline__ unsigned absolute_bits(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// What a line's elements add up to: how many lost bits, and their sum without signs, scaled.
struct Losses {
  int lossy = 0;
  float sum = 0;
  __device__ __forceinline__ unsigned weight() const { return __float2uint_ru(sum * 0x1p-7f); }
};

// Two k, scaled, as words of the planes.
template <class W>
__device__ __forceinline__ void pack_scaled(float2 from, unsigned (&words)[W::PLANES], Losses& losses) {
  const __half2 hi = __floats2half2_rn(from.x, from.y);
  words[0] = reinterpret_cast<const unsigned&>(hi);
  const float2 near = __half22float2(hi);
  float2 rest = {from.x - near.x, from.y - near.y};
  if constexpr (W::PLANES == 2) {
    const __half2 lo = __floats2half2_rn(rest.x, rest.y);
    words[1] = reinterpret_cast<const unsigned&>(lo);
    const float2 low = __half22float2(lo);
    rest = {rest.x - low.x, rest.y - low.y};
  }
  constexpr float fair = W::PLANES == 2 ? 0x1p-22f : 0x1p-11f;  // what rounding may cost
  losses.lossy += (fabsf(rest.x) > fair * fabsf(from.x)) + (fabsf(rest.y) > fair * fabsf(from.y));
  losses.sum += fabsf(from.x) + fabsf(from.y);
}
template <class W>
__device__ __forceinline__ void pack_pair(float x, float y, int exponent, unsigned (&words)[W::PLANES], Losses& losses) {
  if constexpr (W::scaled)
    pack_scaled<W>({scaled(x, exponent), scaled(y, exponent)}, words, losses);
  else
    words[0] = pack(x, y);
}

// A line's elements: zeros past the operand's end.
template <class Operand, class P>
struct PackSource {
  const P& p;
  Index depth;
  typename Operand::Line place;
  __device__ __forceinline__ PackSource(const P& from, Index z, Index of_batch) : p(from), depth(0) {
    const bool there = of_batch < Operand::lines(p);
    if (there) depth = p.depth();
    place = Operand::line(p, there ? z : 0, there ? of_batch : 0);
  }
  // Lines counted through all batches.
  __device__ __forceinline__ PackSource(const P& from, const Packing& all, const PackedOperand& to, int64_t line)
      : PackSource(from, static_cast<Index>(line / (to.lines / all.batches)),
                   static_cast<Index>(line % (to.lines / all.batches))) {}
  __device__ __forceinline__ float operator()(Index k) const {
    return k < depth ? static_cast<float>(Operand::at(p, place, k)) : 0.0f;
  }
};

// A warp writes 64 k of a line, a word of each plane a lane.
template <class W, int LINES>
__device__ __forceinline__ void put_words(const PackedOperand& to, int64_t depth, int64_t line, int64_t piece,
                                          const unsigned (&words)[W::PLANES]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, r = static_cast<int>(line % LINES);
  unsigned char* at = to.pieces + (line / LINES * depth + piece) * (W::PLANES * LINES * 128) + r * 128 +
                      (((lane / 4) ^ (r & 7)) * 16 + lane % 4 * 4);
#pragma unroll
  for (int plane = 0; plane < W::PLANES; ++plane)
    *reinterpret_cast<unsigned*>(at + plane * LINES * 128) = words[plane];
}

// Where neighbours are along k: 1, 2, 4 or 8 warps to a line, 64 k a step, k and k + 32 to a lane. What a lane
// reads in its first PACK_KEPT steps it keeps until the line's largest element is known; more is read twice.
template <class W, class Operand, int LINES, class P>
__device__ __forceinline__ void pack_along(const P& p, const Packing& all, const PackedOperand& to, int64_t first_line) {
  __shared__ unsigned shared_peaks[PACK_THREADS / 32];
  __shared__ int shared_lossy[PACK_THREADS / 32];
  __shared__ unsigned shared_weights[PACK_THREADS / 32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = all.warps, first = warp / warps * warps, part = warp - first;
  const int64_t line = first_line + warp / warps;
  const PackSource<Operand, P> at(p, all, to, line);

  float kept[PACK_KEPT][2];
  unsigned peak = 0;
#pragma unroll
  for (int s = 0; s < PACK_KEPT; ++s) {
    const Index k = (part + s * warps) * 64 + lane;
    kept[s][0] = at(k);
    kept[s][1] = at(k + 32);
  }
  int exponent = 0;
  Losses losses;
  if constexpr (W::scaled) {
#pragma unroll
    for (int s = 0; s < PACK_KEPT; ++s) peak = max(peak, max(absolute_bits(kept[s][0]), absolute_bits(kept[s][1])));
#pragma unroll 4
    for (int64_t piece = part + PACK_KEPT * warps; piece < all.depth; piece += warps) {
      const Index k = static_cast<Index>(piece * 64) + lane;
      peak = max(peak, max(absolute_bits(at(k)), absolute_bits(at(k + 32))));
    }
    peak = __reduce_max_sync(0xffffffffu, peak);
    if (lane == 0) shared_peaks[warp] = peak;
    __syncthreads();
    for (int i = 0; i < warps; ++i) peak = max(peak, shared_peaks[first + i]);
    exponent = line_exponent(peak);
  }
  unsigned words[W::PLANES];
#pragma unroll
  for (int s = 0; s < PACK_KEPT; ++s) {
    const int64_t piece = part + s * warps;
    if (piece >= all.depth) break;
    pack_pair<W>(kept[s][0], kept[s][1], exponent, words, losses);
    put_words<W, LINES>(to, all.depth, line, piece, words);
  }
#pragma unroll 4
  for (int64_t piece = part + PACK_KEPT * warps; piece < all.depth; piece += warps) {
    const Index k = static_cast<Index>(piece * 64) + lane;
    pack_pair<W>(at(k), at(k + 32), exponent, words, losses);
    put_words<W, LINES>(to, all.depth, line, piece, words);
  }
  if constexpr (W::scaled) {
    int lossy = __reduce_add_sync(0xffffffffu, losses.lossy);
    unsigned weight = __reduce_add_sync(0xffffffffu, losses.weight());
    if (lane == 0) {
      shared_lossy[warp] = lossy;
      shared_weights[warp] = weight;
    }
    __syncthreads();
    if (part == 0 && lane == 0) {
      for (int i = 1; i < warps; ++i) {
        lossy += shared_lossy[first + i];
        weight += shared_weights[first + i];
      }
      to.scales[line] = line_scale(peak, static_cast<float>(lossy));
      to.weights[line] = weight;
    }
  }
}

// The same for one warp that has few registers: everything is read twice, the second time from L2.
template <class W, class Operand, int LINES, class P>
__device__ __forceinline__ void pack_line(const P& p, const Packing& all, const PackedOperand& to, int64_t line) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const PackSource<Operand, P> at(p, all, to, line);
  float ahead[PACK_AHEAD][2];
  const auto fetch = [&](int64_t piece) {
#pragma unroll
    for (int s = 0; s < PACK_AHEAD; ++s) {
      const Index k = static_cast<Index>((piece + s) * 64) + lane;
      ahead[s][0] = at(k);
      ahead[s][1] = at(k + 32);
    }
  };
  unsigned peak = 0;
  if constexpr (W::scaled) {
#pragma unroll 1
    for (int64_t piece = 0; piece < all.depth; piece += PACK_AHEAD) {
      fetch(piece);
#pragma unroll
      for (int s = 0; s < PACK_AHEAD; ++s) peak = max(peak, max(absolute_bits(ahead[s][0]), absolute_bits(ahead[s][1])));
    }
    peak = __reduce_max_sync(0xffffffffu, peak);
  }
  const int exponent = line_exponent(peak);
  Losses losses;
#pragma unroll 1
  for (int64_t piece = 0; piece < all.depth; piece += PACK_AHEAD) {
    fetch(piece);
#pragma unroll
    for (int s = 0; s < PACK_AHEAD; ++s) {
      unsigned words[W::PLANES];
      pack_pair<W>(ahead[s][0], ahead[s][1], exponent, words, losses);
      if (piece + s < all.depth) put_words<W, LINES>(to, all.depth, line, piece + s, words);
    }
  }
  if constexpr (W::scaled) {
    const int lossy = __reduce_add_sync(0xffffffffu, losses.lossy);
    const unsigned weight = __reduce_add_sync(0xffffffffu, losses.weight());
    if (lane == 0) {
      to.scales[line] = line_scale(peak, static_cast<float>(lossy));
      to.weights[line] = weight;
    }
  }
}

// Where neighbours are not along k, a block takes 32 lines and a chunk of k, a lane for each line. Peaks come first, in
// a launch of their own, for each chunk; then everything is read again and turned through shared memory.
struct Across {
  int64_t line;  // the first
  int64_t chunk;
};

template <class Operand, class P>
__device__ __forceinline__ void peaks_across(const P& p, const Packing& all, const PackedOperand& to, int64_t block) {
  __shared__ unsigned shared_peaks[PACK_THREADS / 32][32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const Across part{block % (to.lines / 32) * 32, block / (to.lines / 32)};
  const int64_t line = part.line + lane;
  const PackSource<Operand, P> at(p, all, to, line);
  const Index begin = static_cast<Index>(part.chunk * PACK_CHUNK * 64);
  unsigned peak = 0;
#pragma unroll 16
  for (int k = warp; k < PACK_CHUNK * 64; k += PACK_THREADS / 32) peak = max(peak, absolute_bits(at(begin + k)));
  shared_peaks[warp][lane] = peak;
  __syncthreads();
  if (warp > 0) return;
#pragma unroll
  for (int i = 1; i < PACK_THREADS / 32; ++i) peak = max(peak, shared_peaks[i][lane]);
  to.peaks[part.chunk * to.lines + line] = peak;
  if (part.chunk == 0) {
    to.scales[line].lossy = 0;
    to.weights[line] = 0;
  }
}

// The line's largest element. Whoever packs its first chunk also leaves its scale.
__device__ __forceinline__ unsigned peak_across(const Packing& all, const PackedOperand& to, int64_t line, int64_t chunk) {
  const int64_t chunks = (all.depth - 1) / PACK_CHUNK + 1;
  unsigned peak = 0;
  for (int64_t c = 0; c < chunks; ++c) peak = max(peak, to.peaks[c * to.lines + line]);
  if (chunk == 0) {
    const LineScale made = line_scale(peak, 0);
    to.scales[line].factor = made.factor;
    if (made.lossy != 0) atomicAdd(&to.scales[line].lossy, made.lossy);  // inf and nan swallow every count
  }
  return peak;
}

template <class W, class Operand, int LINES, class P>
__device__ __forceinline__ void pack_across(const P& p, const Packing& all, const PackedOperand& to, const Across& part) {
  constexpr int WARPS = PACK_THREADS / 32, OWN = 32 / WARPS;  // lines that a warp writes
  __shared__ float turned[64][33];
  __shared__ unsigned line_peaks[32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t line = part.line + lane;
  const PackSource<Operand, P> at(p, all, to, line);
  int exponents[OWN] = {};
  Losses losses[OWN];
  if constexpr (W::scaled) {
    if (warp == 0) line_peaks[lane] = peak_across(all, to, line, part.chunk);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < OWN; ++i) exponents[i] = line_exponent(line_peaks[warp * OWN + i]);
  }
  const int64_t begin = part.chunk * PACK_CHUNK, end = all.depth - begin < PACK_CHUNK ? all.depth : begin + PACK_CHUNK;
#pragma unroll 1
  for (int64_t piece = begin; piece < end; ++piece) {
    float values[64 / WARPS];
#pragma unroll
    for (int i = 0; i < 64 / WARPS; ++i) values[i] = at(static_cast<Index>(piece * 64) + warp + i * WARPS);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 64 / WARPS; ++i) turned[warp + i * WARPS][lane] = values[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      unsigned words[W::PLANES];
      const int own = warp * OWN + i;
      pack_pair<W>(turned[lane][own], turned[lane + 32][own], exponents[i], words, losses[i]);
      put_words<W, LINES>(to, all.depth, part.line + own, piece, words);
    }
  }
  if constexpr (W::scaled) {
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      const int lossy = __reduce_add_sync(0xffffffffu, losses[i].lossy);
      const unsigned weight = __reduce_add_sync(0xffffffffu, losses[i].weight());
      const int64_t own = part.line + warp * OWN + i;
      if (lane == 0 && lossy > 0) atomicAdd(&to.scales[own].lossy, static_cast<float>(lossy));  // whole numbers: exact
      if (lane == 0) atomicAdd(&to.weights[own], weight);
    }
  }
}

// The same for one warp without shared memory, a lane for each line: 16 bytes of a plane at a time.
template <class W, class Operand, int LINES, class P>
__device__ __forceinline__ void pack_lines(const P& p, const Packing& all, const PackedOperand& to, const Across& part) {
  constexpr int AHEAD = 2;  // chunks of 16 bytes
  const int64_t line = part.line + threadIdx.x % 32;
  const PackSource<Operand, P> at(p, all, to, line);
  int exponent = 0;
  if constexpr (W::scaled) exponent = line_exponent(peak_across(all, to, line, part.chunk));
  Losses losses;
  const int64_t begin = part.chunk * PACK_CHUNK, end = all.depth - begin < PACK_CHUNK ? all.depth : begin + PACK_CHUNK;
  const int r = static_cast<int>(line % LINES);
  unsigned char* to_piece = to.pieces + (line / LINES * all.depth + begin) * (W::PLANES * LINES * 128) + r * 128;
#pragma unroll 1
  for (int64_t piece = begin; piece < end; ++piece, to_piece += W::PLANES * LINES * 128)
#pragma unroll 1
    for (int c = 0; c < 8; c += AHEAD) {
      float ahead[AHEAD][4][2];
#pragma unroll
      for (int i = 0; i < AHEAD; ++i)
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const Index k = static_cast<Index>(piece * 64) + (c + i) * 4 + w;
          ahead[i][w][0] = at(k);
          ahead[i][w][1] = at(k + 32);
        }
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) {
        unsigned words[4][W::PLANES];
#pragma unroll
        for (int w = 0; w < 4; ++w) pack_pair<W>(ahead[i][w][0], ahead[i][w][1], exponent, words[w], losses);
#pragma unroll
        for (int plane = 0; plane < W::PLANES; ++plane)
          *reinterpret_cast<uint4*>(to_piece + plane * LINES * 128 + ((c + i) ^ (r & 7)) * 16) =
              make_uint4(words[0][plane], words[1][plane], words[2][plane], words[3][plane]);
      }
    }
  if constexpr (W::scaled) {
    if (losses.lossy > 0) atomicAdd(&to.scales[line].lossy, static_cast<float>(losses.lossy));
    atomicAdd(&to.weights[line], losses.weight());
  }
}

// A block's work before the product: lines, or a chunk of 32.
template <class W, class Operand, int LINES, class P>
__device__ __forceinline__ void pack_early(const P& p, const Packing& all, const PackedOperand& to, const PackTurn& turn) {
  if constexpr (Operand::along_k)
    pack_along<W, Operand, LINES>(p, all, to, turn.tile * LINES + turn.part * (PACK_THREADS / 32 / all.warps));
  else
    pack_across<W, Operand, LINES>(p, all, to, {turn.tile * LINES + turn.part % (LINES / 32) * 32, turn.part / (LINES / 32)});
}

template <class W, class P>
__device__ __forceinline__ void pack_block(const P& p, const Packing& all, int64_t block) {
  const PackTurn turn(all, block, all.a.blocks, all.b.blocks);
  if (turn.of_b)
    pack_early<W, OperandB<P>, W::BN>(p, all, all.b, turn);
  else
    pack_early<W, OperandA<P>, W::BM>(p, all, all.a, turn);
}

#if CRUCIBLE_HAS_WGMMA
// A warp's work beside the product.
template <class W, class Operand, int LINES, class P>
__device__ __forceinline__ void pack_late(const P& p, const Packing& all, const PackedOperand& to, const PackTurn& turn) {
  if constexpr (Operand::along_k)
    pack_line<W, Operand, LINES>(p, all, to, turn.tile * LINES + turn.part);
  else
    pack_lines<W, Operand, LINES>(p, all, to, {turn.tile * LINES + turn.part % (LINES / 32) * 32, turn.part / (LINES / 32)});
  hand_over(to.ready + turn.tile);
}

// Until there is no more.
template <class W, class P>
__device__ __forceinline__ void pack_beside(const P& p, const Packing& all) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t begin = all.a.early * all.a.each + all.b.early * all.b.each;
  const int64_t end = all.a.lines / W::BM * all.a.each + all.b.lines / W::BN * all.b.each;
  if (begin == end) return;
#pragma unroll 1
  for (;;) {
    const unsigned taken = lane == 0 ? atomicAdd(all.next, 1u) : 0;
    const int64_t work = begin + __shfl_sync(0xffffffffu, taken, 0);
    if (work >= end) return;
    const PackTurn turn(all, work, all.a.each, all.b.each);
    if (turn.of_b)
      pack_late<W, OperandB<P>, W::BN>(p, all, all.b, turn);
    else
      pack_late<W, OperandA<P>, W::BM>(p, all, all.a, turn);
  }
}
#endif

// Of A's lines in groups of 32, and each group's chunks, then of B's.
template <class P>
__device__ __forceinline__ void peaks_block(const P& p, const Packing& all, int64_t block) {
  const int64_t chunks = (all.depth - 1) / PACK_CHUNK + 1, first = P::a_along_k ? 0 : all.a.lines / 32 * chunks;
  if (block < first) {
    if constexpr (!P::a_along_k) peaks_across<OperandA<P>>(p, all, all.a, block);
  } else {
    if constexpr (!P::b_along_k) peaks_across<OperandB<P>>(p, all, all.b, block - first);
  }
}
#endif

template <class P>
__global__ void __launch_bounds__(PACK_THREADS) wgmma_peaks_kernel(const __grid_constant__ P p,
                                                                   const __grid_constant__ Packing all) {
  follow();
#if CRUCIBLE_HAS_MMA
  peaks_block(p, all, blockIdx.x);
#endif
}

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

// The operand that a product's tiles of rows share, packed piece by piece while the product goes on: it never lies in memory
// as a whole, and nobody waits for it beforehand.
//
// `height` blocks, one for each of as many tiles of rows, form a team: they take the same columns at the same time, and so
// the same pieces of B, 64 k deep each. Their idle warps read B and pack those pieces into the team's ring of ROLL_SLOTS in
// memory (which stays in L2). Each piece is packed once for the whole team: a warp always takes the same lines of a tile, and
// every so many pieces. For each slot the warps that have filled their part are counted, and each block counts the pieces
// that it is through with. All blocks of the launch must be there at a time, or a team would wait for ever: the launch is
// cooperative.
//
// The scale of a line is not known before all of it is read. ROLL_SAMPLES pieces of it tell its size: their largest element
// is brought to [2^9, 2^10), so that others may be 32 times as large. Whoever packs a larger one (or inf, or nan) raises the
// flag. Elements below 2^-12 of the samples' largest lose up to 2^-25 each and are counted, as contract_pack.cuh counts them.
//
// Bytes: B read once for each band of `height` tiles of rows, its planes written and read in L2 alone. Beside A's planes
// the workspace holds ROLL_SLOTS * BN * 256 bytes for each team.

#if CRUCIBLE_HOPPER && CRUCIBLE_SCALAR != 1  // tensor cores sum in float
namespace crucible {

#if CRUCIBLE_HAS_MMA
__device__ __forceinline__ void put_sampled(const Packing& all, int64_t line, unsigned peak) {
  const int exponent = min(exponent_to(9, peak), 126);  // one factor will do
  all.b.multipliers[line] = power_of_two(exponent);
  all.b.scales[line] = {power_of_two(-exponent), peak == 0 ? -INFINITY : 0.0f};
  all.b.weights[line] = 0;
}

// A warp for each line where neighbours are along k, a lane otherwise. Where all samples are zeros everything is read.
template <class P>
__device__ __forceinline__ void sample_block(const P& p, const Packing& all, int64_t block) {
  using Operand = OperandB<P>;
  constexpr int WARPS = PACK_THREADS / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  unsigned peak = 0;
  if constexpr (Operand::along_k) {
    const int64_t line = block * WARPS + warp;
    if (line >= all.b.lines) return;
    const PackSource<Operand, P> at(p, all, all.b, line);
    const auto look = [&](int64_t piece) {
      const Index k = static_cast<Index>(piece * 64) + lane;
      peak = max(peak, max(absolute_bits(at(k)), absolute_bits(at(k + 32))));
    };
#pragma unroll
    for (int s = 0; s < ROLL_SAMPLES; ++s) look(s * (all.depth - 1) / (ROLL_SAMPLES - 1));
    peak = __reduce_max_sync(0xffffffffu, peak);
    if (peak == 0) {
#pragma unroll 4
      for (int64_t piece = 0; piece < all.depth; ++piece) look(piece);
      peak = __reduce_max_sync(0xffffffffu, peak);
    }
    if (lane == 0) put_sampled(all, line, peak);
  } else {
    __shared__ unsigned shared_peaks[WARPS][32];
    const int64_t line = block * 32 + lane;
    const PackSource<Operand, P> at(p, all, all.b, line);
    const Index depth = p.depth(), last = depth - 1;
    const auto look = [&](Index first, Index step) {
#pragma unroll 8
      for (Index k = first; k < depth; k += step) peak = max(peak, absolute_bits(at(k)));
      shared_peaks[warp][lane] = peak;
      __syncthreads();
#pragma unroll
      for (int i = 0; i < WARPS; ++i) peak = max(peak, shared_peaks[i][lane]);
    };
    const Index step = last / (ROLL_SAMPLES * 32) + 1;
    look(warp * step, WARPS * step);
    if (__syncthreads_or(peak == 0)) look(warp, WARPS);
    if (warp == 0) put_sampled(all, line, peak);
  }
}
#endif

#if CRUCIBLE_HAS_WGMMA
// Of the pieces that a team's ring takes one after another.
struct RollSlot {
  unsigned at;   // among the slots of all teams
  unsigned use;  // how often it was used before
  __device__ __forceinline__ RollSlot(unsigned team, unsigned number)
      : at(team * ROLL_SLOTS + number % ROLL_SLOTS), use(number / ROLL_SLOTS) {}
};

// How many pieces a block's producer is through with, in shared memory.
__device__ __forceinline__ void fetched_is(unsigned* fetched, unsigned now) {
  __threadfence_block();
  atomicMax(fetched, now);
}
__device__ __forceinline__ unsigned fetched_now(unsigned* fetched) {
  return __shfl_sync(0xffffffffu, threadIdx.x % 32 == 0 ? atomicAdd(fetched, 0u) : 0u, 0);
}
// Tells other blocks. Returns the number.
__device__ __forceinline__ unsigned hand_back(unsigned* free, unsigned* fetched) {
  const unsigned now = fetched_now(fetched);
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
  if (threadIdx.x % 32 == 0) count_up_to(free, now);
  return now;
}

// A warp's part of a piece: of 16 lines where neighbours are along k, otherwise of 32 lines half a piece. A lane has four
// chunks of 16 bytes of each plane, four words of k and k + 32 each: one of every fourth line, or four of its own line.
template <class W, class P>
struct RollPart {
  using Operand = OperandB<P>;
  static constexpr bool ALONG = Operand::along_k, DIRECT = ALONG && P::b_direct && sizeof(scalar) == 4;
  static constexpr int PARTS = W::BN / ROLL_LINES;
  int lane, line, chunk;  // the lane's first line in the tile, and its first chunk
  float x[4][4][2];
  float weight = 0;    // the sum of a line's elements without signs, scaled: of own_line()
  unsigned lossy = 0;  // where a lane has a line: elements that lost bits
  bool large = false;

  __device__ __forceinline__ explicit RollPart(int part) : lane(static_cast<int>(threadIdx.x) % 32) {
    line = ALONG ? part * 16 + lane / 8 : part / 2 * 32 + lane;
    chunk = ALONG ? lane % 8 : part % 2 * 4;
  }
  // Of chunk i.
  __device__ __forceinline__ int line_of(int i) const { return ALONG ? line + i * 4 : line; }
  __device__ __forceinline__ int chunk_of(int i) const { return ALONG ? chunk : chunk + i; }
  __device__ __forceinline__ int own_line() const { return ALONG ? line + lane % 4 * 4 : line; }

  __device__ __forceinline__ void load(const P& p, const TilePlace& tile, Index k) {
    const Index first = tile.n * W::BN, last = Operand::lines(p) - 1;
    if constexpr (DIRECT) {  // 16 bytes at a time where that is possible
      const scalar* from[4];
      bool vectors = k + 64 <= p.depth() && first + line_of(3) <= last;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Index at = first + line_of(i) < last ? first + line_of(i) : last;
        from[i] = p.b_from(Operand::line(p, tile.z, at), k + chunk * 4);
        vectors = vectors && reinterpret_cast<uintptr_t>(from[i]) % 16 == 0;
      }
      if (__all_sync(0xffffffffu, vectors)) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float4 near = read(*reinterpret_cast<const float4*>(from[i]));
          const float4 far = read(*reinterpret_cast<const float4*>(from[i] + 32));
          const float both[4][2] = {{near.x, far.x}, {near.y, far.y}, {near.z, far.z}, {near.w, far.w}};
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            x[i][w][0] = both[w][0];
            x[i][w][1] = both[w][1];
          }
        }
        return;
      }
    }
    // Not to be seen through: the compiler would carry a place for each of a line's 32 elements from piece to piece, in
    // registers that a packer does not have.
    int own = chunk;
    if constexpr (!ALONG) asm volatile("" : "+r"(own));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const PackSource<Operand, P> at(p, tile.z, first + line_of(i));
      const Index from = k + (ALONG ? own : own + i) * 4;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        x[i][w][0] = at(from + w);
        x[i][w][1] = at(from + w + 32);
      }
    }
  }

  // Packs what was loaded. Elements that lose bits are few: they are counted where they are found.
  __device__ __forceinline__ void store(const Packing& all, const TilePlace& tile, float multiplier, unsigned char* piece) {
    float sums[4];
    unsigned counts = 0;  // of chunk i, four bits
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float scale = ALONG ? __shfl_sync(0xffffffffu, multiplier, i * 4 + lane / 8) : multiplier;
      unsigned words[4][W::PLANES];
      Losses found;
#pragma unroll
      for (int w = 0; w < 4; ++w) pack_scaled<W>({x[i][w][0] * scale, x[i][w][1] * scale}, words[w], found);
      sums[i] = found.sum;
      large |= !(found.sum < 0x1p15f);
      counts |= static_cast<unsigned>(found.lossy) << 4 * i;
      unsigned char* const at = piece + line_of(i) * 128 + (chunk_of(i) ^ (line_of(i) & 7)) * 16;
#pragma unroll
      for (int plane = 0; plane < W::PLANES; ++plane)
        *reinterpret_cast<uint4*>(at + plane * W::BN * 128) =
            make_uint4(words[0][plane], words[1][plane], words[2][plane], words[3][plane]);
    }
    if constexpr (ALONG) {
      // Neighbours give each other what they have of the other's lines, until each has one line's.
      const bool odd = lane % 2 != 0, upper = lane % 4 > 1;
      const auto give = [&](float low, float high, bool second, int step) {
        return (second ? high : low) + __shfl_xor_sync(0xffffffffu, second ? low : high, step);
      };
      const float both[2] = {give(sums[0], sums[2], upper, 2), give(sums[1], sums[3], upper, 2)};
      weight += give(both[0], both[1], odd, 1);
      while (counts != 0) {
        const int i = (__ffs(counts) - 1) / 4;
        atomicAdd(&all.b.scales[all.column<W>(tile) + line_of(i)].lossy, static_cast<float>(counts >> 4 * i & 15));  // exact
        counts &= ~(15u << 4 * i);
      }
    } else {
      weight += (sums[0] + sums[1]) + (sums[2] + sums[3]);
#pragma unroll
      for (int i = 0; i < 4; ++i) lossy += counts >> 4 * i & 15;
    }
  }

  // What was found out about the lines of a tile, in the end.
  __device__ __forceinline__ void tell(const Packing& all, const TilePlace& tile) {
    const int64_t at = all.column<W>(tile) + own_line();
    atomicAdd(&all.b.weights[at], __float2uint_ru(weight * 1.001f * 0x1p-7f));
    if (lossy > 0) atomicAdd(&all.b.scales[at].lossy, static_cast<float>(lossy));
    if (large) *all.again = 1;
    weight = 0;
    lossy = 0;
    large = false;
  }
};

// The idle warps of a block. A warp has one part of a piece in its registers, and asks for the next one before it waits
// until the present one is seen by everybody. Beside that they tell other blocks how far this one is (`fetched`, in shared
// memory): the producer itself would have to wait for its copies before it could.
template <class W, class P>
__device__ __forceinline__ void roll_beside(const P& p, const Packing& all, unsigned* fetched) {
  using Part = RollPart<W, P>;
  const unsigned team = blockIdx.x / all.height, member = blockIdx.x % all.height;
  const int lane = static_cast<int>(threadIdx.x) % 32, idle = static_cast<int>(threadIdx.x) / 32 - 1;
  const unsigned depth = static_cast<unsigned>(all.depth);
  const unsigned number = member * 3 + idle, step = all.height * 3 / Part::PARTS;
  Part part(number % Part::PARTS);
  TeamTiles tiles{team};
  TilePlace tile;
  unsigned next = number / Part::PARTS, begin = 0, through = 0;
  float multiplier = 0;
  const auto seek = [&] {  // the tile of the next piece
    while (next >= begin + depth) {
      begin += depth;
      if (!tiles.take(all, tile)) return false;
    }
    multiplier = all.b.multipliers[all.column<W>(tile) + (Part::ALONG ? number % Part::PARTS * 16 + lane % 16 : part.line)];
    part.load(p, tile, static_cast<Index>(next - begin) * 64);
    return true;
  };
  unsigned* const free = all.b.free + team * all.height;
  bool more = number < step * Part::PARTS && tiles.take(all, tile) && seek();  // some may be too many
#pragma unroll 1
  while (more) {
    // Until all blocks are through with what lies there.
    while (through + ROLL_SLOTS <= next) {
      hand_back(free + member, fetched);
      through = __reduce_min_sync(0xffffffffu, lane < all.height ? count_now(free + lane) : ~0u);
      __syncwarp();
    }
    const RollSlot slot(team, next);
    part.store(all, tile, multiplier, all.b.pieces + static_cast<int64_t>(slot.at) * W::B_BYTES);
    if (next + step >= begin + depth) part.tell(all, tile);  // seen by whoever sees the last piece
    next += step;
    more = seek();
    const unsigned now = fetched_now(fetched);
    hand_over(all.b.ready + slot.at);
    if (lane == 0) count_up_to(free + member, now);
  }
  if (idle > 0) return;
  // Others may go on for a while.
  const unsigned all_tiles = static_cast<unsigned>(all.tiles_n) * all.batches, teams = gridDim.x / all.height;
  const unsigned pieces = ((all_tiles - team - 1) / teams + 1) * depth;
  while (hand_back(free + member, fetched) + ROLL_SLOTS < pieces) {
  }
}
#endif

// All that comes before the product: samples of lines that roll, and what is packed early. Of that, what the product reads
// first comes last: then it is still in L2.
template <class W, class P>
__global__ void __launch_bounds__(PACK_THREADS, 3) wgmma_pack_kernel(const __grid_constant__ P p,
                                                                     const __grid_constant__ Packing all) {
  follow();
#if CRUCIBLE_HAS_MMA
  for (int64_t i = blockIdx.x * int64_t(PACK_THREADS) + threadIdx.x; i < all.counters; i += gridDim.x * int64_t(PACK_THREADS))
    all.again[i] = 0;
  const int64_t samples = all.sample_blocks(P::b_along_k);
  if (blockIdx.x < samples)
    sample_block(p, all, blockIdx.x);
  else
    pack_block<W>(p, all, static_cast<int64_t>(gridDim.x) - 1 - blockIdx.x);
#endif
}

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

// The host's part of packing operands for Hopper's matrix instructions (contract_pack.cuh, contract_roll.cuh): where they
// lie, whether B is packed piece by piece, and what is packed before the product, what beside it.

#if CRUCIBLE_HOPPER && CRUCIBLE_SCALAR != 1 && !defined(__CUDACC_RTC__)
namespace crucible {

constexpr int64_t whole(int64_t n, int64_t of) { return (n + of - 1) / of; }

// How many blocks form a team, for which B is packed piece by piece: 0 where that would be slower. A team of fewer than
// eight has too few warps for it. With more tiles of rows, of which one round alone waits for packing, what packing the
// whole beforehand costs is less than the tenth that the product loses (on an H200 with 1024 rows 0.68 instead of 0.71 ms,
// with 1536 rows 0.31 instead of 0.30), and so it is where whole teams need more rounds than pairs of blocks.
template <class W>
int rolling_height(int64_t tiles_m, int64_t tiles_n, int64_t batches, int64_t depth) {
  const int64_t height = whole(tiles_m, 2) * 2, rounds = whole(tiles_m * tiles_n * batches, HOPPER_PROCESSORS);
  const bool slow = W::grade != Grade::Fp32 || height < 8 || height > 10 || depth == 0 || tiles_n * batches > (1 << 30) / depth;
  return slow || whole(tiles_n * batches, HOPPER_PROCESSORS / height) > rounds ? 0 : static_cast<int>(height);
}

// The packed operands' places (1024-byte aligned): A's pieces lie apart, so that they find room where all would not.
// `bytes`: what the workspace must have, and what the pieces.
template <class W, class P>
Packing wgmma_packing(const P& p, void* workspace, void* pieces, int64_t* bytes, int height = -1) {
  Packing all{};
  all.batches = static_cast<int>(p.batches());
  all.tiles_m = static_cast<int>(whole(p.rows(), W::BM));
  all.tiles_n = static_cast<int>(whole(p.cols(), W::BN));
  all.depth = whole(p.depth(), W::BK);
  all.warps = 1;
  while (all.warps < PACK_THREADS / 32 && all.warps * PACK_KEPT < all.depth) all.warps *= 2;
  const int64_t chunks = all.depth == 0 ? 1 : whole(all.depth, PACK_CHUNK);
  int64_t used = 0;
  const auto take = [&](int64_t size) {
    unsigned char* at = static_cast<unsigned char*>(workspace) + used;
    used += whole(size, 1024) * 1024;
    return at;
  };
  const auto place = [&](PackedOperand& o, int64_t tiles, int lines, bool along) {
    o.lines = tiles * lines;
    o.early = tiles;
    o.each = along ? lines : static_cast<int>(lines / 32 * chunks);
    o.blocks = along ? lines / (PACK_THREADS / 32 / all.warps) : o.each;
    o.scales = reinterpret_cast<LineScale*>(take(o.lines * sizeof(LineScale)));
    o.weights = reinterpret_cast<unsigned*>(take(o.lines * 4));
    o.peaks = reinterpret_cast<unsigned*>(take(along ? 0 : chunks * o.lines * 4));
  };
  const auto piece_bytes = [&](const PackedOperand& o) { return o.lines * all.depth * W::PLANES * 128; };
  const auto roll = [&](PackedOperand& o, int64_t tiles, int lines) {
    o.lines = tiles * lines;
    o.each = lines / ROLL_LINES;
    o.pieces = take(all.teams(MOST_PROCESSORS) * ROLL_SLOTS * W::PLANES * 128 * lines);
    o.scales = reinterpret_cast<LineScale*>(take(o.lines * sizeof(LineScale)));
    o.weights = reinterpret_cast<unsigned*>(take(o.lines * 4));
    o.multipliers = reinterpret_cast<float*>(take(o.lines * 4));
  };
  const int64_t a_tiles = static_cast<int64_t>(all.batches) * all.tiles_m;
  const int64_t b_tiles = static_cast<int64_t>(all.batches) * all.tiles_n;
  all.height = height < 0 ? rolling_height<W>(all.tiles_m, all.tiles_n, all.batches, all.depth) : height;
  const int64_t slots = all.height > 0 ? all.teams(MOST_PROCESSORS) * ROLL_SLOTS : 0;
  all.counters = 2 + a_tiles + (all.height > 0 ? slots + all.teams(MOST_PROCESSORS) * all.height : b_tiles);
  all.again = reinterpret_cast<int*>(take(all.counters * 4));
  all.next = reinterpret_cast<unsigned*>(all.again) + 1;
  all.a.ready = all.next + 1;
  all.b.ready = all.a.ready + a_tiles;
  all.b.free = all.b.ready + slots;
  place(all.a, a_tiles, W::BM, P::a_along_k);
  all.a.pieces = static_cast<unsigned char*>(pieces);
  if (all.height > 0) {
    roll(all.b, b_tiles, W::BN);
  } else {
    place(all.b, b_tiles, W::BN, P::b_along_k);
    all.b.pieces = take(piece_bytes(all.b));
  }
  if (bytes != nullptr) bytes[0] = used, bytes[1] = piece_bytes(all.a);
  return all;
}

// Tiles of A and B that the first `pairs` clusters' tiles need.
inline void tiles_needed(const Packing& all, int64_t pairs, int64_t* a, int64_t* b) {
  const int64_t of_batch = static_cast<int64_t>(all.pairs_m) * all.pairs_n, z = (pairs - 1) / of_batch, within = (pairs - 1) % of_batch;
  const int64_t band = within / (TILE_BAND * static_cast<int64_t>(all.pairs_n)), column = within / smaller(TILE_BAND, all.pairs_m);
  const int64_t rows = (band + 1) * TILE_BAND * all.high, columns = band > 0 ? all.tiles_n : (column + 1) * all.wide;
  *a = z * all.tiles_m + (rows < all.tiles_m ? rows : all.tiles_m);
  *b = z * all.tiles_n + (columns < all.tiles_n ? columns : all.tiles_n);
}

// Who packs what: before the product what the first tiles of all processors need, and so much more that the idle warps,
// which pack `pace` lines on a processor while it computes a tile, have the rest in time.
template <class W>
void share_packing(Packing& all, int processors, int clusters, int pace) {
  const bool rows = all.height > 0 || all.tiles_m % 2 == 0 || (all.tiles_n % 2 != 0 && all.tiles_m >= all.tiles_n);
  all.cluster = clusters ? 2 : 1;
  all.high = rows ? all.cluster : 1;
  all.wide = rows ? 1 : all.cluster;
  all.pairs_m = static_cast<int>(whole(all.tiles_m, all.high));
  all.pairs_n = static_cast<int>(whole(all.tiles_n, all.wide));
  const int64_t pairs = all.pairs(), at_once = processors / all.cluster, a_all = all.a.early, b_all = all.b.early;
  if (pairs <= at_once || pace == 0 || all.depth == 0 || all.height > 0) return;  // without pieces consumers wait for nobody
  const int64_t in_time = whole(pairs - at_once, at_once) * processors * pace;
  int64_t low = at_once, high = pairs;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    tiles_needed(all, middle, &all.a.early, &all.b.early);
    const int64_t late = (a_all - all.a.early) * W::BM + (b_all - all.b.early) * W::BN;
    if (late <= in_time)
      high = middle;
    else
      low = middle + 1;
  }
  tiles_needed(all, low, &all.a.early, &all.b.early);
}

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

// The contraction engine on Hopper's tensor cores (wgmma, compute capability 9.0a), for the functors of contract.cuh.
//
// 1. A kernel packs of both operands what the first tiles need (contract_pack.cuh).
// 2. The product: blocks that stay on their processors, in clusters of two that share one operand's pieces. One thread
//    produces (bulk copies; of the shared operand each block brings half, for both), two warpgroups consume, 64 x BN each.
//    They take turns at the tensor cores, so that one adds while the other multiplies. Three more warps pack what later
//    tiles need; a producer waits until its tile's lines are ready. Those warps wait for nothing, so that nobody waits
//    for ever, however few blocks are there at a time. Or they pack B alone, a few pieces ahead (contract_roll.cuh).
// 3. The functor's epilogue, a warp for each row, through shared memory of its own: the next tile's copies go on meanwhile.
// 4. Where half numbers cannot hold the operands, a flag is raised, and the last launch, which otherwise returns at once,
//    does everything again with the mma engine of the same grade and as many columns in a tile.
//
// Grades:
//   Fp32    three products of half numbers; every 64 k start a fresh accumulator, the small products first (tensor cores
//           cut what they add), which goes to ordinary registers by rounded adds
//   Tf32    one product of half numbers
//   Native  one product of elements as they are (half or bfloat16). Never done again.
// The range: with n elements of a row and m of a column that lost bits, a sum is off by at most 2^-25 * 2^15 * (n + m), and
// that must be small against the sums themselves: for each row of a tile and for each column within a warp's 16 rows some
// sum must be 2^20 (2^14 in grade Tf32) times larger. A sum that cancels does no harm, a row or column of losses is seen.
// A line with inf or nan always raises the flag.
//
// Shared memory: STAGES of PLANES * (128 + BN) * 128 bytes, and 8 rows of each consumer warp on their way out.
// Registers: BN / 2 accumulators and BN / 2 sums.
// Bytes: A's planes come from L2 once for each tile of columns, B's once for each tile of rows, those of the shared
// operand half as often. Operations: 2 * M * N * K, three times that in grade Fp32.

#if CRUCIBLE_HOPPER && CRUCIBLE_SCALAR != 1  // tensor cores sum in float
namespace crucible {

// ---- instructions beside those of wgmma.cuh
#if CRUCIBLE_HAS_WGMMA
// Lines of 128 bytes in groups of eight, chunks swizzled; 16 k further is 2 more in the lowest field.
__device__ __forceinline__ uint64_t swizzled_at(unsigned address) {
  return static_cast<uint64_t>((address & 0x3ffffu) >> 4) | uint64_t(1) << 16 | uint64_t(64) << 32 | uint64_t(1) << 62;
}
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_meet() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// At the same barrier of a block of the cluster. Nothing is released: what was read, tensor cores read. (A release to the
// cluster would be a fence in the main loop: a tenth of the whole time.)
__device__ __forceinline__ void barrier_arrive_at(unsigned barrier, unsigned block) {
  asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
               "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(barrier), "r"(block) : "memory");
}
__device__ __forceinline__ void barrier_wait_cluster(unsigned barrier, unsigned parity) {
  unsigned passed;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(passed) : "r"(barrier), "r"(parity) : "memory");
  } while (!passed);
}
// To the same place of both blocks of the cluster; the bytes count on the same barrier of each.
__device__ __forceinline__ void bulk_copy_both(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
      ::"r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier), "h"(static_cast<unsigned short>(3))
      : "memory");
}
#endif

// ---- the product

#if CRUCIBLE_HAS_WGMMA
// From L2, for other processors may have written them a moment ago: of one line, of two neighbouring ones.
__device__ __forceinline__ LineScale one_scale(const LineScale* at) {
  const float2 two = __ldcg(reinterpret_cast<const float2*>(at));
  return {two.x, two.y};
}
__device__ __forceinline__ float4 two_scales(const LineScale* at) { return __ldcg(reinterpret_cast<const float4*>(at)); }

// Whether what half numbers lost is small against a warp's sums. Scales and weights are this thread's first.
template <class W>
__device__ __forceinline__ bool sums_hold(const float (&sums)[W::BN / 2], const LineScale (&rows)[2],
                                          const LineScale* columns, const unsigned* row_weights,
                                          const unsigned* column_weights) {
  constexpr float LIMIT = W::grade == Grade::Fp32 ? 0x1p10f : 0x1p4f;
  bool bad = false;
#pragma unroll
  for (int j = 0; j < W::BN / 8; ++j) {
    const float4 two = two_scales(columns + j * 8);
#pragma unroll
    for (int r = 0; r < 4; ++r)
      bad |= !(fabsf(sums[j * 4 + r]) >= LIMIT * (rows[r / 2].lossy + (r % 2 ? two.w : two.y)));
  }
  if (!__any_sync(0xffffffffu, bad)) return true;
  // Some sum is small. A closer bound: n lost elements meet at most n of the largest, and at most the partner's weight.
  // A row or a column of small ones? Zero rows and columns (-inf) say nothing; a nan spoils every comparison.
  bool row_bad[2] = {false, false}, row_good[2] = {false, false}, hold = true;
  const float row_weight[2] = {__ldcg(row_weights) * 0x1p-8f, __ldcg(row_weights + 8) * 0x1p-8f};
#pragma unroll
  for (int j = 0; j < W::BN / 8; ++j) {
    const float4 two = two_scales(columns + j * 8);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float lossy = i ? two.w : two.y, weight = __ldcg(column_weights + j * 8 + i) * 0x1p-8f;
      bool column_bad = false, column_good = false;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float bound = fminf(rows[h].lossy, weight) + fminf(lossy, row_weight[h]);
        const float least = LIMIT * (isnan(rows[h].lossy + lossy) ? NAN : bound);
        const bool good = fabsf(sums[j * 4 + h * 2 + i]) >= least;
        row_bad[h] |= !good;
        column_bad |= !good;
        row_good[h] |= good && least >= 0;
        column_good |= good && least >= 0;
      }
      unsigned some = __ballot_sync(0xffffffffu, column_good), none = __ballot_sync(0xffffffffu, column_bad);
#pragma unroll
      for (int shift = 16; shift >= 4; shift /= 2) {
        some |= some >> shift;
        none |= none >> shift;
      }
      hold = hold && (none & ~some & 0xfu) == 0;
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    unsigned some = __ballot_sync(0xffffffffu, row_good[h]), none = __ballot_sync(0xffffffffu, row_bad[h]);
#pragma unroll
    for (int shift = 2; shift >= 1; shift /= 2) {
      some |= some >> shift;
      none |= none >> shift;
    }
    hold = hold && (none & ~some & 0x11111111u) == 0;
  }
  return hold;
}

// A cluster's tiles, one after another, or those of a team of clusters.
struct ClusterTiles {
  unsigned next;
  __device__ __forceinline__ explicit ClusterTiles(const Packing& all)
      : next(blockIdx.x / (all.height > 0 ? all.height : all.cluster)) {}
  // This block's tile of the next pair; it may lie past the last.
  __device__ __forceinline__ bool take(const Packing& all, unsigned rank, TilePlace& tile) {
    if (all.height > 0) {
      TeamTiles tiles{next};
      const bool there = tiles.take(all, tile);
      next = tiles.next;
      return there;
    }
    if (next >= static_cast<unsigned>(all.pairs_m) * all.pairs_n * all.batches) return false;
    tile = tile_place(next, all.pairs_m, all.pairs_n);
    next += gridDim.x / all.cluster;
    tile.m = tile.m * all.high + (all.high > 1 ? static_cast<Index>(rank) : 0);
    tile.n = tile.n * all.wide + (all.wide > 1 ? static_cast<Index>(rank) : 0);
    return true;
  }
};

template <class W>
struct Ring {
  int slot = 0;
  unsigned parity = 0;
  __device__ __forceinline__ void advance() {
    if (++slot == W::STAGES) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// Where things lie in shared memory.
template <class W>
struct WgmmaShared {
  unsigned base;
  __device__ __forceinline__ unsigned a(int slot) const { return base + slot * W::STAGE; }
  __device__ __forceinline__ unsigned b(int slot) const { return base + slot * W::STAGE + W::A_BYTES; }
  __device__ __forceinline__ unsigned full(int slot) const { return base + W::STAGES * W::STAGE + W::OUT_BYTES + 8 * slot; }
  __device__ __forceinline__ unsigned empty(int slot) const { return full(slot) + 8 * W::STAGES; }
};

// A piece of the operand that both blocks of a cluster need: each brings half for both.
__device__ __forceinline__ void shared_copy(unsigned to, const unsigned char* from, unsigned bytes, unsigned barrier,
                                            unsigned rank, int blocks) {
  const unsigned half = rank * (bytes / 2);
  if (blocks > 1)
    bulk_copy_both(to + half, from + half, bytes / 2, barrier);
  else
    bulk_copy(to, from, bytes, barrier);
}

// The producer, one thread. A tile past the last takes the last one's place: the partner needs its half.
template <class W>
__device__ __forceinline__ void produce(const Packing& all, const WgmmaShared<W>& shared, unsigned rank,
                                        unsigned* fetched) {
  ClusterTiles tiles(all);
  TilePlace tile;
  Ring<W> ring;
  unsigned rolled = 0;  // pieces of a rolling operand
  while (tiles.take(all, rank, tile)) {
    const int64_t m = tile.z * static_cast<int64_t>(all.tiles_m) + (tile.m < all.tiles_m ? tile.m : all.tiles_m - 1);
    const int64_t n = tile.z * static_cast<int64_t>(all.tiles_n) + (tile.n < all.tiles_n ? tile.n : all.tiles_n - 1);
    if (m >= all.a.early) count_wait(all.a.ready + m, static_cast<unsigned>(all.a.each));
    if (all.height == 0 && n >= all.b.early) count_wait(all.b.ready + n, static_cast<unsigned>(all.b.each));
    const unsigned char* a = all.a.pieces + m * all.depth * W::A_BYTES;
    const unsigned char* b = all.b.pieces + n * all.depth * W::B_BYTES;
    for (int64_t piece = 0; piece < all.depth; ++piece) {
      const unsigned full = shared.full(ring.slot);
      if (all.height > 0) {
        const RollSlot slot(blockIdx.x / all.height, rolled);
        count_wait(all.b.ready + slot.at, static_cast<unsigned>(all.b.each) * (slot.use + 1));
        b = all.b.pieces + static_cast<int64_t>(slot.at) * W::B_BYTES;
      }
      barrier_wait_cluster(shared.empty(ring.slot), ring.parity ^ 1);
      barrier_expect(full, W::STAGE);
      if (all.high > 1) {
        bulk_copy(shared.a(ring.slot), a, W::A_BYTES, full);
        shared_copy(shared.b(ring.slot), b, W::B_BYTES, full, rank, all.cluster);
      } else {
        bulk_copy(shared.b(ring.slot), b, W::B_BYTES, full);
        shared_copy(shared.a(ring.slot), a, W::A_BYTES, full, rank, all.cluster);
      }
      ++rolled;
      // Both blocks are through with the piece that lay there before: whoever packs may have its slot.
      if (all.height > 0 && rolled > W::STAGES) fetched_is(fetched, rolled - W::STAGES);
      a += W::A_BYTES;
      b += W::B_BYTES;
      ring.advance();
    }
  }
}

// Whether lanes take whole groups of columns, in eight rows of a tile at once: then there are four of them at least.
template <class W, class P>
constexpr bool groups_fit = P::statistics && P::group >= 4 && P::group <= W::BN / 4 && W::BN <= 32 * P::group;

// What a tail wants to know of a lane's groups: each takes every 32nd.
template <class W, class P>
struct TileGroups {
  static constexpr int GROUPS = W::BN / P::group, TURNS = GROUPS / 4, ROWS = 32 / GROUPS;  // rows of a turn
  typename TailOf<P>::Group of[TURNS];
};

// Statistics of groups in eight rows of finished values: a lane takes whole groups, one after another, so that lanes need
// not talk to each other (finish_row's shuffles cost a seventh of the whole time). 16-byte loads in an order in which
// neighbouring groups hit distinct banks.
template <class W, class P>
__device__ __forceinline__ TileGroups<W, P> sink_groups(const P& p, Index z, Index first, int rows, Index n0, const float* out) {
  using Groups = TileGroups<W, P>;
  constexpr int GROUPS = Groups::GROUPS, QUADS = P::group / 4, NEAR = 32 / P::group > 0 ? 32 / P::group : 1;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Groups found;
#pragma unroll
  for (int turn = 0; turn < Groups::TURNS; ++turn) {
    const int pair = turn * 32 + lane, r = pair / GROUPS, g = pair % GROUPS;
    const float* from = out + r * W::row_stride + g * P::group;
    float4 v[QUADS];
    float sum = 0;
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
      v[q] = reinterpret_cast<const float4*>(from)[(q + g / NEAR) % QUADS];
      sum += (v[q].x + v[q].y) + (v[q].z + v[q].w);
    }
    const float near = sum / P::group;
    float off = 0, squares = 0;
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
      const float d[4] = {v[q].x - near, v[q].y - near, v[q].z - near, v[q].w - near};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        off += d[i];
        squares = fmaf(d[i], d[i], squares);
      }
    }
    off /= P::group;
    const float mean = near + off, m2 = squares - P::group * off * off;
    found.of[turn] = TailOf<P>::group(p, P::group, mean, m2);
    if (r < rows && n0 + g * P::group < p.cols()) p.sink(z, first + r, n0 / P::group + g, P::group, mean, m2);
  }
  return found;
}

// Eight rows of a tile, column by column, so that what is read for a column is read once: a lane takes every 32nd.
// WHOLE: all are there, and nothing is asked.
template <bool WHOLE, class W, class P, class C>
__device__ __forceinline__ void finish_rows(const P& p, Index z, Index first, int rows, const C& columns, float* out) {
#pragma unroll (WHOLE ? 4 : 1)
  for (int j = 0; j < W::BN / 32; ++j)
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      float& at = out[r * W::row_stride + columns.from(j)];
      if (WHOLE || (r < rows && columns.valid(0, j))) at = p.finish(z, first + r, columns.column(0, j), 0, at, true);
    }
}

// What follows the statistics, in the same order. Lanes ask who knows of a group.
template <bool WHOLE, class W, class P, class C>
__device__ __forceinline__ void tail_rows(const P& p, Index z, Index first, int rows, const C& columns,
                                          const TileGroups<W, P>& found, const float* out) {
  using Groups = TileGroups<W, P>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  typename P::Tail tails[8];
#pragma unroll (WHOLE ? 4 : 1)
  for (int j = 0; j < W::BN / 32; ++j)
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      const int turn = r / Groups::ROWS, from = r % Groups::ROWS * Groups::GROUPS + columns.from(j) / P::group;
      const auto own = shuffled(found.of[turn], [from](uint32_t word) { return __shfl_sync(0xffffffffu, word, from); });
      if (WHOLE || (r < rows && columns.valid(0, j)))
        p.tail(z, first + r, columns.column(0, j), out[r * W::row_stride + columns.from(j)], own, tails[r]);
    }
  if constexpr (P::reduces) {
    const auto row = scattered_join(tails);
    if (lane % 4 == 0 && lane / 4 < rows) p.tail_out(z, first + lane / 4, columns.tile, row);
  }
}

// Eight rows of sums that lie in shared memory, by a warp.
template <bool WHOLE, class W, class P, class C>
__device__ __forceinline__ void hand_groups(const P& p, const TilePlace& tile, Index first, int rows, const C& columns, float* out) {
  finish_rows<WHOLE, W>(p, tile.z, first, rows, columns, out);
  __syncwarp();
  const auto found = sink_groups<W>(p, tile.z, first, rows, tile.n * W::BN, out);
  if constexpr (TailOf<P>::there) tail_rows<WHOLE, W>(p, tile.z, first, rows, columns, found, out);
}

// Sums leave the registers, eight rows of a warp at a time, and go through the functor.
template <class W, class P>
__device__ __forceinline__ void hand_out(const P& p, const Packing& all, const TilePlace& tile, int group,
                                         const float (&sums)[W::BN / 2], float* out) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4, lane = static_cast<int>(threadIdx.x) % 32;
  const Index first = tile.m * W::BM + group * 64 + warp * 16;
  LineScale rows[2] = {};
  const LineScale* columns = nullptr;
  if constexpr (W::scaled) {
    const LineScale* at = all.a.scales + tile.z * static_cast<int64_t>(all.tiles_m) * W::BM + first + lane / 4;
    rows[0] = one_scale(at);
    rows[1] = one_scale(at + 8);
    columns = all.b.scales + all.column<W>(tile) + lane % 4 * 2;
    const int64_t row = at - all.a.scales, column = columns - all.b.scales;
    if (!sums_hold<W>(sums, rows, columns, all.a.weights + row, all.b.weights + column) && lane == 0) *all.again = 1;
  }
  const auto place = columns_of<W>(p, tile.n);
  const Index left = p.rows() - first;
#pragma unroll 1
  for (int h = 0; h < 2; ++h) {
    if (h * 8 >= left) break;
    __syncwarp();
    const float row = h ? rows[1].factor : rows[0].factor;
#pragma unroll
    for (int j = 0; j < W::BN / 8; ++j) {
      float2 two = {h ? sums[j * 4 + 2] : sums[j * 4], h ? sums[j * 4 + 3] : sums[j * 4 + 1]};
      if constexpr (W::scaled) {  // what makes smaller comes first: nothing overflows on the way
        const float4 c = two_scales(columns + j * 8);
        two.x = two.x * fminf(row, c.x) * fmaxf(row, c.x);
        two.y = two.y * fminf(row, c.z) * fmaxf(row, c.z);
      }
      *reinterpret_cast<float2*>(out + lane / 4 * W::row_stride + j * 8 + lane % 4 * 2) = two;
    }
    __syncwarp();
    if constexpr (groups_fit<W, P>) {
      const int there = left - h * 8 < 8 ? static_cast<int>(left) - h * 8 : 8;
      if (there == 8 && place.count == W::BN)
        hand_groups<true, W>(p, tile, first + h * 8, there, place, out);
      else
        hand_groups<false, W>(p, tile, first + h * 8, there, place, out);
    } else {
#pragma unroll 1
      for (int r = 0; r < 8; ++r)
        if (h * 8 + r < left) finish_row<W>(p, tile.z, first + h * 8 + r, place, 0, out + r * W::row_stride);
    }
  }
}

// Two warpgroups, 64 rows of the tile each.
template <class W, class P>
__device__ __forceinline__ void consume(const P& p, const Packing& all, const WgmmaShared<W>& shared, unsigned rank,
                                        float* out) {
  using Instruction = Wgmma<W::BN, W::kind>;
  const int group = static_cast<int>(threadIdx.x) / 128 - 1, lane = static_cast<int>(threadIdx.x) % 32;
  ClusterTiles tiles(all);
  TilePlace tile;
  Ring<W> ring;
  if (group == 1) turn_give(1);  // the first group begins
  while (tiles.take(all, rank, tile)) {
    float sums[W::BN / 2], part[W::BN / 2];
#pragma unroll
    for (int i = 0; i < W::BN / 2; ++i) sums[i] = part[i] = 0;
#pragma unroll 1
    for (int64_t piece = 0; piece < all.depth; ++piece) {
      const uint64_t a = swizzled_at(shared.a(ring.slot) + group * 64 * 128), b = swizzled_at(shared.b(ring.slot));
      barrier_wait(shared.full(ring.slot), ring.parity);
      turn_wait(1 + group);
      settle(part);
      wgmma_begin();
      if constexpr (W::PLANES == 2) {
        const uint64_t a_low = a + W::BM * 128 / 16, b_low = b + W::BN * 128 / 16;
#pragma unroll
        for (int k = 0; k < 4; ++k) Instruction::multiply(part, a + 2 * k, b_low + 2 * k, k > 0);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          Instruction::multiply(part, a_low + 2 * k, b + 2 * k, 1);
          if (k == 1) wgmma_end();
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) Instruction::multiply(part, a + 2 * k, b + 2 * k, 1);
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          Instruction::multiply(part, a + 2 * k, b + 2 * k, k > 0);
          if (k == 1) wgmma_end();
        }
      }
      wgmma_end();
      wgmma_wait<1>();
      turn_give(1 + (group ^ 1));  // half is done: the other's products queue up behind the rest
      wgmma_wait<0>();
      settle(part);
      if (lane < all.cluster) barrier_arrive_at(shared.empty(ring.slot), lane);
      ring.advance();
#pragma unroll
      for (int i = 0; i < W::BN / 2; ++i) sums[i] += part[i];
    }
    if (tile.m < all.tiles_m && tile.n < all.tiles_n) hand_out<W>(p, all, tile, group, sums, out);
  }
  if (group == 0) turn_wait(1);  // the last turn given
}
#endif

template <class W, class P>
__global__ void __launch_bounds__(W::threads, 1)
    contract_wgmma_kernel(const __grid_constant__ P p, const __grid_constant__ Packing all) {
  follow();
#if CRUCIBLE_HAS_WGMMA
  extern __shared__ __align__(1024) unsigned char wgmma_shared[];
  const WgmmaShared<W> shared{shared_address(wgmma_shared)};
  unsigned* const fetched = reinterpret_cast<unsigned*>(wgmma_shared + W::shared_bytes - 4);
  const unsigned rank = cluster_rank();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < W::STAGES; ++s) {
      barrier_init(shared.full(s), 1);
      barrier_init(shared.empty(s), all.cluster * W::CONSUMERS / 32);  // the consumers' warps of both blocks
    }
    barrier_inits_done();
    *fetched = 0;
  }
  cluster_meet();
  if (warp < 4) {
    registers_down<W::PACKER_REGISTERS>();
    if (threadIdx.x == 0) produce<W>(all, shared, rank, fetched);
    if (warp > 0 && all.height == 0) pack_beside<W>(p, all);
    if (warp > 0 && all.height > 0) roll_beside<W>(p, all, fetched);
    __syncwarp();
  } else {
    registers_up<W::CONSUMER_REGISTERS>();
    float* const out = reinterpret_cast<float*>(wgmma_shared + W::STAGES * W::STAGE) + (warp - 4) * 8 * W::row_stride;
    consume<W>(p, all, shared, rank, out);
  }
  cluster_meet();  // neither block leaves while the other may write to it
#else
  __trap();  // the host chose an engine that this chip does not have
#endif
}

// ---- doing it again

// A block for each tile: one that returns at once costs far less than the tile did. (A loop over tiles would cost the
// registers that this engine is short of.)
template <class Config, class P>
__global__ void __launch_bounds__(Config::threads, Config::blocks_per_sm)
    contract_again_kernel(const __grid_constant__ P p, const int* again) {
  follow();
  extern __shared__ __align__(16) unsigned char again_shared[];
  if (*again != 0) contract_tile<Config>(p, blockIdx.x, 0, 1, again_shared);
}

#ifndef __CUDACC_RTC__
template <class W, class P>
cudaError_t launch_wgmma_pack(const P& p, const Packing& all, cudaStream_t stream) {
  const int64_t most = 0x7fffffff, chunks = all.depth == 0 ? 1 : whole(all.depth, PACK_CHUNK);
  const int64_t blocks = all.a.early * all.a.blocks + all.b.early * all.b.blocks + all.sample_blocks(P::b_along_k);
  const int64_t peaks = ((P::a_along_k ? 0 : all.a.lines) + (P::b_along_k || all.height > 0 ? 0 : all.b.lines)) / 32 * chunks;
  if (blocks > most || peaks > most) return cudaErrorInvalidValue;
  if constexpr (W::scaled && !(P::a_along_k && P::b_along_k)) {
    After after(static_cast<unsigned>(peaks), PACK_THREADS, 0, stream);
    const cudaError_t refused = peaks == 0 ? cudaSuccess : cudaLaunchKernelEx(after, wgmma_peaks_kernel<P>, p, all);
    if (refused != cudaSuccess) return refused;
  }
  return cudaLaunchKernelEx(After(static_cast<unsigned>(blocks), PACK_THREADS, 0, stream), wgmma_pack_kernel<W, P>, p, all);
}

template <class W, class P>
cudaError_t launch_wgmma_multiply(const P& p, const Packing& all, int processors, cudaStream_t stream) {
  const cudaError_t refused = allow_shared(contract_wgmma_kernel<W, P>, W::shared_bytes);
  if (refused != cudaSuccess) return refused;
  const unsigned cluster = static_cast<unsigned>(all.cluster);
  const int64_t pairs = all.pairs(), at_once = processors / all.cluster;
  const int64_t blocks = all.height > 0 ? all.teams(processors) * all.height : cluster * (pairs < at_once ? pairs : at_once);
  After after(static_cast<unsigned>(blocks), W::threads, W::shared_bytes, stream, cluster, all.height > 0);  // teams wait for each other
  return cudaLaunchKernelEx(after, contract_wgmma_kernel<W, P>, p, all);
}

template <class W, class P>
cudaError_t launch_wgmma_again(const P& p, const Packing& all, cudaStream_t stream) {
  using Config = typename W::Other;
  static_assert(W::BM == Config::BM && W::BN == Config::BN, "the same tiles, so that partial results have the same places");
  const cudaError_t refused = allow_shared(contract_again_kernel<Config, P>, Config::shared_bytes);
  if (refused != cudaSuccess) return refused;
  const unsigned tiles = static_cast<unsigned>(all.batches) * all.tiles_m * all.tiles_n;
  return cudaLaunchKernelEx(After(tiles, Config::threads, Config::shared_bytes, stream), contract_again_kernel<Config, P>, p, all.again);
}

// Launches nothing where D is empty. cudaErrorInvalidValue: too many tiles.
template <class W, class P>
cudaError_t launch_contract_wgmma(const P& p, void* workspace, void* pieces, cudaStream_t stream) {
  static_assert(!P::boxed, "columns are columns");
  if (p.batches() == 0 || p.rows() == 0 || p.cols() == 0) return cudaSuccess;
  const int64_t tiles_m = whole(p.rows(), W::BM), tiles_n = whole(p.cols(), W::BN), most = 0x7fffffff;
  if (tiles_m > most / tiles_n || p.batches() > most / (tiles_m * tiles_n)) return cudaErrorInvalidValue;
  int device = 0, processors = 0, clusters = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  if (clusters == 0) return launch_contract<typename W::Other>(p, 1, stream);  // simulated, a product of small tiles is faster
  Packing all = wgmma_packing<W>(p, workspace, pieces, nullptr);
  share_packing<W>(all, processors, clusters, W::PACE);
  if (all.height > processors) return launch_contract<typename W::Other>(p, 1, stream);  // a small part of a chip
  error = launch_wgmma_pack<W>(p, all, stream);
  if (error == cudaSuccess) error = launch_wgmma_multiply<W>(p, all, processors, stream);
  if constexpr (W::scaled)
    if (error == cudaSuccess) error = launch_wgmma_again<W>(p, all, stream);
  return error;
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

// Neighbours in memory, 16 bytes of the file's element type at a time.
//
// A walk goes over places `from` .. `to`. Where its tensors begin alike (all elements of one place at the same distance
// from a multiple of a vector's length) it is a few single elements, then vectors, then a few single ones; else all are
// single. A thread asks for IN_FLIGHT vectors before it waits for the first.
//   CRUCIBLE_VECTORS     0: single elements only, for comparisons
//   CRUCIBLE_IN_FLIGHT   how many vectors a thread asks for at once
//   CRUCIBLE_STREAMING   1: what nothing reads again leaves the caches first

#ifndef CRUCIBLE_VECTORS
#define CRUCIBLE_VECTORS 1
#endif
#ifndef CRUCIBLE_IN_FLIGHT
#define CRUCIBLE_IN_FLIGHT 2
#endif
#ifndef CRUCIBLE_STREAMING
#define CRUCIBLE_STREAMING 1
#endif

namespace crucible {

constexpr int VECTOR = 16 / sizeof(scalar), IN_FLIGHT = CRUCIBLE_IN_FLIGHT;

template <int BYTES>
struct WordOf { using type = uint4; };
template <>
struct WordOf<8> { using type = uint2; };
template <>
struct WordOf<4> { using type = unsigned; };
template <>
struct WordOf<2> { using type = unsigned short; };

// So many elements of any type: 16 bytes, or several times that, or less.
template <class T>
struct Vector {
  using Word = typename WordOf<VECTOR * sizeof(T)>::type;
  static constexpr int WORDS = VECTOR * sizeof(T) / sizeof(Word);
  T elements[VECTOR];
  __device__ __forceinline__ const T& operator[](int u) const { return elements[u]; }
  __device__ __forceinline__ T& operator[](int u) { return elements[u]; }
};

// Of a tensor that this kernel only reads; `LAST`: and that nothing reads after it.
template <bool LAST = false, class T>
__device__ __forceinline__ Vector<T> read_vector(const T* at) {
  using V = Vector<T>;
  const auto* const from = reinterpret_cast<const typename V::Word*>(at);
  typename V::Word words[V::WORDS];
#pragma unroll
  for (int i = 0; i < V::WORDS; ++i) words[i] = LAST && CRUCIBLE_STREAMING ? __ldcs(from + i) : __ldg(from + i);
  V v;
  memcpy(&v, words, sizeof(V));
  return v;
}

template <bool LAST = false, class T>
__device__ __forceinline__ void write_vector(T* at, const Vector<T>& v) {
  using V = Vector<T>;
  auto* const to = reinterpret_cast<typename V::Word*>(at);
  typename V::Word words[V::WORDS];
  memcpy(words, &v, sizeof(V));
#pragma unroll
  for (int i = 0; i < V::WORDS; ++i) {
    if constexpr (LAST && CRUCIBLE_STREAMING) {
      __stcs(to + i, words[i]);
    } else {
#if CRUCIBLE_WIDE
      __stwb(to + i, words[i]);  // at an address from 64-bit numbers the compiler would store a word's parts one by one
#else
      to[i] = words[i];
#endif
    }
  }
}

// How far elements lie from where a vector may begin: the same for all, or -1.
template <class T>
__host__ __device__ __forceinline__ int alike(const T* at) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(at) / sizeof(T) % VECTOR);
}
template <class T, class... Others>
__host__ __device__ __forceinline__ int alike(const T* at, const Others*... others) {
  const int one = alike(at), other = alike(others...);
  return one == other ? one : -1;
}

// The places of a walk as vectors and single elements.
struct Stretch {
  Index from, to, begin, vectors;
  __host__ __device__ __forceinline__ Index singles() const { return to - from - vectors * VECTOR; }
  __host__ __device__ __forceinline__ Index single(int64_t k) const {
    const Index place = from + static_cast<Index>(k);
    return place < begin ? place : place + vectors * VECTOR;
  }
};

// `distance`: of the element at place 0 from where a vector may begin, or less than 0 where there are none.
__host__ __device__ __forceinline__ Stretch stretch(int64_t first, int64_t last, int distance) {
  const Index from = static_cast<Index>(first), to = static_cast<Index>(last), wanted = -(from + distance) & (VECTOR - 1);
  if (!CRUCIBLE_VECTORS || distance < 0 || wanted >= to - from) return {from, to, to, 0};
  return {from, to, from + wanted, (to - from - wanted) / VECTOR};
}

}  // namespace crucible

// A thread an element, or several that lie together: the functor computes and stores them.
//
// A functor M has `Index count() const` and either `void operator()(Index i) const`, or, where M::in_vectors,
//   Stretch places() const;  void walk(const MapThreads& threads, const Stretch& places) const;
// Reads and writes what the functor does; neighbouring threads take neighbouring elements, or vectors, and a block takes
// IN_FLIGHT vectors a thread side by side.

namespace crucible {

constexpr int MAP_THREADS = 256;

struct MapThreads {
  __device__ __forceinline__ int64_t first() const { return static_cast<int64_t>(blockIdx.x) * MAP_THREADS + threadIdx.x; }
  __device__ __forceinline__ int64_t step() const { return static_cast<int64_t>(gridDim.x) * MAP_THREADS; }
  __device__ __forceinline__ Index vector() const {
    return static_cast<Index>(blockIdx.x) * IN_FLIGHT * MAP_THREADS + static_cast<Index>(threadIdx.x);
  }
  __device__ __forceinline__ Index turn() const { return static_cast<Index>(gridDim.x) * IN_FLIGHT * MAP_THREADS; }
};

template <class M>
__global__ void __launch_bounds__(MAP_THREADS) map_kernel(const M m) {
  follow();
  const MapThreads threads;
  if constexpr (M::in_vectors) {
    m.walk(threads, m.places());
  } else {
    const int64_t count = m.count();
    for (int64_t i = threads.first(); i < count; i += threads.step()) m(static_cast<Index>(i));
  }
}

template <class M>
cudaError_t launch_map(const M& m, cudaStream_t stream) {
  int64_t wanted = m.count();
  if (wanted <= 0) return cudaSuccess;
  if constexpr (M::in_vectors) {
    const Stretch places = m.places();
    const int64_t vectors = (places.vectors + IN_FLIGHT - 1) / IN_FLIGHT, singles = places.singles();
    wanted = vectors > singles ? vectors : singles;
  }
  const int64_t blocks = (wanted + MAP_THREADS - 1) / MAP_THREADS, most = 1 << 20;
  return cudaLaunchKernelEx(After(static_cast<unsigned>(blocks < most ? blocks : most), MAP_THREADS, 0, stream), map_kernel<M>, m);
}

}  // namespace crucible

// A group of N threads a row: the functor walks over the row, reduces, and stores what depends on the results.
//
// N is 1 (a thread for each row: short rows, or rows whose neighbours are neighbours in memory), 32 (a warp) or 256 (a
// block). A functor R has `Index rows() const` and
//   template <class L> void operator()(const L& lanes, Index row) const;
// where `lanes.first()` and `lanes.step()` deal out the row, `lanes.join(acc)` leaves the joined result with every
// thread, and `lanes.leads()` is true in one of them. Partial results travel by shuffles, between warps through N/32
// slots of shared memory.
// A functor whose later walks need again what the first one computes may also have
//   int64_t kept() const;  void keeping(const L&, Index row, accum* kept) const;
// which keeps that in shared memory, so many numbers a row; each thread reads what it wrote itself.
//
// A sliced functor, where what is reduced is short (partial results) and what follows is long, has
//   struct Found;  Found reduce(const L&, Index row) const;  int64_t length() const;  Index repeats() const;
//   void walk(const L&, Index row, Index part, int64_t from, int64_t to, const Found&) const;
// and takes two launches: the rows, then pieces of SLICE_VECTORS vectors a thread of each of a row's parts.
//
// A split functor, for few long rows, which may be the same stretch of places several times (a channel of every sample), has
//   struct Acc;  int64_t length() const;  Index repeats() const;   of the stretch, and how many times
//   void walk(const L&, Index row, Index first, Index last, int64_t from, int64_t to, Acc&) const;   some of both
//   void finish(const L&, Index row, const Acc&) const;
// and takes two launches: every part of every row, then the rows. Nothing depends on timing.
//   CRUCIBLE_SLICE_VECTORS   how many vectors a thread of a sliced walk has, all asked for before the first is used
//   CRUCIBLE_LAST_FIRST      1: slices and kept rows go from the last to the first, as the end of what was written just before is still
//                            in the cache

#ifndef CRUCIBLE_SLICE_VECTORS
#define CRUCIBLE_SLICE_VECTORS 4
#endif
#ifndef CRUCIBLE_LAST_FIRST
#define CRUCIBLE_LAST_FIRST 1
#endif

namespace crucible {

constexpr int ROW_THREADS = 256, SLICE_VECTORS = CRUCIBLE_SLICE_VECTORS, GRID_MOST = 65535;

// What an earlier kernel left, whole.
template <class T>
__device__ __forceinline__ T read_words(const T* at) {
  static_assert(sizeof(T) % 4 == 0 && alignof(T) % 4 == 0, "partial results are whole words");
  uint32_t words[sizeof(T) / 4];
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 4); ++i) words[i] = __ldg(reinterpret_cast<const uint32_t*>(at) + i);
  T value;
  memcpy(&value, words, sizeof(T));
  return value;
}

template <int N>
struct Lanes {
  static_assert(N == 1 || N == 32 || N == ROW_THREADS, "a thread, a warp or a block");
  __device__ __forceinline__ int first() const { return static_cast<int>(threadIdx.x) % N; }
  __device__ __forceinline__ int step() const { return N; }
  __device__ __forceinline__ bool leads() const { return first() == 0; }
  // Where warps take parts of a row, each alone.
  static constexpr int WIDTH = N < 32 ? N : 32, WARPS = N / WIDTH;
  __device__ __forceinline__ int lane() const { return first() % WIDTH; }
  __device__ __forceinline__ int warp() const { return first() / WIDTH; }

  template <class Acc>
  __device__ __forceinline__ void join(Acc& a) const {
    if constexpr (N > 1) a = join_lanes<32>(a);
    if constexpr (N > 32) {
      constexpr int WARPS = ROW_THREADS / 32;
      __shared__ __align__(16) unsigned char slots[WARPS * sizeof(Acc)];
      Acc* const slot = reinterpret_cast<Acc*>(slots);
      __syncthreads();  // the last join's readers are done
      if (threadIdx.x % 32 == 0) slot[threadIdx.x / 32] = a;
      __syncthreads();
      a = join_lanes<WARPS>(slot[threadIdx.x % WARPS]);
    }
  }
};

template <int N>
__device__ __forceinline__ int64_t row_of_thread() {
  return (static_cast<int64_t>(blockIdx.x) * ROW_THREADS + threadIdx.x) / N;
}

// The length of a part, where a row is cut into so many: whole vectors, and lines of memory.
__host__ __device__ inline int64_t row_share(int64_t length, int parts) {
  constexpr int LINE = 128 / sizeof(scalar);
  const int64_t share = (length + parts - 1) / parts;
  return (share + LINE - 1) / LINE * LINE;
}

template <int N, class R>
__global__ void __launch_bounds__(ROW_THREADS) row_kernel(const R r) {
  follow();
  const int64_t row = row_of_thread<N>();
  if (row < r.rows()) r(Lanes<N>(), static_cast<Index>(row));
}

template <int N, class R>
__global__ void __launch_bounds__(ROW_THREADS) row_keeping_kernel(const R r) {
  follow();
  extern __shared__ __align__(16) unsigned char row_kept[];
  const int64_t after = row_of_thread<N>(), row = CRUCIBLE_LAST_FIRST ? r.rows() - 1 - after : after;
  accum* const kept = reinterpret_cast<accum*>(row_kept) + threadIdx.x / N * r.kept();
  if (after < r.rows()) r.keeping(Lanes<N>(), static_cast<Index>(row), kept);
}

template <int N, class R>
__global__ void __launch_bounds__(ROW_THREADS) row_found_kernel(const R r, typename R::Found* found) {
  follow();
  const int64_t row = row_of_thread<N>();
  if (row >= r.rows()) return;
  const Lanes<N> lanes;
  const typename R::Found mine = r.reduce(lanes, static_cast<Index>(row));
  if (lanes.leads()) found[row] = mine;
}

// Slices are blockIdx.x, parts of rows the rest. No division, and all of `found` at once: each would be waited for before
// elements are asked for.
template <class R>
__global__ void __launch_bounds__(ROW_THREADS) row_slices_kernel(const R r, const typename R::Found* found, Index share) {
  follow();
  const int64_t count = static_cast<int64_t>(r.rows()) * r.repeats(), after = blockIdx.z * int64_t(GRID_MOST) + blockIdx.y;
  if (after >= count) return;
  const Index place = static_cast<Index>(CRUCIBLE_LAST_FIRST ? count - 1 - after : after), row = place / r.repeats();
  const Index length = static_cast<Index>(r.length());
  const Index from = share * static_cast<Index>(CRUCIBLE_LAST_FIRST ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
  const Index to = length - from < share ? length : from + share;
  r.walk(Lanes<ROW_THREADS>(), row, place % r.repeats(), from, to, read_words(found + row));
}

// How a long row is cut: its stretch into so many, and, where that is short, the times into so many.
struct RowCuts {
  int along, across;
};
template <int N, class R>
__host__ __device__ inline RowCuts row_cuts(const R& r, int splits) {
  const int64_t most = r.length() / (16 * N), repeats = r.repeats();
  const int along = most < 1 ? 1 : most < splits ? static_cast<int>(most) : splits, across = splits / along;
  return {along, repeats < 1 ? 1 : repeats < across ? static_cast<int>(repeats) : across};
}

template <int N, class R>
__global__ void __launch_bounds__(ROW_THREADS) row_parts_kernel(const R r, typename R::Acc* parts, RowCuts cuts) {
  follow();
  const int64_t row = row_of_thread<N>(), length = r.length(), each = row_share(length, cuts.along);
  if (row >= r.rows()) return;
  const int64_t from = each * (blockIdx.y % cuts.along), to = from + each < length ? from + each : length;
  const Index repeats = r.repeats(), times = (repeats + cuts.across - 1) / cuts.across;
  const Index first = times * static_cast<Index>(blockIdx.y / cuts.along), left = repeats - first;
  typename R::Acc a;
  const Lanes<N> lanes;
  if (left > 0) r.walk(lanes, static_cast<Index>(row), first, left < times ? repeats : first + times, from, to, a);
  lanes.join(a);
  if (lanes.leads()) parts[static_cast<int64_t>(blockIdx.y) * r.rows() + row] = a;
}

template <class R>
__global__ void __launch_bounds__(ROW_THREADS) row_whole_kernel(const R r, const typename R::Acc* parts, int splits) {
  follow();
  const int64_t row = row_of_thread<32>();
  if (row >= r.rows()) return;
  typename R::Acc a;
  const Lanes<32> lanes;
  for (int s = lanes.first(); s < splits; s += lanes.step()) a.join(parts[static_cast<int64_t>(s) * r.rows() + row]);
  lanes.join(a);
  r.finish(lanes, static_cast<Index>(row), a);
}

inline unsigned row_blocks(int64_t rows, int lanes) {
  return static_cast<unsigned>((rows * lanes + ROW_THREADS - 1) / ROW_THREADS);
}

template <int N, class R>
cudaError_t launch_rows(const R& r, cudaStream_t stream) {
  const int64_t rows = r.rows();
  if (rows <= 0) return cudaSuccess;
  return cudaLaunchKernelEx(After(row_blocks(rows, N), ROW_THREADS, 0, stream), row_kernel<N, R>, r);
}

// Rows that fit in shared memory keep what their first walk computes.
template <int N, class R>
cudaError_t launch_keeping_rows(const R& r, cudaStream_t stream) {
  const int64_t rows = r.rows(), bytes = r.kept() * (ROW_THREADS / N) * static_cast<int64_t>(sizeof(accum));
  if (rows <= 0 || bytes > 48 * 1024) return launch_rows<N>(r, stream);
  return cudaLaunchKernelEx(After(row_blocks(rows, N), ROW_THREADS, static_cast<size_t>(bytes), stream), row_keeping_kernel<N, R>, r);
}

// `found` has room for a Found for each row.
template <int N, class R>
cudaError_t launch_sliced_rows(const R& r, void* found, cudaStream_t stream) {
  constexpr int SLICE = SLICE_VECTORS * VECTOR * ROW_THREADS;
  const int64_t rows = r.rows(), length = r.length(), slices = (length + SLICE - 1) / SLICE;
  if (rows <= 0) return cudaSuccess;
  auto* const results = static_cast<typename R::Found*>(found);
  const cudaError_t error = cudaLaunchKernelEx(After(row_blocks(rows, N), ROW_THREADS, 0, stream), row_found_kernel<N, R>, r, results);
  if (error != cudaSuccess) return error;
  const int64_t places = rows * r.repeats();
  if (places <= 0 || slices <= 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(slices), static_cast<unsigned>(places < GRID_MOST ? places : GRID_MOST),
                  static_cast<unsigned>((places + GRID_MOST - 1) / GRID_MOST));
  return cudaLaunchKernelEx(After(grid, ROW_THREADS, 0, stream),
                            row_slices_kernel<R>, r, results, static_cast<Index>(row_share(length, static_cast<int>(slices))));
}

// `parts` has room for rows * splits partial results.
template <int N, class R>
cudaError_t launch_split_rows(const R& r, void* parts, int splits, cudaStream_t stream) {
  const int64_t rows = r.rows();
  if (rows <= 0) return cudaSuccess;
  auto* const acc = static_cast<typename R::Acc*>(parts);
  const RowCuts cuts = row_cuts<N>(r, splits);
  const int count = cuts.along * cuts.across;
  const cudaError_t error = cudaLaunchKernelEx(After(dim3(row_blocks(rows, N), count), ROW_THREADS, 0, stream),
                                               row_parts_kernel<N, R>, r, acc, cuts);
  if (error != cudaSuccess) return error;
  return cudaLaunchKernelEx(After(row_blocks(rows, 32), ROW_THREADS, 0, stream), row_whole_kernel<R>, r, acc, count);
}

}  // namespace crucible

// ---- the stages of this file

#if CRUCIBLE_HOPPER
namespace crucible {
#if CRUCIBLE_SCALAR == 0
template <>
struct Wgmma<128, Operands::Half> {
  static __device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 0
template <>
struct Wgmma<128, Operands::Tf32> {
  static __device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63"
        "}, %64, %65, p, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 2
template <>
struct Wgmma<128, Operands::Native> {
  static __device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 3
template <>
struct Wgmma<128, Operands::Native> {
  static __device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

using namespace crucible;

inline void check(cudaError_t error, const char* kernel) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // whoever launches next is not to find it
  throw std::runtime_error(std::string(kernel) + ": " + cudaGetErrorString(error));
}

// sum_1
struct rows_1 {
  const scalar* __restrict__ p_d_output;
  accum* __restrict__ p_sum_1_0_kept;
  Index s77;

  __host__ __device__ Index rows() const { return s77; }
  __host__ __device__ int64_t length() const { return 8192; }
  __host__ __device__ Index repeats() const { return 1; }
  struct Acc {
    Sum r0;  // sum_1
    __device__ __forceinline__ void join(const Acc& b) { r0.join(b.r0); }
  };
  template <class L>
  __device__ __forceinline__ void walk(const L& lanes, Index row, Index first, Index last, int64_t from,
                                       int64_t to, Acc& a) const {
    #pragma unroll 4
    for (int64_t jj = from + lanes.first(); jj < to; jj += lanes.step()) {
      const Index j = static_cast<Index>(jj);
      a.r0.step(to_accum(read(p_d_output[j * s77 + row])));
    }
  }
  template <class L>
  __device__ __forceinline__ void finish(const L& lanes, Index row, const Acc& a) const {
    const accum sum_1_0 = a.r0.total();
    if (lanes.leads()) {
      p_sum_1_0_kept[row] = sum_1_0;
    }
  }
};

void run_rows_1(uint64_t p_d_output, uint64_t p_sum_1_0_kept, int64_t s77, uint64_t parts, int splits, uint64_t stream) {
  const rows_1 stage{reinterpret_cast<const scalar*>(p_d_output), reinterpret_cast<accum*>(p_sum_1_0_kept), static_cast<Index>(s77)};
  check(launch_split_rows<1>(stage, reinterpret_cast<void*>(parts), splits, reinterpret_cast<cudaStream_t>(stream)), "rows_1");
}

// sum_2, sum_3, view_5
struct rows_2 {
  const scalar* __restrict__ p_d_output;
  const int64_t* __restrict__ p_min_1_1_kept;
  const accum* __restrict__ p_sum_1_0_kept;
  scalar* __restrict__ p_sum_2_0;
  scalar* __restrict__ p_view_5;
  Index s77;

  __host__ __device__ Index rows() const { return 8192; }
  struct Acc0 {
    Sum r0;  // sum_2
    Sum r1;  // sum_3
    __device__ __forceinline__ void join(const Acc0& b) { r0.join(b.r0); r1.join(b.r1); }
  };
  template <class L>
  __device__ __forceinline__ void operator()(const L& lanes, Index row) const {
    Acc0 a0;
    const scalar* const at1 = &p_d_output[row * s77];
    const int64_t* const at2 = &p_min_1_1_kept[0];
    const accum* const at3 = &p_sum_1_0_kept[0];
    const int64_t v8 = int64_t(row);
    const Stretch run4 = stretch(0, s77, alike(at1, at2, at3));
    for (Index k = lanes.first(); k < run4.vectors; k += lanes.step() * IN_FLIGHT) {
      Vector<scalar> x5[IN_FLIGHT];
      Vector<int64_t> x6[IN_FLIGHT];
      Vector<accum> x7[IN_FLIGHT];
      #pragma unroll
      for (int d = 0; d < IN_FLIGHT; ++d) {
        const Index kk = k + d * lanes.step();
        if (kk < run4.vectors) {
          const Index j = run4.begin + kk * VECTOR;
          x5[d] = read_vector<true>(at1 + j);
          x6[d] = read_vector(at2 + j);
          x7[d] = read_vector(at3 + j);
        }
      }
      #pragma unroll
      for (int d = 0; d < IN_FLIGHT; ++d) {
        const Index kk = k + d * lanes.step();
        if (kk >= run4.vectors) break;
        #pragma unroll
        for (int u = 0; u < VECTOR; ++u) {
          a0.r0.step(to_accum(x5[d][u]));
          a0.r1.step(((x6[d][u] == v8) ? x7[d][u] : accum(0)));
        }
      }
    }
    #pragma unroll 4
    for (int64_t k = lanes.first(); k < run4.singles(); k += lanes.step()) {
      const Index j = run4.single(k);
      a0.r0.step(to_accum(read(at1[j])));
      a0.r1.step(((read(at2[j]) == v8) ? read(at3[j]) : accum(0)));
    }
    lanes.join(a0);
    const accum sum_2_0 = a0.r0.total();
    const accum sum_3_0 = a0.r1.total();
    if (lanes.leads()) {
      p_sum_2_0[row] = to_scalar(sum_2_0);
      p_view_5[row] = to_scalar(sum_3_0);
    }
  }
};

void run_rows_2(uint64_t p_d_output, uint64_t p_min_1_1_kept, uint64_t p_sum_1_0_kept, uint64_t p_sum_2_0, uint64_t p_view_5, int64_t s77, uint64_t stream) {
  const rows_2 stage{reinterpret_cast<const scalar*>(p_d_output), reinterpret_cast<const int64_t*>(p_min_1_1_kept), reinterpret_cast<const accum*>(p_sum_1_0_kept), reinterpret_cast<scalar*>(p_sum_2_0), reinterpret_cast<scalar*>(p_view_5), static_cast<Index>(s77)};
  check(launch_rows<32>(stage, reinterpret_cast<cudaStream_t>(stream)), "rows_2");
}

// sum_4, view_6
struct rows_3 {
  const scalar* __restrict__ p_addmm_product_0_kept;
  const scalar* __restrict__ p_gemm_bias;
  const int64_t* __restrict__ p_min_1_1_kept;
  const accum* __restrict__ p_sum_1_0_kept;
  const accum* __restrict__ p_var_mean_m2;
  const accum* __restrict__ p_var_mean_mean;
  scalar* __restrict__ p_view_6;
  Index s77;

  __host__ __device__ Index rows() const { return 8192; }
  __host__ __device__ int64_t length() const { return s77; }
  __host__ __device__ Index repeats() const { return 1; }
  struct Acc {
    Sum r0;  // sum_4
    __device__ __forceinline__ void join(const Acc& b) { r0.join(b.r0); }
  };
  template <class L>
  __device__ __forceinline__ void walk(const L& lanes, Index row, Index first, Index last, int64_t from,
                                       int64_t to, Acc& a) const {
    const int64_t v1 = int64_t(row);
    const accum v3 = to_accum(read(p_gemm_bias[row]));
    const Index q5 = row / 16;
    #pragma unroll 4
    for (int64_t jj = from + lanes.first(); jj < to; jj += lanes.step()) {
      const Index j = static_cast<Index>(jj);
      const accum v2 = (read(p_min_1_1_kept[j]) == v1) ? read(p_sum_1_0_kept[j]) : accum(0);
      const accum v4 = to_accum(read(p_addmm_product_0_kept[j * 8192 + row])) + v3;
      const accum v6 = (read(p_var_mean_m2[q5 + j * 512]) / accum(16)) + accum(1e-05);
      const accum v7 = v2 * ((v4 - read(p_var_mean_mean[q5 + j * 512])) * f_rsqrt(v6));
      a.r0.step(v7);
    }
  }
  template <class L>
  __device__ __forceinline__ void finish(const L& lanes, Index row, const Acc& a) const {
    const accum sum_4_0 = a.r0.total();
    if (lanes.leads()) {
      p_view_6[row] = to_scalar(sum_4_0);
    }
  }
};

void run_rows_3(uint64_t p_addmm_product_0_kept, uint64_t p_gemm_bias, uint64_t p_min_1_1_kept, uint64_t p_sum_1_0_kept, uint64_t p_var_mean_m2, uint64_t p_var_mean_mean, uint64_t p_view_6, int64_t s77, uint64_t parts, int splits, uint64_t stream) {
  const rows_3 stage{reinterpret_cast<const scalar*>(p_addmm_product_0_kept), reinterpret_cast<const scalar*>(p_gemm_bias), reinterpret_cast<const int64_t*>(p_min_1_1_kept), reinterpret_cast<const accum*>(p_sum_1_0_kept), reinterpret_cast<const accum*>(p_var_mean_m2), reinterpret_cast<const accum*>(p_var_mean_mean), reinterpret_cast<scalar*>(p_view_6), static_cast<Index>(s77)};
  check(launch_split_rows<1>(stage, reinterpret_cast<void*>(parts), splits, reinterpret_cast<cudaStream_t>(stream)), "rows_3");
}

// mean, mean_1
struct rows_4 {
  const scalar* __restrict__ p_addmm_product_0_kept;
  const scalar* __restrict__ p_gemm_bias;
  const scalar* __restrict__ p_group_norm_weight;
  const int64_t* __restrict__ p_min_1_1_kept;
  const accum* __restrict__ p_sum_1_0_kept;
  const accum* __restrict__ p_var_mean_m2;
  const accum* __restrict__ p_var_mean_mean;
  accum* __restrict__ p_mean_0_kept;
  accum* __restrict__ p_mean_1_0_kept;
  Index s77;

  __host__ __device__ Index rows() const { return s77 * 512; }
  struct Acc0 {
    Sum r0;  // mean
    Sum r1;  // mean_1
    __device__ __forceinline__ void join(const Acc0& b) { r0.join(b.r0); r1.join(b.r1); }
  };
  template <class L>
  __device__ __forceinline__ void operator()(const L& lanes, Index row) const {
    Acc0 a0;
    const Index q1 = row / 512;
    const int64_t v2 = read(p_min_1_1_kept[q1]);
    const Index e3 = row % 512;
    const accum v4 = read(p_sum_1_0_kept[q1]);
    const accum v7 = read(p_var_mean_mean[row]);
    const accum v8 = f_rsqrt(((read(p_var_mean_m2[row]) / accum(16)) + accum(1e-05)));
    #pragma unroll 4
    for (int64_t jj = lanes.first(); jj < 16; jj += lanes.step()) {
      const Index j = static_cast<Index>(jj);
      const accum v5 = ((v2 == int64_t(e3 * 16 + j)) ? v4 : accum(0)) * to_accum(read(p_group_norm_weight[e3 * 16 + j]));
      a0.r0.step(v5);
      const accum v6 = to_accum(read(p_addmm_product_0_kept[j + row * 16])) + to_accum(read(p_gemm_bias[e3 * 16 + j]));
      a0.r1.step((v5 * ((v6 - v7) * v8)));
    }
    const accum mean_0 = a0.r0.total();
    const accum mean_1_0 = a0.r1.total();
    p_mean_0_kept[row] = mean_0;
    p_mean_1_0_kept[row] = mean_1_0;
  }
};

void run_rows_4(uint64_t p_addmm_product_0_kept, uint64_t p_gemm_bias, uint64_t p_group_norm_weight, uint64_t p_min_1_1_kept, uint64_t p_sum_1_0_kept, uint64_t p_var_mean_m2, uint64_t p_var_mean_mean, uint64_t p_mean_0_kept, uint64_t p_mean_1_0_kept, int64_t s77, uint64_t stream) {
  const rows_4 stage{reinterpret_cast<const scalar*>(p_addmm_product_0_kept), reinterpret_cast<const scalar*>(p_gemm_bias), reinterpret_cast<const scalar*>(p_group_norm_weight), reinterpret_cast<const int64_t*>(p_min_1_1_kept), reinterpret_cast<const accum*>(p_sum_1_0_kept), reinterpret_cast<const accum*>(p_var_mean_m2), reinterpret_cast<const accum*>(p_var_mean_mean), reinterpret_cast<accum*>(p_mean_0_kept), reinterpret_cast<accum*>(p_mean_1_0_kept), static_cast<Index>(s77)};
  check(launch_rows<1>(stage, reinterpret_cast<cudaStream_t>(stream)), "rows_4");
}

// full, min_1, sum_1, view_4, scatter, view_2, mul_5, view_7, mean, sub_2, addmm, view, var_mean, sub_1, add, rsqrt, mul_6, mean_1, mul_8, sub_3, mul_9, view_8
struct map_1 {
  const scalar* __restrict__ p_addmm_product_0_kept;
  const scalar* __restrict__ p_gemm_bias;
  const scalar* __restrict__ p_group_norm_weight;
  const accum* __restrict__ p_mean_0_kept;
  const accum* __restrict__ p_mean_1_0_kept;
  const int64_t* __restrict__ p_min_1_1_kept;
  const accum* __restrict__ p_sum_1_0_kept;
  const accum* __restrict__ p_var_mean_m2;
  const accum* __restrict__ p_var_mean_mean;
  scalar* __restrict__ p_view_8;
  Index s77;

  static constexpr bool in_vectors = true;
  __host__ __device__ Index count() const { return s77 * 8192; }
  __host__ __device__ Stretch places() const {
    return stretch(0, count(), alike(&p_group_norm_weight[0], &p_addmm_product_0_kept[0], &p_gemm_bias[0], &p_view_8[0]) == 0 ? 0 : -1);
  }
  __device__ __forceinline__ void walk(const MapThreads& threads, const Stretch& run) const {
    const scalar* const at1 = &p_addmm_product_0_kept[0];
    scalar* const at2 = &p_view_8[0];
    for (Index k = threads.vector(); k < run.vectors; k += threads.turn()) {
      Vector<scalar> x3[IN_FLIGHT];
      Vector<scalar> x5[IN_FLIGHT];
      Vector<scalar> x6[IN_FLIGHT];
      #pragma unroll
      for (int d = 0; d < IN_FLIGHT; ++d) {
        const Index kk = k + d * MAP_THREADS;
        if (kk < run.vectors) {
          const Index i = run.begin + kk * VECTOR;
          const Index e4 = i % 8192;
          x3[d] = read_vector(&p_group_norm_weight[e4]);
          x5[d] = read_vector<true>(at1 + i);
          x6[d] = read_vector(&p_gemm_bias[e4]);
        }
      }
      #pragma unroll
      for (int d = 0; d < IN_FLIGHT; ++d) {
        const Index kk = k + d * MAP_THREADS;
        if (kk >= run.vectors) break;
        const Index i = run.begin + kk * VECTOR;
        Vector<scalar> y7;
        const Index q8 = i / 8192;
        const int64_t v9 = read(p_min_1_1_kept[q8]);
        const Index e10 = i % 8192;
        const accum v11 = read(p_sum_1_0_kept[q8]);
        const Index q13 = e10 / 16;
        const accum v14 = read(p_mean_0_kept[q13 + q8 * 512]);
        const accum v15 = v14 / accum(16);
        const accum v16 = read(p_var_mean_mean[q13 + q8 * 512]);
        const accum v17 = read(p_var_mean_m2[q13 + q8 * 512]);
        const accum v18 = v17 / accum(16);
        const accum v19 = v18 + accum(1e-05);
        const accum v20 = f_rsqrt(v19);
        const accum v21 = read(p_mean_1_0_kept[q13 + q8 * 512]);
        const accum v22 = v21 / accum(16);
        #pragma unroll
        for (int u = 0; u < VECTOR; ++u) {
          const accum v12 = ((v9 == int64_t(e10 + u)) ? v11 : accum(0)) * to_accum(x3[d][u]);
          const accum v23 = (((to_accum(x5[d][u]) + to_accum(x6[d][u])) - v16) * v20) * v22;
          y7[u] = to_scalar(((v12 - v15) - v23) * v20);
        }
        write_vector(at2 + i, y7);
      }
    }
    for (int64_t k = threads.first(); k < run.singles(); k += threads.step()) {
      const Index i = run.single(k);
      const Index q24 = i / 8192;
      const int64_t v25 = read(p_min_1_1_kept[q24]);
      const Index e26 = i % 8192;
      const accum v27 = read(p_sum_1_0_kept[q24]);
      const accum v28 = ((v25 == int64_t(e26)) ? v27 : accum(0)) * to_accum(read(p_group_norm_weight[e26]));
      const Index q29 = e26 / 16;
      const accum v30 = read(p_mean_0_kept[q29 + q24 * 512]);
      const accum v31 = v30 / accum(16);
      const accum v32 = read(p_var_mean_mean[q29 + q24 * 512]);
      const accum v33 = (to_accum(read(at1[i])) + to_accum(read(p_gemm_bias[e26]))) - v32;
      const accum v34 = read(p_var_mean_m2[q29 + q24 * 512]);
      const accum v35 = v34 / accum(16);
      const accum v36 = v35 + accum(1e-05);
      const accum v37 = f_rsqrt(v36);
      const accum v38 = read(p_mean_1_0_kept[q29 + q24 * 512]);
      const accum v39 = v38 / accum(16);
      at2[i] = to_scalar(((v28 - v31) - ((v33 * v37) * v39)) * v37);
    }
  }
};

void run_map_1(uint64_t p_addmm_product_0_kept, uint64_t p_gemm_bias, uint64_t p_group_norm_weight, uint64_t p_mean_0_kept, uint64_t p_mean_1_0_kept, uint64_t p_min_1_1_kept, uint64_t p_sum_1_0_kept, uint64_t p_var_mean_m2, uint64_t p_var_mean_mean, uint64_t p_view_8, int64_t s77, uint64_t stream) {
  const map_1 stage{reinterpret_cast<const scalar*>(p_addmm_product_0_kept), reinterpret_cast<const scalar*>(p_gemm_bias), reinterpret_cast<const scalar*>(p_group_norm_weight), reinterpret_cast<const accum*>(p_mean_0_kept), reinterpret_cast<const accum*>(p_mean_1_0_kept), reinterpret_cast<const int64_t*>(p_min_1_1_kept), reinterpret_cast<const accum*>(p_sum_1_0_kept), reinterpret_cast<const accum*>(p_var_mean_m2), reinterpret_cast<const accum*>(p_var_mean_mean), reinterpret_cast<scalar*>(p_view_8), static_cast<Index>(s77)};
  check(launch_map(stage, reinterpret_cast<cudaStream_t>(stream)), "map_1");
}

// mm
struct contract_1 {
  const scalar* __restrict__ p_gemm_weight;
  const scalar* __restrict__ p_view_8;
  scalar* __restrict__ p_mm_product;
  Index s77;

  static constexpr bool a_along_k = true, b_along_k = false, statistics = false;
  static constexpr int group = 0;
  static constexpr bool boxed = false;
  __host__ __device__ Index batches() const { return 1; }
  __host__ __device__ Index rows() const { return s77; }
  __host__ __device__ Index cols() const { return 8192; }
  __host__ __device__ Index depth() const { return 8192; }
  struct ARow { Index m29; };
  __device__ __forceinline__ ARow a_row(Index z, Index m) const {
    return {m};
  }
  __device__ __forceinline__ accum a(const ARow& at, Index k) const {
    return to_accum(read(p_view_8[k + at.m29 * 8192]));
  }
  static constexpr bool a_direct = true;  // an element of memory as it is
  __device__ __forceinline__ const scalar* a_from(const ARow& at, Index k) const {
    return &p_view_8[k + at.m29 * 8192];
  }
  struct BCol { Index n30; };
  __device__ __forceinline__ BCol b_col(Index z, Index n) const {
    return {n};
  }
  __device__ __forceinline__ accum b(const BCol& at, Index k) const {
    return to_accum(read(p_gemm_weight[k * 8192 + at.n30]));
  }
  static constexpr bool b_direct = true;  // an element of memory as it is
  __device__ __forceinline__ const scalar* b_from(const BCol& at, Index k) const {
    return &p_gemm_weight[k * 8192 + at.n30];
  }
  __device__ __forceinline__ accum finish(Index z, Index m, Index n, int split, accum value,
                                          bool there) const {
    if (there) p_mm_product[m * 8192 + n] = to_scalar(value);
    return value;
  }
};

void run_contract_1(uint64_t p_gemm_weight, uint64_t p_view_8, uint64_t p_mm_product, int64_t s77, uint64_t packed, uint64_t pieces, uint64_t stream) {
  const contract_1 stage{reinterpret_cast<const scalar*>(p_gemm_weight), reinterpret_cast<const scalar*>(p_view_8), reinterpret_cast<scalar*>(p_mm_product), static_cast<Index>(s77)};
  if (few_pays<FewRows>(stage)) return check(launch_contract_few<FewRows, 128>(stage, 1, reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #if CRUCIBLE_HOPPER && CRUCIBLE_MATMUL == 2
  check(launch_contract_wgmma<WgmmaTile<128, Grade::Fp32>>(stage, reinterpret_cast<void*>(packed), reinterpret_cast<void*>(pieces), reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #elif CRUCIBLE_MATMUL == 1
  check(launch_contract<Mma<128, 128, 32, 64, 32, Grade::Tf32>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #elif CRUCIBLE_MATMUL == 2
  check(launch_contract<Mma<128, 128, 32, 64, 32, Grade::Fp32>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #elif CRUCIBLE_MATMUL == 3
  check(launch_contract<Mma<128, 128, 32, 64, 32, Grade::Native>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #else
  check(launch_contract<Simt<128, 128, 8, 8, 8>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #endif
}

int64_t packed_contract_1(int64_t s77) {
  const contract_1 stage{nullptr, nullptr, nullptr, static_cast<Index>(s77)};
  if (few_pays<FewRows>(stage)) return few_bytes<FewRows>(stage);
  #if CRUCIBLE_HOPPER && CRUCIBLE_MATMUL == 2
  int64_t bytes[2];
  wgmma_packing<WgmmaTile<128, Grade::Fp32>>(stage, nullptr, nullptr, bytes);
  return bytes[0];
  #else
  return 0;
  #endif
}

int64_t pieces_contract_1(int64_t s77) {
  const contract_1 stage{nullptr, nullptr, nullptr, static_cast<Index>(s77)};
  if (few_pays<FewRows>(stage)) return 0;
  #if CRUCIBLE_HOPPER && CRUCIBLE_MATMUL == 2
  int64_t bytes[2];
  wgmma_packing<WgmmaTile<128, Grade::Fp32>>(stage, nullptr, nullptr, bytes);
  return bytes[1];
  #else
  return 0;
  #endif
}

// mm_1, permute_3, permute_4
struct contract_2 {
  const scalar* __restrict__ p_view_8;
  const scalar* __restrict__ p_x;
  scalar* __restrict__ p_permute_4;
  Index s77;

  static constexpr bool a_along_k = false, b_along_k = false, statistics = false;
  static constexpr int group = 0;
  static constexpr bool boxed = false;
  __host__ __device__ Index batches() const { return 1; }
  __host__ __device__ Index rows() const { return 8192; }
  __host__ __device__ Index cols() const { return 8192; }
  __host__ __device__ Index depth() const { return s77; }
  struct ARow { Index m32; };
  __device__ __forceinline__ ARow a_row(Index z, Index m) const {
    return {m};
  }
  __device__ __forceinline__ accum a(const ARow& at, Index k) const {
    return to_accum(read(p_view_8[k * 8192 + at.m32]));
  }
  struct BCol { Index n33; };
  __device__ __forceinline__ BCol b_col(Index z, Index n) const {
    return {n};
  }
  __device__ __forceinline__ accum b(const BCol& at, Index k) const {
    return to_accum(read(p_x[k * 8192 + at.n33]));
  }
  static constexpr bool b_direct = true;  // an element of memory as it is
  __device__ __forceinline__ const scalar* b_from(const BCol& at, Index k) const {
    return &p_x[k * 8192 + at.n33];
  }
  __device__ __forceinline__ accum finish(Index z, Index m, Index n, int split, accum value,
                                          bool there) const {
    if (there) p_permute_4[m * 8192 + n] = to_scalar(value);
    return value;
  }
};

void run_contract_2(uint64_t p_view_8, uint64_t p_x, uint64_t p_permute_4, int64_t s77, uint64_t packed, uint64_t pieces, uint64_t stream) {
  const contract_2 stage{reinterpret_cast<const scalar*>(p_view_8), reinterpret_cast<const scalar*>(p_x), reinterpret_cast<scalar*>(p_permute_4), static_cast<Index>(s77)};
  #if CRUCIBLE_HOPPER && CRUCIBLE_MATMUL == 2
  check(launch_contract_wgmma<WgmmaTile<128, Grade::Fp32>>(stage, reinterpret_cast<void*>(packed), reinterpret_cast<void*>(pieces), reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #elif CRUCIBLE_MATMUL == 1
  check(launch_contract<Mma<128, 128, 32, 64, 32, Grade::Tf32>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #elif CRUCIBLE_MATMUL == 2
  check(launch_contract<Mma<128, 128, 32, 64, 32, Grade::Fp32>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #elif CRUCIBLE_MATMUL == 3
  check(launch_contract<Mma<128, 128, 32, 64, 32, Grade::Native>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #else
  check(launch_contract<Simt<128, 128, 8, 8, 8>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #endif
}

int64_t packed_contract_2(int64_t s77) {
  const contract_2 stage{nullptr, nullptr, nullptr, static_cast<Index>(s77)};
  #if CRUCIBLE_HOPPER && CRUCIBLE_MATMUL == 2
  int64_t bytes[2];
  wgmma_packing<WgmmaTile<128, Grade::Fp32>>(stage, nullptr, nullptr, bytes);
  return bytes[0];
  #else
  static_cast<void>(stage);
  return 0;
  #endif
}

int64_t pieces_contract_2(int64_t s77) {
  const contract_2 stage{nullptr, nullptr, nullptr, static_cast<Index>(s77)};
  #if CRUCIBLE_HOPPER && CRUCIBLE_MATMUL == 2
  int64_t bytes[2];
  wgmma_packing<WgmmaTile<128, Grade::Fp32>>(stage, nullptr, nullptr, bytes);
  return bytes[1];
  #else
  static_cast<void>(stage);
  return 0;
  #endif
}

// sum_5, view_9
struct rows_5 {
  const scalar* __restrict__ p_view_8;
  scalar* __restrict__ p_view_9;
  Index s77;

  __host__ __device__ Index rows() const { return 8192; }
  __host__ __device__ int64_t length() const { return s77; }
  __host__ __device__ Index repeats() const { return 1; }
  struct Acc {
    Sum r0;  // sum_5
    __device__ __forceinline__ void join(const Acc& b) { r0.join(b.r0); }
  };
  template <class L>
  __device__ __forceinline__ void walk(const L& lanes, Index row, Index first, Index last, int64_t from,
                                       int64_t to, Acc& a) const {
    #pragma unroll 4
    for (int64_t jj = from + lanes.first(); jj < to; jj += lanes.step()) {
      const Index j = static_cast<Index>(jj);
      a.r0.step(to_accum(read(p_view_8[j * 8192 + row])));
    }
  }
  template <class L>
  __device__ __forceinline__ void finish(const L& lanes, Index row, const Acc& a) const {
    const accum sum_5_0 = a.r0.total();
    if (lanes.leads()) {
      p_view_9[row] = to_scalar(sum_5_0);
    }
  }
};

void run_rows_5(uint64_t p_view_8, uint64_t p_view_9, int64_t s77, uint64_t parts, int splits, uint64_t stream) {
  const rows_5 stage{reinterpret_cast<const scalar*>(p_view_8), reinterpret_cast<scalar*>(p_view_9), static_cast<Index>(s77)};
  check(launch_split_rows<1>(stage, reinterpret_cast<void*>(parts), splits, reinterpret_cast<cudaStream_t>(stream)), "rows_5");
}

// One after another, those that are asked for.
void run_model_backward(uint64_t stages, uint64_t p_d_output, uint64_t p_min_1_1_kept, uint64_t p_sum_2_0, uint64_t p_view_5, uint64_t p_addmm_product_0_kept, uint64_t p_gemm_bias, uint64_t p_var_mean_m2, uint64_t p_var_mean_mean, uint64_t p_view_6, uint64_t p_group_norm_weight, uint64_t p_gemm_weight, uint64_t p_mm_product, uint64_t p_x, uint64_t p_permute_4, uint64_t p_view_9, uint64_t memory, int64_t in_sum_1_0_kept, int64_t at_sum_1_0_kept, int64_t in_parts_rows_3, int64_t at_parts_rows_3, int64_t in_parts_rows_5, int64_t at_parts_rows_5, int64_t in_mean_0_kept, int64_t at_mean_0_kept, int64_t in_mean_1_0_kept, int64_t at_mean_1_0_kept, int64_t in_view_8, int64_t at_view_8, int64_t in_packed_contract_8, int64_t at_packed_contract_8, int64_t in_pieces_contract_8, int64_t at_pieces_contract_8, int64_t in_packed_contract_9, int64_t at_packed_contract_9, int64_t in_pieces_contract_9, int64_t at_pieces_contract_9, int64_t in_parts_rows_10, int64_t at_parts_rows_10, int64_t s77, int64_t splits_rows_3, int64_t splits_rows_5, int64_t splits_rows_10, uint64_t stream) {
  const uint64_t holders[] = {memory, p_sum_2_0, p_view_5, p_view_6, p_mm_product, p_permute_4, p_view_9};
  const uint64_t p_sum_1_0_kept = holders[in_sum_1_0_kept] + at_sum_1_0_kept;
  const uint64_t parts_rows_3 = holders[in_parts_rows_3] + at_parts_rows_3;
  const uint64_t parts_rows_5 = holders[in_parts_rows_5] + at_parts_rows_5;
  const uint64_t p_mean_0_kept = holders[in_mean_0_kept] + at_mean_0_kept;
  const uint64_t p_mean_1_0_kept = holders[in_mean_1_0_kept] + at_mean_1_0_kept;
  const uint64_t p_view_8 = holders[in_view_8] + at_view_8;
  const uint64_t packed_contract_8 = holders[in_packed_contract_8] + at_packed_contract_8;
  const uint64_t pieces_contract_8 = holders[in_pieces_contract_8] + at_pieces_contract_8;
  const uint64_t packed_contract_9 = holders[in_packed_contract_9] + at_packed_contract_9;
  const uint64_t pieces_contract_9 = holders[in_pieces_contract_9] + at_pieces_contract_9;
  const uint64_t parts_rows_10 = holders[in_parts_rows_10] + at_parts_rows_10;
  if (stages & 1) run_rows_1(p_d_output, p_sum_1_0_kept, s77, parts_rows_3, static_cast<int>(splits_rows_3), stream);
  if (stages & 2) run_rows_2(p_d_output, p_min_1_1_kept, p_sum_1_0_kept, p_sum_2_0, p_view_5, s77, stream);
  if (stages & 4) run_rows_3(p_addmm_product_0_kept, p_gemm_bias, p_min_1_1_kept, p_sum_1_0_kept, p_var_mean_m2, p_var_mean_mean, p_view_6, s77, parts_rows_5, static_cast<int>(splits_rows_5), stream);
  if (stages & 8) run_rows_4(p_addmm_product_0_kept, p_gemm_bias, p_group_norm_weight, p_min_1_1_kept, p_sum_1_0_kept, p_var_mean_m2, p_var_mean_mean, p_mean_0_kept, p_mean_1_0_kept, s77, stream);
  if (stages & 16) run_map_1(p_addmm_product_0_kept, p_gemm_bias, p_group_norm_weight, p_mean_0_kept, p_mean_1_0_kept, p_min_1_1_kept, p_sum_1_0_kept, p_var_mean_m2, p_var_mean_mean, p_view_8, s77, stream);
  if (stages & 32) run_contract_1(p_gemm_weight, p_view_8, p_mm_product, s77, packed_contract_8, pieces_contract_8, stream);
  if (stages & 64) run_contract_2(p_view_8, p_x, p_permute_4, s77, packed_contract_9, pieces_contract_9, stream);
  if (stages & 128) run_rows_5(p_view_8, p_view_9, s77, parts_rows_10, static_cast<int>(splits_rows_10), stream);
}
"""


_FORWARD_BINDING = r"""
#include <cstdint>
#include <pybind11/pybind11.h>

void run_model_forward(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, uint64_t);
void run_model_inference(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, uint64_t);
int64_t packed_contract_1(int64_t);
int64_t pieces_contract_1(int64_t);
int64_t packed_contract_2(int64_t);
int64_t pieces_contract_2(int64_t);

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("model_forward", &run_model_forward);
  m.def("model_inference", &run_model_inference);
  m.def("packed_contract_1", &packed_contract_1);
  m.def("pieces_contract_1", &pieces_contract_1);
  m.def("packed_contract_2", &packed_contract_2);
  m.def("pieces_contract_2", &pieces_contract_2);
}
"""

_BACKWARD_BINDING = r"""
#include <cstdint>
#include <pybind11/pybind11.h>

void run_model_backward(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, uint64_t);
int64_t packed_contract_1(int64_t);
int64_t pieces_contract_1(int64_t);
int64_t packed_contract_2(int64_t);
int64_t pieces_contract_2(int64_t);

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("model_backward", &run_model_backward);
  m.def("packed_contract_1", &packed_contract_1);
  m.def("pieces_contract_1", &pieces_contract_1);
  m.def("packed_contract_2", &packed_contract_2);
  m.def("pieces_contract_2", &pieces_contract_2);
}
"""

_SOURCES = {"forward": (_FORWARD_BINDING, _FORWARD_SOURCE), "backward": (_BACKWARD_BINDING, _BACKWARD_SOURCE)}

_SCALARS = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 3, torch.float64: 1}
_kept = functools.lru_cache(None)  # what is asked for in every call, and computed in the first


def _grade(dtype, device, tf32):
    """How contractions are computed: 0 ordinary cores, 1 TF32, 2 as good as float32, 3 in the type itself."""
    if dtype == torch.float64 or torch.cuda.get_device_capability(device) < (8, 0):
        return 0
    if dtype != torch.float32:
        return 3
    return 1 if tf32 else 2


@_kept
def _hopper(device):
    """Whether this chip has Hopper's matrix instructions, the compiler knows them, and the file makes use of them."""
    known = int((torch.version.cuda or "0").split(".")[0]) >= 12
    return int(True and known and torch.cuda.get_device_capability(device) == (9, 0))


def _boxes(dtype, device, precise, hopper, others):
    """How many boxes a convolution has: as good as float32 on Hopper, otherwise on Hopper, elsewhere."""
    if not _hopper(device):
        return others
    return precise if _grade(dtype, device, _allowed(_conv_switch())) == 2 else hopper


def _kernels(part, dtype, device, elements):
    """The compiled kernels for an element type, an index width and the precision that torch's switches allow."""
    conv, matmul = _allowed(_conv_switch()), _allowed(_matmul_switch())
    return _chosen(part, dtype, device, elements > 2**31 - 1, conv, matmul)


@_kept
def _chosen(part, dtype, device, wide, conv, matmul):
    grades = _grade(dtype, device, conv), _grade(dtype, device, matmul)
    return _compiled(part, dtype, int(wide), *grades, _hopper(device))


@_kept
def _compiled(part, dtype, wide, conv, matmul, hopper):
    flags = [f"-DCRUCIBLE_SCALAR={_SCALARS[dtype]}", f"-DCRUCIBLE_WIDE={wide}", f"-DCRUCIBLE_CONV={conv}",
             f"-DCRUCIBLE_MATMUL={matmul}", f"-DCRUCIBLE_HOPPER={hopper}"]
    if hopper:
        flags.append("-gencode=arch=compute_90a,code=sm_90a")
    binding, source = _SOURCES[part]
    bare = "no_implicit_headers" in inspect.signature(load_inline).parameters  # torch's headers cost half a minute
    options = {"no_implicit_headers": True} if bare else {}
    return load_inline(
        name=f"crucible_45ff6246d928_{part}_{_SCALARS[dtype]}{wide}{conv}{matmul}{hopper}",
        cpp_sources=binding, cuda_sources=source,
        extra_cflags=["-O1"], extra_cuda_cflags=["-O3", "-std=c++17", *flags], **options,
    )


_SIMULATED = getattr(torch.cuda, "crucible_simulated", False)
# What torch.cuda asks the driver for itself, where torch was built for CUDA.
_current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream)
try:
    if _SIMULATED:
        raise ImportError
    from torch._C._dynamo.guards import _empty_strided_cuda as _new  # in half the time
except ImportError:

    def _new(shape, stride, dtype):
        return torch.empty_strided(shape, stride, dtype=dtype, device="cuda")


def _accumulated(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


# What torch's switches for TF32 say. Since torch 2.9 each operator has its own: asking for all at once may be an error.
_precision = getattr(torch._C, "_get_fp32_precision_getter", None)
if _precision is None:
    _conv_switch = getattr(torch._C, "_get_cudnn_allow_tf32", lambda: torch.backends.cudnn.allow_tf32)
    _matmul_switch = torch.get_float32_matmul_precision
else:
    _conv_switch = functools.partial(_precision, "cuda", "conv")
    _matmul_switch = functools.partial(_precision, "cuda", "matmul")


def _allowed(said):
    """Whether that permits TF32."""
    return said not in (False, "highest", "ieee", "none")


_PLANS = {}  # of calls, by all that they depend on
_LAST = {}  # for each kind of call the last one: what it depended on, how to know its tensors, its plan
_kind = operator.attrgetter("shape", "dtype", "device")
_is_dense, _pointer = torch.Tensor.is_contiguous, torch.Tensor.data_ptr
try:  # compares a dozen tensors in a microsecond
    from torch._C._dynamo.guards import TensorGuards as _Guards
except ImportError:
    _Guards = None


def _planned(make, tensors, *others):
    """The plan of a call with such tensors, and the tensors, dense. The first call of its kind makes the plan."""
    given = (_matmul_switch(), others)
    last = _LAST.get(make)
    if last is not None and last[1](*tensors) and last[0] == given:
        return last[2], tensors
    key = (make, given, *map(_kind, tensors))
    plan = _PLANS.get(key)
    if plan is None:
        plan = make(*others, *tensors)
        if len(_PLANS) >= 256:  # where sizes keep changing, old ones go
            _PLANS.clear()
        _PLANS[key] = plan
    if not all(map(_is_dense, tensors)):
        return plan, [t.contiguous() for t in tensors]
    _LAST[make] = given, _like(tensors), plan
    return plan, tensors


def _like(tensors):
    """A function that tells whether tensors have the type, device, shape and strides of these."""
    try:
        shapes = {"dynamic_dims_sizes": [[*t.shape] for t in tensors]}
        return _Guards(*tensors, **shapes, dynamic_dims_strides=[[*t.stride()] for t in tensors]).check
    except (TypeError, SystemError, RuntimeError):  # another torch
        return lambda *others: False


def _bytes(dtype):
    """Of an element."""
    return torch.empty((), dtype=dtype, device="meta").element_size()  # dtype.itemsize came with torch 2.1


def _spec(shape, dtype):
    """What _new() takes."""
    return shape, torch.empty(shape, device="meta").stride(), dtype


def _laid_out(stages, buffers, hosts=()):
    """One piece of memory for all buffers, as _new() takes it; then for each buffer where it lies: holder, offset.

    Buffers come with their bytes and the set of stages that use them. Those that are never needed at the same time may
    share memory. Holder 0 is the piece; the others are tensors that are written after the buffer was read for the last
    time, so that what lies in them costs nothing.
    """
    sizes = [size if users & stages else 0 for size, users in buffers]
    if _SIMULATED:  # see _apart()
        return ((1,), (1,), torch.uint8), [n for size in sizes for n in (0, size)]
    holders = [(k, math.prod(s[0]) * _bytes(s[2]), (u & -u).bit_length()) for k, (s, u) in enumerate(hosts, 1) if s]
    holders.append((0, math.inf, math.inf))
    placed, places = [], [(0, 0)] * len(buffers)
    for k in sorted(range(len(buffers)), key=sizes.__getitem__, reverse=True):
        users, size = buffers[k][1] & stages, -(-sizes[k] // 512) * 512
        first, last = (users & -users).bit_length(), users.bit_length()
        for holder, limit, written in holders:
            taken = [p for p in placed if p[0] == holder and p[3] <= last and first <= p[4]]
            starts = sorted([0, *(p[2] for p in taken)])
            at = next(s for s in starts if all(s + size <= p[1] or p[2] <= s for p in taken))
            if last < written and at + size <= limit:
                placed.append((holder, at, at + size, first, last))
                places[k] = holder, at
                break
    total = max((p[2] for p in placed if not p[0]), default=0)
    return ((total,), (1,), torch.uint8), [n for place in places for n in place]


def _apart(memory, counts, buffers):
    """A simulator checks bounds: there each buffer has memory of its own, given as a distance from the piece."""
    alone = [_new((size,), (1,), torch.uint8) for size in counts[1 : 2 * buffers : 2]]
    places = [n for t in alone for n in (0, t.data_ptr() - memory.data_ptr())]
    return alone, (*places, *counts[2 * buffers :])


def _address(tensor):
    return 0 if tensor is None else tensor.data_ptr()


def _splits(rows, lanes, length, times=1):
    """Into how many parts long rows are cut: enough to fill a GPU, none too short. Some are one stretch many times."""
    most = max(1, length // (16 * lanes)) * times
    return max(1, min(most, (131072 if times == 1 else 262144) // max(rows * lanes, 1), 1024))


def _shape_error(name, tensor, expected):
    return RuntimeError(f"ModelNew: expected {name} of shape {expected}, got {tuple(tensor.shape)}")


def _checked(**tensors):
    """The common type and device of the tensors, after a look at all of them."""
    first = next(iter(tensors.values()))
    device, cuda, dtype = first.device, first.is_cuda, None
    for name, t in tensors.items():
        if not cuda or t.device != device:
            raise _device_error(name, t.device, device)
        if t.is_floating_point():
            if dtype is None:
                dtype = t.dtype
            elif t.dtype != dtype:
                raise RuntimeError(f"ModelNew: {name} is {t.dtype}, other tensors are {dtype}")
    dtype = dtype or torch.float32
    if dtype not in _SCALARS:
        raise RuntimeError(f"ModelNew: {dtype} is not supported; use one of {', '.join(map(str, _SCALARS))}")
    return dtype, device


def _device_error(name, own, first):
    if own.type != "cuda":
        return RuntimeError(f"ModelNew: {name} is on {own}; these kernels need a CUDA device")
    return RuntimeError(f"ModelNew: {name} is on {own}, other tensors are on {first}")


def _settings(module):
    """A digest of the plain attributes of a module and its submodules: strides, sizes, constants."""
    kept = []
    for name, part in module.named_modules():
        values = {k: v for k, v in vars(part).items() if not k.startswith("_") and k != "training"}
        plain = {k: v for k, v in values.items() if isinstance(v, (bool, int, float, str, tuple, list, type(None)))}
        kept.append((name, type(part).__name__ if name else "", sorted((k, repr(v)) for k, v in plain.items())))
    return hashlib.sha256(repr(kept).encode()).hexdigest()[:16]


class _Seen:
    """What was found right in a module, and where it stands. A copy of the module is looked at anew."""

    def __init__(self, digest=None, held=(), modes=()):
        self.digest, self.held, self.modes = digest, held, modes

    def __reduce__(self):
        return _Seen, ()


def _expect(module, digest, layers):
    """Refuse a configuration that these kernels were not made for, and layers in another mode than they were made for.

    ``layers``: by name whether a layer is in training mode while the module is in eval mode, and while it trains.
    """
    seen = module.__dict__.get("_crucible_settings")
    same = seen is not None and seen.digest == digest
    if same:
        for table, key, value in seen.held:
            if table.get(key) is not value:
                same = False
    if not same:
        if _settings(module) != digest:
            raise RuntimeError(
                f"{type(module).__name__}: these kernels were made for another configuration, that of "
                "get_init_inputs() or of the module that was fused; fuse it again for this one"
            )
        parts = dict(module.named_modules())
        # What may change from call to call: numbers, such as a momentum, and layers that are exchanged.
        held = [(vars(p), k, v) for p in parts.values() for k, v in vars(p).items() if type(v) is float]
        held += [(p._modules, k, v) for p in parts.values() for k, v in p._modules.items()]
        seen = _Seen(digest, held, [(vars(parts[name]), name, modes) for name, modes in layers.items()])
        module.__dict__["_crucible_settings"] = seen
    for table, name, modes in seen.modes:
        if table["training"] is not modes[module.training]:
            mode, other = ("training", "eval") if table["training"] else ("eval", "training")
            raise RuntimeError(
                f"{type(module).__name__}: {name} is in {mode} mode, and these kernels were made for it in {other} "
                "mode; give the Model a train() that sets it so, and fuse it again"
            )


# Whether they are in training mode: in eval mode, and while training.
_LAYERS = {}


class _BackwardTwice(torch.autograd.Function):
    """Gradients that may be differentiated again, which is an error: taken for constants they would be wrong."""

    @staticmethod
    def forward(ctx, count, *tensors):
        return tuple(g.detach() for g in tensors[:count])

    @staticmethod
    def backward(ctx, *gradients):
        raise RuntimeError(
            "ModelNew: gradients of gradients (a penalty on gradients, a Hessian) are not in this file; "
            "use the Model that it was made from where they are needed"
        )


class _BackwardOnce:
    """What backward() asks of its context, which must be asked for saved tensors once."""

    def __init__(self, ctx):
        self.needs_input_grad, self.sizes, self.saved_tensors = ctx.needs_input_grad, ctx.sizes, ctx.saved_tensors


def _once_backward(function):
    def backward(ctx, *gradients):
        if not torch.is_grad_enabled():  # nobody asked for create_graph
            return function(ctx, *gradients)
        held = _BackwardOnce(ctx)
        with torch.no_grad():
            made = function(held, *gradients)
        found = [g for g in made if g is not None]
        # What they come from, as far as it is at hand, and one tensor that wants a gradient whatever that is.
        sources = [t for t in (*held.saved_tensors, *gradients) if t is not None and t.requires_grad]
        again = iter(_BackwardTwice.apply(len(found), *found, *sources, torch.ones((), requires_grad=True)))
        return tuple(None if g is None else next(again) for g in made)

    return backward


def _model_forward_plan(bias, gemm_weight, gemm_bias, group_norm_weight, group_norm_bias, x):
    dtype, device = _checked(bias=bias, gemm_weight=gemm_weight, gemm_bias=gemm_bias, group_norm_weight=group_norm_weight, group_norm_bias=group_norm_bias, x=x)
    if x.dim() != 2:
        raise _shape_error('x', x, '(s77, 8192)')
    s77, _ = x.shape
    if bias.shape != (1, 8192, 1, 1):
        raise _shape_error('bias', bias, '(1, 8192, 1, 1)')
    if gemm_weight.shape != (8192, 8192):
        raise _shape_error('gemm_weight', gemm_weight, '(8192, 8192)')
    if gemm_bias.shape != (8192,):
        raise _shape_error('gemm_bias', gemm_bias, '(8192,)')
    if group_norm_weight.shape != (8192,):
        raise _shape_error('group_norm_weight', group_norm_weight, '(8192,)')
    if group_norm_bias.shape != (8192,):
        raise _shape_error('group_norm_bias', group_norm_bias, '(8192,)')
    if x.shape != (s77, 8192):
        raise _shape_error('x', x, '(s77, 8192)')
    kernels = _kernels("forward", dtype, device, max(s77 * 8192, s77 * 512, s77 * 64, s77, 67108864))
    accum = _accumulated(dtype)
    specs = [_spec((s77, 8192), dtype), _spec((s77, 512), accum), _spec((s77, 512), accum), _spec((s77,), torch.int64), _spec((1, 8192, s77, 1), dtype)]
    room, places = _laid_out(0b111, [(s77 * 64 * _bytes(accum), 0b11), (s77 * 64 * 8, 0b11), (kernels.packed_contract_1(s77), 0b1), (kernels.pieces_contract_1(s77), 0b1), (s77 * _bytes(accum), 0b110)], zip(specs, [0b1, 0b1, 0b1, 0b10, 0b100]))
    return kernels, device.index, specs, room, (*places, s77,), (s77,)


def _model_forward(tensors):
    (kernels, index, specs, room, counts, sizes), dense = _planned(_model_forward_plan, tensors)
    if _current_device() != index:
        with torch.cuda.device(index):
            return _model_forward(tensors)
    bias, gemm_weight, gemm_bias, group_norm_weight, group_norm_bias, x = dense
    addmm_product_0_kept = _new(*specs[0])
    var_mean_mean = _new(*specs[1])
    var_mean_m2 = _new(*specs[2])
    min_1_1_kept = _new(*specs[3])
    add_2 = _new(*specs[4])
    memory = _new(*room)
    if _SIMULATED:
        alone, counts = _apart(memory, counts, 5)
    kernels.model_forward(0b111, *map(_pointer, dense), addmm_product_0_kept.data_ptr(), var_mean_mean.data_ptr(), var_mean_m2.data_ptr(), min_1_1_kept.data_ptr(), add_2.data_ptr(), memory.data_ptr(), *counts, _raw_stream(index))
    return [add_2], [addmm_product_0_kept, gemm_bias, gemm_weight, group_norm_weight, min_1_1_kept, var_mean_m2, var_mean_mean, x], sizes


def _model_backward_plan(needs, sizes, d_output):
    s77, = sizes
    dtype, device = d_output.dtype, d_output.device
    kernels = _kernels("backward", dtype, device, max(s77 * 8192, s77 * 512, s77 * 64, s77, 67108864))
    accum = _accumulated(dtype)
    splits_rows_3 = _splits(s77, 1, 8192)
    splits_rows_5 = _splits(8192, 1, s77)
    splits_rows_10 = _splits(8192, 1, s77)
    stages = 0b1 | (0b10 if needs[0] or needs[4] else 0) | (0b100 if needs[3] else 0) | (0b11000 if needs[1] or needs[2] or needs[5] else 0) | (0b100000 if needs[5] else 0) | (0b1000000 if needs[1] else 0) | (0b10000000 if needs[2] else 0)
    specs = [_spec((1, 8192, 1, 1), dtype) if stages & 0b10 else None, _spec((8192,), dtype) if stages & 0b10 else None, _spec((8192,), dtype) if stages & 0b100 else None, _spec((s77, 8192), dtype) if stages & 0b100000 else None, _spec((8192, 8192), dtype) if stages & 0b1000000 else None, _spec((8192,), dtype) if stages & 0b10000000 else None]
    room, places = _laid_out(stages, [(s77 * _bytes(accum), 0b11111), ((s77) * 32 * splits_rows_3, 0b1), ((8192) * 32 * splits_rows_5, 0b100), (s77 * 512 * _bytes(accum), 0b11000), (s77 * 512 * _bytes(accum), 0b11000), (s77 * 8192 * _bytes(dtype), 0b11110000), (kernels.packed_contract_1(s77), 0b100000), (kernels.pieces_contract_1(s77), 0b100000), (kernels.packed_contract_2(s77), 0b1000000), (kernels.pieces_contract_2(s77), 0b1000000), ((8192) * 32 * splits_rows_10, 0b10000000)], zip(specs, [0b10, 0b10, 0b100, 0b100000, 0b1000000, 0b10000000]))
    return kernels, device.index, stages, specs, room, (*places, s77, splits_rows_3, splits_rows_5, splits_rows_10,)


def _model_backward(needs, sizes, saved, d_output):
    tensors = d_output,
    (kernels, index, stages, specs, room, counts), (d_output,) = _planned(_model_backward_plan, tensors, needs, sizes)
    if _current_device() != index:
        with torch.cuda.device(index):
            return _model_backward(needs, sizes, saved, d_output)
    addmm_product_0_kept, gemm_bias, gemm_weight, group_norm_weight, min_1_1_kept, var_mean_m2, var_mean_mean, x = saved
    sum_2_0 = specs[0] and _new(*specs[0])
    view_5 = specs[1] and _new(*specs[1])
    view_6 = specs[2] and _new(*specs[2])
    mm_product = specs[3] and _new(*specs[3])
    permute_4 = specs[4] and _new(*specs[4])
    view_9 = specs[5] and _new(*specs[5])
    memory = _new(*room)
    if _SIMULATED:
        alone, counts = _apart(memory, counts, 11)
    kernels.model_backward(stages, d_output.data_ptr(), min_1_1_kept.data_ptr(), _address(sum_2_0), _address(view_5), addmm_product_0_kept.data_ptr(), gemm_bias.data_ptr(), var_mean_m2.data_ptr(), var_mean_mean.data_ptr(), _address(view_6), group_norm_weight.data_ptr(), gemm_weight.data_ptr(), _address(mm_product), x.data_ptr(), _address(permute_4), _address(view_9), memory.data_ptr(), *counts, _raw_stream(index))
    return sum_2_0, permute_4, view_9, view_6, view_5, mm_product


def _model_inference_plan(bias, gemm_weight, gemm_bias, group_norm_weight, group_norm_bias, x):
    dtype, device = _checked(bias=bias, gemm_weight=gemm_weight, gemm_bias=gemm_bias, group_norm_weight=group_norm_weight, group_norm_bias=group_norm_bias, x=x)
    if x.dim() != 2:
        raise _shape_error('x', x, '(s77, 8192)')
    s77, _ = x.shape
    if bias.shape != (1, 8192, 1, 1):
        raise _shape_error('bias', bias, '(1, 8192, 1, 1)')
    if gemm_weight.shape != (8192, 8192):
        raise _shape_error('gemm_weight', gemm_weight, '(8192, 8192)')
    if gemm_bias.shape != (8192,):
        raise _shape_error('gemm_bias', gemm_bias, '(8192,)')
    if group_norm_weight.shape != (8192,):
        raise _shape_error('group_norm_weight', group_norm_weight, '(8192,)')
    if group_norm_bias.shape != (8192,):
        raise _shape_error('group_norm_bias', group_norm_bias, '(8192,)')
    if x.shape != (s77, 8192):
        raise _shape_error('x', x, '(s77, 8192)')
    kernels = _kernels("forward", dtype, device, max(s77 * 8192, s77 * 512, s77 * 64, s77, 67108864))
    accum = _accumulated(dtype)
    specs = [_spec((1, 8192, s77, 1), dtype)]
    room, places = _laid_out(0b111, [(s77 * 64 * _bytes(accum), 0b11), (kernels.packed_contract_2(s77), 0b1), (kernels.pieces_contract_2(s77), 0b1), (s77 * _bytes(accum), 0b110)], zip(specs, [0b100]))
    return kernels, device.index, specs, room, (*places, s77,)


def _model_inference(tensors):
    (kernels, index, specs, room, counts), dense = _planned(_model_inference_plan, tensors)
    if _current_device() != index:
        with torch.cuda.device(index):
            return _model_inference(tensors)
    add_2 = _new(*specs[0])
    memory = _new(*room)
    if _SIMULATED:
        alone, counts = _apart(memory, counts, 4)
    kernels.model_inference(0b111, *map(_pointer, dense), add_2.data_ptr(), memory.data_ptr(), *counts, _raw_stream(index))
    return [add_2]


class _Model(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *tensors):
        made, saved, ctx.sizes = _model_forward(tensors)
        ctx.save_for_backward(*saved)
        return tuple(made)

    @staticmethod
    @_once_backward
    def backward(ctx, *gradients):
        return _model_backward(ctx.needs_input_grad, ctx.sizes, ctx.saved_tensors, gradients[0])


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, num_groups, bias_shape):
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.group_norm = nn.GroupNorm(num_groups, out_features)
        self.bias = nn.Parameter(torch.randn(bias_shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        _expect(self, '6be84f8a62ffd237', _LAYERS)
        try:
            _layer0 = self._modules['gemm']
            _layer1 = self._modules['group_norm']
            tensors = self._parameters['bias'], _layer0._parameters['weight'], _layer0._parameters['bias'], _layer1._parameters['weight'], _layer1._parameters['bias'], x
        except (AttributeError, KeyError):  # a layer that was exchanged, or computes its weights
            tensors = self.bias, self.gemm.weight, self.gemm.bias, self.group_norm.weight, self.group_norm.bias, x
        made = _Model.apply(*tensors) if torch.is_grad_enabled() and any(t.requires_grad for t in tensors) else _model_inference(tensors)
        return made[0]


batch_size = 1024
in_features = 8192
out_features = 8192
num_groups = 512
bias_shape = (1, out_features, 1, 1)


def get_inputs():
    return [torch.rand(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, num_groups, bias_shape]
