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
// exponent for each row of weights, and the weights for each kind.
struct Packed {
  int* again;
  int* largest;  // floats that are not negative, as integers
  int* channels;
  int* rows;
  unsigned char* half;
  unsigned char* tf32;

  // Bytes that begin as zeros.
  template <class P>
  static __host__ __device__ constexpr int64_t zeros() { return 256 + (P::CHANNELS + 63) / 64 * 256; }

  template <class P>
  __host__ __device__ Packed(const P& p, void* at) {
    const int64_t tiles = p.groups() * ((static_cast<int64_t>(p.rows()) + PAIR_ROWS - 1) / PAIR_ROWS), taps = P::Kernel::product;
    unsigned char* const bytes = static_cast<unsigned char*>(at);
    again = reinterpret_cast<int*>(bytes);
    largest = again + 1;
    channels = again + 64;
    rows = reinterpret_cast<int*>(bytes + zeros<P>());
    half = bytes + zeros<P>() + tiles * PAIR_ROWS * 4;
    tf32 = half + tiles * taps * ((P::CHANNELS + 15) / 16) * TAP_BYTES;
  }
  // Bytes of all this.
  template <class P>
  static __host__ __device__ int64_t bytes(const P& p) {
    const int64_t tiles = p.groups() * ((static_cast<int64_t>(p.rows()) + PAIR_ROWS - 1) / PAIR_ROWS), taps = P::Kernel::product;
    return zeros<P>() + tiles * (PAIR_ROWS * 4 + taps * ((P::CHANNELS + 15) / 16 + (P::CHANNELS + 7) / 8) * TAP_BYTES);
  }
  __device__ __forceinline__ int input() const;        // exponent of its scale
  __device__ __forceinline__ int split_input() const;  // and in kind Split
  template <class W>
  __device__ __forceinline__ const unsigned char* weights() const {
    return W::kind == Operands::Tf32 ? tf32 : half;
  }
};

constexpr float HALF_LIMIT = 65504.0f, HALF_SMALL = 0x1p-12f;
constexpr int SAMPLERS = 8, SAMPLES = 4;  // blocks, and numbers that each thread of them looks at
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
  __shared__ float parts[8];
  __syncthreads();
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  x = parts[0];
  for (int w = 1; w < 8; ++w) x = fmaxf(x, parts[w]);
  return x;
}

