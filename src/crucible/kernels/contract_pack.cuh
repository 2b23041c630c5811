// Operands of a contraction for Hopper's tensor cores, read through the functor and written in the order of shared memory.
//
// For each tile of lines (BM rows of A, BN columns of B) and each 64 k there is one contiguous piece of
// [plane][line][64 k]: lines of 128 bytes whose 16-byte chunks are permuted by the line's number (the hardware's 128-byte
// swizzle), zeros where a tile reaches past the end. So the product's kernel fetches with plain bulk copies.
// In grade Fp32 the planes are hi and lo, two half numbers whose sum is the element times a power of two that brings the
// line's largest to [2^14, 2^15): 22 bits. In grade Tf32 hi alone: half has the 11 bits of tf32 at twice the rate. In
// grade Native the elements as they are.
//
// The range: elements below 2^-18 of their line's largest (2^-29 in grade Tf32) lose up to 2^-25 (scaled) each. They are
// counted for each line, and its elements added up without signs, so that the product can tell whether it matters.
// Bytes: each element read once or twice (once where k runs along memory and there are at most 8192), its planes written.
#pragma once

#include "contract.cuh"
#include "wgmma.cuh"

#if CRUCIBLE_HOPPER && CRUCIBLE_SCALAR != 1  // tensor cores sum in float
#include <cuda_fp16.h>

