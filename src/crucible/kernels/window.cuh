// Convolutions on tensor cores (mma.sync, compute capability 8.0 and later): a window slides over an input.
//
// A block computes BM output channels of one box of output pixels, 256 at most. The input under the box, its halo, is
// brought to shared memory chunk by chunk of channels, each element once, rounded on the way; a tap of the window is then
// an offset into the halo. Shared memory holds 32-bit words: a tf32 number, or two half or bfloat16 numbers of
// neighbouring channels. A row of the halo is one word of channels, PITCH = 8 modulo 32 words long, so that a fragment
// (four rows, eight pixels) lies in 32 banks wherever the tap puts it.
// Weights are packed beforehand by pack_kernel into the order in which fragments want them, so that they arrive by
// 16-byte asynchronous copies and leave by 16-byte loads.
// While one step (8 words of channels, one tap) is multiplied, part of the next chunk's halo is on its way to registers;
// it is stored to shared memory two steps later.
// Per step a warp loads MT * 512 + NT * 256 bytes and issues MT * NT mma.
//
// Grades Tf32 and Native: see contract_mma.cuh. Sums stay in the tensor cores' registers: what they cut is far below
// what the rounding of operands costs.
#pragma once

#include "box.cuh"
#include "contract.cuh"

namespace crucible {

template <int BM_, int CK, Grade grade_>
struct Window {
  static constexpr Grade grade = grade_;
  static constexpr int BM = BM_, BN = 256, WN = 64, NT = WN / 8, MT = BM / 16, WARPS = BN / WN, threads = WARPS * 32;
  static constexpr int PER_WORD = grade == Grade::Native ? 2 : 1, CHANNELS = CK * PER_WORD;  // of a chunk
  static constexpr int passes = MT, pass_rows = 16, pass_stride = BN + 8;
  static constexpr int STEP_WORDS = BM * 8;  // of weights, for one step
  static_assert(CK % 8 == 0 && BM % 16 == 0, "fragments are 16 x 8 words");

  struct Sums {
    float at[MT][NT][4];
  };
  static __device__ __forceinline__ int row_of(int pass, int r) { return pass * 16 + r; }
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / 32; }

  static __device__ __forceinline__ void expose(const Sums& sums, int pass, accum* rows) {
    float* to = rows + lane() / 4 * pass_stride + warp() * WN + lane() % 4 * 2;
#pragma unroll
    for (int i = 0; i < MT; ++i)
      if (i == pass) {
#pragma unroll
        for (int j = 0; j < NT; ++j)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            *reinterpret_cast<float2*>(to + h * 8 * pass_stride + j * 8) =
                make_float2(sums.at[i][j][2 * h], sums.at[i][j][2 * h + 1]);
      }
  }
};

// What follows from the window's form.
template <class W, class P>
struct WindowSizes {
  using Halo = HaloOf<P>;
  static constexpr int TAPS = P::Kernel::product, CK = W::CHANNELS / W::PER_WORD;
  static constexpr int STEPS = CK / 8 * TAPS, GROUP = STEPS <= 10 ? STEPS : 10;  // steps between two barriers: even, or all
  static constexpr int PITCH = (Halo::product + 31) / 32 * 32 + 8;
  static constexpr int SLOTS = (Halo::product + W::threads - 1) / W::threads;  // halo pixels of one thread
  static constexpr int SLICE = (SLOTS * CK + STEPS - 1) / STEPS;               // words that a thread brings in one step
  static constexpr int B_WORDS = CK * PITCH, A_WORDS = GROUP * W::STEP_WORDS;
  static constexpr int panels = 2 * (A_WORDS + B_WORDS) * 4;
  static constexpr int staged = W::pass_rows * W::pass_stride * 4;
  static constexpr int table = (panels > staged ? panels : staged);  // where the halo's places lie
  static constexpr int shared_bytes = table + Halo::product * static_cast<int>(sizeof(typename P::BAt));
};

__host__ __device__ constexpr Index window_chunks(Index channels, int of) { return (channels + of - 1) / of; }

// Words of packed weights: (group, tile of rows, chunk, step, 16 rows, lane, 4 words of a fragment).
template <class W, class P>
__host__ __device__ int64_t packed_words(const P& p) {
  const int64_t tiles = (p.rows() + W::BM - 1) / W::BM;
  return p.groups() * tiles * window_chunks(p.channels(), W::CHANNELS) * WindowSizes<W, P>::STEPS * W::STEP_WORDS;
}

