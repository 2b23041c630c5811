// Sums of boxes of output pixels on their way from the registers of Hopper's tensor cores through the functor to memory.
//
// A warp has 16 rows of sums. They are unscaled, and finished where they are if they can be (fragments.cuh). Else they go through
// shared memory, four rows at a time, from where neighbouring lanes take neighbouring pixels; sums of phases whose elements
// lie beside each other are put there in the output's order.
#pragma once

#include "fragments.cuh"
#include "window_halo.cuh"

#if CRUCIBLE_HOPPER
namespace crucible {

#if CRUCIBLE_HAS_WGMMA
// The exponents that unscale a lane's two rows of a warp's 16.
struct Exponents {
  int of[2];
  __device__ __forceinline__ Exponents(const int* rows, int scale) {
#pragma unroll
    for (int h = 0; h < 2; ++h) of[h] = -scale - rows[h * 8 + static_cast<int>(threadIdx.x) % 32 / 4];
  }
};
template <int EIGHTS, int COUNT>
__device__ __forceinline__ void unscale(float (&sums)[COUNT], const Exponents& exponents) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int e = exponents.of[h], e1 = e < -126 ? -126 : e < 127 ? e : 127;
    const float f = power_of_two(e1);
#pragma unroll
    for (int j = 0; j < EIGHTS; ++j) sums[4 * j + 2 * h] *= f, sums[4 * j + 2 * h + 1] *= f;
    if (__any_sync(0xffffffffu, e != e1)) {
#pragma unroll 1
      for (int left = e - e1; __any_sync(0xffffffffu, left != 0);) {
        const int step = left < -126 ? -126 : left < 127 ? left : 127;
        const float g = power_of_two(step);
#pragma unroll
        for (int j = 0; j < EIGHTS; ++j) sums[4 * j + 2 * h] *= g, sums[4 * j + 2 * h + 1] *= g;
        left -= step;
      }
    }
  }
}

// The pixels of a box that a lane finishes: from the box's first to each, or to the first of a pool's window, in the output
// and among the sums, and to the window itself.
template <class W, class P>
struct PairLanes {
  using H = Pair<W, P>;
  using Pixels = LanePixels<P, (P::Box::product + 31) / 32>;
  static constexpr int EACH = Pixels::EACH, ROUNDS = Pixels::ROUNDS, TAKES = Pixels::TAKES;
  Index to[ROUNDS], pooled[ROUNDS];
  int from[ROUNDS];

  __device__ __forceinline__ explicit PairLanes(const P& p) {
#pragma unroll
    for (int j = 0; j < ROUNDS; ++j) {
      const int i = Pixels::pixel(j * TAKES);
      to[j] = 0, from[j] = 0, pooled[j] = PoolOf<P>::pooled ? Pixels::pooled(p, j) : Index(0);
#pragma unroll
      for (int d = 0; d < 4; ++d) {
        to[j] = to[j] * p.extent(d) + P::Box::index(i, d);
        from[j] += P::Box::index(i, d) * H::Halo::pitch(d);
      }
      if (i >= P::Box::product) to[j] = 0, from[j] = 0;
    }
  }
  // Neighbours of a window's row are read two at a time where each pair begins at an even place.
  static __device__ __forceinline__ constexpr bool twos() {
    for (int d = 0; d < 3; ++d)
      if (P::Box::at(d) > 1 && H::Halo::pitch(d) % 2 != 0) return false;
    return Pixels::Window::at(3) % 2 == 0;
  }
  __device__ __forceinline__ void read(float (&values)[EACH], const float* row) const {
    constexpr int BY = twos() ? 2 : 1;
#pragma unroll
    for (int j = 0; j < EACH; j += BY) {
      int at = from[j / TAKES];
#pragma unroll
      for (int d = 0; d < 4; ++d) at += Pixels::Window::index(j % TAKES, d) * H::Halo::pitch(d);
      if constexpr (BY == 2) {
        const float2 two = *reinterpret_cast<const float2*>(row + at);
        values[j] = two.x, values[j + 1] = two.y;
      } else {
        values[j] = row[at];
      }
    }
  }
};

// WHOLE: the box lies in the output with all its pixels.
template <class W, class P, bool WHOLE>
struct PairColumns {
  using Lanes = PairLanes<W, P>;
  using Pixels = typename Lanes::Pixels;
  const P& p;
  const Lanes& lanes;
  const BoxPlace<P>& place;
  Index base, pools, tile;
  int count;
  unsigned exists = 0;

