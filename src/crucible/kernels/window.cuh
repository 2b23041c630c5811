// Convolutions on tensor cores (mma.sync, compute capability 8.0 and later): a window slides over an input.
//
// A block computes BM output channels of one box of output pixels, 256 at most. The input under the box, its halo, is
// brought to shared memory chunk by chunk of channels, each element once, rounded on the way; a tap of the window is then
// an offset into the halo. Shared memory holds 32-bit words: a tf32 number, or two half or bfloat16 numbers of
// neighbouring channels. A row of the halo is one word of channels, PITCH = 8 modulo 32 words long, so that a fragment
// (four rows, eight pixels) lies in 32 banks wherever the tap puts it.
// Weights are packed beforehand by pack_kernel into the order in which fragments want them, so that they arrive by
// 16-byte asynchronous copies and leave by 16-byte loads.
// An input of float that is memory as it is comes by asynchronous copies, two chunks ahead; while one chunk is multiplied,
// the words of the next are rounded where they lie. Any other input passes through registers: while one step (8 words of
// channels, one tap) is multiplied, words of the next chunk are on their way, and a step or two later they are stored.
// Steps are unrolled, so that offsets are constants.
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
    accum* to = rows + lane() / 4 * pass_stride + warp() * WN + lane() % 4 * 2;
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
  static constexpr int STEPS = CK / 8 * TAPS, GROUP = STEPS <= 10 ? STEPS : 9;  // steps between two barriers
  static constexpr int UNROLL = STEPS <= 32 ? STEPS : 1;
  static constexpr int SLOTS = (Halo::product + W::threads - 1) / W::threads;  // halo pixels of one thread
  static constexpr int PITCH = SLOTS * W::threads + 8;                         // past the halo there are zeros
  static constexpr int EACH = (CK + STEPS - 1) / STEPS;                        // words that a slot brings in one step
  // Steps between asking for words and storing them, as registers permit.
  static constexpr int LAG = UNROLL == 1 ? 0 : SLOTS * EACH * W::PER_WORD <= 4 ? 2 : 1;
  static constexpr bool ASYNC = P::b_direct && W::grade == Grade::Tf32;
  static constexpr int B_WORDS = CK * PITCH, A_WORDS = GROUP * W::STEP_WORDS, BUFFERS = ASYNC ? 3 : 2;
  static constexpr int panels = (2 * A_WORDS + BUFFERS * B_WORDS) * 4;
  static constexpr int staged = W::pass_rows * W::pass_stride * 4;
  static constexpr int shared_bytes = panels > staged ? panels : staged;
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
  follow();
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
  const P& p;
  unsigned char* shared;    // weights, twice; then halos
  const unsigned* weights;  // of this group and tile of rows
  Index channels;
  int a_now, a_next, b_now, b_next, b_after;  // bytes from `shared`
  Taps<P> taps;
  int off[W::NT];                    // bytes to this lane's pixels in a halo
  typename P::BAt at[S::SLOTS];      // of this thread's pixels of the halo
  float values[S::LAG + 1][S::SLOTS][S::EACH][W::PER_WORD];

  static __device__ __forceinline__ int halo(int slot) { return static_cast<int>(threadIdx.x) + slot * W::threads; }

  // Words first .. first + N - 1 of a chunk's channels, for all this thread's pixels. What is not there is loaded from
  // somewhere near and becomes zero when it is put away: the loads must not wait for anything.
  template <int N>
  __device__ __forceinline__ void fetch(float (&v)[S::SLOTS][N][W::PER_WORD], int first, Index chunk) const {
#pragma unroll
    for (int e = 0; e < N; ++e)
#pragma unroll
      for (int k = 0; k < W::PER_WORD; ++k) {
        const Index channel = chunk * W::CHANNELS + (first + e) * W::PER_WORD + k;
#pragma unroll
        for (int i = 0; i < S::SLOTS; ++i) v[i][e][k] = p.b_in(at[i], channel < channels ? channel : channels - 1);
        if constexpr (P::b_direct) {
          // The chunk after that comes closer meanwhile.
          const Index later = channel + W::CHANNELS < channels ? channel + W::CHANNELS : channels - 1;
#pragma unroll
          for (int i = 0; i < S::SLOTS; ++i) prefetch(p.b_from(at[i], later));
        }
      }
  }
  template <int N>
  __device__ __forceinline__ void put(const float (&v)[S::SLOTS][N][W::PER_WORD], int first, Index chunk, int panel) const {
    unsigned* to = reinterpret_cast<unsigned*>(shared + panel);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const Index channel = chunk * W::CHANNELS + (first + e) * W::PER_WORD;
#pragma unroll
      for (int i = 0; i < S::SLOTS; ++i) {
        float kept[2] = {0, 0};
#pragma unroll
        for (int k = 0; k < W::PER_WORD; ++k) kept[k] = at[i].inside && channel + k < channels ? v[i][e][k] : 0.0f;
        unsigned word;
        if constexpr (W::grade == Grade::Native)
          word = pack(kept[0], kept[1]);
        else
          word = round_tf32(kept[0]);
        if (first + e < S::CK) to[(first + e) * S::PITCH + halo(i)] = word;
      }
    }
  }

  // The same by asynchronous copies, and what is left to do where they have come to.
  __device__ __forceinline__ void copy_halo(int panel, Index chunk) const {
    unsigned* to = reinterpret_cast<unsigned*>(shared + panel);
#pragma unroll
    for (int w = 0; w < S::CK; ++w) {
      const Index channel = chunk * W::CHANNELS + w, near = channel < channels ? channel : channels - 1;
#pragma unroll
      for (int i = 0; i < S::SLOTS; ++i)
        copy_async(to + w * S::PITCH + halo(i), p.b_from(at[i], near), at[i].inside && channel < channels);
    }
    commit_copies();
  }
  __device__ __forceinline__ void round_halo(int panel, int first, int count) const {
    float* at = reinterpret_cast<float*>(shared + panel);
#pragma unroll
    for (int w = first; w < first + count; ++w)
#pragma unroll
      for (int i = 0; i < S::SLOTS; ++i)
        if (w < S::CK) {
          float& word = at[w * S::PITCH + halo(i)];
          word = __uint_as_float(round_tf32(word));
        }
  }

  // Copies of the weights of `count` steps, from step `first` on.
  __device__ __forceinline__ void copy_weights(int panel, int64_t first, int count) const {
    const unsigned* from = weights + first * W::STEP_WORDS;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x) * 4; i < count * W::STEP_WORDS; i += W::threads * 4)
      copy_async(shared + panel + i * 4, from + i);
    commit_copies();
  }

  __device__ __forceinline__ void step(typename W::Sums& sums, int s) const {
    const unsigned char* a = shared + a_now + s % S::GROUP * W::STEP_WORDS * 4;
    const int place = (s / S::TAPS * 8 * S::PITCH + tap_offset<P>(s % S::TAPS)) * 4;
    unsigned f[W::MT][4], g[W::NT][2];
#pragma unroll
    for (int i = 0; i < W::MT; ++i) {
      const uint4 v = *reinterpret_cast<const uint4*>(a + (i * 32 + W::lane()) * 16);
      f[i][0] = v.x, f[i][1] = v.y, f[i][2] = v.z, f[i][3] = v.w;
    }
#pragma unroll
    for (int j = 0; j < W::NT; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        g[j][h] = *reinterpret_cast<const unsigned*>(shared + (b_now + off[j]) + (place + h * 16 * S::PITCH));
#pragma unroll
    for (int j = 0; j < W::NT; ++j)
#pragma unroll
      for (int i = 0; i < W::MT; ++i) mma<W::grade>(sums.at[i][j], f[i], g[j][0], g[j][1]);
  }

  // At the first step of a group: its weights are there, and the next group's are asked for.
  template <bool MORE>
  __device__ __forceinline__ void turn(int s, int chunk, int chunks) {
    if (s > 0) swap(a_now, a_next);
    wait_copies();
    __syncthreads();
    if (S::ASYNC && s == 0 && chunk + 2 < chunks) copy_halo(b_after, chunk + 2);
    const int next = s + S::GROUP;
    if (next < S::STEPS)
      copy_weights(a_next, int64_t(chunk) * S::STEPS + next, S::STEPS - next < S::GROUP ? S::STEPS - next : S::GROUP);
    else if (MORE)
      copy_weights(a_next, int64_t(chunk + 1) * S::STEPS, S::GROUP);
  }

  // MORE: another chunk follows and is fetched. WORK: this warp has pixels.
  template <bool MORE, bool WORK>
  __device__ __forceinline__ void chunk(typename W::Sums& sums, int number, int chunks) {
    constexpr int LAG = WORK ? S::LAG : 0;
#pragma unroll(WORK ? S::UNROLL : 1)
    for (int s = 0; s < S::STEPS; ++s) {
      if (s % S::GROUP == 0) turn<MORE>(s, number, chunks);
      if constexpr (MORE && !S::ASYNC) {
        if (s * S::EACH < S::CK) fetch(values[s % (LAG + 1)], s * S::EACH, number + 1);
      }
      if (WORK && taps.has(s % S::TAPS)) step(sums, s);
      if constexpr (MORE && S::ASYNC) {
        if (s * S::EACH < S::CK) round_halo(b_next, s * S::EACH, S::EACH);
      } else if constexpr (MORE) {
        if (s >= LAG && (s - LAG) * S::EACH < S::CK)
          put(values[(s - LAG) % (LAG + 1)], (s - LAG) * S::EACH, number + 1, b_next);
      }
    }
    if constexpr (MORE && WORK && !S::ASYNC) {
#pragma unroll
      for (int s = S::STEPS > S::LAG ? S::STEPS - S::LAG : 0; s < S::STEPS; ++s)
        if (s * S::EACH < S::CK) put(values[s % (S::LAG + 1)], s * S::EACH, number + 1, b_next);
    }
    swap(a_now, a_next);
    swap(b_now, b_next);
    if (S::ASYNC) swap(b_next, b_after);
  }

  static __device__ __forceinline__ void swap(int& x, int& y) {
    const int was = x;
    x = y;
    y = was;
  }

  template <bool WORK>
  __device__ __forceinline__ void multiply(typename W::Sums& sums) {
    const int chunks = static_cast<int>(window_chunks(channels, W::CHANNELS));
    copy_weights(a_now, 0, S::GROUP);
    if constexpr (S::ASYNC) {
      copy_halo(b_now, 0);
      if (chunks > 1) copy_halo(b_next, 1);
      wait_copies();
      round_halo(b_now, 0, S::CK);
    } else {
#pragma unroll 1
      for (int first = 0; first < S::CK; first += 4) {
        float start[S::SLOTS][4][W::PER_WORD];
        fetch(start, first, 0);
        put(start, first, 0, b_now);
      }
    }
#pragma unroll 1
    for (int number = 0; number + 1 < chunks; ++number) chunk<true, WORK>(sums, number, chunks);
    chunk<false, WORK>(sums, chunks - 1, chunks);
  }
#endif
};