template <class W, class P>
__global__ void __launch_bounds__(256) pack_kernel(const __grid_constant__ P p, unsigned* __restrict__ packed) {
#if CRUCIBLE_HAS_MMA
  using S = WindowSizes<W, P>;
  const int64_t count = packed_words<W>(p);
  for (int64_t i = blockIdx.x * int64_t(256) + threadIdx.x; i < count; i += int64_t(gridDim.x) * 256) {
    const int part = static_cast<int>(i % 4), lane = static_cast<int>(i / 4 % 32);
    Index rest = static_cast<Index>(i / 128);
    const int block = static_cast<int>(rest % W::MT);
    rest /= W::MT;
    const int step = static_cast<int>(rest % S::STEPS);
    rest /= S::STEPS;
    const Index chunks = window_chunks(p.channels(), W::CHANNELS), chunk = rest % chunks;
    rest /= chunks;
    const Index tiles = (p.rows() + W::BM - 1) / W::BM, m = rest % tiles * W::BM + block * 16 + lane / 4 + part % 2 * 8;
    const Index group = rest / tiles;
    const Index channel = chunk * W::CHANNELS + (step / S::TAPS * 8 + lane % 4 + part / 2 * 4) * W::PER_WORD;
    const int tap = P::flipped ? S::TAPS - 1 - step % S::TAPS : step % S::TAPS;
    float value[2] = {0, 0};
#pragma unroll
    for (int e = 0; e < W::PER_WORD; ++e)
      if (m < p.rows() && channel + e < p.channels()) value[e] = p.a(p.a_row(group, m), (channel + e) * S::TAPS + tap);
    if constexpr (W::grade == Grade::Native)
      packed[i] = pack(value[0], value[1]);
    else
      packed[i] = round_tf32(value[0]);
  }
#endif
}

template <class W, class P>
struct WindowBlock {
#if CRUCIBLE_HAS_MMA
  using S = WindowSizes<W, P>;
  using At = typename P::BAt;
  const P& p;
  unsigned *a_panel, *b_panel;  // two buffers each
  At* places;
  const unsigned* weights;  // of this group and tile of rows
  Index channels;
  int off[W::NT];    // of this lane's pixels in the halo
  bool idle;         // none of this warp's pixels exists

  // One word of the halo: channels channel .. of the pixel at a place.
  __device__ __forceinline__ unsigned word(const At& at, Index channel) const {
    float value[2] = {0, 0};
#pragma unroll
    for (int e = 0; e < W::PER_WORD; ++e)
      if (at.inside && channel + e < channels) value[e] = p.b_in(at, channel + e);
    if constexpr (W::grade == Grade::Native) return pack(value[0], value[1]);
    return __float_as_uint(value[0]);  // rounded when it is stored: the load is still on its way
  }
  static __device__ __forceinline__ unsigned rounded(unsigned w) {
    return W::grade == Grade::Native ? w : round_tf32(__uint_as_float(w));
  }

  // This thread's words number first .. first + N - 1 of a chunk: pixel slots outermost, then words of channels.
  template <int N>
  __device__ __forceinline__ void fetch(unsigned (&v)[N], int first, Index chunk) const {
#pragma unroll
    for (int q = 0; q < N; ++q) {
      const int slot = (first + q) / S::CK, h = static_cast<int>(threadIdx.x) + slot * W::threads;
      if (slot < S::SLOTS && h < S::Halo::product)
        v[q] = word(places[h], chunk * W::CHANNELS + (first + q) % S::CK * W::PER_WORD);
    }
  }
  template <int N>
  __device__ __forceinline__ void put(const unsigned (&v)[N], int first, unsigned* to) const {
#pragma unroll
    for (int q = 0; q < N; ++q) {
      const int slot = (first + q) / S::CK, h = static_cast<int>(threadIdx.x) + slot * W::threads;
      if (slot < S::SLOTS && h < S::Halo::product) to[(first + q) % S::CK * S::PITCH + h] = rounded(v[q]);
    }
  }

  // Copies of the weights of `count` steps, from step `first` on.
  __device__ __forceinline__ void copy_weights(unsigned* to, int64_t first, int count) const {
    const unsigned* from = weights + first * W::STEP_WORDS;
    for (int i = static_cast<int>(threadIdx.x) * 4; i < count * W::STEP_WORDS; i += W::threads * 4)
      copy_async(to + i, from + i);
    commit_copies();
  }

  __device__ __forceinline__ void step(typename W::Sums& sums, const unsigned* a, const unsigned* b) const {
    if (idle) return;
    unsigned f[W::MT][4];
#pragma unroll
    for (int i = 0; i < W::MT; ++i) {
      const uint4 v = *reinterpret_cast<const uint4*>(a + i * 128 + W::lane() * 4);
      f[i][0] = v.x, f[i][1] = v.y, f[i][2] = v.z, f[i][3] = v.w;
    }
#pragma unroll
    for (int j = 0; j < W::NT; ++j) {
      const unsigned b0 = b[off[j]], b1 = b[off[j] + 4 * S::PITCH];
#pragma unroll
      for (int i = 0; i < W::MT; ++i) mma<W::grade>(sums.at[i][j], f[i], b0, b1);
    }
  }

  // Where a step's words begin in a chunk's halo.
  static __device__ __forceinline__ int step_offset(int s) {
    return s / S::TAPS * 8 * S::PITCH + tap_offset<P>(s % S::TAPS);
  }

