// Convolutions on Hopper's tensor cores, and what follows the statistics of a sample, in one launch: all blocks work on one
// sample together and keep what they make of it in shared memory until its moments are known.
//
// As in window_strips.cuh a block has a strip of the output's columns, here of a few neighbouring lines of every sample. Four
// warps copy and round the input, a line ahead: each unit of eight channels has a buffer, which is filled again as soon as it has
// been read. Two warpgroups multiply in turns; weights stay in registers, those that do not fit there in shared memory. What a
// warpgroup has finished goes to a slot for each line, sector by sector as it will lie in memory, and the moments of a strip to
// all other blocks, before the last line does: everybody waits for the slowest. Four more warps wait for theirs, and then finish
// and store line by line, while the next sample is multiplied. So the elements go through memory once, not three times.
// Each sector of a line belongs to one block: BOX columns from where the sector of column strip * BOX begins, for which eight
// columns before are multiplied too.
//
// P is as in window_strips.cuh, with statistics and
//   struct Known, known(z, row)          what the elements of a row have in common, read once for a sample
//   finish_known(known, sum)             what finish makes of a sum
// R is a walk (row.cuh) over what P stores, of which the kernel needs
//   HELD_ROWS of P's rows in one group   struct Held, held(row, part, found), found_of(count, mean, m2)
//   held_value(held, element)            held_at(row, part), where that goes
// Memory: 1.6 times the input, most of what is read twice from L2; the output once. What half cannot hold is done again by the two
// kernels of which this is one.
#pragma once

#include "window_held_input.cuh"
#include "window_held_lines.cuh"
#include "window_held_products.cuh"

#if CRUCIBLE_HOPPER
namespace crucible {

template <class W, class P, class R>
__global__ void __launch_bounds__(W::threads, 1) held_kernel(const __grid_constant__ P p, const __grid_constant__ R r, void* workspace,
                                                            unsigned long long* words, HeldCut cut) {
  follow();
  extern __shared__ __align__(128) unsigned char held_shared[];
#if CRUCIBLE_HAS_WGMMA
  using S = Strip<W, P>;
  using H = Hold<W, P>;
  const Packed packed(p, workspace);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const unsigned full = shared_address(held_shared + H::BARRIERS), empty = full + W::SLOTS * 8, landed = empty + W::SLOTS * 8;
  const unsigned held = landed + W::LANDINGS * 8, free = held + H::LINES * 8, told = free + H::LINES * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < W::SLOTS; ++i) barrier_init(full + i * 8, S::UNITS < W::WARPS ? S::UNITS : W::WARPS), barrier_init(empty + i * 8, W::CONSUMERS / 32);
    for (int i = 0; i < W::LANDINGS; ++i) barrier_init(landed + i * 8, 32);
    for (int i = 0; i < H::LINES; ++i) barrier_init(held + i * 8, 128), barrier_init(free + i * 8, static_cast<int>(p.rows()) * 2);
    for (int i = 0; i < 2; ++i) barrier_init(told + i * 8, W::CONSUMERS);
    barrier_inits_done();
  }
  for (int i = static_cast<int>(threadIdx.x); i < (H::STEPS - H::KEPT) * (TAP_BYTES / 16); i += W::threads)
    reinterpret_cast<uint4*>(held_shared + H::WEIGHTS)[i] = reinterpret_cast<const uint4*>(packed.half + H::KEPT * TAP_BYTES)[i];
  for (int i = static_cast<int>(threadIdx.x); i < W::LANDINGS * S::LANDING_BYTES / 16; i += W::threads)
    reinterpret_cast<uint4*>(held_shared + H::LANDINGS)[i] = make_uint4(0, 0, 0, 0);
  // Of all elements of a row, each block's share; none of blocks that are not there.
  for (int i = static_cast<int>(threadIdx.x); i < HELD_BLOCKS; i += W::threads) {
    const HeldPart<P> other(p, cut, i % cut.strips, i / cut.strips);
    reinterpret_cast<float*>(held_shared + H::SHARES)[i] = i >= cut.strips * cut.segments ? 0.0f :
        __fdividef(static_cast<float>(other.count) * static_cast<float>(other.columns()), static_cast<float>(other.lines) * static_cast<float>(other.width));
  }
  publish();
  __syncthreads();
  const HeldPart<P> part(p, cut, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
  if (warp >= W::CONSUMERS / 32 + W::WARPS) {
    registers_down<W::DOWN>();
    const int mine = warp - W::CONSUMERS / 32 - W::WARPS;
    if (blockIdx.x == 0 && blockIdx.y == 0)
      known_spoilt<W::WARPS * 32, P>(packed, mine * 32 + static_cast<int>(threadIdx.x) % 32, power_of_two(packed.input()));
    if (mine * 16 < p.rows()) held_lines<W>(p, r, part, cut, held_shared, words, held, free, told, mine);
  } else if (warp >= W::CONSUMERS / 32) {
    registers_down<W::DOWN>();
    // Opaque, so that it is computed anew: there are few registers.
    const auto first = [&]() {
      int strip = static_cast<int>(part.strip);
      asm volatile("" : "+r"(strip));
      return static_cast<Index>(strip * P::Box::at(3) - 8 + P::Shift::at(3) - S::LEAD);
    };
    if (WholeLines<W, P>(p, first()).hold())
      held_input<WholeLines<W, P>, W>(p, packed, part, held_shared, full, empty, landed, warp - W::CONSUMERS / 32, first());
    else
      held_input<AnyLines<W, P>, W>(p, packed, part, held_shared, full, empty, landed, warp - W::CONSUMERS / 32, first());
  } else {
    registers_up<W::UP>();
    held_products<W>(p, r, packed, part, held_shared, full, empty, held, free, told, warp / 4);
  }
#endif
}

