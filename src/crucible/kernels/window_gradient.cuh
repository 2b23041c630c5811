// The gradient of a convolution's weight on tensor cores (mma.sync, compute capability 8.0 and later).
//
// D[m, (channel, tap)] = sum over pixels of a(m, pixel) * b(channel, the input pixel under tap): a plain tensor times one
// seen through a window. A block takes BM rows and BC channels with all their taps, and walks over boxes of pixels: a's box
// and b's halo lie in shared memory as rows of pixels (PITCH = 4 modulo 32 words: a fragment's eight rows and four pixels
// lie in 32 banks), and a tap is an offset into the halo. A warp sums 32 rows by UNITS pairs of a tap and 8 channels, so
// a fragment of a serves UNITS products. Boxes are shared out to `splits` blocks; each leaves a partial sum.
// While one box is multiplied, the next one is on its way to registers, part by part, and stored two steps later.
//
// Words are tf32 numbers: float is rounded to nearest even, half and bfloat16 fit as they are.
// Tensor cores cut what they add and these sums are long, so each box's sum goes to ordinary registers, which round.
#pragma once

#include "box.cuh"
#include "contract.cuh"

namespace crucible {

// WARPS_M x TAP_GROUPS x CHANNEL_GROUPS warps; a warp has TAPS_EACH taps of EACH * 8 channels.
template <int WARPS_M, int TAP_GROUPS, int TAPS_EACH, int CHANNEL_GROUPS, int EACH>
struct Gradient {
  static constexpr int BM = WARPS_M * 32, BC = CHANNEL_GROUPS * EACH * 8, UNITS = TAPS_EACH * EACH;
  static constexpr int threads = WARPS_M * TAP_GROUPS * CHANNEL_GROUPS * 32;
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
  static __device__ __forceinline__ int row() { return warp() / (TAP_GROUPS * CHANNEL_GROUPS) * 32; }
  static __device__ __forceinline__ int tap(int unit) {
    return warp() / CHANNEL_GROUPS % TAP_GROUPS * TAPS_EACH + unit % TAPS_EACH;
  }
  static __device__ __forceinline__ int channel(int unit) { return (warp() % CHANNEL_GROUPS * EACH + unit / TAPS_EACH) * 8; }
};

template <class G, class P>
struct GradientSizes {
  using Box = typename P::Box;
  using Halo = HaloOf<P>;
  static_assert(Box::at(3) % 8 == 0, "eight pixels of a step are neighbours");
  static constexpr int TAPS = P::Kernel::product, STEPS = Box::product / 8;
  static constexpr int A_PITCH = (Box::product + 31) / 32 * 32 + 4, B_PITCH = (Halo::product + 31) / 32 * 32 + 4;
  static constexpr int A_COUNT = G::BM * Box::product, COUNT = A_COUNT + G::BC * Halo::product;  // words of a box
  static constexpr int SLICE = ((COUNT + G::threads - 1) / G::threads + STEPS - 1) / STEPS;
  static constexpr int PANEL = G::BM * A_PITCH + G::BC * B_PITCH;
  static constexpr int a_places = 2 * PANEL * 4;
  static constexpr int b_places = a_places + (Box::product * static_cast<int>(sizeof(typename P::AAt)) + 15) / 16 * 16;
  static constexpr int shared_bytes = b_places + Halo::product * static_cast<int>(sizeof(typename P::BAt));
};

template <class G, class P>
struct GradientBlock {
#if CRUCIBLE_HAS_MMA
  using S = GradientSizes<G, P>;
  const P& p;
  Index z, m0, c0;
  typename P::AAt* a_places;
  typename P::BAt* b_places;

  __device__ __forceinline__ void find(Index box) const {
    const BoxPlace<P> place(p, box);
    for (int i = static_cast<int>(threadIdx.x); i < P::Box::product; i += G::threads) a_places[i] = place.plain(p, z, i);
    for (int h = static_cast<int>(threadIdx.x); h < S::Halo::product; h += G::threads) b_places[h] = place.halo(p, z, h);
  }

