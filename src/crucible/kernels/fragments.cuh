// What is done with sums where Hopper's matrix instructions leave them: in registers.
//
// A warp has 16 rows of sums; in each eight columns a lane has two neighbours of row lane / 4 and two of the row eight
// below. They are finished there, stored two at a time, and statistics are joined by the four lanes of a row. The four
// lanes' elements are a sector of memory (32 bytes of float), but rows begin anywhere: where a row's sectors begin in the
// middle of a block of eight columns, the lanes behind that middle take the block before, so that each store of a warp
// fills whole sectors.
#pragma once

#include "contract.cuh"

namespace crucible {

// Where `finish_to` puts its element: in memory, or into a register until its neighbour is there too.
struct StoreOne {
  bool there;
  template <class T>
  __device__ __forceinline__ void operator()(T* at, T value) const {
    if (there) *at = value;
  }
};

#if CRUCIBLE_HOPPER
#if CRUCIBLE_WIDE
// One store, and said to be one: at an address from 64-bit numbers the compiler makes two of it, each of half sectors.
template <class T>
__device__ __forceinline__ void store_two(T* at, T first, T second) {
  if constexpr (sizeof(T) == 4) {
    __stwb(reinterpret_cast<float2*>(at), make_float2(first, second));
  } else if constexpr (sizeof(T) == 2) {
    const T two[2] = {first, second};
    unsigned word;
    memcpy(&word, two, sizeof(word));
    __stwb(reinterpret_cast<unsigned*>(at), word);
  } else {
    __stwb(reinterpret_cast<double2*>(at), make_double2(first, second));
  }
}
#else
template <class T>
__device__ __forceinline__ void store_two(T* at, T first, T second) {
  if constexpr (sizeof(T) == 4) {
    *reinterpret_cast<float2*>(at) = make_float2(first, second);
  } else {
    struct alignas(2 * sizeof(T)) Two { T a, b; };
    *reinterpret_cast<Two*>(at) = Two{first, second};
  }
}
#endif
struct StoreNext {
  scalar* at;
  scalar value;
  __device__ __forceinline__ void operator()(scalar* to, scalar x) { at = to, value = x; }
};
struct StoreTwo {
  const StoreNext& first;
  bool both, alone;  // alone: without the second
  __device__ __forceinline__ void operator()(scalar*, scalar second) const {
    // Two conditions instead of a branch, beside which nothing else could be done.
    if (both) store_two(first.at, first.value, second);
    if (alone) *first.at = first.value;
  }
};

// An element: its column, and its place for functors that know elements so.
struct Spot {
  Index n, at[4];
};
template <class P, class To>
__device__ __forceinline__ accum finish_spot(const P& p, Index z, Index m, const Spot& spot, accum value, To& to) {
  if constexpr (PhasedOf<P>::phased)
    return p.finish_at_to(z, m, spot.at[0], spot.at[1], spot.at[2], spot.at[3], 0, value, to);
  else
    return p.finish_to(z, m, spot.n, 0, value, to);
}
template <class P>
__device__ __forceinline__ bool spot_exists(const P& p, Index z, Index m, const Spot& spot) {
  if constexpr (RaggedOf<P>::ragged) return p.exists_at(z, m, spot.at[0], spot.at[1], spot.at[2], spot.at[3]);
  return true;
}

// Two neighbours, finished and stored: the first where `stored`, the second where `both`.
template <bool PAIRS, class P>
__device__ __forceinline__ void finish_two(const P& p, Index z, Index m, const Spot (&spots)[2], bool stored, bool both, accum (&two)[2]) {
  if constexpr (PAIRS) {
    StoreNext left;
    two[0] = finish_spot(p, z, m, spots[0], two[0], left);
    StoreTwo right{left, both, stored && !both};
    two[1] = finish_spot(p, z, m, spots[1], two[1], right);
  } else {
    StoreOne left{stored}, right{both};
    two[0] = finish_spot(p, z, m, spots[0], two[0], left);
    two[1] = finish_spot(p, z, m, spots[1], two[1], right);
  }
}

// Statistics of a row's elements, by four lanes: deviations from what is near their mean (near_mean). Where some may not
// exist, each lane has an element of its own instead, and the lanes' results are joined.
template <bool RAGGED>
struct RowStatistics {
  accum near = 0, off[2] = {0, 0}, squares[2] = {0, 0};
  int found = 0;
  // Before the first: two elements, where they are there, of which one at least of the four lanes has one.
  __device__ __forceinline__ void begin(const accum (&two)[2], bool first, bool second) {
    near = near_mean<4>((first ? two[0] : accum(0)) + (second ? two[1] : accum(0)), first + second);
  }
  __device__ __forceinline__ void take(int which, accum x, bool there) {
    if (RAGGED && there && found == 0) near = x;
    const accum d = there ? x - near : accum(0);
    off[which] += d;
    squares[which] = fma(d, d, squares[which]);
    if (RAGGED) found += there;
  }
  template <class P>
  __device__ __forceinline__ void sink(const P& p, Index z, Index m, bool there, Index tile, int count) {
    accum sum = off[0] + off[1], both = squares[0] + squares[1], mean = near, size = static_cast<accum>(count);
    if (RAGGED) {
      size = static_cast<accum>(found);
      const accum by = found > 0 ? sum / size : accum(0);
      mean += by, both -= sum * by;
    }
#pragma unroll
    for (int by = 1; by < 4; by *= 2) {
      const accum other_sum = __shfl_xor_sync(0xffffffffu, sum, by), other_both = __shfl_xor_sync(0xffffffffu, both, by);
      if (RAGGED) {
        const accum other = __shfl_xor_sync(0xffffffffu, size, by), d = __shfl_xor_sync(0xffffffffu, mean, by) - mean;
        const accum part = other > 0 ? other / (size + other) : accum(0);
        both += other_both + (part > 0 ? d * d * size * part : accum(0));
        mean += part > 0 ? d * part : accum(0), size += other;
      } else {
        sum += other_sum, both += other_both;
      }
    }
    if (!there || threadIdx.x % 4 != 0) return;
    if (!RAGGED && count > 0) mean += sum / size, both -= sum * (sum / size);
    if (size > 0)
      p.sink(z, m, tile, size, mean, both < 0 ? accum(0) : both);
    else
      p.sink(z, m, tile, 0, 0, 0);  // others have them all
  }
};

// One warp's rows of WIDTH columns of a line, from column `base` on, from eight columns more: of those that exist, `there`,
// a line that has a neighbour before it leaves that one the elements before its first sector, and so takes those that
// follow its last. WHOLE: all exist. PAIRS: two neighbours of a lane may be stored as one.
template <int WIDTH, bool WHOLE, bool PAIRS, class P, int COUNT>
__device__ __forceinline__ void finish_fragments(const P& p, Index z, Index first, Index tile, Index base, const Index (&place)[4],
                                                 bool neighbour, int there, float (&sums)[COUNT]) {
  constexpr bool RAGGED = RaggedOf<P>::ragged;
  constexpr int BLOCKS = WIDTH / 8 + 1;
  static_assert(COUNT == BLOCKS * 4 && (!P::statistics || P::group == 0), "eight columns more, and statistics of all");
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane % 4;
  const Index rows = p.rows();
  // The second row's sums take the first one's registers, so that both are finished by the same code: it is long.
#pragma unroll 1
  for (int h = 0; h < 2; ++h) {
    const Index row = first + h * 8 + lane / 4, m = row < rows ? row : rows - 1;
    const int odd = static_cast<int>(p.stored(z, m, base) % 8), whole = (8 - odd) % 8;
    const int begin = neighbour ? whole : 0, end = WHOLE || WIDTH + whole < there ? WIDTH + whole : there;
    const bool turn = PAIRS && quad * 2 + odd >= 8;
    const int at = quad * 2 - (turn ? 8 : 0), rest = end - at;
#if CRUCIBLE_WIDE
    const Index from = base + at;  // added up once, as it takes two registers: elements are a constant further on
#endif
    RowStatistics<RAGGED> statistics;
    accum ahead[2] = {};
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) {
      // Where the line is whole, all blocks between the first and the last are its own; none but the first begins before it.
      const bool sure = WHOLE && i > 0 && i + 1 < BLOCKS;
      bool own[2];
      Spot spots[2];
      accum two[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int o = at + i * 8 + e;
        own[e] = sure || (rest > i * 8 + e && (i > 0 || o >= begin));
#if CRUCIBLE_WIDE
        spots[e] = {P::reads && !own[e] ? Index(0) : from + (i * 8 + e), {place[0], place[1], place[2], place[3] + (own[e] ? o : 0)}};
#else
        spots[e] = {P::reads && !own[e] ? Index(0) : base + o, {place[0], place[1], place[2], place[3] + (own[e] ? o : 0)}};
#endif
        two[e] = turn ? sums[(i > 0 ? i - 1 : 0) * 4 + e] : sums[i * 4 + e];
      }
      finish_two<PAIRS>(p, z, m, spots, row < rows && own[0], row < rows && own[1], two);
      if constexpr (P::statistics && RAGGED) {
#pragma unroll
        for (int e = 0; e < 2; ++e) statistics.take(e, two[e], own[e] && spot_exists(p, z, m, spots[e]));
      } else if constexpr (P::statistics) {
        // The row has an element in one of the first two blocks: where it is long, the second is all its own.
        if (i == 0) {
          ahead[0] = two[0], ahead[1] = two[1];
        } else {
          if (i == 1) {
            const bool one = rest > 0 && at >= begin, other = rest > 1 && at + 1 >= begin;
            const accum some[2] = {own[0] ? two[0] : ahead[0], own[1] ? two[1] : ahead[1]};
            statistics.begin(some, own[0] || one, own[1] || other);
#pragma unroll
            for (int e = 0; e < 2; ++e) statistics.take(e, ahead[e], rest > e && at + e >= begin);
          }
#pragma unroll
          for (int e = 0; e < 2; ++e) statistics.take(e, two[e], own[e]);
        }
      }
    }
    if constexpr (P::statistics) statistics.sink(p, z, row, row < rows, tile, end - begin);
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) sums[i] = sums[i + 2], sums[i + 1] = sums[i + 3];
  }
}

