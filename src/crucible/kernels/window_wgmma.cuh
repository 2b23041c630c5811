// Convolutions on Hopper's tensor cores (wgmma, compute capability 9.0a): a window slides over an input.
//
// A block stays on its processor and takes 64 output channels of one box of output pixels after another. Eight warps
// produce: they read the input under a box, the halo, 32 bytes of channels (a chunk) at a time, round it and store it as
// [16 bytes of channels][pixel] in a ring of slots. Two warpgroups consume: for every tap of the window one instruction
// multiplies 64 channels by N pixels. window_halo.cuh has where pixels and taps lie, window_produce.cuh what the former do,
// window_finish.cuh what becomes of sums; here are the products, the kernel and its launches.
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

#include "window_produce.cuh"
#include "window_finish.cuh"

#if CRUCIBLE_HOPPER
namespace crucible {

#if CRUCIBLE_HAS_WGMMA
// Of a phase without taps.
template <int COUNT>
__device__ __forceinline__ void clear(float (&sums)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) sums[i] = 0.0f;
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