  // This thread's words number first .. first + N - 1 of a box: rows of a, then of b; neighbours are neighbouring pixels.
  template <int N>
  __device__ __forceinline__ void fetch(float (&v)[N], int first) const {
#pragma unroll
    for (int q = 0; q < N; ++q) {
      const int e = static_cast<int>(threadIdx.x) + (first + q) * G::threads;
      v[q] = 0;
      if (e < S::A_COUNT) {
        const Index m = m0 + e / P::Box::product;
        const typename P::AAt& at = a_places[e % P::Box::product];
        if (at.inside && m < p.rows()) v[q] = p.a_in(at, m);
      } else if (e < S::COUNT) {
        const Index channel = c0 + (e - S::A_COUNT) / S::Halo::product;
        const typename P::BAt& at = b_places[(e - S::A_COUNT) % S::Halo::product];
        if (at.inside && channel < p.channels()) v[q] = p.b_in(at, channel);
      }
    }
  }
  template <int N>
  __device__ __forceinline__ void put(const float (&v)[N], int first, unsigned* panel) const {
#pragma unroll
    for (int q = 0; q < N; ++q) {
      const int e = static_cast<int>(threadIdx.x) + (first + q) * G::threads, f = e - S::A_COUNT;
      if (e < S::A_COUNT)
        panel[e / P::Box::product * S::A_PITCH + e % P::Box::product] = round_tf32(v[q]);
      else if (e < S::COUNT)
        panel[G::BM * S::A_PITCH + f / S::Halo::product * S::B_PITCH + f % S::Halo::product] = round_tf32(v[q]);
    }
  }
#endif
};

template <class G, class P>
__global__ void __launch_bounds__(G::threads, G::threads > 128 ? 1 : 2)
    gradient_kernel(const __grid_constant__ P p, int splits) {
  extern __shared__ __align__(16) unsigned char gradient_shared[];
#if CRUCIBLE_HAS_MMA
  using S = GradientSizes<G, P>;
  const unsigned tiles_c = static_cast<unsigned>((p.channels() + G::BC - 1) / G::BC);
  const unsigned tiles_m = static_cast<unsigned>((p.rows() + G::BM - 1) / G::BM);
  const Index c0 = static_cast<Index>(blockIdx.x % tiles_c) * G::BC;
  const Index m0 = static_cast<Index>(blockIdx.x / tiles_c % tiles_m) * G::BM;
  const Index z = static_cast<Index>(blockIdx.x / tiles_c / tiles_m);
  const int64_t boxes = box_count(p);
  const int split = static_cast<int>(blockIdx.y);
  const Index first = static_cast<Index>(boxes * split / splits), last = static_cast<Index>(boxes * (split + 1) / splits);

  unsigned* now = reinterpret_cast<unsigned*>(gradient_shared);
  unsigned* next = now + S::PANEL;
  const GradientBlock<G, P> block{p, z, m0, c0, reinterpret_cast<typename P::AAt*>(gradient_shared + S::a_places),
                                  reinterpret_cast<typename P::BAt*>(gradient_shared + S::b_places)};
  float sums[2][G::UNITS][4] = {};
  int off[G::UNITS];
#pragma unroll
  for (int u = 0; u < G::UNITS; ++u) {
    const int tap = G::tap(u) < S::TAPS ? G::tap(u) : S::TAPS - 1;  // a tap too many is computed and not stored
    off[u] = G::BM * S::A_PITCH + (G::channel(u) + G::lane() / 4) * S::B_PITCH + tap_offset<P>(tap);
  }
  const int a_row = (G::row() + G::lane() / 4) * S::A_PITCH;
  const bool idle = m0 + G::row() >= p.rows();

  if (first < last) {
    block.find(first);
    __syncthreads();
#pragma unroll 1
    for (int e = 0; e < S::STEPS * S::SLICE; e += 16) {
      float start[16];
      block.fetch(start, e);
      block.put(start, e, now);
    }
  }
#pragma unroll 1
  for (Index box = first; box < last; ++box) {
    const bool more = box + 1 < last;
    __syncthreads();
    if (more) block.find(box + 1);
    __syncthreads();
    const BoxPlace<P> place(p, box);
    float part[2][G::UNITS][4] = {};
    float even[S::SLICE], odd[S::SLICE];
    const auto multiply = [&](int q) {
      if (idle) return;
      // A pixel past the end has zeros in a; b's may be anything there, and zero times inf would be nan.
      const int pixel = q * 8 + G::lane() % 4;
      const unsigned keep0 = place.exists(pixel) ? ~0u : 0u, keep1 = place.exists(pixel + 4) ? ~0u : 0u;
      unsigned a[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int r = 0; r < 4; ++r) a[i][r] = now[a_row + (i * 16 + r % 2 * 8) * S::A_PITCH + pixel + r / 2 * 4];
      const unsigned* b = now + halo_offset<P>(q * 8) + G::lane() % 4 * P::Stride::at(3);
#pragma unroll
      for (int u = 0; u < G::UNITS; ++u) {
        const unsigned b0 = b[off[u]] & keep0, b1 = b[off[u] + 4 * P::Stride::at(3)] & keep1;
#pragma unroll
        for (int i = 0; i < 2; ++i) mma<Grade::Tf32>(part[i][u], a[i], b0, b1);
      }
    };
#pragma unroll 1
    for (int q = 0; q < S::STEPS; q += 2) {
      if (more) block.fetch(even, q * S::SLICE);
      multiply(q);
      if (more && q > 0) block.put(odd, (q - 1) * S::SLICE, next);
      if (q + 1 < S::STEPS) {
        if (more) block.fetch(odd, (q + 1) * S::SLICE);
        multiply(q + 1);
      }
      if (more) block.put(even, q * S::SLICE, next);
    }
    if (more && S::STEPS % 2 == 0) block.put(odd, (S::STEPS - 1) * S::SLICE, next);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int u = 0; u < G::UNITS; ++u)
#pragma unroll
        for (int r = 0; r < 4; ++r) sums[i][u][r] += part[i][u][r];
    unsigned* const swap = now;
    now = next;
    next = swap;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int u = 0; u < G::UNITS; ++u)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const Index m = m0 + G::row() + i * 16 + r / 2 * 8 + G::lane() / 4;
        const Index channel = c0 + G::channel(u) + G::lane() % 4 * 2 + r % 2;
        if (m < p.rows() && channel < p.channels() && G::tap(u) < S::TAPS)
          p.finish(z, m, channel * S::TAPS + G::tap(u), split, sums[i][u][r]);
      }
#endif
}

#ifndef __CUDACC_RTC__
template <class G, class P>
cudaError_t launch_gradient(const P& p, int splits, cudaStream_t stream) {
  using S = GradientSizes<G, P>;
  const int64_t tiles = (static_cast<int64_t>(p.rows()) + G::BM - 1) / G::BM * ((p.channels() + G::BC - 1) / G::BC);
  const int64_t blocks = tiles * p.batches();
  if (blocks == 0) return cudaSuccess;
  if (blocks > 0x7fffffff || splits < 1 || splits > 65535) return cudaErrorInvalidValue;
  if (S::shared_bytes > 48 * 1024) {
    const cudaError_t refused =
        cudaFuncSetAttribute(gradient_kernel<G, P>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::shared_bytes);
    if (refused != cudaSuccess) return refused;
  }
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(splits));
  gradient_kernel<G><<<grid, G::threads, S::shared_bytes, stream>>>(p, splits);
  return cudaGetLastError();
}
#endif

}  // namespace crucible
