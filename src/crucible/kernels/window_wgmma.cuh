// Convolutions on Hopper's tensor cores (wgmma, compute capability 9.0a): a window slides over an input.
//
// A block stays on its processor and takes 64 output channels of one box of output pixels after another. Eight warps
// produce: they read the input under a box, the halo, 32 bytes of channels (a chunk) at a time, round it and store it as
// [16 bytes of channels][pixel] in a ring of slots. Two warpgroups consume: for every tap of the window one instruction
// multiplies 64 channels by N pixels, and a tap is an offset into the halo.
// The pixels of an instruction follow each other in the halo. So a box of several rows is computed with what lies between
// its rows, which is thrown away: N = rows * (width of the halo). With strides, each residue of a pixel's place has a
// halo of its own, in which neighbours are neighbours again.
// Weights are packed beforehand, in the order of shared memory. If they fit they stay there (CHUNKS > 0), and the
// warpgroups take boxes alternately, so that one stores while the other multiplies. Else they come with each chunk by a
// bulk copy, and to share them the warpgroups take two boxes side by side (JOIN >= 0), or the same box of two samples
// (JOIN = 4), and turns, TURN chunks each.
// Phases whose elements lie beside each other are computed together, each with sums of its own, and go through shared
// memory, from where neighbouring lanes store neighbours.
//
// Operands: half has the 11 bits of tf32 at twice the rate, but not its range. In kind Half the weights are scaled by a
// power of two for each output channel and the input by one chosen from a sample of it, and the block watches: a number
// too large, or a channel that is not zero but too small to have its 11 bits in all the pixels that a warp sees, raises a
// flag, and the second launch, in kind Tf32, which otherwise returns at once, does everything again.
// Memory: 1.1 to 1.5 times the input from L2, the output once, for each 64 output channels.
#pragma once

#include <type_traits>

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

// Whether what a warp has put away, of which each lane knows its largest number, is more than half can hold.
__device__ __forceinline__ bool watched(float& largest) {
  const unsigned most = __reduce_max_sync(0xffffffffu, __float_as_uint(largest));
  // A few numbers alone may be small.
  const bool small = most < __float_as_uint(HALF_SMALL) && most != 0 && __popc(__ballot_sync(0xffffffffu, largest > 0.0f)) > 3;
  largest = 0.0f;
  return small || most > __float_as_uint(HALF_LIMIT);
}

// 16 bytes of channels. In kind Half they are scaled, and the largest number so far is noted.
template <Operands kind>
__device__ __forceinline__ uint4 round_unit(float* x, float by, float& largest) {
  if constexpr (kind == Operands::Tf32) {
    return make_uint4(round_tf32(x[0]), round_tf32(x[1]), round_tf32(x[2]), round_tf32(x[3]));
  } else if constexpr (kind == Operands::Half) {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      x[e] *= by;
      largest = fmaxf(largest, fabsf(x[e]));
    }
    return make_uint4(pack_half(x[0], x[1]), pack_half(x[2], x[3]), pack_half(x[4], x[5]), pack_half(x[6], x[7]));
  } else {
    return make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
  }
}

// One block of the launch after the packing raises the flag for what is known by then: rows of weights that half cannot hold,
// and channels that are small everywhere, which may have large weights.
template <int THREADS, class P>
__device__ __forceinline__ void known_spoilt(const Packed& packed, int thread, float by) {
  spoilt_rows<THREADS>(packed, thread);
  for (int c = thread; c < Packed::apart<P>(); c += THREADS) {
    const float most = __int_as_float(packed.channels[c]) * by;
    if (most > 0 && most < HALF_SMALL) *packed.again = 1;
  }
}

// Of a phase without taps.
template <int COUNT>
__device__ __forceinline__ void clear(float (&sums)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) sums[i] = 0.0f;
}

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

// A chunk's weights of each phase; they lie so many bytes apart.
template <class H>
__device__ __forceinline__ void copy_weights(unsigned to, const unsigned char* weights, int64_t further, int chunk, unsigned come) {
  constexpr int BYTES = H::TAPS * TAP_BYTES;
#pragma unroll
  for (int b = 0; b < H::BESIDE; ++b) bulk_copy(to + b * BYTES, weights + b * further + int64_t(chunk) * BYTES, BYTES, come);
}