template <int WIDTH, class P, int COUNT>
__device__ __forceinline__ void finish_line(const P& p, Index z, Index first, Index tile, Index base, const Index (&place)[4],
                                            bool neighbour, int there, float (&sums)[COUNT]) {
  bool even = P::in_pairs;
#pragma unroll
  for (int h = 0; h < 2 && P::in_pairs; ++h) {
    const Index row = first + h * 8 + static_cast<int>(threadIdx.x) % 32 / 4, m = row < p.rows() ? row : p.rows() - 1;
    even = even && p.stored(z, m, base) % 2 == 0;
  }
  if (!P::in_pairs || !__all_sync(0xffffffffu, even))
    finish_fragments<WIDTH, false, false>(p, z, first, tile, base, place, neighbour, there, sums);
  else if (there < WIDTH + 8)
    finish_fragments<WIDTH, false, P::in_pairs>(p, z, first, tile, base, place, neighbour, there, sums);
  else
    finish_fragments<WIDTH, true, P::in_pairs>(p, z, first, tile, base, place, neighbour, there, sums);
}


// The sums of a box, as many columns apart from row to row as the halo under it is wide. Whether they can be finished in
// registers: a block of eight columns is of two rows at most, and where windows are pooled, neighbours in one are in one lane.
template <class Halo, class P>
__host__ __device__ constexpr bool fragmentary() {
  return Halo::at(3) >= 8 && (!PoolOf<P>::pooled || (Halo::at(3) % 2 == 0 && PoolOf<P>::Window::at(3) == 2));
}