  __device__ __forceinline__ PairColumns(const P& functor, const Lanes& places, const BoxPlace<P>& of, Index box)
      : p(functor), lanes(places), place(of), base(0), pools(PoolOf<P>::pooled ? Pixels::first_pooled(p, place) : Index(0)), tile(box),
        count(WHOLE ? P::Box::product : place.count()) {
#pragma unroll
    for (int d = 0; d < 4; ++d) base = base * p.extent(d) + place.first[d];
#pragma unroll
    for (int j = 0; j < Lanes::EACH; ++j)
      if (!WHOLE) exists |= unsigned(place.exists(Pixels::pixel(j))) << j;
  }
  __device__ __forceinline__ bool valid(int, int j) const {
    const int round = j / Lanes::TAKES;
    if (WHOLE) return (round + 1) * 32 <= Pixels::Windows::product || Pixels::window(round) < Pixels::Windows::product;
    return exists >> j & 1u;
  }
  __device__ __forceinline__ Index column(int, int j) const {
    if (!PoolOf<P>::pooled) return base + lanes.to[j];
    Index at = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) at = at * p.extent(d) + Pixels::Window::index(j % Lanes::TAKES, d);
    return base + lanes.to[j / Lanes::TAKES] + at;
  }
  // The pixel of a column that exists, else the box's first.
  __device__ __forceinline__ Index pixel(int r, int j, int d) const {
    return place.first[d] + (P::Box::at(d) > 1 && valid(r, j) ? P::Box::index(Pixels::pixel(j), d) : 0);
  }
  __device__ __forceinline__ bool whole(int round) const {
    constexpr unsigned all = 0xffffffffu >> (32 - Lanes::TAKES);
    return WHOLE ? valid(0, round * Lanes::TAKES) : (exists >> round * Lanes::TAKES & all) == all;
  }
  __device__ __forceinline__ Index pooled(int round) const { return pools + lanes.pooled[round]; }
};

// Four of a warp's 16 rows, part + 2 h, to shared memory, from where neighbouring lanes can read neighbouring pixels.
template <int N, int PITCH, int COUNT>
__device__ __forceinline__ void stage_rows(const float (&sums)[COUNT], int h, int part, float* stage) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  __syncwarp();
  if (lane / 16 == part) {
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
      *reinterpret_cast<float2*>(stage + lane % 16 / 4 * PITCH + j * 8 + lane % 4 * 2) =
          make_float2(sums[4 * j + 2 * h], sums[4 * j + 2 * h + 1]);
  }
  __syncwarp();
}

// One warp's 16 rows of a box.
template <class W, bool WHOLE, class P, int COUNT>
__device__ __forceinline__ void finish_box(const P& p, Index z, Index first, Index box, const BoxPlace<P>& place,
                                           const PairLanes<W, P>& lanes, const float (&sums)[COUNT], float* stage) {
  using H = Pair<W, P>;
  constexpr int EACH = PairLanes<W, P>::EACH, ROWS = EACH > 8 ? 1 : EACH > 5 && P::statistics ? 2 : 4;  // as many as there are registers for
  const Index rows = p.rows();
  const PairColumns<W, P, WHOLE> columns(p, lanes, place, box);
  // Registers must be known beforehand, so each eight rows have their own code.
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll 1
    for (int part = 0; part < 2; ++part) {
      stage_rows<H::N, H::STAGE_PITCH>(sums, h, part, stage);
#pragma unroll 1
      for (int r = 0; r < 4; r += ROWS) {
        float values[ROWS][EACH];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) lanes.read(values[i], stage + (r + i) * H::STAGE_PITCH);
        const Index m = first + h * 8 + part * 4 + r;
        if (m < rows) finish_values(p, z, m, rows, columns, 0, values);
      }
    }
}
// The columns of a box of several phases that a lane finishes, the phases of a pixel beside each other: every 32nd.
template <class Halo, class P>
struct BesideColumns {
  using Several = void;
  using Box = typename P::Box;
  static constexpr int BESIDE = InsideOf<P>::beside, EACH = (BESIDE * Box::product + 31) / 32;
  static constexpr bool LINE = Box::product == Box::at(3), KNOWS = RaggedOf<P>::alike;
  static_assert(Box::product < 256 && EACH <= 32, "a byte for each number of a pixel, a bit for each column");
  const BoxPlace<P>& place;
  Index tile;
  int count;
  unsigned exists = 0, pixels[LINE ? 1 : EACH];  // four bytes each

  static __device__ __forceinline__ int at(int j) { return static_cast<int>(threadIdx.x) % 32 + j * 32; }
  static __device__ __forceinline__ int number(int j) {
    return 32 % BESIDE == 0 ? static_cast<int>(threadIdx.x) % 32 / BESIDE + j * (32 / BESIDE) : at(j) / BESIDE;
  }
  __device__ __forceinline__ BesideColumns(const P& p, Index z, const BoxPlace<P>& of, Index box) : place(of), tile(box) {
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      if (!LINE) pixels[j] = Box::index(number(j), 0) | Box::index(number(j), 1) << 8 | Box::index(number(j), 2) << 16 | Box::index(number(j), 3) << 24;
      bool there = place.exists(number(j));
      if constexpr (RaggedOf<P>::ragged && KNOWS)
        there = there && p.exists_at(z + further(j), 0, of.first[0] + in(j, 0), of.first[1] + in(j, 1), of.first[2] + in(j, 2), of.first[3] + in(j, 3));
      exists |= unsigned(there) << j;
    }
    count = P::statistics ? static_cast<int>(__reduce_add_sync(0xffffffffu, __popc(exists))) : 0;
  }
  // Which of the phases it is, its pixel, and where it is staged.
  static __device__ __forceinline__ Index further(int j) { return 32 % BESIDE == 0 ? static_cast<int>(threadIdx.x) % BESIDE : at(j) % BESIDE; }
  __device__ __forceinline__ int in(int j, int d) const { return LINE ? (d == 3 ? number(j) : 0) : static_cast<int>(pixels[j] >> 8 * d & 255u); }
  __device__ __forceinline__ int from(int j) const {
    int place_in = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) place_in += in(j, d) * Halo::pitch(d);
    return (number(j) < Box::product ? place_in : 0) * BESIDE + static_cast<int>(further(j));
  }
  __device__ __forceinline__ bool valid(int, int j) const { return exists >> j & 1u; }
  __device__ __forceinline__ Index column(int, int) const { return 0; }
  __device__ __forceinline__ Index pixel(int r, int j, int d) const {
    return place.first[d] + (Box::at(d) > 1 && (!P::reads || valid(r, j)) ? in(j, d) : 0);
  }
};