// Places behind the halo that are read with it, for sums that nobody wants, have zeros: what lay there before may be anything.
template <int PLANES, class W, class P>
__device__ __forceinline__ void clear_behind(unsigned char* slot, int thread) {
  using H = Pair<W, P>;
  constexpr int BEHIND = H::ROOM - H::PLACES;
  if constexpr (BEHIND > 0)
    for (int i = thread; i < PLANES * BEHIND; i += W::PRODUCERS)
      *reinterpret_cast<uint4*>(slot + (i / BEHIND * H::ROOM + H::PLACES + i % BEHIND) * 16) = make_uint4(0, 0, 0, 0);
}

template <class W, class P>
struct PairProducer {
  using H = Pair<W, P>;
  const P& p;
  PairTiles<W, P> tiles;  // of what is asked for,
  Index chunk;            // and of its channels
  float* landing;         // this thread's
  float by;
  typename P::BAt at[H::PIXELS];
  float largest[2];

  static __device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x) - W::CONSUMERS; }

  __device__ __forceinline__ void place() {
#pragma unroll
    for (int i = 0; i < H::PIXELS; ++i) {
      int q = thread() + i * W::PRODUCERS;
      const int which = W::SAMPLES && q >= H::SECOND;
      if (which) q -= H::SECOND;
      const int residue = H::RESIDUES == 1 ? 0 : q / H::Halo::product, in = H::RESIDUES == 1 ? q : q % H::Halo::product;
      Index pixel[4];
      bool inside = q < (W::SAMPLES ? H::SECOND : H::PLACES) && tiles.left > 0 && tiles.exists(p, which);
#pragma unroll
      for (int d = 0; d < 4; ++d) {
        const int h = H::Halo::index(in, d) * P::Stride::at(d) + P::Stride::index(residue, d);
        if (H::RESIDUES > 1) inside = inside && h < H::halo(d);
        pixel[d] = tiles.first(d) * P::Stride::at(d) + P::Shift::at(d) + h;
      }
      at[i] = p.b_at(tiles.batch(p, inside ? which : 0), pixel[0], pixel[1], pixel[2], pixel[3]);
      at[i].inside &= inside;
    }
  }
  // To the next chunk, and the next tile after the last; after the last of all nothing is there.
  __device__ __forceinline__ void next(int chunks) {
    if (++chunk < chunks) return;
    chunk = 0;
    if (tiles.left > 1)
      tiles.next();
    else
      tiles.left = 0;
    place();
  }
  // A chunk of one pixel, asked for (what is not there is zero) and taken.
  __device__ __forceinline__ void ask(int pixel, int where) const {
    const typename P::BAt& from = at[pixel];
    float* const to = landing + where * (W::CHANNELS * W::PRODUCERS);
#pragma unroll
    for (int e = 0; e < W::CHANNELS; ++e) {
      const bool there = H::WHOLE || chunk * W::CHANNELS + e < P::CHANNELS;
      copy_async(to + e * W::PRODUCERS, p.b_from(from, there ? chunk * W::CHANNELS + e : P::CHANNELS - 1), from.inside && there);
    }
    commit_copies();
  }
  __device__ __forceinline__ void take(float (&v)[W::CHANNELS], int where) const {
    const float* const from = landing + where * (W::CHANNELS * W::PRODUCERS);
#pragma unroll
    for (int e = 0; e < W::CHANNELS; ++e) v[e] = from[e * W::PRODUCERS];
  }
  // The same in one go.
  __device__ __forceinline__ void compute(float (&v)[W::CHANNELS], int pixel) const {
    const typename P::BAt& from = at[pixel];
#pragma unroll
    for (int e = 0; e < W::CHANNELS; ++e) {
      const bool there = H::WHOLE || chunk * W::CHANNELS + e < P::CHANNELS;
      const float x = static_cast<float>(p.b_in(from, there ? chunk * W::CHANNELS + e : P::CHANNELS - 1));
      v[e] = from.inside && there ? x : 0.0f;
    }
  }
  __device__ __forceinline__ void put(float (&v)[W::CHANNELS], int pixel, unsigned char* slot) {
    const int q = thread() + pixel * W::PRODUCERS;
#pragma unroll
    for (int unit = 0; unit < 2; ++unit) {
      const uint4 word = round_unit<W::kind>(v + unit * W::UNIT, by, largest[unit]);
      if (q < H::PLACES) *reinterpret_cast<uint4*>(slot + (unit * H::ROOM + q) * 16) = word;
    }
  }
  __device__ __forceinline__ bool watch() {
    const bool first = watched(largest[0]), second = watched(largest[1]);
    return first || second;
  }
};

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
#endif