// A row of the halo, by its number: where its first pixel is stored, from the box's first, and which of its pixels are the box's.
template <class Halo, bool WHOLE, class P>
struct BoxRow {
  int at[3];
  __device__ __forceinline__ explicit BoxRow(int number)
      : at{number / (Halo::at(1) * Halo::at(2)), number / Halo::at(2) % Halo::at(1), number % Halo::at(2)} {}
  __device__ __forceinline__ constexpr bool inside() const {
    return at[0] < P::Box::at(0) && at[1] < P::Box::at(1) && at[2] < P::Box::at(2);
  }
  __device__ __forceinline__ Index first(const P& p) const {
    return ((at[0] * p.extent(1) + at[1]) * p.extent(2) + at[2]) * p.extent(3);
  }
  __device__ __forceinline__ int count(const BoxPlace<P>& place) const {
    if (!inside()) return 0;
    return WHOLE ? P::Box::at(3) : at[0] < place.there[0] && at[1] < place.there[1] && at[2] < place.there[2] ? place.there[3] : 0;
  }
};

// The sum that lies so many columns behind a lane's own of block i, element e: in another lane of the four, where that is
// no multiple of eight.
template <int COUNT>
__device__ __forceinline__ float sum_behind(const float (&sums)[COUNT], int i, int columns, int e) {
  constexpr int LAST = COUNT / 4 - 1;
  const int block = i + columns / 8, next = block < LAST ? block + 1 : LAST, by = columns % 8 / 2;
  if (by == 0) return sums[block * 4 + e];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float mine = lane % 4 < by ? sums[next * 4 + e] : sums[(block < LAST ? block : LAST) * 4 + e];
  return __shfl_sync(0xffffffffu, mine, lane / 4 * 4 + (lane + by) % 4);
}