  __device__ __forceinline__ void multiply(typename W::Sums& sums) {
    const int chunks = static_cast<int>(window_chunks(channels, W::CHANNELS));
    unsigned *a_now = a_panel, *a_next = a_panel + S::A_WORDS, *b_now = b_panel, *b_next = b_panel + S::B_WORDS;
    copy_weights(a_now, 0, S::GROUP);
#pragma unroll 1
    for (int first = 0; first < S::SLOTS * S::CK; first += 16) {
      unsigned start[16];
      fetch(start, first, 0);
      put(start, first, b_now);
    }
    unsigned even[S::SLICE], odd[S::SLICE];
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const bool more = chunk + 1 < chunks;
#pragma unroll 1
      for (int g = 0; g < S::STEPS; g += S::GROUP) {
        wait_copies();
        __syncthreads();
        const int next = g + S::GROUP;
        if (next < S::STEPS)
          copy_weights(a_next, int64_t(chunk) * S::STEPS + next, S::STEPS - next < S::GROUP ? S::STEPS - next : S::GROUP);
        else if (more)
          copy_weights(a_next, int64_t(chunk + 1) * S::STEPS, S::GROUP);
        const int last = next < S::STEPS ? next : S::STEPS;
#pragma unroll 1
        for (int s = g; s < last; s += 2) {
          if (more) fetch(even, s * S::SLICE, chunk + 1);
          step(sums, a_now + (s - g) * W::STEP_WORDS, b_now + W::lane() % 4 * S::PITCH + step_offset(s));
          if (more && s > 0) put(odd, (s - 1) * S::SLICE, b_next);
          if (s + 1 < last) {
            if (more) fetch(odd, (s + 1) * S::SLICE, chunk + 1);
            step(sums, a_now + (s + 1 - g) * W::STEP_WORDS, b_now + W::lane() % 4 * S::PITCH + step_offset(s + 1));
          }
          if (more) put(even, s * S::SLICE, b_next);
        }
        unsigned* const swap = a_now;
        a_now = a_next;
        a_next = swap;
      }
      if (more && S::STEPS % 2 == 0) put(odd, (S::STEPS - 1) * S::SLICE, b_next);
      unsigned* const swap = b_now;
      b_now = b_next;
      b_next = swap;
    }
  }
#endif
};

template <class W, class P>
__global__ void __launch_bounds__(W::threads, 2)
    window_kernel(const __grid_constant__ P p, const unsigned* __restrict__ packed) {
  extern __shared__ __align__(16) unsigned char window_shared[];
#if CRUCIBLE_HAS_MMA
  using S = WindowSizes<W, P>;
  const Index tiles = (p.rows() + W::BM - 1) / W::BM, boxes = box_count(p);
  const Index tile_m = static_cast<Index>(blockIdx.x % unsigned(tiles)), rest = static_cast<Index>(blockIdx.x / unsigned(tiles));
  const Index box = rest % boxes, z = rest / boxes;
  const BoxPlace<P> place(p, box);

  unsigned* panels = reinterpret_cast<unsigned*>(window_shared);
  typename P::BAt* places = reinterpret_cast<typename P::BAt*>(window_shared + S::table);
  for (int h = static_cast<int>(threadIdx.x); h < S::Halo::product; h += W::threads) places[h] = place.halo(p, z, h);
  const int64_t step_count = window_chunks(p.channels(), W::CHANNELS) * int64_t(S::STEPS);
  WindowBlock<W, P> block{p, panels, panels + 2 * S::A_WORDS, places,
                                 packed + (z % p.groups() * tiles + tile_m) * step_count * W::STEP_WORDS, p.channels()};
#pragma unroll
  for (int j = 0; j < W::NT; ++j) block.off[j] = halo_offset<P>(W::warp() * W::WN + j * 8 + W::lane() / 4);
  block.idle = W::warp() * W::WN >= place.reach();
  __syncthreads();

  typename W::Sums sums = {};
  block.multiply(sums);

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
#endif
}

#ifndef __CUDACC_RTC__
template <class W, class P>
cudaError_t launch_window(const P& p, unsigned* packed, cudaStream_t stream) {
  using S = WindowSizes<W, P>;
  const int64_t tiles = (static_cast<int64_t>(p.rows()) + W::BM - 1) / W::BM, boxes = box_count(p), batches = p.batches();
  const int64_t blocks = tiles * boxes * batches, words = packed_words<W>(p);
  if (blocks == 0) return cudaSuccess;
  if (blocks > 0x7fffffff) return cudaErrorInvalidValue;
  const int64_t packers = (words + 1023) / 1024;
  pack_kernel<W><<<static_cast<unsigned>(packers < 4096 ? packers : 4096), 256, 0, stream>>>(p, packed);
  cudaError_t refused = cudaGetLastError();
  if (refused != cudaSuccess) return refused;
  if (S::shared_bytes > 48 * 1024) {
    refused = cudaFuncSetAttribute(window_kernel<W, P>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::shared_bytes);
    if (refused != cudaSuccess) return refused;
  }
  window_kernel<W><<<static_cast<unsigned>(blocks), W::threads, S::shared_bytes, stream>>>(p, packed);
  return cudaGetLastError();
}
#endif

}  // namespace crucible