#if CRUCIBLE_HAS_WGMMA
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

// What the consumers do: products of one tile after another, and what becomes of them. `here` are weights that stay.
template <class W, class P>
__device__ __forceinline__ void multiply_pairs(const P& p, const Packed& packed, PairTiles<W, P>& tiles, const unsigned char* here,
                                               unsigned char* ring, unsigned char* stages, unsigned full, unsigned empty, unsigned kept,
                                               int warp) {
  using H = Pair<W, P>;
  constexpr int GROUPS = W::CONSUMERS / 128;
  const int which = warp / 4, lane = static_cast<int>(threadIdx.x) % 32, next = which + 1 < GROUPS ? which + 1 : 0;
  const int chunks = static_cast<int>((P::CHANNELS + W::CHANNELS - 1) / W::CHANNELS);
  float sums[H::BESIDE][H::N / 2];
  if (W::CHUNKS > 0) barrier_wait(kept, 0);
  int slot = 0;
  unsigned parity = 0;
  if (H::TURNS && next == 0) turn_give(1);
  float* const stage = reinterpret_cast<float*>(stages) + warp * 4 * H::STAGE_PITCH;
  const PairLanes<W, P> lanes(p);
  Taps<P> taps[H::BESIDE];
#pragma unroll
  for (int b = 0; b < H::BESIDE; ++b) taps[b] = Taps<P>(p, tiles.group + b);
  const auto exponents = [&](int b) {
    return Exponents(packed.rows + ((tiles.group + b) * ((p.rows() + PAIR_ROWS - 1) / PAIR_ROWS) + tiles.tile_m) * PAIR_ROWS + warp % 4 * 16,
                     W::kind == Operands::Half ? packed.input() : 0);
  };
  const Exponents own = exponents(0);
  int number = 0;
#pragma unroll 1
  for (; tiles.left > 0; tiles.next(), ++number) {
    if (!W::PAIRED && number % 2 != which) {
      // The other warpgroup's box.
      slot += chunks;
      while (slot >= W::SLOTS) slot -= W::SLOTS, parity ^= 1;
      continue;
    }
    int before = -1;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      if (H::TURNS && (W::PAIRED ? chunk % H::TURN == 0 : chunk == 0)) turn_wait(1 + which);
      barrier_wait(full + slot * 8, parity);
      const unsigned halo = shared_address(ring) + slot * H::SLOT_BYTES;
      const uint64_t b = lines_at(halo + which * H::SECOND * 16, H::ROOM * 16);
      const uint64_t a = lines_at(W::CHUNKS > 0 ? shared_address(here) + chunk * H::BESIDE * H::TAPS * TAP_BYTES
                                                    : halo + (H::SLOT_BYTES - H::STREAMED), TAP_BYTES / 2);
      wgmma_begin();
#pragma unroll
      for (int g = 0; g < H::BESIDE; ++g)
#pragma unroll
        for (int t = 0; t < H::TAPS; ++t)
          if (taps[g].has(t))
            Wgmma<H::N, W::kind>::multiply(sums[g], a + (g * H::TAPS + t) * (TAP_BYTES / 16), b + H::tap(t), taps[g].first(t) ? chunk > 0 : 1);
      wgmma_end();
      const bool over = chunk + 1 == chunks || (W::PAIRED && W::TURN > 0 && (chunk + 1) % H::TURN == 0);
      if (H::TURNS && over) turn_give(1 + next);
      // A slot is free when its products are done: while the next ones run, or when the turn is over.
      if (over)
        wgmma_wait<0>();
      else
        wgmma_wait<1>();
      if (lane == 0 && before >= 0) barrier_arrive(empty + before * 8);
      if (lane == 0 && over) barrier_arrive(empty + slot * 8);
      before = over ? -1 : slot;
      if (++slot == W::SLOTS) slot = 0, parity ^= 1;
    }
    wgmma_wait<0>();
#pragma unroll
    for (int b = 0; b < H::BESIDE; ++b) {
      settle(sums[b]);
      if (taps[b].none()) clear(sums[b]);
    }
    if constexpr (H::BESIDE > 1) {
      const PairBox<W, P> of(p, tiles, which);
      if (!of.there) continue;
      if constexpr (W::kind == Operands::Half)
#pragma unroll
        for (int b = 0; b < H::BESIDE; ++b) unscale<H::N / 8>(sums[b], b == 0 ? own : exponents(b));
      finish_beside<typename H::Halo, H::STAGE_PITCH>(p, of.z, of.first, of.box, BoxPlace<P>(p, of.box), sums, stage);
    } else {
      finish_pair<W>(p, tiles, which, own, lanes, sums[0], stage);
    }
  }
  if (H::TURNS && which == (W::PAIRED ? 0 : number % 2)) turn_wait(1 + which);
}
#endif

