// Lines of sums that are stored and nothing else, where Hopper's matrix instructions leave them: 16 bytes of each lane.
//
// As in fragments.cuh a lane has two neighbours of each eight columns of a row, and four lanes a sector. L2 looks up as many
// requests of 32 bytes in a given time as of 64, and stores of two elements make a request of each sector: they kept it busy for
// two thirds of the time of a convolution. So two lanes exchange: of each two sectors that follow each other one of them stores
// half of the first, the other half of the second, and a store of a warp has 64 bytes of each row.
// What follows the products must be short for this to pay: two shuffles and four selections for every four elements.
#pragma once

#include "fragments.cuh"

#if CRUCIBLE_HOPPER
namespace crucible {

__device__ __forceinline__ void store_four(float* at, float4 four) {
#if CRUCIBLE_WIDE
  __stwb(reinterpret_cast<float4*>(at), four);  // as in store_two
#else
  *reinterpret_cast<float4*>(at) = four;
#endif
}

// Whether a functor's lines are stored so: floats that are neighbours in memory, and nobody counts them.
template <class P>
__host__ __device__ constexpr bool only_stored() {
  return sizeof(scalar) == 4 && P::in_pairs && !P::statistics && !PhasedOf<P>::phased && !RaggedOf<P>::ragged;
}

// Two sectors of a row, and the lane with which this one shares 16 bytes of each.
struct TwoSectors {
  bool even;    // this lane has the first half of the 16 bytes
  int partner;
  float* at = nullptr;  // this lane's first element of the first of all sectors that go so
  float first[2] = {};
  bool there[2] = {};  // of the first sector

  // `odd`: elements from a sector's beginning to the row's.
  __device__ __forceinline__ explicit TwoSectors(int odd) {
    const int lane = static_cast<int>(threadIdx.x) % 32, place = (lane % 4 + odd / 2) % 4;
    even = place % 2 == 0, partner = lane / 4 * 4 + ((place ^ 1) + 4 - odd / 2) % 4;
  }
  __device__ __forceinline__ void hold(const float (&two)[2], const bool (&exist)[2]) {
#pragma unroll
    for (int e = 0; e < 2; ++e) first[e] = two[e], there[e] = exist[e];
  }
  // The second of them, so many elements behind the first of all. `whole`: both are; else two go at a time, as many as exist.
  __device__ __forceinline__ void store(int further, const float (&second)[2], const bool (&exist)[2], bool whole) const {
    float got[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) got[e] = __shfl_sync(0xffffffffu, even ? second[e] : first[e], partner);
    const float4 four = even ? make_float4(first[0], first[1], got[0], got[1]) : make_float4(got[0], got[1], second[0], second[1]);
    if (whole && exist[1]) store_four(at + further - 8 + (even ? 0 : 6), four);
    if (!whole) store_some(further - 8, first, there), store_some(further, second, exist);
  }
  __device__ __forceinline__ void store_some(int further, const float (&two)[2], const bool (&exist)[2]) const {
    if (exist[1]) store_two(at + further, two[0], two[1]);
    if (exist[0] && !exist[1]) at[further] = two[0];
  }
};

// As finish_fragments() of a line. `scales`: of a lane's two rows, a factor that is still missing: here, where it and what is added
// may be one instruction.
template <int WIDTH, bool WHOLE, class P, int COUNT>
__device__ __forceinline__ void store_fragments(const P& p, Index z, Index first, Index base, bool neighbour, int there,
                                                const float (&scales)[2], float (&sums)[COUNT]) {
  constexpr int BLOCKS = WIDTH / 8 + 1;
  static_assert(COUNT == BLOCKS * 4, "eight columns more");
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane % 4;
  const Index rows = p.rows();
#pragma unroll 1
  for (int h = 0; h < 2; ++h) {
    const Index row = first + h * 8 + lane / 4, m = row < rows ? row : rows - 1;
    const int odd = static_cast<int>(p.stored(z, m, base) % 8), whole = (8 - odd) % 8;
    const int begin = neighbour ? whole : 0, end = WHOLE || WIDTH + whole < there ? WIDTH + whole : there;
    const bool turn = quad * 2 + odd >= 8;
    const int at = quad * 2 - (turn ? 8 : 0), rest = end - at;
    const float scale = h == 0 ? scales[0] : scales[1];
    const Index from = base + at;
    TwoSectors sectors(odd);
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) {
      const bool sure = WHOLE && i > 0 && i + 1 < BLOCKS;
      // All between the first and the last go two at a time, but one if their number is odd.
      const bool together = i > 0 && i + 1 < BLOCKS && (i % 2 == 0 || i + 2 < BLOCKS);
      accum two[2];
      Spot spots[2];
      bool exist[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const bool own = sure || (rest > i * 8 + e && (i > 0 || at + e >= begin));
        exist[e] = row < rows && own;
        spots[e].n = P::reads && !own ? Index(0) : from + (i * 8 + e);
        two[e] = (turn ? sums[(i > 0 ? i - 1 : 0) * 4 + e] : sums[i * 4 + e]) * scale;
      }
      if (!together) {
        finish_two<true>(p, z, m, spots, exist[0], exist[1], two);
        continue;
      }
      StoreNext next[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) finish_spot(p, z, m, spots[e], two[e], next[e]);
      const float values[2] = {next[0].value, next[1].value};
      if (i == 1) sectors.at = next[0].at;
      if (i % 2 == 1)
        sectors.hold(values, exist);
      else
        sectors.store((i - 1) * 8, values, exist, WHOLE || (i + 1) * 8 - odd <= end);
    }
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) sums[i] = sums[i + 2], sums[i + 1] = sums[i + 3];
  }
}

// As finish_line(), for what is only stored.
template <int WIDTH, class P, int COUNT>
__device__ __forceinline__ void store_line(const P& p, Index z, Index first, Index tile, Index base, const Index (&place)[4],
                                           bool neighbour, int there, const float (&scales)[2], float (&sums)[COUNT]) {
  bool even = true;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const Index row = first + h * 8 + static_cast<int>(threadIdx.x) % 32 / 4;
    even = even && p.stored(z, row < p.rows() ? row : p.rows() - 1, base) % 2 == 0;
  }
  if (!__all_sync(0xffffffffu, even)) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sums[i] *= scales[i % 4 / 2];
    finish_fragments<WIDTH, false, false>(p, z, first, tile, base, place, neighbour, there, sums);
  } else if (there < WIDTH + 8) {
    store_fragments<WIDTH, false>(p, z, first, base, neighbour, there, scales, sums);
  } else {
    store_fragments<WIDTH, true>(p, z, first, base, neighbour, there, scales, sums);
  }
}

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
