// Convolutions as good as float32's own on Hopper's tensor cores (wgmma, compute capability 9.0a).
//
// Boxes, halos and taps are those of window_halo.cuh, two boxes side by side, or the same box of two samples. Every operand
// is split into two tf32 numbers, hi and lo, whose sum has 22 bits at least, and multiplied three times: hi * lo, lo * hi,
// hi * hi. Tensor cores cut what they add, so PIECE taps of a chunk of channels start a fresh accumulator, the small
// products first, and it goes to ordinary registers by rounded adds.
// Four warps produce halos in a ring of SLOTS, of [hi, lo][16 bytes of channels][pixel]; one of their threads has the weights
// brought, PIECE taps at a time, to a ring of HELD such pieces: all taps of a chunk, twice, are too much for a slot. Two
// warpgroups consume, a box each, and take turns, so that one adds while the other multiplies.
//
// The range: tf32 has float's. Rows of weights are scaled by a power of two so that their largest lies at 2^30, and no
// product is too small. The input is scaled too, after a sample of it, if that is very large or small. A chunk of it, in the
// pixels that a warp sees, raises the flag if some number is 2^80 or more, inf or nan (a split would make nan of inf, and an
// overflow of one product nan of the sum), or if the largest is below 2^-96 and not zero (lo would be too small for a float).
// So does a weight of 2^40 or more. Then the last launch, which otherwise returns at once, does everything again with the
// mma engine.
// Registers: N / 2 accumulators and N / 2 sums. Memory: as window_wgmma.cuh, the weights twice as often.
#pragma once

#include "window_wgmma.cuh"

