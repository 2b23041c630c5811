// Boxes of output pixels for Hopper's tensor cores, the halo of input under them, and the order in which a block takes them.
//
// The pixels of an instruction follow each other in the halo. So a box of several rows is computed with what lies between
// its rows, which is thrown away: N = rows * (width of the halo). With strides, each residue of a pixel's place has a
// halo of its own, in which neighbours are neighbours again. A tap of the window is an offset into the halo.
// What a block wants of shared memory follows from that and is here too. W is the tile of any kernel that takes boxes: Warpgroups,
// Ready or Split.
#pragma once

#include "fragments.cuh"
#include "window_pack.cuh"

#if CRUCIBLE_HOPPER
namespace crucible {

// Floats from a row to the next where so many columns of several phases are staged: a quarter of a warp stores to two rows.
__host__ __device__ constexpr int beside_pitch(int columns) { return (columns + 31) / 32 * 32 + 16; }

// A box, or two, and the halo. Places in the halo count residue by residue.
template <class W, class P>
struct Pair {
  __host__ __device__ static constexpr int box(int d) { return P::Box::at(d) * (d == W::JOIN ? W::BOXES : 1); }
  __host__ __device__ static constexpr int halo(int d) { return halo_extent<P>(d, box(d)); }
  // Of a residue; where neighbours are pooled, rows begin with one that has its neighbour behind it.
  __host__ __device__ static constexpr int each(int d) {
    const int own = (halo(d) - 1) / P::Stride::at(d) + 1;
    return d == 3 && PoolOf<P>::pooled && PoolOf<P>::Window::at(3) == 2 ? own + own % 2 : own;
  }
  using Halo = Dims<each(0), each(1), each(2), each(3)>;
  static constexpr int RESIDUES = P::Stride::product, PLACES = RESIDUES * Halo::product * (W::SAMPLES ? W::BOXES : 1);
  __host__ __device__ static constexpr int reach(int d) {
    return (P::Kernel::at(d) - 1) * P::Dilation::at(d) / P::Stride::at(d);
  }
  // Places from a box's first pixel to its last, and from a box's to the next one's.
  static constexpr int SPAN = 1 + (P::Box::at(0) - 1) * Halo::pitch(0) + (P::Box::at(1) - 1) * Halo::pitch(1) +
                              (P::Box::at(2) - 1) * Halo::pitch(2) + (P::Box::at(3) - 1) * Halo::pitch(3);
  static constexpr int SECOND = W::SAMPLES ? PLACES / W::BOXES : W::PAIRED ? P::Box::at(W::JOIN) * Halo::pitch(W::JOIN) : 0;
  static constexpr int N = (SPAN + 7) / 8 * 8, BN = (N + 31) / 32 * 32;
  static constexpr int FARTHEST = reach(0) * Halo::pitch(0) + reach(1) * Halo::pitch(1) + reach(2) * Halo::pitch(2) + reach(3) * Halo::pitch(3);
  static constexpr int READ = (RESIDUES - 1) * Halo::product + (W::BOXES - 1) * SECOND + FARTHEST + N;  // one more than the last place read
  static constexpr int ROOM = READ > PLACES ? READ : PLACES;
  static_assert(N <= 256, "the widest instruction");

  // From a pixel's place to that of the input under a tap of it.
  static __device__ __forceinline__ constexpr int tap(int t) {
    int residue = 0, places = 0;
    for (int d = 0; d < 4; ++d) {
      const int far = P::Kernel::index(t, d) * P::Dilation::at(d);
      residue = residue * P::Stride::at(d) + far % P::Stride::at(d);
      places += far / P::Stride::at(d) * Halo::pitch(d);
    }
    return residue * Halo::product + places;
  }

  // An input that is memory as it is lands in shared memory, a chunk of AHEAD pixels of each producer before it rounds the
  // first of them; any other is computed in registers.
  static constexpr bool DIRECT = P::b_direct && sizeof(scalar) == 4;
  static constexpr int PIXELS = (PLACES + W::PRODUCERS - 1) / W::PRODUCERS;
  static constexpr int AHEAD = DIRECT ? W::LAND * 1024 / (W::CHANNELS * 4 * W::PRODUCERS) : 1;
  static constexpr bool WHOLE = P::CHANNELS % W::CHANNELS == 0;  // no chunk has too few channels

