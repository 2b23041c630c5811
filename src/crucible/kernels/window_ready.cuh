// Convolutions on Hopper's tensor cores whose input is made ready beforehand.
//
// As window_wgmma.cuh, with two or three boxes at a time that share weights, but a launch of its own rounds the input and stores it
// with its borders of zeros, as [sample][chunk of channels][16 bytes of channels][pixel]. So rows of a halo are bulk copies,
// which one warp asks for, and shared memory, which is what the tensor cores wait for where a block rounds its own input (they
// read 7 KB for each instruction), is written once and has room for another slot.
// It pays where an element of the input is multiplied often: the launch moves 1.5 times the input's bytes and the borders.
#pragma once

#include "window_wgmma.cuh"

#if CRUCIBLE_HOPPER
namespace crucible {

// BOXES side by side, a warpgroup for each: with three, one that stores has two beside it that multiply. Others: see Warpgroups.
template <int BOXES_, int JOIN_, int SLOTS_, int TURN_, Operands kind_>
struct Ready {
  static_assert(JOIN_ >= 0 && kind_ != Operands::Tf32 && kind_ != Operands::Split, "boxes side by side, 16 channels in a chunk");
  static constexpr Operands kind = kind_;
  static constexpr int BOXES = BOXES_, JOIN = JOIN_, SLOTS = SLOTS_, CHUNKS = 0, TURN = TURN_, LAND = 0;
  static constexpr int BM = PAIR_ROWS, PRODUCERS = 128, CONSUMERS = 128 * BOXES, threads = PRODUCERS + CONSUMERS;
  static constexpr int FEW = BOXES == 3 ? 32 : 40, MANY = BOXES == 3 ? 160 : 232;  // registers of producers and consumers
  static constexpr bool PAIRED = true, SAMPLES = JOIN == 4, TOGETHER = true;
  static constexpr int UNIT = 8, CHANNELS = 2 * UNIT;
};

// The input as it is made ready, behind the weights.
template <class P>
struct ReadyInput {
  static_assert(P::Stride::product == 1, "neighbours are multiplied with neighbours");
  static constexpr int CHUNKS = static_cast<int>((P::CHANNELS + 15) / 16), PHASES = InsideOf<P>::groups;  // which share it
  Index extents[4];
  int64_t pixels;
  unsigned char* at;

  __host__ __device__ ReadyInput(const P& p, void* workspace)
      : pixels(1), at(static_cast<unsigned char*>(workspace) + Packed::bytes(p)) {
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      extents[d] = p.extent(d) + (P::Kernel::at(d) - 1) * P::Dilation::at(d);
      pixels *= extents[d];
    }
  }
  // The first pixel's 16 bytes.
  __device__ __forceinline__ unsigned char* plane(Index z, int chunk, int unit) const {
    return at + ((static_cast<int64_t>(z / PHASES) * CHUNKS + chunk) * 2 + unit) * pixels * 16;
  }
};

// What launch_ready wants: a row that is read to the end of a halo may pass the last pixel. There are zeros.
template <class W, class P>
int64_t ready_bytes(const P& p) {
  const ReadyInput<P> input(p, nullptr);
  return Packed::bytes(p) + (static_cast<int64_t>(p.batches() / ReadyInput<P>::PHASES) * ReadyInput<P>::CHUNKS * 2 * input.pixels + Pair<W, P>::Halo::at(3)) * 16;
}

constexpr int READY_THREADS = 256;  // no fewer than a row of a halo has pixels