#if CRUCIBLE_HOPPER
namespace crucible {

// JOIN as of Warpgroups, never -1. LAND: KB for what is on its way.
template <int JOIN_, int SLOTS_, int PIECE_, int HELD_, int LAND_>
struct Split {
  static constexpr Operands kind = Operands::Split;
  static constexpr int JOIN = JOIN_, SLOTS = SLOTS_, PIECE = PIECE_, HELD = HELD_, LAND = LAND_, CHUNKS = 0, TURN = 1;
  static constexpr int BM = PAIR_ROWS, PRODUCERS = 128, CONSUMERS = 256, threads = PRODUCERS + CONSUMERS;
  static constexpr int BOXES = 2;
  static constexpr bool PAIRED = true, SAMPLES = JOIN == 4, TOGETHER = false;
  static constexpr int UNIT = 4, CHANNELS = 2 * UNIT;
  // Of a thread. Together what three warpgroups begin with: who asked for more would wait for ever.
  static constexpr int PRODUCER_REGISTERS = 104, CONSUMER_REGISTERS = 200;
  static_assert(PRODUCER_REGISTERS + 2 * CONSUMER_REGISTERS == 3 * (65536 / threads / 8 * 8), "neither more nor fewer");
};

// Shared memory, and how the taps are cut into pieces.
template <class W, class P>
struct SplitRoom {
  using H = Pair<W, P>;
  static constexpr int PIECES = (H::TAPS + W::PIECE - 1) / W::PIECE;
  __host__ __device__ static constexpr int taps(int piece) {
    return H::TAPS - piece * W::PIECE < W::PIECE ? H::TAPS - piece * W::PIECE : W::PIECE;
  }
  static constexpr int PIECE_BYTES = W::PIECE * 2 * TAP_BYTES, HALO_BYTES = (4 * H::ROOM * 16 + 127) / 128 * 128;
  static constexpr int RING = W::HELD * PIECE_BYTES, STAGES = RING + W::SLOTS * HALO_BYTES, LANDING = STAGES + H::STAGE_BYTES;
  static constexpr int BARRIERS = LANDING + W::LAND * 1024;
  static constexpr int shared_bytes = BARRIERS + 2 * (W::SLOTS + W::HELD) * 8;
};

#if CRUCIBLE_HAS_WGMMA
constexpr float SPLIT_LIMIT = 0x1p80f, SPLIT_SMALL = 0x1p-96f;

// A place in a ring, and the parity of the phase of its barriers that is waited for.
template <int PLACES>
struct RingPlace {
  int at = 0;
  unsigned parity;
  __device__ __forceinline__ explicit RingPlace(unsigned first) : parity(first) {}
  __device__ __forceinline__ void advance() {
    if (++at == PLACES) at = 0, parity ^= 1;
  }
};

// A chunk of one pixel to a slot; `largest` are bits of a float without its sign.
template <class W, class P>
__device__ __forceinline__ void put_split(const float (&v)[W::CHANNELS], float by, int q, unsigned char* slot, unsigned& largest) {
  using H = Pair<W, P>;
  unsigned hi[W::CHANNELS], lo[W::CHANNELS];
#pragma unroll
  for (int e = 0; e < W::CHANNELS; ++e) {
    const float x = v[e] * by;
    const unsigned size = __float_as_uint(x) & 0x7fffffffu;
    largest = size > largest ? size : largest;
    split_tf32(x, hi[e], lo[e]);
  }
  if (q >= H::PLACES) return;
#pragma unroll
  for (int unit = 0; unit < 2; ++unit) {
    const int e = unit * W::UNIT;
    *reinterpret_cast<uint4*>(slot + (unit * H::ROOM + q) * 16) = make_uint4(hi[e], hi[e + 1], hi[e + 2], hi[e + 3]);
    *reinterpret_cast<uint4*>(slot + ((2 + unit) * H::ROOM + q) * 16) = make_uint4(lo[e], lo[e + 1], lo[e + 2], lo[e + 3]);
  }
}

// Whether what a warp has put away, of which each lane knows its largest number, cannot be split.
__device__ __forceinline__ bool unsplittable(unsigned largest) {
  const unsigned most = __reduce_max_sync(0xffffffffu, largest);
  return most >= __float_as_uint(SPLIT_LIMIT) || (most != 0 && most < __float_as_uint(SPLIT_SMALL));
}

// Three products of a piece of the taps, the small ones first. Two batches: the second is the large product.
template <int PIECE, class W, class P, int COUNT>
__device__ __forceinline__ void multiply_piece(float (&sums)[COUNT], uint64_t a, uint64_t b) {
  using H = Pair<W, P>;
  using Instruction = Wgmma<H::N, Operands::Tf32>;
  constexpr int TAPS = SplitRoom<W, P>::taps(PIECE), FIRST = PIECE * W::PIECE, LINE = TAP_BYTES / 16;
#pragma unroll
  for (int t = 0; t < TAPS; ++t) Instruction::multiply(sums, a + 2 * t * LINE, b + 2 * H::ROOM + H::tap(FIRST + t), t > 0);
#pragma unroll
  for (int t = 0; t < TAPS; ++t) Instruction::multiply(sums, a + (2 * t + 1) * LINE, b + H::tap(FIRST + t), 1);
  wgmma_end();
#pragma unroll
  for (int t = 0; t < TAPS; ++t) Instruction::multiply(sums, a + 2 * t * LINE, b + H::tap(FIRST + t), 1);
  wgmma_end();
}

template <class W, class P>
struct SplitConsumer {
  using H = Pair<W, P>;
  using S = SplitRoom<W, P>;
  unsigned weights, ring, full, empty, come, gone;
  int which, lane;
  float total[H::N / 2];
  RingPlace<W::SLOTS> slot{0};
  RingPlace<W::HELD> held{0};

  // The pieces of a chunk, one after another: each has its own code, since its taps' places must be known beforehand.
  template <int PIECE>
  __device__ __forceinline__ void pieces(float (&sums)[H::N / 2]) {
    if constexpr (PIECE < S::PIECES) {
      barrier_wait(come + held.at * 8, held.parity);
      turn_wait(1 + which);
      settle(sums);
      wgmma_begin();
      multiply_piece<PIECE, W, P>(sums, lines_at(weights + held.at * S::PIECE_BYTES, TAP_BYTES / 2),
                                  lines_at(ring + slot.at * S::HALO_BYTES + which * H::SECOND * 16, H::ROOM * 16));
      wgmma_wait<1>();
      turn_give(2 - which);  // most is done: the other's products queue up behind the rest
      wgmma_wait<0>();
      settle(sums);
      if (lane == 0) barrier_arrive(gone + held.at * 8);
      held.advance();
#pragma unroll
      for (int i = 0; i < H::N / 2; ++i) total[i] += sums[i];
      pieces<PIECE + 1>(sums);
    }
  }
  __device__ __forceinline__ void box(int chunks) {
    float sums[H::N / 2];
#pragma unroll
    for (int i = 0; i < H::N / 2; ++i) total[i] = sums[i] = 0;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      barrier_wait(full + slot.at * 8, slot.parity);
      pieces<0>(sums);
      if (lane == 0) barrier_arrive(empty + slot.at * 8);
      slot.advance();
    }
  }
};
#endif

