// The input under boxes of output pixels on its way to Hopper's tensor cores: what producing warps do.
//
// A thread has the same places of the halo in every tile. It reads a chunk of channels (32 bytes) of each, rounds it, in kind
// Half scaled, and stores it as [16 bytes of channels][pixel] in a slot of the ring; weights that do not stay come with the chunk by
// a bulk copy. An input that is memory as it is comes by asynchronous copies, some pixels ahead.
// In kind Half producers watch what they round: a number too large, or a channel that is not zero but too small to have its 11
// bits in all the pixels that a warp sees.
#pragma once

#include "window_halo.cuh"

#if CRUCIBLE_HOPPER
namespace crucible {

#if CRUCIBLE_HAS_WGMMA
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
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
