// Boxes of output pixels and the input under them, in up to four dimensions.
//
// A functor whose columns are pixels names its form by types: Box, Kernel, Stride, Dilation, Shift (all Dims), and gives
// the output's extents. Column i of a box is a pixel of it, the last dimension fastest. Input pixel
// y * stride + tap * dilation + shift is under tap of output pixel y; the halo of a box is all input pixels under it.
#pragma once

#include "common.cuh"

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
