// The gradient of a convolution's weight on tensor cores (mma.sync, compute capability 8.0 and later).
//
// D[m, (channel, tap)] = sum over pixels of a(m, pixel) * b(channel, the input pixel under tap): a plain tensor times one
// seen through a window. A block takes BM rows and BC channels with all their taps, and walks over boxes of pixels: a's box
// and b's halo lie in shared memory as rows of pixels (PITCH = 4 modulo 32 words: a fragment's eight rows and four pixels
// lie in 32 banks), and a tap is an offset into the halo. A warp sums MT * 16 rows by UNITS pairs of a tap and 8 channels,
// so a fragment of a serves UNITS products. Boxes are shared out to `splits` blocks; each leaves a partial sum.
// While one box is multiplied, the next one is on its way: by asynchronous copies where both tensors are float memory as
// it is, to be rounded where it lies; through registers otherwise, part by part, stored a round later.
//
// Words are tf32 numbers: float is rounded to nearest even, half and bfloat16 fit as they are.
// Tensor cores cut what they add and these sums are long, so each box's sum goes to ordinary registers, which round.
#pragma once

#include <type_traits>

#include "box.cuh"
#include "contract.cuh"

namespace crucible {

// WARPS_M x TAP_GROUPS x CHANNEL_GROUPS x WARPS_K warps; a warp has MT * 16 rows and TAPS_EACH taps of EACH * 8 channels.
// Warps that share all that take turns along the pixels, and each leaves a partial sum of its own.
template <int MT_, int WARPS_M, int TAP_GROUPS, int TAPS_EACH, int CHANNEL_GROUPS, int EACH, int WARPS_K_>
struct Gradient {
  static constexpr int MT = MT_, WM = MT * 16, BM = WARPS_M * WM, BC = CHANNEL_GROUPS * EACH * 8;
  static constexpr int UNITS = TAPS_EACH * EACH, WARPS_K = WARPS_K_, SIDE = TAP_GROUPS * CHANNEL_GROUPS;
  static constexpr int threads = WARPS_M * SIDE * WARPS_K * 32;
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
  static __device__ __forceinline__ int turn() { return warp() / (WARPS_M * SIDE); }
  static __device__ __forceinline__ int row() { return warp() / SIDE % WARPS_M * WM; }
  static __device__ __forceinline__ int tap(int unit) {
    return warp() / CHANNEL_GROUPS % TAP_GROUPS * TAPS_EACH + unit % TAPS_EACH;
  }
  static __device__ __forceinline__ int channel(int unit) {
    return (warp() % CHANNEL_GROUPS * EACH + unit / TAPS_EACH) * 8;
  }
};

// How COUNT pixels by LINES lines are dealt to the threads: a thread has the same pixels of every line it takes.
template <int COUNT, int LINES, int THREADS>
struct Dealt {
  static constexpr int SHARE = THREADS / COUNT > 0 ? THREADS / COUNT : 1;    // threads on one pixel
  static constexpr int SLOTS = SHARE > 1 ? 1 : (COUNT + THREADS - 1) / THREADS;
  static constexpr int TURNS = (LINES + SHARE - 1) / SHARE;                  // lines of a thread
  static __device__ __forceinline__ int pixel(int slot) {
    const int t = static_cast<int>(threadIdx.x);
    return SHARE > 1 ? t % COUNT : t + slot * THREADS;
  }
  static __device__ __forceinline__ int line(int turn) {
    return turn * SHARE + (SHARE > 1 ? static_cast<int>(threadIdx.x) / COUNT : 0);
  }
  static __device__ __forceinline__ bool takes(int slot, int turn) {
    return pixel(slot) < COUNT && line(turn) < LINES && static_cast<int>(threadIdx.x) < COUNT * SHARE * SLOTS;
  }
};

template <class G, class P>
struct GradientSizes {
  using Box = typename P::Box;
  using Halo = HaloOf<P>;
  static_assert(Box::at(3) % 8 == 0, "eight pixels of a step are neighbours");
  static constexpr int TAPS = P::Kernel::product, STEPS = Box::product / 8, ROUNDS = (STEPS + G::WARPS_K - 1) / G::WARPS_K;
  static constexpr int A_PITCH = (Box::product + 31) / 32 * 32 + 4, B_PITCH = (Halo::product + 31) / 32 * 32 + 4;
  using A = Dealt<Box::product, G::BM, G::threads>;
  using B = Dealt<Halo::product, G::BC, G::threads>;
  // Lines that a thread fetches in one round.
  static constexpr int A_EACH = (A::TURNS + ROUNDS - 1) / ROUNDS, B_EACH = (B::TURNS + ROUNDS - 1) / ROUNDS;
  static constexpr int LAG = ROUNDS < 2 ? 0 : 1;  // rounds between asking for words and storing them
  static constexpr bool ASYNC = P::a_direct && P::b_direct && sizeof(scalar) == 4;
  static constexpr int B_START = G::BM * A_PITCH, PANEL = B_START + G::BC * B_PITCH;
  static constexpr int shared_bytes = 2 * PANEL * 4;
};

template <class G, class P>
struct GradientBlock {
#if CRUCIBLE_HAS_MMA
  using S = GradientSizes<G, P>;
  using A = typename S::A;
  using B = typename S::B;
  const P& p;
  Index z, m0, c0;
  int now, next;  // words
  unsigned* shared;
  typename P::AAt a_at[A::SLOTS];
  typename P::BAt b_at[B::SLOTS];
  float a_values[S::LAG + 1][A::SLOTS][S::A_EACH], b_values[S::LAG + 1][B::SLOTS][S::B_EACH];