  // Warpgroups that take boxes alternately take turns too: who waited for a slot before the other's box is in the ring
  // could take the phase before last of its barrier for the one it needs.
  static constexpr bool TURNS = !W::PAIRED || W::TURN > 0;
  static constexpr int TURN = W::TURN > 0 ? W::TURN : 1;
  static constexpr int TAPS = P::Kernel::product, BESIDE = W::TOGETHER ? InsideOf<P>::beside : 1;
  static constexpr int HALO_BYTES = 2 * ROOM * 16, STREAMED = W::CHUNKS > 0 ? 0 : BESIDE * TAPS * TAP_BYTES;
  static constexpr int SLOT_BYTES = (HALO_BYTES + 127) / 128 * 128 + STREAMED;
  static constexpr int KEPT_BYTES = W::CHUNKS * BESIDE * TAPS * TAP_BYTES;
  static constexpr bool FRAGMENTS = BESIDE == 1 && fragmentary<Halo, P>();
  static constexpr int STAGE_PITCH = BESIDE > 1 ? beside_pitch(BESIDE * N) : (BN + 23) / 32 * 32 + 8, STAGE_BYTES = FRAGMENTS ? 0 : W::CONSUMERS / 32 * 4 * STAGE_PITCH * 4;
  static constexpr int shared_bytes = KEPT_BYTES + W::SLOTS * SLOT_BYTES + STAGE_BYTES + W::LAND * 1024 + (2 * W::SLOTS + 1) * 8 + 112;
};

#if CRUCIBLE_HAS_WGMMA
// Tiles of a block: boxes, or several side by side, of one sample after another, always with the same weights. Their places are counted
// in digits, the sample first, so that no step divides.
template <class W, class P>
struct PairTiles {
  using H = Pair<W, P>;
  Index group, tile_m, left;  // left: tiles to come, this one included
  Index numbers[4], at[5], step[5];

  __device__ __forceinline__ explicit PairTiles(const P& p) {
    const Index tiles = (p.rows() + PAIR_ROWS - 1) / PAIR_ROWS, kinds = tiles * (p.groups() / H::BESIDE);
    const Index kind = static_cast<Index>(blockIdx.x) % kinds;
    group = kind / tiles * H::BESIDE, tile_m = kind % tiles;
    Index first = static_cast<Index>(blockIdx.x) / kinds, by = static_cast<Index>(gridDim.x) / kinds;
    Index count = samples(p);
#pragma unroll
    for (int d = 0; d < 4; ++d) numbers[d] = (p.extent(d) - 1) / H::box(d) + 1, count *= numbers[d];
    left = first < count ? (count - first - 1) / by + 1 : 0;
#pragma unroll
    for (int d = 3; d >= 0; --d) {
      at[d + 1] = first % numbers[d], step[d + 1] = by % numbers[d];
      first /= numbers[d], by /= numbers[d];
    }
    at[0] = first, step[0] = by;
  }
  __device__ __forceinline__ void next() {
    Index carry = 0;
#pragma unroll
    for (int d = 3; d >= 0; --d) {
      at[d + 1] += step[d + 1] + carry;
      carry = at[d + 1] >= numbers[d];
      if (carry) at[d + 1] -= numbers[d];
    }
    at[0] += step[0] + carry;
    --left;
  }
  static __device__ __forceinline__ Index samples(const P& p) {
    const Index all = p.batches() / p.groups();
    return W::SAMPLES ? (all + W::BOXES - 1) / W::BOXES : all;
  }
  // Of one of its boxes, and whether it exists.
  __device__ __forceinline__ Index batch(const P& p, int which) const {
    return (W::SAMPLES ? at[0] * W::BOXES + which : at[0]) * p.groups() + group;
  }
  __device__ __forceinline__ bool exists(const P& p, int which) const { return !W::SAMPLES || batch(p, which) < p.batches(); }
  __device__ __forceinline__ Index first(int d) const { return at[d + 1] * H::box(d); }
};
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