// A block for so many pixels of a sample, with all their channels.
template <class W, class P>
__global__ void __launch_bounds__(READY_THREADS) ready_input_kernel(const __grid_constant__ P p, void* workspace, unsigned parts) {
  follow();
#if CRUCIBLE_HAS_WGMMA
  const Packed packed(p, workspace);
  const ReadyInput<P> input(p, workspace);
  const float by = W::kind == Operands::Half ? power_of_two(packed.input()) : 1.0f;
  if (W::kind == Operands::Half && blockIdx.x == 0) known_spoilt<READY_THREADS, P>(packed, static_cast<int>(threadIdx.x), by);
  if (blockIdx.x == 0 && threadIdx.x < Pair<W, P>::Halo::at(3))
    *reinterpret_cast<uint4*>(input.plane(p.batches(), 0, 0) + threadIdx.x * 16) = make_uint4(0, 0, 0, 0);
  const Index z = static_cast<Index>(blockIdx.x / parts) * ReadyInput<P>::PHASES;
  const int64_t pixel = static_cast<int64_t>(blockIdx.x % parts) * READY_THREADS + threadIdx.x;
  const bool there = pixel < input.pixels;
  Index rest = there ? static_cast<Index>(pixel) : 0, place[4];
#pragma unroll
  for (int d = 3; d >= 0; --d) {
    place[d] = (d > 0 ? rest % input.extents[d] : rest) + P::Shift::at(d);
    rest /= input.extents[d];
  }
  const typename P::BAt from = p.b_at(z, place[0], place[1], place[2], place[3]);
  const bool inside = there && from.inside;
  bool bad = false;
#pragma unroll 2
  for (int chunk = 0; chunk < ReadyInput<P>::CHUNKS; ++chunk) {
    float v[2][8];
#pragma unroll
    for (int e = 0; e < 16; ++e) {
      const bool read = inside && (P::CHANNELS % 16 == 0 || chunk * 16 + e < P::CHANNELS);
      v[e / 8][e % 8] = read ? static_cast<float>(p.b_in(from, chunk * 16 + e)) : 0.0f;
    }
#pragma unroll
    for (int unit = 0; unit < 2; ++unit) {
      float largest = 0;
      const uint4 word = round_unit<W::kind>(v[unit], by, largest);
      if (W::kind == Operands::Half) bad |= watched(largest);
      if (there) *reinterpret_cast<uint4*>(input.plane(z, chunk, unit) + pixel * 16) = word;
    }
  }
  if (W::kind == Operands::Half && bad && threadIdx.x % 32 == 0) *packed.again = 1;
#endif
}

#if CRUCIBLE_HAS_WGMMA
// One warp: the rows of the halo under a tile, a chunk of their channels, and the weights for it.
template <class W, class P>
__device__ __forceinline__ void fetch_pairs(const P& p, PairTiles<W, P>& tiles, const ReadyInput<P>& input, const unsigned char* weights,
                                            int64_t further, unsigned ring, unsigned full, unsigned empty) {
  using H = Pair<W, P>;
  using Halo = typename H::Halo;
  constexpr int SAMPLES = W::SAMPLES ? W::BOXES : 1, ROWS = Halo::at(0) * Halo::at(1) * Halo::at(2), COPIES = SAMPLES * 2 * ROWS;
  constexpr unsigned ROW_BYTES = Halo::at(3) * 16;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int slot = 0;
  unsigned parity = 1;
#pragma unroll 1
  for (; tiles.left > 0; tiles.next())
#pragma unroll 1
    for (int chunk = 0; chunk < ReadyInput<P>::CHUNKS; ++chunk) {
      const unsigned to = ring + slot * H::SLOT_BYTES, come = full + slot * 8;
      barrier_wait(empty + slot * 8, parity);
      if (lane == 0) {
        barrier_expect(come, H::STREAMED + COPIES * ROW_BYTES);
        copy_weights<H>(to + (H::SLOT_BYTES - H::STREAMED), weights, further, chunk, come);
      }
      __syncwarp();
#pragma unroll 1
      for (int i = lane; i < COPIES; i += 32) {
        const int row = i % ROWS, unit = i / ROWS % 2, which = i / (2 * ROWS);
        const int in[3] = {row / (Halo::at(1) * Halo::at(2)), row / Halo::at(2) % Halo::at(1), row % Halo::at(2)};
        // Of pixels that do not exist nothing is wanted: any others will do.
        const Index z = tiles.exists(p, which) ? tiles.batch(p, which) : tiles.batch(p, 0);
        int64_t from = 0;
#pragma unroll
        for (int d = 0; d < 3; ++d) {
          const Index there = tiles.first(d) + in[d], last = input.extents[d] - 1;
          from = from * input.extents[d] + (there < last ? there : last);
        }
        from = from * input.extents[3] + tiles.first(3);
        bulk_copy(to + (unit * H::ROOM + which * H::SECOND + row * Halo::at(3)) * 16, input.plane(z, chunk, unit) + from * 16, ROW_BYTES, come);
      }
      if (++slot == W::SLOTS) slot = 0, parity ^= 1;
    }
}
#endif