namespace crucible {

// BN columns: 32, 64 or 128.
template <int BN_, Grade grade_>
struct WgmmaTile {
  static constexpr Grade grade = grade_;
  static constexpr int BM = 128, BN = BN_, BK = 64;
  static constexpr int PLANES = grade == Grade::Fp32 ? 2 : 1;
  static constexpr int A_BYTES = PLANES * BM * 128, B_BYTES = PLANES * BN * 128, STAGE = A_BYTES + B_BYTES;
  static constexpr int CONSUMERS = 256, threads = 128 + CONSUMERS;
  static constexpr int row_stride = BN + 8;  // of rows on their way out
  static constexpr int OUT_BYTES = CONSUMERS / 32 * 8 * row_stride * 4;
  static constexpr int BARRIERS = 256;  // bytes
  static constexpr int STAGES = smaller((227 * 1024 - OUT_BYTES - BARRIERS) / STAGE, 8);
  static constexpr int shared_bytes = STAGES * STAGE + OUT_BYTES + BARRIERS;
  static constexpr bool scaled = grade != Grade::Native;
  static constexpr Operands kind = scaled ? Operands::Half : Operands::Native;
  // What is done again is done with this.
  using Other = Mma<128, BN, grade == Grade::Native || BN == 128 ? 32 : 16, BN == 32 ? 32 : 64, 32, grade>;
  static_assert(STAGES >= 2, "no room for two stages");
};

// What undoes a line's scale, and how many of its elements lost bits: nan for a line with inf or nan, -inf for zeros.
struct LineScale {
  float factor, lossy;
};

struct PackedOperand {
  unsigned char* pieces;
  LineScale* scales;  // [batch][line], whole tiles
  unsigned* weights;  // [batch][line]: the sum of |scaled elements| / 2^15, in 256ths, rounded up
  unsigned* peaks;    // [chunk of k][batch][line], where neighbours are not along k
  int64_t lines;      // of all batches, whole tiles
  int64_t blocks;     // thread blocks that pack it
};

struct Packing {
  PackedOperand a, b;
  int* again;         // the flag
  int64_t depth;      // in pieces
  int tiles_m, tiles_n, batches;
  int warps;          // that share a line in packing, where neighbours are along k
  bool pair_rows;     // a cluster's two tiles are neighbours in m and share B; otherwise neighbours in n, and share A
};

// Threads of a block; steps whose elements stay in registers; pieces in a chunk of k.
enum : int { PACK_THREADS = 256, PACK_KEPT = 16, PACK_CHUNK = 8 };

#if CRUCIBLE_HAS_MMA
// The exponent that brings a line's largest element to [2^14, 2^15).
__device__ __forceinline__ int line_exponent(unsigned peak) { return exponent_to(14, peak); }
__device__ __forceinline__ LineScale line_scale(unsigned peak, float lossy) {
  const int e = line_exponent(peak);
  return {scaled(1.0f, -e), peak == 0 ? -INFINITY : peak >= 0x7f800000u ? NAN : lossy};
}
__device__ __forceinline__ unsigned absolute_bits(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// What a line's elements add up to: how many lost bits, and their sum without signs, scaled.
struct Losses {
  int lossy = 0;
  float sum = 0;
  __device__ __forceinline__ unsigned weight() const { return __float2uint_ru(sum * 0x1p-7f); }
};

// Two neighbouring k as words of the planes.
template <class W>
__device__ __forceinline__ void pack_pair(float x, float y, int exponent, unsigned (&words)[W::PLANES], Losses& losses) {
  if constexpr (!W::scaled) {
    words[0] = pack(x, y);
  } else {
    const float2 from = {scaled(x, exponent), scaled(y, exponent)};
    const __half2 hi = __floats2half2_rn(from.x, from.y);
    words[0] = reinterpret_cast<const unsigned&>(hi);
    const float2 near = __half22float2(hi);
    float2 rest = {from.x - near.x, from.y - near.y};
    if constexpr (W::PLANES == 2) {
      const __half2 lo = __floats2half2_rn(rest.x, rest.y);
      words[1] = reinterpret_cast<const unsigned&>(lo);
      const float2 low = __half22float2(lo);
      rest = {rest.x - low.x, rest.y - low.y};
    }
    constexpr float fair = W::PLANES == 2 ? 0x1p-22f : 0x1p-11f;  // what rounding may cost
    losses.lossy += (fabsf(rest.x) > fair * fabsf(from.x)) + (fabsf(rest.y) > fair * fabsf(from.y));
    losses.sum += fabsf(from.x) + fabsf(from.y);
  }
}

// A warp writes 64 k of a line, a word of each plane a lane.
template <class W, int LINES>
__device__ __forceinline__ void put_words(const PackedOperand& to, int64_t depth, int64_t line, int64_t piece,
                                          const unsigned (&words)[W::PLANES]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, r = static_cast<int>(line % LINES);
  unsigned char* at = to.pieces + (line / LINES * depth + piece) * (W::PLANES * LINES * 128) + r * 128 +
                      (((lane / 4) ^ (r & 7)) * 16 + lane % 4 * 4);
#pragma unroll
  for (int plane = 0; plane < W::PLANES; ++plane)
    *reinterpret_cast<unsigned*>(at + plane * LINES * 128) = words[plane];
}

// Where neighbours are along k: 1, 2, 4 or 8 warps to a line, 64 k a step, two neighbouring k to a lane. What a lane
// reads in its first PACK_KEPT steps it keeps until the line's largest element is known; more is read twice.
template <class W, class Operand, int LINES, class P>
__device__ __forceinline__ void pack_along(const P& p, const Packing& all, const PackedOperand& to, int64_t block) {
  __shared__ unsigned shared_peaks[PACK_THREADS / 32];
  __shared__ int shared_lossy[PACK_THREADS / 32];
  __shared__ unsigned shared_weights[PACK_THREADS / 32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = all.warps, first = warp / warps * warps, part = warp - first;
  const int64_t line = block * (PACK_THREADS / 32 / warps) + warp / warps;
  const int64_t padded = to.lines / all.batches;
  const Index z = static_cast<Index>(line / padded), of_batch = static_cast<Index>(line % padded);
  const bool there = line < to.lines && of_batch < Operand::lines(p);
  const Index depth = there ? p.depth() : 0;
  const typename Operand::Line place = Operand::line(p, there ? z : 0, there ? of_batch : 0);
  const auto at = [&](Index k) { return k < depth ? static_cast<float>(Operand::at(p, place, k)) : 0.0f; };

  float kept[PACK_KEPT][2];
  unsigned peak = 0;
#pragma unroll
  for (int s = 0; s < PACK_KEPT; ++s) {
    const Index k = (part + s * warps) * 64 + lane * 2;
    kept[s][0] = at(k);
    kept[s][1] = at(k + 1);
  }
  int exponent = 0;
  Losses losses;
  if constexpr (W::scaled) {
#pragma unroll
    for (int s = 0; s < PACK_KEPT; ++s) peak = max(peak, max(absolute_bits(kept[s][0]), absolute_bits(kept[s][1])));
#pragma unroll 4
    for (int64_t piece = part + PACK_KEPT * warps; piece < all.depth; piece += warps) {
      const Index k = static_cast<Index>(piece * 64) + lane * 2;
      peak = max(peak, max(absolute_bits(at(k)), absolute_bits(at(k + 1))));
    }
    peak = __reduce_max_sync(0xffffffffu, peak);
    if (lane == 0) shared_peaks[warp] = peak;
    __syncthreads();
    for (int i = 0; i < warps; ++i) peak = max(peak, shared_peaks[first + i]);
    exponent = line_exponent(peak);
  }
  const bool stored = line < to.lines;
  unsigned words[W::PLANES];
#pragma unroll
  for (int s = 0; s < PACK_KEPT; ++s) {
    const int64_t piece = part + s * warps;
    if (!stored || piece >= all.depth) break;
    pack_pair<W>(kept[s][0], kept[s][1], exponent, words, losses);
    put_words<W, LINES>(to, all.depth, line, piece, words);
  }
  if (stored)
#pragma unroll 4
    for (int64_t piece = part + PACK_KEPT * warps; piece < all.depth; piece += warps) {
      const Index k = static_cast<Index>(piece * 64) + lane * 2;
      pack_pair<W>(at(k), at(k + 1), exponent, words, losses);
      put_words<W, LINES>(to, all.depth, line, piece, words);
    }
  if constexpr (W::scaled) {
    int lossy = __reduce_add_sync(0xffffffffu, losses.lossy);
    unsigned weight = __reduce_add_sync(0xffffffffu, losses.weight());
    if (lane == 0) {
      shared_lossy[warp] = lossy;
      shared_weights[warp] = weight;
    }
    __syncthreads();
    if (stored && part == 0 && lane == 0) {
      for (int i = 1; i < warps; ++i) {
        lossy += shared_lossy[first + i];
        weight += shared_weights[first + i];
      }
      to.scales[line] = line_scale(peak, static_cast<float>(lossy));
      to.weights[line] = weight;
    }
  }
}

// Where neighbours are not along k, a block takes 32 lines and a chunk of k, a lane for each line. Peaks come first, in
// a launch of their own, for each chunk; then everything is read again and turned through shared memory.
struct Across {
  int64_t line;  // the first
  int64_t chunk;
  __device__ __forceinline__ Across(const PackedOperand& to, int64_t block)
      : line(block % (to.lines / 32) * 32), chunk(block / (to.lines / 32)) {}
};

template <class Operand, class P>
__device__ __forceinline__ void peaks_across(const P& p, const Packing& all, const PackedOperand& to, int64_t block) {
  __shared__ unsigned shared_peaks[PACK_THREADS / 32][32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const Across part(to, block);
  const int64_t line = part.line + lane, padded = to.lines / all.batches;
  const Index z = static_cast<Index>(line / padded), of_batch = static_cast<Index>(line % padded);
  const bool there = of_batch < Operand::lines(p);
  const Index begin = static_cast<Index>(part.chunk * PACK_CHUNK * 64), left = (there ? p.depth() : begin) - begin;
  const typename Operand::Line place = Operand::line(p, there ? z : 0, there ? of_batch : 0);
  unsigned peak = 0;
#pragma unroll 16
  for (int k = warp; k < PACK_CHUNK * 64; k += PACK_THREADS / 32)
    if (k < left) peak = max(peak, absolute_bits(static_cast<float>(Operand::at(p, place, begin + k))));
  shared_peaks[warp][lane] = peak;
  __syncthreads();
  if (warp > 0) return;
#pragma unroll
  for (int i = 1; i < PACK_THREADS / 32; ++i) peak = max(peak, shared_peaks[i][lane]);
  to.peaks[part.chunk * to.lines + line] = peak;
  if (part.chunk == 0) {
    to.scales[line].lossy = 0;
    to.weights[line] = 0;
  }
}

template <class W, class Operand, int LINES, class P>
__device__ __forceinline__ void pack_across(const P& p, const Packing& all, const PackedOperand& to, int64_t block) {
  constexpr int WARPS = PACK_THREADS / 32, OWN = 32 / WARPS;  // lines that a warp writes
  __shared__ float turned[64][33];
  __shared__ unsigned line_peaks[32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const Across part(to, block);
  const int64_t line = part.line + lane, padded = to.lines / all.batches;
  const Index z = static_cast<Index>(line / padded), of_batch = static_cast<Index>(line % padded);
  const bool there = of_batch < Operand::lines(p);
  const Index depth = there ? p.depth() : 0;
  const typename Operand::Line place = Operand::line(p, there ? z : 0, there ? of_batch : 0);
  int exponents[OWN] = {};
  Losses losses[OWN];
  if constexpr (W::scaled) {
    const int64_t chunks = (all.depth - 1) / PACK_CHUNK + 1;
    if (warp == 0) {
      unsigned peak = 0;
      for (int64_t c = 0; c < chunks; ++c) peak = max(peak, to.peaks[c * to.lines + line]);
      line_peaks[lane] = peak;
      if (part.chunk == 0) {
        const LineScale made = line_scale(peak, 0);
        to.scales[line].factor = made.factor;
        if (made.lossy != 0) atomicAdd(&to.scales[line].lossy, made.lossy);  // inf and nan swallow every count
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < OWN; ++i) exponents[i] = line_exponent(line_peaks[warp * OWN + i]);
  }
  const int64_t begin = part.chunk * PACK_CHUNK, end = all.depth - begin < PACK_CHUNK ? all.depth : begin + PACK_CHUNK;
#pragma unroll 1
  for (int64_t piece = begin; piece < end; ++piece) {
    float values[64 / WARPS];
#pragma unroll
    for (int i = 0; i < 64 / WARPS; ++i) {
      const Index k = static_cast<Index>(piece * 64) + warp + i * WARPS;
      values[i] = k < depth ? static_cast<float>(Operand::at(p, place, k)) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 64 / WARPS; ++i) turned[warp + i * WARPS][lane] = values[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      unsigned words[W::PLANES];
      const int own = warp * OWN + i;
      pack_pair<W>(turned[2 * lane][own], turned[2 * lane + 1][own], exponents[i], words, losses[i]);
      put_words<W, LINES>(to, all.depth, part.line + own, piece, words);
    }
  }
  if constexpr (W::scaled) {
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      const int lossy = __reduce_add_sync(0xffffffffu, losses[i].lossy);
      const unsigned weight = __reduce_add_sync(0xffffffffu, losses[i].weight());
      const int64_t own = part.line + warp * OWN + i;
      if (lane == 0 && lossy > 0) atomicAdd(&to.scales[own].lossy, static_cast<float>(lossy));  // whole numbers: exact
      if (lane == 0) atomicAdd(&to.weights[own], weight);
    }
  }
}

template <class W, class P>
__device__ __forceinline__ void pack_block(const P& p, const Packing& all, int64_t block) {
  if (block == 0 && threadIdx.x == 0) *all.again = 0;
  if (block < all.a.blocks) {
    if constexpr (P::a_along_k)
      pack_along<W, OperandA<P>, W::BM>(p, all, all.a, block);
    else
      pack_across<W, OperandA<P>, W::BM>(p, all, all.a, block);
  } else {
    if constexpr (P::b_along_k)
      pack_along<W, OperandB<P>, W::BN>(p, all, all.b, block - all.a.blocks);
    else
      pack_across<W, OperandB<P>, W::BN>(p, all, all.b, block - all.a.blocks);
  }
}

template <class P>
__device__ __forceinline__ void peaks_block(const P& p, const Packing& all, int64_t block) {
  const int64_t first = P::a_along_k ? 0 : all.a.blocks;
  if (block < first) {
    if constexpr (!P::a_along_k) peaks_across<OperandA<P>>(p, all, all.a, block);
  } else {
    if constexpr (!P::b_along_k) peaks_across<OperandB<P>>(p, all, all.b, block - first);
  }
}
#endif

template <class P>
__global__ void __launch_bounds__(PACK_THREADS) wgmma_peaks_kernel(const __grid_constant__ P p,
                                                                   const __grid_constant__ Packing all) {
#if CRUCIBLE_HAS_MMA
  peaks_block(p, all, blockIdx.x);
#endif
}

// B first and its last lines first of all: what the product reads first is then still in L2.
template <class W, class P>
__global__ void __launch_bounds__(PACK_THREADS, 3) wgmma_pack_kernel(const __grid_constant__ P p,
                                                                     const __grid_constant__ Packing all) {
#if CRUCIBLE_HAS_MMA
  pack_block<W>(p, all, static_cast<int64_t>(gridDim.x) - 1 - blockIdx.x);
#endif
}

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