// One warp's 16 rows of a box, of so many phases from batch z on.
template <class Halo, int PITCH, class P, int BESIDE, int COUNT>
__device__ __forceinline__ void finish_beside(const P& p, Index z, Index first, Index box, const BoxPlace<P>& place,
                                              const float (&sums)[BESIDE][COUNT], float* stage) {
  using Columns = BesideColumns<Halo, P>;
  constexpr int EACH = Columns::EACH, ROWS = EACH > 8 ? 1 : EACH > 4 ? 2 : 4;
  static_assert(!P::statistics || P::group == 0, "statistics are of all columns");
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Index rows = p.rows();
  const Columns columns(p, z, place, box);
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll 1
    for (int part = 0; part < 2; ++part) {
      __syncwarp();
      if (lane / 16 == part) {
        float* const to = stage + lane % 16 / 4 * PITCH + lane % 4 * (2 * BESIDE);
#pragma unroll
        for (int j = 0; j < COUNT / 4; ++j)
          if constexpr (BESIDE == 2) {
            *reinterpret_cast<float4*>(to + j * 16) =
                make_float4(sums[0][4 * j + 2 * h], sums[1][4 * j + 2 * h], sums[0][4 * j + 2 * h + 1], sums[1][4 * j + 2 * h + 1]);
          } else {
#pragma unroll
            for (int b = 0; b < BESIDE; ++b)
              to[j * 8 * BESIDE + b] = sums[b][4 * j + 2 * h], to[(j * 8 + 1) * BESIDE + b] = sums[b][4 * j + 2 * h + 1];
          }
      }
      __syncwarp();
#pragma unroll 1
      for (int r = 0; r < 4; r += ROWS) {
        float values[ROWS][EACH];
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
          for (int j = 0; j < EACH; ++j) values[i][j] = stage[(r + i) * PITCH + columns.from(j)];
        const Index m = first + h * 8 + part * 4 + r;
        if (m >= rows) continue;
        finish_values(p, z, m, rows, columns, 0, values);
        // The first phase's statistics are those of all.
        if constexpr (P::statistics)
          for (int i = lane; i < ROWS * (BESIDE - 1); i += 32)
            if (m + i % ROWS < rows) p.sink(z + 1 + i / ROWS, m + i % ROWS, box, 0, 0, 0);
      }
    }
}

// One of a tile's boxes, by its number and its batch, if there is such a box.
template <class W, class P>
struct PairBox {
  Index box = 0, z, first;
  bool there;
  __device__ __forceinline__ PairBox(const P& p, const PairTiles<W, P>& tiles, int which)
      : z(tiles.batch(p, W::SAMPLES ? which : 0)), first(tiles.tile_m * PAIR_ROWS + static_cast<int>(threadIdx.x) / 32 % 4 * 16),
        there(tiles.exists(p, which)) {
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      const Index n = (p.extent(d) - 1) / P::Box::at(d) + 1;
      const Index i = tiles.at[d + 1] * (d == W::JOIN ? W::BOXES : 1) + (d == W::JOIN ? which : 0);
      there = there && i < n;
      box = box * n + i;
    }
  }
};

// One warp's 16 rows of it.
template <class W, class P, int COUNT>
__device__ __forceinline__ void finish_pair(const P& p, const PairTiles<W, P>& tiles, int which, const Exponents& exponents,
                                            const PairLanes<W, P>& lanes, float (&sums)[COUNT], float* stage) {
  using H = Pair<W, P>;
  const PairBox<W, P> of(p, tiles, which);
  if (!of.there) return;
  const Index z = of.z, first = of.first, box = of.box;
  if constexpr (W::kind == Operands::Half || W::kind == Operands::Split) unscale<H::N / 8>(sums, exponents);
  const BoxPlace<P> place(p, box);
  if constexpr (H::FRAGMENTS)
    finish_box_fragments<typename H::Halo>(p, z, first, box, place, sums);
  else if (place.count() == P::Box::product)
    finish_box<W, true>(p, z, first, box, place, lanes, sums, stage);
  else
    finish_box<W, false>(p, z, first, box, place, lanes, sums, stage);
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