// The windows of one row's sums: two neighbours of a lane, and what lies below them.
template <class Halo, bool WHOLE, class P, int COUNT>
__device__ __forceinline__ void pool_fragments(const P& p, Index z, Index m, bool there, const BoxPlace<P>& place, Index base,
                                               const float (&sums)[COUNT]) {
  using Window = typename PoolOf<P>::Window;
  using Row = BoxRow<Halo, WHOLE, P>;
  constexpr int WIDE = Halo::at(3);
  Index pools = 0;
#pragma unroll
  for (int d = 0; d < 4; ++d) pools = pools * (p.extent(d) / Window::at(d)) + place.first[d] / Window::at(d);
#pragma unroll
  for (int i = 0; i < COUNT / 4; ++i)
    // The row in which the block begins, and the one that begins in it.
#pragma unroll
    for (int number = i * 8 / WIDE; number * WIDE < i * 8 + 8; ++number) {
      const Row row(number);
      const int x = i * 8 - number * WIDE;
      if (!row.inside() || x >= P::Box::at(3)) continue;
      if (row.at[0] % Window::at(0) != 0 || row.at[1] % Window::at(1) != 0 || row.at[2] % Window::at(2) != 0) continue;
      const int pixel = x + static_cast<int>(threadIdx.x) % 4 * 2;
      // The window's last pixel exists.
      bool whole = there && pixel >= 0 && pixel + 1 < (WHOLE ? P::Box::at(3) : place.there[3]);
      if (!WHOLE)
#pragma unroll
        for (int d = 0; d < 3; ++d) whole = whole && row.at[d] + Window::at(d) <= place.there[d];
      typename P::Pooling pool;
#pragma unroll
      for (int k = 0; k < Window::product; ++k) {
        const int down = (Window::index(k, 0) * Halo::at(1) + Window::index(k, 1)) * Halo::at(2) + Window::index(k, 2);
        const Index n = base + Row(number + down).first(p) + pixel + Window::index(k, 3);
        pool.step(p.pool_in(z, m, P::reads && !whole ? Index(0) : n, sum_behind(sums, i, down * WIDE, Window::index(k, 3))));
      }
      Index to = 0;
#pragma unroll
      for (int d = 0; d < 3; ++d) to = to * (p.extent(d) / Window::at(d)) + row.at[d] / Window::at(d);
      if (whole) p.pool_out(z, m, pools + to * (p.extent(3) / Window::at(3)) + pixel / Window::at(3), pool);
    }
}