// FLAGGED: only where the flag is raised.
template <class W, bool FLAGGED, class P>
__global__ void __launch_bounds__(W::threads, 1) pair_kernel(const __grid_constant__ P p, void* workspace) {
  follow();
  extern __shared__ __align__(128) unsigned char pair_shared[];
#if CRUCIBLE_HAS_WGMMA
  using H = Pair<W, P>;
  const Packed packed(p, workspace);
  if (FLAGGED && *packed.again == 0) return;
  // Through a shuffle, so that the compiler knows that a warp agrees on it: else it lines up the matrix instructions.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  unsigned char* const ring = pair_shared + H::KEPT_BYTES;
  unsigned char* const stages = ring + W::SLOTS * H::SLOT_BYTES;
  const unsigned full = shared_address(stages + H::STAGE_BYTES + W::LAND * 1024), empty = full + W::SLOTS * 8, kept = empty + W::SLOTS * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < W::SLOTS; ++i) {
      barrier_init(full + i * 8, W::PRODUCERS / 32 + (W::CHUNKS > 0 ? 0 : 1));
      barrier_init(empty + i * 8, W::CONSUMERS / (W::PAIRED ? 32 : 64));
    }
    barrier_init(kept, 1);
    barrier_inits_done();
  }
  __syncthreads();

  PairTiles<W, P> tiles(p);
  const int chunks = static_cast<int>((P::CHANNELS + W::CHANNELS - 1) / W::CHANNELS);
  const int64_t rows = (p.rows() + PAIR_ROWS - 1) / PAIR_ROWS, each = int64_t(chunks) * H::TAPS * TAP_BYTES, further = rows * each;
  const unsigned char* const weights = packed.weights<W>() + (tiles.group * rows + tiles.tile_m) * each;

  if (warp >= W::CONSUMERS / 32) {
    registers_down<80>();
    PairProducer<W, P> from{p, tiles, 0, reinterpret_cast<float*>(stages + H::STAGE_BYTES) + (threadIdx.x - W::CONSUMERS),
                            W::kind == Operands::Half ? power_of_two(packed.input()) : 1.0f};
    if (W::CHUNKS > 0 && threadIdx.x == W::CONSUMERS) {
      barrier_expect(kept, H::KEPT_BYTES);
      for (int i = 0; i < W::CHUNKS; ++i) copy_weights<H>(shared_address(pair_shared) + i * H::BESIDE * H::TAPS * TAP_BYTES, weights, further, i, kept);
    }
    if (W::kind == Operands::Half && blockIdx.x == 0)
      known_spoilt<W::PRODUCERS, P>(packed, static_cast<int>(threadIdx.x) - W::CONSUMERS, from.by);
    from.largest[0] = from.largest[1] = 0.0f;
    for (int i = 0; i < W::SLOTS; ++i) clear_behind<2, W, P>(ring + i * H::SLOT_BYTES, from.thread());
    if (tiles.left > 0) {
      from.place();
      if constexpr (H::DIRECT) {
#pragma unroll
        for (int i = 0; i < H::AHEAD; ++i) {
          from.ask(i % H::PIXELS, i);
          if (i % H::PIXELS + 1 == H::PIXELS) from.next(chunks);
        }
      }
    }
    int slot = 0, landed = 0;
    unsigned parity = 1;
    bool bad = false;
#pragma unroll 1
    for (; tiles.left > 0; tiles.next())
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; ++chunk) {
        unsigned char* const to = ring + slot * H::SLOT_BYTES;
        barrier_wait(empty + slot * 8, parity);
        if (W::CHUNKS == 0 && threadIdx.x == W::CONSUMERS) {
          barrier_expect(full + slot * 8, H::STREAMED);
          copy_weights<H>(shared_address(to) + (H::SLOT_BYTES - H::STREAMED), weights, further, chunk, full + slot * 8);
        }
#pragma unroll
        for (int i = 0; i < H::PIXELS; ++i) {
          float v[W::CHANNELS];
          if constexpr (H::DIRECT) {
            wait_copies<H::AHEAD - 1>();
            from.take(v, landed);
            from.put(v, i, to);
            from.ask((i + H::AHEAD) % H::PIXELS, landed);
            if ((i + H::AHEAD) % H::PIXELS + 1 == H::PIXELS) from.next(chunks);
            if (++landed == H::AHEAD) landed = 0;
          } else {
            from.compute(v, i);
            from.put(v, i, to);
            if (i + 1 == H::PIXELS) from.next(chunks);
          }
        }
        publish();
        __syncwarp();
        if (lane == 0) barrier_arrive(full + slot * 8);
        if constexpr (W::kind == Operands::Half) bad |= from.watch();
        if (++slot == W::SLOTS) slot = 0, parity ^= 1;
      }
    if (W::kind == Operands::Half && bad && lane == 0) *packed.again = 1;
  } else {
    registers_up<176>();
    multiply_pairs<W>(p, packed, tiles, pair_shared, ring, stages, full, empty, kept, warp);
  }
