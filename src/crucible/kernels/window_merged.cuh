// Convolutions with groups of few channels in Hopper's strips: M neighbouring groups are taken for one.
//
// A group of eight output channels leaves seven eighths of a matrix instruction empty. So M groups are one with M times the
// rows and the channels, whose weights are zero where row and channel are of different groups: more products, all of them
// in the instructions of window_strips.cuh, which are many times as fast as those of window.cuh.
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

// The largest numbers of so many parts of eight channels; infinite where there is a nan.
template <int PARTS>
struct Peaks {
  float of[PARTS] = {};
};
template <int PARTS>
__device__ __forceinline__ bool watched(Peaks<PARTS>& peaks) {
  bool bad = false;
#pragma unroll
  for (int i = 0; i < PARTS; ++i) bad |= watched(peaks.of[i]);
  return bad;
}

// As any rounder, but it sees a nan, and each group apart.
template <class W, class P, int M>
struct StripRounder<W, Merged<P, M>> : StripRounder<W, P> {
  using S = Strip<W, P>;
  static constexpr int PART = channels_together<P>();
  Peaks<W::UNIT / PART> largest;

  __device__ __forceinline__ explicit StripRounder(float scale) : StripRounder<W, P>{scale} {}
  __device__ __forceinline__ void take(const scalar* landing, unsigned char* unit, unsigned free, unsigned slot, unsigned parity) {
    static_assert(W::kind == Operands::Half, "only what is watched");
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float2 v[S::PAIRS_EACH][W::UNIT];
#pragma unroll
    for (int i = 0; i < S::PAIRS_EACH; ++i)
#pragma unroll
      for (int e = 0; e < W::UNIT; ++e)
        if (lane + i * 32 < S::PAIRS)
          v[i][e] = *reinterpret_cast<const float2*>(landing + e * S::LANDED + (lane + i * 32) * 2);
        else
          v[i][e] = make_float2(0.0f, 0.0f);
    __syncwarp();
    if (lane == 0) barrier_arrive(free);  // it fills again while this warp waits for the slot
    barrier_wait(slot, parity);
    float odd = 0.0f;  // nan, where there is an inf or a nan
#pragma unroll
    for (int i = 0; i < S::PAIRS_EACH; ++i) {
#pragma unroll
      for (int e = 0; e < W::UNIT; ++e) {
        float& most = largest.of[e / PART];
        v[i][e].x *= this->by, v[i][e].y *= this->by;
        most = fmaxf(most, fmaxf(fabsf(v[i][e].x), fabsf(v[i][e].y)));
        odd = fmaf(v[i][e].x, 0.0f, fmaf(v[i][e].y, 0.0f, odd));
      }
      const auto word = [&](int e, bool y) { return y ? pack_half(v[i][e].y, v[i][e + 1].y) : pack_half(v[i][e].x, v[i][e + 1].x); };
      const uint4 first = make_uint4(word(0, false), word(2, false), word(4, false), word(6, false));
      const uint4 second = make_uint4(word(0, true), word(2, true), word(4, true), word(6, true));
      if (lane + i * 32 < S::PAIRS) this->put(first, second, unit + (lane + i * 32) * 32);
    }
    if (odd != odd) largest.of[0] = INFINITY;
  }
};
#endif

// What half could not hold, group by group: as window_kernel, but as many blocks as run at the same time, each of which
// takes many boxes. A block for each box would cost something where there is nothing to do.
template <class W, class P>
__global__ void __launch_bounds__(W::threads, 2)
    merged_again_kernel(const __grid_constant__ P p, const unsigned* __restrict__ packed, const int* again, unsigned count) {
  extern __shared__ __align__(16) unsigned char window_shared[];
#if CRUCIBLE_HAS_MMA
  using S = WindowSizes<W, P>;
  if (*again == 0) return;
  const Index tiles = (p.rows() + W::BM - 1) / W::BM, boxes = box_count(p);
  const int64_t step_count = window_chunks(p.channels(), W::CHANNELS) * int64_t(S::STEPS);
#pragma unroll 1
  for (unsigned number = blockIdx.x; number < count; number += gridDim.x) {
    const Index tile_m = static_cast<Index>(number % unsigned(tiles)), rest = static_cast<Index>(number / unsigned(tiles));
    const Index box = rest % boxes, z = rest / boxes;
    const BoxPlace<P> place(p, box);
    __syncthreads();
    WindowBlock<W, P> block{p, window_shared, packed + (z % p.groups() * tiles + tile_m) * step_count * W::STEP_WORDS,
                            p.channels(), 0, S::A_WORDS * 4, 2 * S::A_WORDS * 4, (2 * S::A_WORDS + S::B_WORDS) * 4,
                            (2 * S::A_WORDS + 2 * S::B_WORDS) * 4, Taps<P>(p, z % p.groups())};
#pragma unroll
    for (int i = 0; i < S::SLOTS; ++i) {
      const int h = block.halo(i);
      block.at[i] = place.halo(p, z, h < S::Halo::product ? h : 0);
      block.at[i].inside &= h < S::Halo::product;
    }
#pragma unroll
    for (int j = 0; j < W::NT; ++j)
      block.off[j] = (halo_offset<P>(W::warp() * W::WN + j * 8 + W::lane() / 4) + W::lane() % 4 * S::PITCH) * 4;

    typename W::Sums sums = {};
    if (W::warp() * W::WN < place.reach())
      block.template multiply<true>(sums);
    else
      block.template multiply<false>(sums);

    const BoxColumns<P, W::BN> columns(p, place, box);
    accum* staged = reinterpret_cast<accum*>(window_shared);
#pragma unroll 1
    for (int pass = 0; pass < W::passes; ++pass) {
      __syncthreads();
      W::expose(sums, pass, staged);
      __syncthreads();
#pragma unroll 1
      for (int r = W::warp(); r < W::pass_rows; r += W::WARPS) {
        const Index m = tile_m * W::BM + W::row_of(pass, r);
        if (m < p.rows()) finish_row<W>(p, z, m, columns, 0, staged + r * W::pass_stride);
      }
    }
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
  pack_kernel<W><<<static_cast<unsigned>(packers < 4096 ? packers : 4096), 256, 0, stream>>>(p, packed);
  cudaError_t refused = cudaGetLastError();
  if (refused == cudaSuccess) refused = allow_shared(merged_again_kernel<W, P>, S::shared_bytes);
  if (refused != cudaSuccess) return refused;
  merged_again_kernel<W><<<static_cast<unsigned>(count < blocks ? count : blocks), W::threads, S::shared_bytes, stream>>>(
      p, packed, Packed(merged, workspace).again, static_cast<unsigned>(count));
  return cudaGetLastError();
}

// W is for M groups at a time, Again for the second launch.
template <int M, class W, class Again, class P>
cudaError_t launch_merged(const P& p, void* workspace, cudaStream_t stream) {
  return launch_strips<W, Again>(Merged<P, M>(p), workspace, stream);
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