// One warp's rows of a box. Names as above.
template <class Halo, bool WHOLE, bool PAIRS, class P, int COUNT>
__device__ __forceinline__ void finish_fragments(const P& p, Index z, Index first, Index tile, const BoxPlace<P>& place, Index base,
                                                 float (&sums)[COUNT]) {
  using Row = BoxRow<Halo, WHOLE, P>;
  constexpr int WIDE = Halo::at(3);
  static_assert(fragmentary<Halo, P>() && (!P::statistics || P::group == 0), "statistics are of all columns");
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane % 4;
  const Index rows = p.rows();
#pragma unroll 1
  for (int h = 0; h < 2; ++h) {
    const Index row = first + h * 8 + lane / 4, m = row < rows ? row : rows - 1;
#if CRUCIBLE_WIDE
    const Index from = base + quad * 2;  // as above
#endif
    RowStatistics<RaggedOf<P>::ragged> statistics;
#pragma unroll
    for (int i = 0; i < COUNT / 4; ++i) {
      // The block begins at pixel `x` of row `number`, and with its pixel `turn` the next row does.
      const int number = i * 8 / WIDE, x = i * 8 % WIDE, turn = WIDE - x;
      const Row here(number), below(number + 1);
      const bool begun = here.inside() && x < P::Box::at(3), next = turn < 8 && below.inside();
      if (!begun && !next) continue;
      bool own[2];
      Spot spots[2];
      accum two[2] = {sums[i * 4], sums[i * 4 + 1]};
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int c = quad * 2 + e;
        const bool other = next && c >= turn;
        const int pixel = other ? c - turn : c + x, count = other ? below.count(place) : here.count(place);
        const bool sure = WHOLE && begun && x + 8 <= P::Box::at(3);
        own[e] = sure || pixel < count;
#if CRUCIBLE_WIDE
        spots[e].n = P::reads && !own[e] ? Index(0) : from + (other ? below.first(p) - turn : here.first(p) + x) + e;
#else
        spots[e].n = P::reads && !own[e] ? Index(0) : base + (other ? below.first(p) : here.first(p)) + pixel;
#endif
#pragma unroll
        for (int d = 0; d < 4; ++d)
          spots[e].at[d] = place.first[d] + (!own[e] ? 0 : d == 3 ? pixel : other ? below.at[d == 3 ? 0 : d] : here.at[d == 3 ? 0 : d]);
      }
      finish_two<PAIRS>(p, z, m, spots, row < rows && own[0], row < rows && own[1], two);
      if constexpr (P::statistics) {
        if (!RaggedOf<P>::ragged && i == 0) statistics.begin(two, own[0], own[1]);
#pragma unroll
        for (int e = 0; e < 2; ++e) statistics.take(e, two[e], own[e] && spot_exists(p, z, m, spots[e]));
      }
    }
    if constexpr (P::statistics) statistics.sink(p, z, row, row < rows, tile, WHOLE ? P::Box::product : place.count());
    if constexpr (PoolOf<P>::pooled) pool_fragments<Halo, WHOLE>(p, z, m, row < rows, place, base, sums);
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) sums[i] = sums[i + 2], sums[i + 1] = sums[i + 3];
  }
}

template <class Halo, class P, int COUNT>
__device__ __forceinline__ void finish_box_fragments(const P& p, Index z, Index first, Index tile, const BoxPlace<P>& place,
                                                     float (&sums)[COUNT]) {
  constexpr bool PAIRS = P::in_pairs && Halo::at(3) % 2 == 0;
  Index base = 0;
#pragma unroll
  for (int d = 0; d < 4; ++d) base = base * p.extent(d) + place.first[d];
  bool even = PAIRS && p.extent(3) % 2 == 0;
#pragma unroll
  for (int h = 0; h < 2 && PAIRS; ++h) {
    const Index row = first + h * 8 + static_cast<int>(threadIdx.x) % 32 / 4, m = row < p.rows() ? row : p.rows() - 1;
    even = even && p.stored(z, m, base) % 2 == 0;
  }
  if (!PAIRS || !__all_sync(0xffffffffu, even))
    finish_fragments<Halo, false, false>(p, z, first, tile, place, base, sums);
  else if (place.count() < P::Box::product)
    finish_fragments<Halo, false, PAIRS>(p, z, first, tile, place, base, sums);
  else
    finish_fragments<Halo, true, PAIRS>(p, z, first, tile, place, base, sums);
}
#endif  // CRUCIBLE_HOPPER

}  // namespace crucible