// A block of 256 threads for each row of weights, and SAMPLERS more that look at the input.
template <class W, class P>
__global__ void __launch_bounds__(256) pack_rows_kernel(const __grid_constant__ P p, void* workspace) {
#if CRUCIBLE_HAS_WGMMA
  const Packed packed(p, workspace);
  constexpr int TAPS = P::Kernel::product;
  const Index tiles = (p.rows() + PAIR_ROWS - 1) / PAIR_ROWS, groups = p.groups(), channels = p.channels();
  if (blockIdx.x >= unsigned(tiles * groups * PAIR_ROWS)) {
    if constexpr (W::kind == Operands::Half || W::kind == Operands::Split) {
      const int first = static_cast<int>((blockIdx.x - unsigned(tiles * groups * PAIR_ROWS)) * 256 + threadIdx.x);
      float largest = 0;
#pragma unroll
      for (int k = 0; k < SAMPLES; ++k) {
        // Numbers that look random spread the sample over everything.
        const int i = first + k * SAMPLERS * 256;
        const auto pick = [&](unsigned salt, Index extent) {
          unsigned h = (unsigned(i) * 8u + salt) * 2654435761u;
          h ^= h >> 15;
          h *= 2246822519u;
          h ^= h >> 13;
          return static_cast<Index>(h % static_cast<unsigned>(extent));
        };
        Index at[4];
#pragma unroll
        for (int d = 0; d < 4; ++d)
          at[d] = pick(d, p.extent(d)) * P::Stride::at(d) + P::Shift::at(d) + (P::Kernel::at(d) - 1) * P::Dilation::at(d) / 2;
        const typename P::BAt place = p.b_at(pick(4, p.batches()), at[0], at[1], at[2], at[3]);
        const float x = fabsf(static_cast<float>(p.b_in(place, static_cast<Index>(i % P::CHANNELS))));
        if (place.inside && x < INFINITY) {
          largest = fmaxf(largest, x);
          atomicMax(packed.channels + i % P::CHANNELS, __float_as_int(x));
        }
      }
      largest = block_max(largest);
      if (threadIdx.x == 0) atomicMax(packed.largest, __float_as_int(largest));
    }
    return;
  }
  const Index row = static_cast<Index>(blockIdx.x), group = row / (tiles * PAIR_ROWS), m = row % (tiles * PAIR_ROWS);
  const bool there = m < p.rows();
  const auto line = p.a_row(group, there ? m : 0);
  int by = 0;
  if constexpr (W::kind == Operands::Half || W::kind == Operands::Split) {
    float largest = 0;
    if (there)
      for (Index k = static_cast<Index>(threadIdx.x); k < channels * TAPS; k += 256)
        largest = fmaxf(largest, fabsf(static_cast<float>(p.a(line, k))));
    largest = block_max(largest);
    by = W::kind == Operands::Half ? half_exponent(largest) : split_exponent(largest);
  }
  if (threadIdx.x == 0) packed.rows[row] = by;
  const auto put = [&](auto kind, unsigned char* to) {
    constexpr int UNIT = decltype(kind)::UNIT, CHANNELS = 2 * UNIT, PLANES = decltype(kind)::kind == Operands::Split ? 2 : 1;
    const Index chunks = (channels + CHANNELS - 1) / CHANNELS;
    unsigned char* const tile = to + (row / PAIR_ROWS) * int64_t(chunks) * TAPS * PLANES * TAP_BYTES;
    bool bad = false;
    for (Index c = static_cast<Index>(threadIdx.x); c < chunks * CHANNELS; c += 256) {
      float largest = 0;
      for (int t = 0; t < TAPS; ++t) {
        const int tap = P::flipped ? TAPS - 1 - t : t;
        const float w = there && c < channels ? static_cast<float>(p.a(line, c * TAPS + tap)) : 0.0f;
        unsigned char* const at =
            tile + ((c / CHANNELS * TAPS + t) * PLANES * 2 + c % CHANNELS / UNIT) * int64_t(TAP_BYTES / 2) + row % PAIR_ROWS * 16;
        if constexpr (decltype(kind)::kind == Operands::Tf32) {
          reinterpret_cast<unsigned*>(at)[c % UNIT] = round_tf32(w);
        } else if constexpr (decltype(kind)::kind == Operands::Half) {
          const float s = scaled(w, by);
          largest = fmaxf(largest, fabsf(s));
          reinterpret_cast<unsigned short*>(at)[c % UNIT] = static_cast<unsigned short>(pack_half(s, 0.0f));
        } else if constexpr (decltype(kind)::kind == Operands::Split) {
          bad |= !(fabsf(w) < SPLIT_WEIGHT);
          split_tf32(scaled(w, by), reinterpret_cast<unsigned*>(at)[c % UNIT], reinterpret_cast<unsigned*>(at + TAP_BYTES)[c % UNIT]);
        } else {
          reinterpret_cast<unsigned short*>(at)[c % UNIT] = static_cast<unsigned short>(pack(w, 0.0f));
        }
      }
      if (decltype(kind)::kind == Operands::Half) bad |= !(largest <= HALF_LIMIT) || (largest > 0 && largest < HALF_SMALL);
    }
    if (bad) *packed.again = 1;
  };
  put(W(), packed.half);
  if constexpr (W::kind == Operands::Half) put(Warpgroups<0, 1, 0, 0, 0, Operands::Tf32>(), packed.tf32);
#endif
}

#ifndef __CUDACC_RTC__
// Packs, and says how many processors there are.
template <class W, class P>
cudaError_t pack_rows(const P& p, void* workspace, int* processors, cudaStream_t stream) {
  int device = 0;
  cudaError_t refused = cudaGetDevice(&device);
  if (refused == cudaSuccess) refused = cudaDeviceGetAttribute(processors, cudaDevAttrMultiProcessorCount, device);
  if (refused == cudaSuccess) refused = cudaMemsetAsync(workspace, 0, Packed::zeros<P>(), stream);
  if (refused != cudaSuccess) return refused;
  const int64_t rows = p.groups() * ((static_cast<int64_t>(p.rows()) + PAIR_ROWS - 1) / PAIR_ROWS) * PAIR_ROWS;
  pack_rows_kernel<W><<<static_cast<unsigned>(rows + SAMPLERS), 256, 0, stream>>>(p, workspace);
  return cudaGetLastError();
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