  __device__ __forceinline__ void find(Index box) {
    const BoxPlace<P> place(p, box);
#pragma unroll
    for (int i = 0; i < A::SLOTS; ++i) a_at[i] = place.plain(p, z, A::pixel(i) < P::Box::product ? A::pixel(i) : 0);
#pragma unroll
    for (int i = 0; i < B::SLOTS; ++i) b_at[i] = place.halo(p, z, B::pixel(i) < S::Halo::product ? B::pixel(i) : 0);
  }

  // The whole of the next box by asynchronous copies, and what is left to do where they have come to.
  __device__ __forceinline__ void copy(unsigned* panel) const {
#pragma unroll
    for (int turn = 0; turn < A::TURNS; ++turn) {
      const Index m = m0 + A::line(turn), near = m < p.rows() ? m : p.rows() - 1;
#pragma unroll
      for (int i = 0; i < A::SLOTS; ++i)
        if (A::takes(i, turn))
          copy_async(panel + A::line(turn) * S::A_PITCH + A::pixel(i), p.a_from(a_at[i], near),
                     a_at[i].inside && m < p.rows());
    }
#pragma unroll
    for (int turn = 0; turn < B::TURNS; ++turn) {
      const Index c = c0 + B::line(turn), near = c < p.channels() ? c : p.channels() - 1;
#pragma unroll
      for (int i = 0; i < B::SLOTS; ++i)
        if (B::takes(i, turn))
          copy_async(panel + S::B_START + B::line(turn) * S::B_PITCH + B::pixel(i), p.b_from(b_at[i], near),
                     b_at[i].inside && c < p.channels());
    }
    commit_copies();
  }
  __device__ __forceinline__ void round(unsigned* panel) const {
    wait_copies();
#pragma unroll
    for (int turn = 0; turn < A::TURNS; ++turn)
#pragma unroll
      for (int i = 0; i < A::SLOTS; ++i)
        if (A::takes(i, turn)) {
          unsigned& word = panel[A::line(turn) * S::A_PITCH + A::pixel(i)];
          word = round_tf32(__uint_as_float(word));
        }
#pragma unroll
    for (int turn = 0; turn < B::TURNS; ++turn)
#pragma unroll
      for (int i = 0; i < B::SLOTS; ++i)
        if (B::takes(i, turn)) {
          unsigned& word = panel[S::B_START + B::line(turn) * S::B_PITCH + B::pixel(i)];
          word = round_tf32(__uint_as_float(word));
        }
  }