template <class W, class P>
__global__ void __launch_bounds__(W::threads, 1) ready_kernel(const __grid_constant__ P p, void* workspace) {
  follow();
  extern __shared__ __align__(128) unsigned char ready_shared[];
#if CRUCIBLE_HAS_WGMMA
  using H = Pair<W, P>;
  const Packed packed(p, workspace);
  // Through a shuffle, so that the compiler knows that a warp agrees on it: else it lines up the matrix instructions.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  unsigned char* const stages = ready_shared + W::SLOTS * H::SLOT_BYTES;
  const unsigned full = shared_address(stages + H::STAGE_BYTES), empty = full + W::SLOTS * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < W::SLOTS; ++i) {
      barrier_init(full + i * 8, 1);
      barrier_init(empty + i * 8, W::CONSUMERS / 32);
    }
    barrier_inits_done();
  }
  if (threadIdx.x >= W::CONSUMERS) {
    for (int i = 0; i < W::SLOTS; ++i) clear_behind<2, W, P>(ready_shared + i * H::SLOT_BYTES, static_cast<int>(threadIdx.x) - W::CONSUMERS);
    publish();
  }
  __syncthreads();

  PairTiles<W, P> tiles(p);
  if (warp >= W::CONSUMERS / 32) {
    registers_down<W::FEW>();
    const int64_t rows = (p.rows() + PAIR_ROWS - 1) / PAIR_ROWS, tile = tiles.group * rows + tiles.tile_m;
    constexpr int EACH = ReadyInput<P>::CHUNKS * H::TAPS * TAP_BYTES;
    const unsigned char* const weights = packed.weights<W>() + tile * EACH;
    if (warp == W::CONSUMERS / 32)
      fetch_pairs<W>(p, tiles, ReadyInput<P>(p, workspace), weights, rows * EACH, shared_address(ready_shared), full, empty);
  } else {
    registers_up<W::MANY>();
    multiply_pairs<W>(p, packed, tiles, nullptr, ready_shared, stages, full, empty, 0, warp);
  }
#endif
}

#ifndef __CUDACC_RTC__
// W for the launch, Again (if not void) for the one that does what W could not. The workspace has ready_bytes.
template <class W, class Again, class P>
cudaError_t launch_ready(const P& p, void* workspace, cudaStream_t stream) {
  using H = Pair<W, P>;
  if (p.batches() == 0 || p.rows() == 0 || box_count(p) == 0) return cudaSuccess;
  int processors = 0;
  using First = FirstBoxes<W, P>;
  static_assert(H::Halo::at(3) <= Pair<typename First::Tile, typename First::Functor>::Halo::at(3), "as much is read behind the last pixel");
  cudaError_t refused = pack_rows<typename First::Tile, typename First::Functor>(p, workspace, &processors, stream);
  if (refused == cudaSuccess) refused = allow_shared(ready_kernel<W, P>, H::shared_bytes);
  if (refused != cudaSuccess) return refused;
  const int64_t parts = (ReadyInput<P>(p, nullptr).pixels + READY_THREADS - 1) / READY_THREADS, batches = p.batches() / ReadyInput<P>::PHASES;
  if (parts > 0x7fffffff / batches) return cudaErrorInvalidValue;
  refused = cudaLaunchKernelEx(After(static_cast<unsigned>(parts * batches), READY_THREADS, 0, stream),
                               ready_input_kernel<typename First::Tile, typename First::Functor>, p, workspace, static_cast<unsigned>(parts));
  if (refused != cudaSuccess) return refused;
  const int64_t kinds = p.groups() / H::BESIDE * ((static_cast<int64_t>(p.rows()) + PAIR_ROWS - 1) / PAIR_ROWS);
  const int64_t blocks = processors >= kinds ? processors / kinds * kinds : kinds;
  refused = cudaLaunchKernelEx(After(static_cast<unsigned>(blocks), W::threads, H::shared_bytes, stream), ready_kernel<W, P>, p, workspace);
  if constexpr (W::kind == Operands::Half) {
    if (refused == cudaSuccess) refused = launch_pairs<Again, true, typename First::Again>(p, workspace, processors, stream);
  }
  return refused;
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