#endif
}

// The same pixels in other boxes than the functor's own, which W takes: narrower ones, where extents are small. What does not
// depend on boxes is launched as if for those, so that it is compiled once.
template <class P, class Box_, class W>
struct Boxed : P {
  using Box = Box_;
  using Own = P;
  using First = W;
};
template <class Box, class W, class P>
Boxed<P, Box, W> in_boxes(const P& p) { return {p}; }

template <class W, class P, class = void>
struct FirstBoxes {
  using Functor = P;
  using Again = P;  // of the launch that does something again: statistics are kept by boxes, all else is not
  using Tile = W;
};
template <class W, class P>
struct FirstBoxes<W, P, typename Named<typename P::Own>::type> {
  using Functor = typename P::Own;
  using Again = std::conditional_t<P::statistics, P, Functor>;
  using Tile = typename P::First;
};

#ifndef __CUDACC_RTC__
template <class W, bool FLAGGED, class P>
cudaError_t launch_pairs(const P& p, void* workspace, int processors, cudaStream_t stream) {
  using H = Pair<W, P>;
  const int64_t kinds = p.groups() / H::BESIDE * ((static_cast<int64_t>(p.rows()) + PAIR_ROWS - 1) / PAIR_ROWS);
  const int64_t blocks = processors >= kinds ? processors / kinds * kinds : kinds;
  const cudaError_t refused = allow_shared(pair_kernel<W, FLAGGED, P>, H::shared_bytes);
  if (refused != cudaSuccess) return refused;
  return cudaLaunchKernelEx(After(static_cast<unsigned>(blocks), W::threads, H::shared_bytes, stream),
                            pair_kernel<W, FLAGGED, P>, p, workspace);
}

// W is for the launch, Again (if not void) for the second one that does what W could not.
template <class W, class Again, class P>
cudaError_t launch_warpgroups(const P& p, void* workspace, cudaStream_t stream) {
  if (p.batches() == 0 || p.rows() == 0 || box_count(p) == 0) return cudaSuccess;
  int processors = 0;
  using First = FirstBoxes<W, P>;
  cudaError_t refused = pack_rows<typename First::Tile, typename First::Functor>(p, workspace, &processors, stream);
  if (refused == cudaSuccess) refused = launch_pairs<W, false>(p, workspace, processors, stream);
  if constexpr (W::kind == Operands::Half) {
    if (refused == cudaSuccess) refused = launch_pairs<Again, true, typename First::Again>(p, workspace, processors, stream);
  }
  return refused;
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
