// Weights of a convolution for Hopper's tensor cores, in the order of shared memory, and what scales them and the input.
//
// For each 64 rows there is one contiguous piece of [chunk of channels][tap][16 bytes of channels][row]. In kind Half a row's
// largest weight is brought to [2^9, 2^10), and a sample of the input says by how much that is scaled; the same weights in
// tf32 lie behind, for the launch that does again what half cannot hold. In kind Split there are two planes, hi and lo, for each
// tap, and the largest weight is brought to [2^30, 2^31). Bytes: each weight read twice, written twice.
#pragma once

#include "box.cuh"
#include "contract.cuh"
#include "wgmma.cuh"

#if CRUCIBLE_HOPPER
namespace crucible {

constexpr int PAIR_ROWS = 64, TAP_BYTES = PAIR_ROWS * 32;  // of a tile; of its weights for one tap and chunk

// JOIN: the dimension along which two boxes lie side by side, 4 for those of two samples, or -1. SLOTS of the ring. LAND: KB for what is on its way.
template <int JOIN_, int SLOTS_, int CHUNKS_, int TURN_, int LAND_, Operands kind_>
struct Warpgroups {
  static constexpr Operands kind = kind_;
  static constexpr int JOIN = JOIN_, SLOTS = SLOTS_, CHUNKS = CHUNKS_, TURN = TURN_, LAND = LAND_;
  static constexpr int BM = PAIR_ROWS, PRODUCERS = 256, CONSUMERS = 256, threads = PRODUCERS + CONSUMERS;
  static constexpr bool PAIRED = JOIN >= 0, SAMPLES = JOIN == 4, TOGETHER = true;
  static constexpr int BOXES = PAIRED ? 2 : 1;                 // side by side
  static constexpr int UNIT = kind == Operands::Tf32 ? 4 : 8;  // channels in 16 bytes
  static constexpr int CHANNELS = 2 * UNIT;                    // of a chunk
};

// What the launches hand to each other: a flag, the largest number in a sample of the input and in each channel of it, an
// exponent for each row of weights and whether half cannot hold it, and the weights for each kind.
struct Packed {
  int* again;    // raised by whoever finds what half cannot hold, packers excepted: it may not have been lowered yet
  int* largest;  // floats that are not negative, as integers
  int* channels;
  int* rows;
  int* spoilt;
  unsigned char* half;
  unsigned char* tf32;
  int64_t count;  // of rows

  // Channels that are told apart: of more, those so far apart are one.
  template <class P>
  static __host__ __device__ constexpr int apart() { return P::CHANNELS < 4096 ? static_cast<int>(P::CHANNELS) : 4096; }
  template <class P>
  static __host__ __device__ constexpr int64_t head() { return 256 + (apart<P>() + 63) / 64 * 256; }