#if CRUCIBLE_HAS_MMA
// A block's tile: rows first, then boxes, then batches.
template <class W, class P>
__device__ __forceinline__ void window_tile(const P& p, const unsigned* __restrict__ packed, unsigned number, unsigned char* shared) {
  using S = WindowSizes<W, P>;
  const Index tiles = (p.rows() + W::BM - 1) / W::BM, boxes = box_count(p);
  const Index tile_m = static_cast<Index>(number % unsigned(tiles)), rest = static_cast<Index>(number / unsigned(tiles));
  const Index box = rest % boxes, z = rest / boxes;
  const BoxPlace<P> place(p, box);

  const int64_t step_count = window_chunks(p.channels(), W::CHANNELS) * int64_t(S::STEPS);
  WindowBlock<W, P> block{p, shared, packed + (z % p.groups() * tiles + tile_m) * step_count * W::STEP_WORDS,
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
  accum* staged = reinterpret_cast<accum*>(shared);
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

template <class W, class P>
__global__ void __launch_bounds__(W::threads, 2)
    window_kernel(const __grid_constant__ P p, const unsigned* __restrict__ packed) {
  follow();
  extern __shared__ __align__(16) unsigned char window_shared[];
#if CRUCIBLE_HAS_MMA
  window_tile<W>(p, packed, blockIdx.x, window_shared);
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
  cudaError_t refused = cudaLaunchKernelEx(After(static_cast<unsigned>(packers < 4096 ? packers : 4096), 256, 0, stream),
                                           pack_kernel<W, P>, p, packed);
  if (refused != cudaSuccess) return refused;
  refused = allow_shared(window_kernel<W, P>, S::shared_bytes);
  if (refused != cudaSuccess) return refused;
  return cudaLaunchKernelEx(After(static_cast<unsigned>(blocks), W::threads, S::shared_bytes, stream), window_kernel<W, P>, p, packed);
}
#endif

}  // namespace crucible
