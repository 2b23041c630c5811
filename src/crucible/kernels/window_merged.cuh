// Convolutions with groups of few channels in Hopper's strips: M neighbouring groups are taken for one.
//
// A group of eight output channels leaves seven eighths of a matrix instruction empty. So M groups are one with M times the
// rows and the channels, whose weights are zero where row and channel are of different groups: more products, all of them
// in the instructions of window_strips.cuh, which are faster than those of window.cuh by more than that.
// Zero times inf or nan is nan, which would spoil the other groups, and each group has its own magnitude. So only in kind
// Half, where the input is watched, and here more closely: a nan raises the flag too, and the numbers of each group are
// looked at apart. The second launch is the kernel of window.cuh, which multiplies nothing by zeros.
// Memory: as in window_strips.cuh, for the rows of M groups.
#pragma once

#include "window.cuh"
#include "window_strips.cuh"

#if CRUCIBLE_HOPPER
namespace crucible {

// A functor whose groups are M of P's. Rows, channels and batches are P's own in another order, so that an element is
// finished, stored and counted as P itself would.
template <class P, int M>
struct Merged : P {
  static constexpr Index CHANNELS = M * P::CHANNELS;
  static constexpr Index DEPTH = P::CHANNELS * P::Kernel::product;  // of a row's own weights
  __host__ __device__ explicit Merged(const P& p) : P(p) {}

  __host__ __device__ Index groups() const { return P::groups() / M; }
  __host__ __device__ Index batches() const { return P::batches() / M; }
  __host__ __device__ Index rows() const { return P::rows() * M; }
  __host__ __device__ Index channels() const { return CHANNELS; }

  // P's batch of a row, and its number there.
  __device__ __forceinline__ Index own_batch(Index z, Index m) const { return z * M + m / P::rows(); }
  __device__ __forceinline__ Index own_row(Index m) const { return m % P::rows(); }

  struct ARow {
    typename P::ARow own;
    Index first;  // of its weights that are not zero
  };
  __device__ __forceinline__ ARow a_row(Index z, Index m) const { return {P::a_row(own_batch(z, m), own_row(m)), m / P::rows() * DEPTH}; }
  __device__ __forceinline__ accum a(const ARow& at, Index k) const {
    return k >= at.first && k < at.first + DEPTH ? P::a(at.own, k - at.first) : accum(0);
  }
  // The first group's place: channels of the next one follow its own.
  __device__ __forceinline__ typename P::BAt b_at(Index z, Index i0, Index i1, Index i2, Index i3) const { return P::b_at(z * M, i0, i1, i2, i3); }

  template <class To>
  __device__ __forceinline__ accum finish_to(Index z, Index m, Index n, int split, accum value, To& to) const {
    return P::finish_to(own_batch(z, m), own_row(m), n, split, value, to);
  }
  // What elements of a row have in common, where P tells.
  __device__ __forceinline__ auto known(Index z, Index m) const { return this->P::known(own_batch(z, m), own_row(m)); }
  __device__ __forceinline__ uintptr_t stored(Index z, Index m, Index n) const { return P::stored(own_batch(z, m), own_row(m), n); }
  __device__ __forceinline__ void sink(Index z, Index m, Index tile_n, accum count, accum mean, accum m2) const {
    P::sink(own_batch(z, m), own_row(m), tile_n, count, mean, m2);
  }
};

#if CRUCIBLE_HAS_WGMMA
// Of eight channels, those that are of one group wherever the eight begin.
template <class P>
__host__ __device__ constexpr int channels_together() {
  return P::CHANNELS % 8 == 0 ? 8 : P::CHANNELS % 4 == 0 ? 4 : P::CHANNELS % 2 == 0 ? 2 : 1;
}

// Each group apart; an inf or a nan anywhere is more than any number.
template <class W, class P, int M>
struct StripWatch<W, Merged<P, M>> {
  static_assert(W::kind == Operands::Half, "only what is watched");
  static constexpr int PART = channels_together<P>();
  float largest = 0.0f, odd = 0.0f;  // odd: nan where there is one of those
  SeenOfUnits seen = {};

  __device__ __forceinline__ void see(float2 v) {
    largest = fmaxf(largest, fmaxf(fabsf(v.x), fabsf(v.y)));
    odd = fmaf(v.x, 0.0f, fmaf(v.y, 0.0f, odd));
  }
  __device__ __forceinline__ void next() {
    const int part = static_cast<int>(threadIdx.x) % 32 / 4 / PART;
#pragma unroll
    for (int i = 0; i < W::UNIT / PART; ++i) seen.unit(part != i ? 0.0f : odd != odd ? INFINITY : largest);
    largest = odd = 0.0f;
  }
};
#endif

// What half could not hold, group by group: as window_kernel, but as many blocks as run at the same time, each of which
// takes many boxes. A block for each box would cost something where there is nothing to do.
template <class W, class P>
__global__ void __launch_bounds__(W::threads, 2)
    merged_again_kernel(const __grid_constant__ P p, const unsigned* __restrict__ packed, const int* again, unsigned count) {
  follow();
  extern __shared__ __align__(16) unsigned char window_shared[];
#if CRUCIBLE_HAS_MMA
  if (*again == 0) return;
#pragma unroll 1
  for (unsigned number = blockIdx.x; number < count; number += gridDim.x) {
    __syncthreads();
    window_tile<W>(p, packed, number, window_shared);
  }
#endif
}

#ifndef __CUDACC_RTC__
// The second launch that launch_strips makes of a functor like this: with P itself, whose weights lie behind all others.
template <class W, bool FLAGGED, class P, int M>
cudaError_t launch_pairs(const Merged<P, M>& merged, void* workspace, int processors, cudaStream_t stream) {
  using S = WindowSizes<W, P>;
  const P& p = merged;
  const int64_t tiles = (static_cast<int64_t>(p.rows()) + W::BM - 1) / W::BM, words = packed_words<W>(p), packers = (words + 1023) / 1024;
  const int64_t count = tiles * box_count(p) * p.batches(), blocks = 2 * static_cast<int64_t>(processors);
  if (count > 0x7fffffff) return cudaErrorInvalidValue;
  unsigned* const packed = reinterpret_cast<unsigned*>(static_cast<unsigned char*>(workspace) + Packed::bytes(merged));
  cudaError_t refused = cudaLaunchKernelEx(After(static_cast<unsigned>(packers < 4096 ? packers : 4096), 256, 0, stream),
                                           pack_kernel<W, P>, p, packed);
  if (refused == cudaSuccess) refused = allow_shared(merged_again_kernel<W, P>, S::shared_bytes);
  if (refused != cudaSuccess) return refused;
  return cudaLaunchKernelEx(After(static_cast<unsigned>(count < blocks ? count : blocks), W::threads, S::shared_bytes, stream),
                            merged_again_kernel<W, P>, p, packed, Packed(merged, workspace).again, static_cast<unsigned>(count));
}

// W is for M groups at a time, Again for the second launch.
template <int M, class W, class Again, class P>
cudaError_t launch_merged(const P& p, void* workspace, cudaStream_t stream) {
  return launch_strips<W, Again>(Merged<P, M>(p), workspace, stream);
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