  // A round's share of the next box. What is not there is loaded from somewhere near and becomes zero when it is put away.
  __device__ __forceinline__ void fetch(int round, int slot) {
#pragma unroll
    for (int e = 0; e < S::A_EACH; ++e) {
      const Index m = m0 + A::line(round * S::A_EACH + e);
#pragma unroll
      for (int i = 0; i < A::SLOTS; ++i) a_values[slot][i][e] = p.a_in(a_at[i], m < p.rows() ? m : p.rows() - 1);
    }
#pragma unroll
    for (int e = 0; e < S::B_EACH; ++e) {
      const Index c = c0 + B::line(round * S::B_EACH + e);
#pragma unroll
      for (int i = 0; i < B::SLOTS; ++i) b_values[slot][i][e] = p.b_in(b_at[i], c < p.channels() ? c : p.channels() - 1);
    }
  }
  __device__ __forceinline__ void put(int round, int slot, unsigned* panel) const {
#pragma unroll
    for (int e = 0; e < S::A_EACH; ++e) {
      const int turn = round * S::A_EACH + e, line = A::line(turn);
#pragma unroll
      for (int i = 0; i < A::SLOTS; ++i) {
        const float kept = a_at[i].inside && m0 + line < p.rows() ? a_values[slot][i][e] : 0.0f;
        if (A::takes(i, turn)) panel[line * S::A_PITCH + A::pixel(i)] = round_tf32(kept);
      }
    }
#pragma unroll
    for (int e = 0; e < S::B_EACH; ++e) {
      const int turn = round * S::B_EACH + e, line = B::line(turn);
#pragma unroll
      for (int i = 0; i < B::SLOTS; ++i) {
        const float kept = b_at[i].inside && c0 + line < p.channels() ? b_values[slot][i][e] : 0.0f;
        if (B::takes(i, turn)) panel[S::B_START + line * S::B_PITCH + B::pixel(i)] = round_tf32(kept);
      }
    }
  }
#endif
};

template <class G, class P>
__global__ void __launch_bounds__(G::threads, G::threads > 128 ? 1 : 2)
    gradient_kernel(const __grid_constant__ P p, int splits, const int* flag) {
  follow();
  if (flag != nullptr && *flag == 0) return;
  extern __shared__ __align__(16) unsigned char gradient_shared[];
#if CRUCIBLE_HAS_MMA
  using S = GradientSizes<G, P>;
  const unsigned tiles_c = static_cast<unsigned>((p.channels() + G::BC - 1) / G::BC);
  const unsigned tiles_m = static_cast<unsigned>((p.rows() + G::BM - 1) / G::BM);
  const int64_t boxes = box_count(p);
  const int split = static_cast<int>(blockIdx.y);
  const Index first = static_cast<Index>(boxes * split / splits), last = static_cast<Index>(boxes * (split + 1) / splits);
  unsigned* const shared = reinterpret_cast<unsigned*>(gradient_shared);
  GradientBlock<G, P> block{p, static_cast<Index>(blockIdx.x / tiles_c / tiles_m),
                            static_cast<Index>(blockIdx.x / tiles_c % tiles_m) * G::BM,
                            static_cast<Index>(blockIdx.x % tiles_c) * G::BC, 0, S::PANEL, shared};
  float sums[G::MT][G::UNITS][4] = {};
  int off[G::UNITS];
#pragma unroll
  for (int u = 0; u < G::UNITS; ++u) {
    const int tap = G::tap(u) < S::TAPS ? G::tap(u) : S::TAPS - 1;  // a tap too many is computed and not stored
    off[u] = S::B_START + (G::channel(u) + G::lane() / 4) * S::B_PITCH + tap_offset<P>(tap) +
             G::lane() % 4 * P::Stride::at(3);
  }
  const int a_off = (G::row() + G::lane() / 4) * S::A_PITCH + G::lane() % 4;
  const bool idle = block.m0 + G::row() >= p.rows();

  if (first < last) {
    block.find(first);
    if constexpr (S::ASYNC) {
      block.copy(shared);
      block.round(shared);
    } else {
#pragma unroll 1
      for (int round = 0; round < S::ROUNDS; ++round) {
        block.fetch(round, 0);
        block.put(round, 0, shared);
      }
    }
  }
  // One step: eight pixels. MASKED: some of the box's pixels do not exist. They have zeros in a; b's may be anything there,
  // and zero times inf would be nan.
  const auto step = [&](auto masked, float (&part)[G::MT][G::UNITS][4], const BoxPlace<P>& place, int q) {
    unsigned keep[2] = {~0u, ~0u};
    if constexpr (decltype(masked)::value) {
#pragma unroll
      for (int h = 0; h < 2; ++h) keep[h] = place.exists(q * 8 + h * 4 + G::lane() % 4) ? ~0u : 0u;
    }
    const unsigned* a_from = shared + (block.now + a_off) + q * 8;
    const unsigned* b_from = shared + block.now + halo_offset<P>(q * 8);
    unsigned a[G::MT][4];
#pragma unroll
    for (int i = 0; i < G::MT; ++i)
#pragma unroll
      for (int r = 0; r < 4; ++r) a[i][r] = a_from[(i * 16 + r % 2 * 8) * S::A_PITCH + r / 2 * 4];
#pragma unroll
    for (int u = 0; u < G::UNITS; ++u) {
      unsigned b0 = b_from[off[u]], b1 = b_from[off[u] + 4 * P::Stride::at(3)];
      if constexpr (decltype(masked)::value) b0 &= keep[0], b1 &= keep[1];
#pragma unroll
      for (int i = 0; i < G::MT; ++i) mma<Grade::Tf32>(part[i][u], a[i], b0, b1);
    }
  };
  // A box: steps, taken in turn by the warps that share a tile, and the next box on its way. Whole boxes are unrolled.
  const auto walk = [&](auto masked, const BoxPlace<P>& place) {
    constexpr int LAG = decltype(masked)::value ? 0 : S::LAG;
    float part[G::MT][G::UNITS][4] = {};
#pragma unroll(decltype(masked)::value ? 1 : S::ROUNDS)
    for (int round = 0; round < S::ROUNDS; ++round) {
      if constexpr (!S::ASYNC) block.fetch(round, round % (LAG + 1));
      const int q = round * G::WARPS_K + G::turn();
      // A step whose first pixel does not exist has none.
      const bool there = !decltype(masked)::value || place.exists(q * 8);
      if (!idle && there && (S::STEPS % G::WARPS_K == 0 || q < S::STEPS)) step(masked, part, place, q);
      if constexpr (!S::ASYNC) {
        if (round >= LAG) block.put(round - LAG, (round - LAG) % (LAG + 1), shared + block.next);
      }
    }
    if constexpr (LAG > 0 && !S::ASYNC) block.put(S::ROUNDS - 1, (S::ROUNDS - 1) % (LAG + 1), shared + block.next);
#pragma unroll
    for (int i = 0; i < G::MT; ++i)
#pragma unroll
      for (int u = 0; u < G::UNITS; ++u)
#pragma unroll
        for (int r = 0; r < 4; ++r) sums[i][u][r] += part[i][u][r];
  };
#pragma unroll 1
  for (Index box = first; box < last; ++box) {
    const BoxPlace<P> place(p, box);
    const bool more = box + 1 < last;
    block.find(more ? box + 1 : box);
    __syncthreads();
    if (S::ASYNC && more) block.copy(shared + block.next);
    if (place.count() == P::Box::product)
      walk(std::false_type(), place);
    else
      walk(std::true_type(), place);
    if (S::ASYNC && more) block.round(shared + block.next);
    const int was = block.now;
    block.now = block.next;
    block.next = was;
  }
#pragma unroll
  for (int i = 0; i < G::MT; ++i)
#pragma unroll
    for (int u = 0; u < G::UNITS; ++u)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const Index m = block.m0 + G::row() + i * 16 + r / 2 * 8 + G::lane() / 4;
        const Index channel = block.c0 + G::channel(u) + G::lane() % 4 * 2 + r % 2;
        if (m < p.rows() && channel < p.channels() && G::tap(u) < S::TAPS)
          p.finish(block.z, m, channel * S::TAPS + G::tap(u), split * G::WARPS_K + G::turn(), sums[i][u][r], true);
      }
#endif
}

#ifndef __CUDACC_RTC__
// With a flag: only where that is raised.
template <class G, class P>
cudaError_t launch_gradient(const P& p, int splits, cudaStream_t stream, const int* flag = nullptr) {
  using S = GradientSizes<G, P>;
  const int64_t tiles = (static_cast<int64_t>(p.rows()) + G::BM - 1) / G::BM * ((p.channels() + G::BC - 1) / G::BC);
  const int64_t blocks = tiles * p.batches();
  if (blocks == 0) return cudaSuccess;
  if (blocks > 0x7fffffff || splits < 1 || splits / G::WARPS_K > 65535 || splits % G::WARPS_K != 0)
    return cudaErrorInvalidValue;
  const cudaError_t refused = allow_shared(gradient_kernel<G, P>, S::shared_bytes);
  if (refused != cudaSuccess) return refused;
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(splits / G::WARPS_K));
  return cudaLaunchKernelEx(After(grid, G::threads, S::shared_bytes, stream), gradient_kernel<G, P>, p, splits / G::WARPS_K,
                            flag);
}
#endif

}  // namespace crucible