template <class W, class P>
__global__ void __launch_bounds__(W::threads, 1) split_kernel(const __grid_constant__ P p, void* workspace) {
  follow();
  extern __shared__ __align__(128) unsigned char split_shared[];
#if CRUCIBLE_HAS_WGMMA
  using H = Pair<W, P>;
  using S = SplitRoom<W, P>;
  const Packed packed(p, workspace);
  // Through a shuffle, so that the compiler knows that a warp agrees on it.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned shared = shared_address(split_shared);
  const unsigned full = shared + S::BARRIERS, empty = full + W::SLOTS * 8, come = empty + W::SLOTS * 8, gone = come + W::HELD * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < W::SLOTS; ++i) {
      barrier_init(full + i * 8, W::PRODUCERS / 32);
      barrier_init(empty + i * 8, W::CONSUMERS / 32);
    }
    for (int i = 0; i < W::HELD; ++i) {
      barrier_init(come + i * 8, 1);
      barrier_init(gone + i * 8, W::CONSUMERS / 32);
    }
    barrier_inits_done();
  }
  __syncthreads();

  PairTiles<W, P> tiles(p);
  const int chunks = static_cast<int>((P::CHANNELS + W::CHANNELS - 1) / W::CHANNELS);
  const Index tile = tiles.group * ((p.rows() + PAIR_ROWS - 1) / PAIR_ROWS) + tiles.tile_m;

  if (warp >= W::CONSUMERS / 32) {
    registers_down<W::PRODUCER_REGISTERS>();
    const unsigned char* const weights = packed.weights<W>() + tile * int64_t(chunks) * H::TAPS * 2 * TAP_BYTES;
    PairProducer<W, P> from{p, tiles, 0, reinterpret_cast<float*>(split_shared + S::LANDING) + (threadIdx.x - W::CONSUMERS),
                            power_of_two(packed.split_input())};
    if (blockIdx.x == 0) spoilt_rows<W::PRODUCERS>(packed, from.thread());
    for (int i = 0; i < W::SLOTS; ++i) clear_behind<4, W, P>(split_shared + S::RING + i * S::HALO_BYTES, from.thread());
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
    RingPlace<W::SLOTS> slot(1);
    RingPlace<W::HELD> held(1);
    int landed = 0;
    bool bad = false;
#pragma unroll 1
    for (; tiles.left > 0; tiles.next())
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; ++chunk) {
        unsigned char* const to = split_shared + S::RING + slot.at * S::HALO_BYTES;
        unsigned largest = 0;
        barrier_wait(empty + slot.at * 8, slot.parity);
#pragma unroll
        for (int i = 0; i < H::PIXELS; ++i) {
          const int q = from.thread() + i * W::PRODUCERS;
          float v[W::CHANNELS];
          if constexpr (H::DIRECT) {
            wait_copies<H::AHEAD - 1>();
            from.take(v, landed);
            put_split<W, P>(v, from.by, q, to, largest);
            from.ask((i + H::AHEAD) % H::PIXELS, landed);
            if ((i + H::AHEAD) % H::PIXELS + 1 == H::PIXELS) from.next(chunks);
            if (++landed == H::AHEAD) landed = 0;
          } else {
            from.compute(v, i);
            put_split<W, P>(v, from.by, q, to, largest);
            if (i + 1 == H::PIXELS) from.next(chunks);
          }
        }
        publish();
        __syncwarp();
        if (lane == 0) barrier_arrive(full + slot.at * 8);
        bad |= unsplittable(largest);
        slot.advance();
        // Weights after the halo they are for: their slots may be those of pieces that are multiplied with it.
        if (threadIdx.x == W::CONSUMERS) {
#pragma unroll 1
          for (int piece = 0; piece < S::PIECES; ++piece) {
            const unsigned bytes = S::taps(piece) * 2 * TAP_BYTES;
            barrier_wait(gone + held.at * 8, held.parity);
            barrier_expect(come + held.at * 8, bytes);
            bulk_copy(shared + held.at * S::PIECE_BYTES, weights + (int64_t(chunk) * H::TAPS + piece * W::PIECE) * 2 * TAP_BYTES,
                      bytes, come + held.at * 8);
            held.advance();
          }
        }
        __syncwarp();
      }
    if (bad && lane == 0) *packed.again = 1;
  } else {
    registers_up<W::CONSUMER_REGISTERS>();
    const int which = warp / 4;
    SplitConsumer<W, P> mine{shared, shared + S::RING, full, empty, come, gone, which, lane};
    if (which == 1) turn_give(1);
    float* const stage = reinterpret_cast<float*>(split_shared + S::STAGES) + warp * 4 * H::STAGE_PITCH;
    const PairLanes<W, P> lanes(p);
    const Exponents exponents(packed.rows + tile * PAIR_ROWS + warp % 4 * 16, packed.split_input());
#pragma unroll 1
    for (; tiles.left > 0; tiles.next()) {
      mine.box(chunks);
      finish_pair<W>(p, tiles, which, exponents, lanes, mine.total, stage);
    }
    if (which == 0) turn_wait(1);  // the last turn given
  }