  template <class P>
  __host__ __device__ Packed(const P& p, void* at) {
    const int64_t tiles = p.groups() * ((static_cast<int64_t>(p.rows()) + PAIR_ROWS - 1) / PAIR_ROWS), taps = P::Kernel::product;
    unsigned char* const bytes = static_cast<unsigned char*>(at);
    count = tiles * PAIR_ROWS;
    again = reinterpret_cast<int*>(bytes);
    largest = again + 1;
    channels = again + 64;
    rows = reinterpret_cast<int*>(bytes + head<P>());
    spoilt = rows + count;
    half = bytes + head<P>() + count * 8;
    tf32 = half + tiles * taps * ((P::CHANNELS + 15) / 16) * TAP_BYTES;
  }
  // Bytes of all this.
  template <class P>
  static __host__ __device__ int64_t bytes(const P& p) {
    const int64_t tiles = p.groups() * ((static_cast<int64_t>(p.rows()) + PAIR_ROWS - 1) / PAIR_ROWS), taps = P::Kernel::product;
    return head<P>() + tiles * (PAIR_ROWS * 8 + taps * ((P::CHANNELS + 15) / 16 + (P::CHANNELS + 7) / 8) * TAP_BYTES);
  }
  __device__ __forceinline__ int input() const;        // exponent of its scale
  __device__ __forceinline__ int split_input() const;  // and in kind Split
  template <class W>
  __device__ __forceinline__ const unsigned char* weights() const {
    return W::kind == Operands::Tf32 ? tf32 : half;
  }
};

constexpr float HALF_LIMIT = 65504.0f, HALF_SMALL = 0x1p-12f;
constexpr int PACKERS = 1024, SAMPLES = 4;  // threads of a block, and numbers of the input that each of one block looks at
constexpr int HALF_PEAK = 9;  // scaled, the largest number lies between 2^9 and 2^10

// The exponent of a scale that brings `largest` there; a power of two that is a float itself.
__device__ __forceinline__ int half_exponent(float largest) {
  if (largest == 0.0f) return 0;
  const int by = exponent_to(HALF_PEAK, __float_as_uint(largest));
  return by < 126 ? by : 126;
}

// In kind Split: the same for a row of weights, and what no weight may reach.
constexpr int SPLIT_PEAK = 30;
constexpr float SPLIT_WEIGHT = 0x1p40f;
__device__ __forceinline__ int split_exponent(float largest) {
  return largest == 0.0f ? 0 : exponent_to(SPLIT_PEAK, __float_as_uint(largest));
}

// hi + lo is x to 22 bits or more; tensor cores ignore the bits below a tf32 number's. Not for inf and nan.
__device__ __forceinline__ void split_tf32(float x, unsigned& hi, unsigned& lo) {
  hi = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
  lo = __float_as_uint(x - __uint_as_float(hi)) + 0x1000u;
}

__device__ __forceinline__ int Packed::input() const { return half_exponent(__int_as_float(*largest)); }
// None where the input can be split as it is, so that what is far smaller beside it can be split too.
__device__ __forceinline__ int Packed::split_input() const {
  const float most = __int_as_float(*largest);
  return most >= 0x1p-60f && most < 0x1p60f ? 0 : half_exponent(most);
}

__device__ __forceinline__ float block_max(float x) {
  __shared__ float parts[PACKERS / 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  x = parts[threadIdx.x % 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

// One block: lowers the flag, and notes the largest numbers of a sample of the input.
template <class P>
__device__ __forceinline__ void sample_input(const P& p, const Packed& packed, int* peaks) {
  float largest = 0;
#pragma unroll
  for (int k = 0; k < SAMPLES; ++k) {
    const int i = static_cast<int>(threadIdx.x) + k * PACKERS;
    Index at[4];
#pragma unroll
    for (int d = 0; d < 4; ++d)
      at[d] = spread(i, d, p.extent(d)) * P::Stride::at(d) + P::Shift::at(d) + (P::Kernel::at(d) - 1) * P::Dilation::at(d) / 2;
    const typename P::BAt place = p.b_at(spread(i, 4, p.batches()), at[0], at[1], at[2], at[3]);
    const float x = fabsf(static_cast<float>(p.b_in(place, static_cast<Index>(i % P::CHANNELS))));
    if (place.inside && x < INFINITY) {
      largest = fmaxf(largest, x);
      atomicMax(peaks + i % P::CHANNELS % Packed::apart<P>(), __float_as_int(x));
    }
  }
  largest = block_max(largest);
  for (int c = static_cast<int>(threadIdx.x); c < Packed::apart<P>(); c += PACKERS) packed.channels[c] = peaks[c];
  if (threadIdx.x == 0) *packed.largest = __float_as_int(largest), *packed.again = 0;
}

// A block for each row of weights, and one more that looks at the input.
template <class W, class P>
__global__ void __launch_bounds__(PACKERS) pack_rows_kernel(const __grid_constant__ P p, void* workspace) {
  follow();
#if CRUCIBLE_HAS_WGMMA
  __shared__ int peaks[Packed::apart<P>()];  // of channels: floats that are not negative, as integers
  const Packed packed(p, workspace);
  constexpr int TAPS = P::Kernel::product;
  constexpr bool scaled_rows = W::kind == Operands::Half || W::kind == Operands::Split;
  const Index tiles = (p.rows() + PAIR_ROWS - 1) / PAIR_ROWS, channels = p.channels();
  if constexpr (scaled_rows) {
    for (int c = static_cast<int>(threadIdx.x); c < Packed::apart<P>(); c += PACKERS) peaks[c] = 0;
    __syncthreads();
  }
  if (blockIdx.x >= static_cast<unsigned>(packed.count)) {
    if constexpr (scaled_rows) sample_input(p, packed, peaks);
    return;
  }
  const Index row = static_cast<Index>(blockIdx.x), group = row / (tiles * PAIR_ROWS), m = row % (tiles * PAIR_ROWS);
  const bool there = m < p.rows();
  const auto line = p.a_row(group, there ? m : 0);
  int by = 0;
  if constexpr (scaled_rows) {
    float largest = 0;
    if (there)
      for (Index k = static_cast<Index>(threadIdx.x); k < channels * TAPS; k += PACKERS)
        largest = fmaxf(largest, fabsf(static_cast<float>(p.a(line, k))));
    largest = block_max(largest);
    by = W::kind == Operands::Half ? half_exponent(largest) : split_exponent(largest);
  }
  bool bad = false;
  const auto put = [&](auto kind, unsigned char* to) {
    constexpr int UNIT = decltype(kind)::UNIT, CHANNELS = 2 * UNIT, PLANES = decltype(kind)::kind == Operands::Split ? 2 : 1;
    constexpr Index CHUNKS = (P::CHANNELS + CHANNELS - 1) / CHANNELS, ALL = CHUNKS * CHANNELS;
    unsigned char* const tile = to + (row / PAIR_ROWS) * int64_t(CHUNKS) * TAPS * PLANES * TAP_BYTES;
    // Neighbouring threads have neighbouring channels of a tap.
    for (Index i = static_cast<Index>(threadIdx.x); i < ALL * TAPS; i += PACKERS) {
      const Index c = i % ALL, t = i / ALL, tap = P::flipped ? TAPS - 1 - t : t;
      const float w = there && c < channels ? static_cast<float>(p.a(line, c * TAPS + tap)) : 0.0f;
      unsigned char* const at =
          tile + ((c / CHANNELS * TAPS + t) * PLANES * 2 + c % CHANNELS / UNIT) * int64_t(TAP_BYTES / 2) + row % PAIR_ROWS * 16;
      if constexpr (decltype(kind)::kind == Operands::Tf32) {
        reinterpret_cast<unsigned*>(at)[c % UNIT] = round_tf32(w);
      } else if constexpr (decltype(kind)::kind == Operands::Half) {
        const float s = scaled(w, by);
        if (c < channels) atomicMax(peaks + c % Packed::apart<P>(), __float_as_int(fmaxf(0.0f, fabsf(s))));
        reinterpret_cast<unsigned short*>(at)[c % UNIT] = static_cast<unsigned short>(pack_half(s, 0.0f));
      } else if constexpr (decltype(kind)::kind == Operands::Split) {
        bad |= !(fabsf(w) < SPLIT_WEIGHT);
        split_tf32(scaled(w, by), reinterpret_cast<unsigned*>(at)[c % UNIT], reinterpret_cast<unsigned*>(at + TAP_BYTES)[c % UNIT]);
      } else {
        reinterpret_cast<unsigned short*>(at)[c % UNIT] = static_cast<unsigned short>(pack(w, 0.0f));
      }
    }
  };
  put(W(), packed.half);
  if constexpr (W::kind == Operands::Half) {
    put(Warpgroups<0, 1, 0, 0, 0, Operands::Tf32>(), packed.tf32);
    __syncthreads();
    // A channel whose weights are all small may have a large input.
    for (int c = static_cast<int>(threadIdx.x); c < Packed::apart<P>(); c += PACKERS) {
      const float largest = __int_as_float(peaks[c]);
      bad |= !(largest <= HALF_LIMIT) || (largest > 0 && largest < HALF_SMALL);
    }
  }
  if constexpr (scaled_rows) {
    const int any = __syncthreads_or(bad);
    if (threadIdx.x == 0) packed.rows[row] = by, packed.spoilt[row] = any;
  }
#if CRUCIBLE_SCALAR > 1  // elements as they are
  if constexpr (!scaled_rows)
    if (threadIdx.x == 0) packed.rows[row] = 0;
#endif
#endif
}

#if CRUCIBLE_HAS_WGMMA
// One block of the launch after that raises the flag for rows of weights that half cannot hold.
template <int THREADS>
__device__ __forceinline__ void spoilt_rows(const Packed& packed, int thread) {
  for (int64_t row = thread; row < packed.count; row += THREADS)
    if (packed.spoilt[row]) *packed.again = 1;
}
#endif

#ifndef __CUDACC_RTC__
// Packs, and says how many processors there are.
template <class W, class P>
cudaError_t pack_rows(const P& p, void* workspace, int* processors, cudaStream_t stream) {
  int device = 0;
  cudaError_t refused = cudaGetDevice(&device);
  if (refused == cudaSuccess) refused = cudaDeviceGetAttribute(processors, cudaDevAttrMultiProcessorCount, device);
  if (refused != cudaSuccess) return refused;
  const int64_t rows = p.groups() * ((static_cast<int64_t>(p.rows()) + PAIR_ROWS - 1) / PAIR_ROWS) * PAIR_ROWS;
  return cudaLaunchKernelEx(After(static_cast<unsigned>(rows + 1), PACKERS, 0, stream), pack_rows_kernel<W, P>, p, workspace);
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