// What the walk would have done, where something was done again: as many blocks as run at a time.
template <class R>
__global__ void __launch_bounds__(ROW_THREADS) row_again_kernel(const R r, const int* again) {
  follow();
  if (*again == 0) return;
  const int64_t length = r.length();
  constexpr int64_t SLICE = SLICE_VECTORS * VECTOR * ROW_THREADS;
  const Lanes<ROW_THREADS> lanes;
  for (int64_t row = blockIdx.x; row < r.rows(); row += gridDim.x) {
    const typename R::Found found = r.reduce(lanes, static_cast<Index>(row));
    for (Index part = 0; part < r.repeats(); ++part)
      for (int64_t from = 0; from < length; from += SLICE)
        r.walk(lanes, static_cast<Index>(row), part, from, from + SLICE < length ? from + SLICE : length, found);
  }
}

#ifndef __CUDACC_RTC__
// How samples are cut among so many blocks; no strips where that does not pay or fit.
template <class W, class P, class R>
HeldCut held_cut(const P& p, const R& r, int processors) {
  using H = Hold<W, P>;
  HeldCut cut;
  const int64_t width = p.extent(3), lines = p.extent(2), samples = p.batches();
  const bool plain = p.extent(0) == 1 && p.extent(1) == 1 && p.groups() == 1 && p.rows() <= PAIR_ROWS && p.rows() % 16 == 0 && width % 2 == 0;
  if (!plain || reinterpret_cast<uintptr_t>(r.held_at(0, 0)) % 8 != 0 || r.rows() * r.repeats() != samples * p.rows()) return cut;
  const int64_t strips = ((width + 13) / 8 * 8 - 1) / H::BOX + 1, blocks = processors < HELD_BLOCKS ? processors : HELD_BLOCKS;
  const int64_t most = blocks / strips, segments = most < lines ? most : lines;
  if (segments < 1) return cut;
  const int64_t each = (lines - 1) / segments + 1;  // at most
  // Samples in which a block has few lines read much of the input twice, and wait for each other often.
  if (each > H::LINES || each < HELD_LEAST || samples < 2) return cut;
  cut.strips = static_cast<int>(strips), cut.segments = static_cast<int>(segments);
  cut.each = static_cast<int>(lines / segments), cut.longer = static_cast<int>(lines % segments);
  return cut;
}

// P and then R, if that can be: else nothing, and `done` says so. W is for the first launch, Again for what W could not.
template <class W, class Again, class P, class R>
cudaError_t launch_held(const P& p, const R& r, void* workspace, unsigned long long* words, cudaStream_t stream, bool* done) {
  using H = Hold<W, P>;
  *done = false;
  if (p.batches() == 0 || p.rows() == 0 || box_count(p) == 0) return cudaSuccess;
  int device = 0, processors = 0;
  cudaError_t refused = cudaGetDevice(&device);
  if (refused == cudaSuccess) refused = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const HeldCut cut = refused == cudaSuccess ? held_cut<W>(p, r, processors) : HeldCut();
  if (refused != cudaSuccess || cut.strips == 0) return refused;
  refused = cudaMemsetAsync(words, 0, 2 * HELD_GROUPS * HELD_BLOCKS * sizeof(*words), stream);
  if (refused == cudaSuccess) refused = pack_rows<W>(p, workspace, &processors, stream);
  if (refused == cudaSuccess) refused = allow_shared(held_kernel<W, P, R>, H::shared_bytes);
  const dim3 blocks(static_cast<unsigned>(cut.strips), static_cast<unsigned>(cut.segments));
  if (refused == cudaSuccess)
    refused = cudaLaunchKernelEx(After(blocks, W::threads, H::shared_bytes, stream, 1, true), held_kernel<W, P, R>, p, r, workspace, words, cut);
  // Where others have a part of the chip its blocks cannot all be there at a time.
  if (refused == cudaErrorCooperativeLaunchTooLarge || refused == cudaErrorNotSupported) {
    cudaGetLastError();
    return cudaSuccess;
  }
  if (refused == cudaSuccess) refused = launch_pairs<Again, true>(p, workspace, processors, stream);
  if (refused == cudaSuccess)
    refused = cudaLaunchKernelEx(After(static_cast<unsigned>(processors * 2), ROW_THREADS, 0, stream), row_again_kernel<R>, r,
                                 static_cast<const int*>(Packed(p, workspace).again));
  *done = refused == cudaSuccess;
  return refused;
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