#endif
}

// What could not be split, again by the engine Config. As many blocks as run at the same time, each of which takes many
// tiles: a block for each tile would cost something where there is nothing to do.
template <class Config, class P>
__global__ void __launch_bounds__(Config::threads, Config::blocks_per_sm)
    split_again_kernel(const __grid_constant__ P p, void* workspace, unsigned tiles) {
  follow();
  extern __shared__ __align__(16) unsigned char again_shared[];
  if (*Packed(p, workspace).again == 0) return;
#pragma unroll 1
  for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    __syncthreads();
    contract_tile<Config>(p, tile, 0, 1, again_shared);
  }
}

#ifndef __CUDACC_RTC__
template <class Config, class P>
cudaError_t launch_split_again(const P& p, void* workspace, int processors, cudaStream_t stream) {
  const int64_t tiles_m = (static_cast<int64_t>(p.rows()) + Config::BM - 1) / Config::BM, tiles_n = box_count(p);
  const int64_t most = 0x7fffffff, batches = p.batches();
  if (tiles_m > most / tiles_n || batches > most / (tiles_m * tiles_n)) return cudaErrorInvalidValue;
  const cudaError_t refused = allow_shared(split_again_kernel<Config, P>, Config::shared_bytes);
  if (refused != cudaSuccess) return refused;
  const int64_t tiles = batches * tiles_m * tiles_n, blocks = static_cast<int64_t>(processors) * Config::blocks_per_sm;
  return cudaLaunchKernelEx(After(static_cast<unsigned>(tiles < blocks ? tiles : blocks), Config::threads, Config::shared_bytes, stream),
                            split_again_kernel<Config, P>, p, workspace, static_cast<unsigned>(tiles));
}

// Again: tiles of the mma engine, for what W cannot split.
template <class W, class Again, class P>
cudaError_t launch_split(const P& p, void* workspace, cudaStream_t stream) {
  using S = SplitRoom<W, P>;
  if (p.batches() == 0 || p.rows() == 0 || box_count(p) == 0) return cudaSuccess;
  int processors = 0;
  cudaError_t refused = pack_rows<W>(p, workspace, &processors, stream);
  if (refused == cudaSuccess) refused = allow_shared(split_kernel<W, P>, S::shared_bytes);
  if (refused != cudaSuccess) return refused;
  const int64_t kinds = p.groups() * ((static_cast<int64_t>(p.rows()) + PAIR_ROWS - 1) / PAIR_ROWS);
  const int64_t blocks = processors >= kinds ? processors / kinds * kinds : kinds;
  refused = cudaLaunchKernelEx(After(static_cast<unsigned>(blocks), W::threads, S::shared_bytes, stream), split_kernel<W, P>, p, workspace);
  return refused == cudaSuccess ? launch_split_again<Again>(p, workspace, processors, stream) : refused;
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
