// Operands of a contraction for Hopper's tensor cores, read through the functor and written in the order of shared memory.
//
// For each tile of lines (BM rows of A, BN columns of B) and each 64 k there is one contiguous piece of
// [plane][line][64 k]: lines of 128 bytes whose 16-byte chunks are permuted by the line's number (the hardware's 128-byte
// swizzle), zeros where a tile reaches past the end. So the product's kernel fetches with plain bulk copies. A word holds
// k and k + 32 of the 64, in both operands alike: sums do not mind, and neighbouring lanes read neighbours.
// In grade Fp32 the planes are hi and lo, two half numbers whose sum is the element times a power of two that brings the
// line's largest to [2^14, 2^15): 22 bits. In grade Tf32 hi alone: half has the 11 bits of tf32 at twice the rate. In
// grade Native the elements as they are.
//
// The range: elements below 2^-18 of their line's largest (2^-29 in grade Tf32) lose up to 2^-25 (scaled) each. They are
// counted for each line, and its elements added up without signs, so that the product can tell whether it matters.
// Bytes: each element read once or twice (once where k runs along memory and there are at most 8192), its planes written.
//
// Who packs: what the product's first tiles need, a launch before it. The rest the warps that the product leaves idle, while
// tensor cores work on those first tiles: a counter hands out work (a line, or a chunk of 32) in the order in which tiles
// need it, and each tile of lines counts what is ready. Where many tiles of rows share B, contract_roll.cuh packs it instead.
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
  // Of a thread. Three warpgroups begin with 168 each; the packers' and twice the consumers' must fit there.
  static constexpr int PACKER_REGISTERS = 104, CONSUMER_REGISTERS = 200;
  // Lines that a processor's idle warps pack while it computes a tile (of any depth, for both take as long as that).
  static constexpr int PACE = (grade == Grade::Fp32 ? 8 : 3) * BN / 128;
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
  static_assert(PACKER_REGISTERS + 2 * CONSUMER_REGISTERS <= 3 * 168, "whoever asks for more than there are waits for ever");
};

// Threads of a block; steps whose elements stay in registers; the same where few registers are left; pieces in a chunk of k.
enum : int { PACK_THREADS = 256, PACK_KEPT = 16, PACK_AHEAD = 12, PACK_CHUNK = 8 };
// Of a rolling operand: pieces in a team's ring; lines of a warp; pieces of a line that are looked at beforehand.
enum : int { ROLL_SLOTS = 32, ROLL_LINES = 16, ROLL_SAMPLES = 8 };
// Processors of a chip, and the most there are: what the workspace holds must not depend on the chip.
enum : int { HOPPER_PROCESSORS = 132, MOST_PROCESSORS = 144 };

// What undoes a line's scale, and how many of its elements lost bits: nan for a line with inf or nan, -inf for zeros.
struct LineScale {
  float factor, lossy;
};

struct PackedOperand {
  unsigned char* pieces;
  LineScale* scales;  // [batch][line], whole tiles
  unsigned* weights;  // [batch][line]: the sum of |scaled elements| / 2^15, in 256ths, rounded up
  unsigned* peaks;    // [chunk of k][batch][line], where neighbours are not along k
  unsigned* ready;    // [batch][tile]: work done beside the product; of a rolling operand [team][slot]: warps that filled it
  unsigned* free;     // of a rolling operand, [team][block]: pieces that the block needs no more
  float* multipliers; // of a rolling operand, [batch][line]: powers of two
  int64_t lines;      // of all batches, whole tiles
  int64_t early;      // tiles that are packed before the product
  int each, blocks;   // of a tile: work for warps beside the product, thread blocks before it
};

struct Packing {
  PackedOperand a, b;
  int* again;         // the flag
  unsigned* next;     // the next work beside the product
  int64_t depth;      // in pieces
  int64_t counters;   // the flag and what follows it, to be cleared
  int tiles_m, tiles_n, batches;
  int warps;          // that share a line in packing, where neighbours are along k
  int cluster;        // blocks that share pieces: 2, or 1 where there are no clusters
  int high, wide;     // tiles of a cluster in m (two share B) and in n (two share A)
  int pairs_m, pairs_n;  // clusters' tiles
  int height;         // blocks of a team, for which B is packed piece by piece (contract_roll.cuh); 0: it is not

  __host__ __device__ int64_t pairs() const { return static_cast<int64_t>(pairs_m) * pairs_n * batches; }
  // A tile's first column, counted through all batches.
  template <class W>
  __host__ __device__ int64_t column(const TilePlace& tile) const {
    return (tile.z * static_cast<int64_t>(tiles_n) + tile.n) * W::BN;
  }
  // Blocks that look at samples before the product.
  __host__ __device__ int64_t sample_blocks(bool along) const {
    return height == 0 ? 0 : along ? (b.lines - 1) / (PACK_THREADS / 32) + 1 : b.lines / 32;
  }
  // On so many processors.
  int64_t teams(int processors) const {
    const int64_t tiles = static_cast<int64_t>(tiles_n) * batches, most = smaller(processors, MOST_PROCESSORS) / height;
    return tiles < most ? tiles : most;
  }
  // Tiles of A in the first band of tile_place().
  __host__ __device__ int64_t band() const { return tiles_m < TILE_BAND * high ? tiles_m : TILE_BAND * high; }
};

// A team's tiles, one after another: this block's of each. It may lie past the last row.
struct TeamTiles {
  unsigned next;  // the team's number at first
  __device__ __forceinline__ bool take(const Packing& all, TilePlace& tile) {
    if (next >= static_cast<unsigned>(all.tiles_n) * all.batches) return false;
    tile = {static_cast<Index>(next / all.tiles_n), static_cast<Index>(blockIdx.x % all.height),
            static_cast<Index>(next % all.tiles_n)};
    next += gridDim.x / all.height;
    return true;
  }
};

// Work in the order in which the product's tiles need it: for each batch A's first band, all of B, the rest of A.
// A tile of A is a_each pieces of work, one of B b_each.
struct PackTurn {
  bool of_b;
  int64_t tile, part;
  __host__ __device__ __forceinline__ PackTurn(const Packing& all, int64_t turn, int a_each, int b_each) {
    const int64_t band = all.band() * a_each, b = static_cast<int64_t>(all.tiles_n) * b_each;
    const int64_t batch = static_cast<int64_t>(all.tiles_m) * a_each + b, z = turn / batch;
    turn -= z * batch;
    of_b = turn >= band && turn < band + b;
    if (of_b) turn -= band;
    if (turn >= band && !of_b) turn -= b;
    const int each = of_b ? b_each : a_each;
    tile = z * (of_b ? all.tiles_n : all.tiles_m) + turn / each;
    part = turn % each;
  }
};

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

// Two k, scaled, as words of the planes.
template <class W>
__device__ __forceinline__ void pack_scaled(float2 from, unsigned (&words)[W::PLANES], Losses& losses) {
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
template <class W>
__device__ __forceinline__ void pack_pair(float x, float y, int exponent, unsigned (&words)[W::PLANES], Losses& losses) {
  if constexpr (W::scaled)
    pack_scaled<W>({scaled(x, exponent), scaled(y, exponent)}, words, losses);
  else
    words[0] = pack(x, y);
}

// A line's elements: zeros past the operand's end.
template <class Operand, class P>
struct PackSource {
  const P& p;
  Index depth;
  typename Operand::Line place;
  __device__ __forceinline__ PackSource(const P& from, Index z, Index of_batch) : p(from), depth(0) {
    const bool there = of_batch < Operand::lines(p);
    if (there) depth = p.depth();
    place = Operand::line(p, there ? z : 0, there ? of_batch : 0);
  }
  // Lines counted through all batches.
  __device__ __forceinline__ PackSource(const P& from, const Packing& all, const PackedOperand& to, int64_t line)
      : PackSource(from, static_cast<Index>(line / (to.lines / all.batches)),
                   static_cast<Index>(line % (to.lines / all.batches))) {}
  __device__ __forceinline__ float operator()(Index k) const {
    return k < depth ? static_cast<float>(Operand::at(p, place, k)) : 0.0f;
  }
};

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

// Where neighbours are along k: 1, 2, 4 or 8 warps to a line, 64 k a step, k and k + 32 to a lane. What a lane
// reads in its first PACK_KEPT steps it keeps until the line's largest element is known; more is read twice.
template <class W, class Operand, int LINES, class P>
__device__ __forceinline__ void pack_along(const P& p, const Packing& all, const PackedOperand& to, int64_t first_line) {
  __shared__ unsigned shared_peaks[PACK_THREADS / 32];
  __shared__ int shared_lossy[PACK_THREADS / 32];
  __shared__ unsigned shared_weights[PACK_THREADS / 32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = all.warps, first = warp / warps * warps, part = warp - first;
  const int64_t line = first_line + warp / warps;
  const PackSource<Operand, P> at(p, all, to, line);

  float kept[PACK_KEPT][2];
  unsigned peak = 0;
#pragma unroll
  for (int s = 0; s < PACK_KEPT; ++s) {
    const Index k = (part + s * warps) * 64 + lane;
    kept[s][0] = at(k);
    kept[s][1] = at(k + 32);
  }
  int exponent = 0;
  Losses losses;
  if constexpr (W::scaled) {
#pragma unroll
    for (int s = 0; s < PACK_KEPT; ++s) peak = max(peak, max(absolute_bits(kept[s][0]), absolute_bits(kept[s][1])));
#pragma unroll 4
    for (int64_t piece = part + PACK_KEPT * warps; piece < all.depth; piece += warps) {
      const Index k = static_cast<Index>(piece * 64) + lane;
      peak = max(peak, max(absolute_bits(at(k)), absolute_bits(at(k + 32))));
    }
    peak = __reduce_max_sync(0xffffffffu, peak);
    if (lane == 0) shared_peaks[warp] = peak;
    __syncthreads();
    for (int i = 0; i < warps; ++i) peak = max(peak, shared_peaks[first + i]);
    exponent = line_exponent(peak);
  }
  unsigned words[W::PLANES];
#pragma unroll
  for (int s = 0; s < PACK_KEPT; ++s) {
    const int64_t piece = part + s * warps;
    if (piece >= all.depth) break;
    pack_pair<W>(kept[s][0], kept[s][1], exponent, words, losses);
    put_words<W, LINES>(to, all.depth, line, piece, words);
  }
#pragma unroll 4
  for (int64_t piece = part + PACK_KEPT * warps; piece < all.depth; piece += warps) {
    const Index k = static_cast<Index>(piece * 64) + lane;
    pack_pair<W>(at(k), at(k + 32), exponent, words, losses);
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
    if (part == 0 && lane == 0) {
      for (int i = 1; i < warps; ++i) {
        lossy += shared_lossy[first + i];
        weight += shared_weights[first + i];
      }
      to.scales[line] = line_scale(peak, static_cast<float>(lossy));
      to.weights[line] = weight;
    }
  }
}

// The same for one warp that has few registers: everything is read twice, the second time from L2.
template <class W, class Operand, int LINES, class P>
__device__ __forceinline__ void pack_line(const P& p, const Packing& all, const PackedOperand& to, int64_t line) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const PackSource<Operand, P> at(p, all, to, line);
  float ahead[PACK_AHEAD][2];
  const auto fetch = [&](int64_t piece) {
#pragma unroll
    for (int s = 0; s < PACK_AHEAD; ++s) {
      const Index k = static_cast<Index>((piece + s) * 64) + lane;
      ahead[s][0] = at(k);
      ahead[s][1] = at(k + 32);
    }
  };
  unsigned peak = 0;
  if constexpr (W::scaled) {
#pragma unroll 1
    for (int64_t piece = 0; piece < all.depth; piece += PACK_AHEAD) {
      fetch(piece);
#pragma unroll
      for (int s = 0; s < PACK_AHEAD; ++s) peak = max(peak, max(absolute_bits(ahead[s][0]), absolute_bits(ahead[s][1])));
    }
    peak = __reduce_max_sync(0xffffffffu, peak);
  }
  const int exponent = line_exponent(peak);
  Losses losses;
#pragma unroll 1
  for (int64_t piece = 0; piece < all.depth; piece += PACK_AHEAD) {
    fetch(piece);
#pragma unroll
    for (int s = 0; s < PACK_AHEAD; ++s) {
      unsigned words[W::PLANES];
      pack_pair<W>(ahead[s][0], ahead[s][1], exponent, words, losses);
      if (piece + s < all.depth) put_words<W, LINES>(to, all.depth, line, piece + s, words);
    }
  }
  if constexpr (W::scaled) {
    const int lossy = __reduce_add_sync(0xffffffffu, losses.lossy);
    const unsigned weight = __reduce_add_sync(0xffffffffu, losses.weight());
    if (lane == 0) {
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
};

template <class Operand, class P>
__device__ __forceinline__ void peaks_across(const P& p, const Packing& all, const PackedOperand& to, int64_t block) {
  __shared__ unsigned shared_peaks[PACK_THREADS / 32][32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const Across part{block % (to.lines / 32) * 32, block / (to.lines / 32)};
  const int64_t line = part.line + lane;
  const PackSource<Operand, P> at(p, all, to, line);
  const Index begin = static_cast<Index>(part.chunk * PACK_CHUNK * 64);
  unsigned peak = 0;
#pragma unroll 16
  for (int k = warp; k < PACK_CHUNK * 64; k += PACK_THREADS / 32) peak = max(peak, absolute_bits(at(begin + k)));
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

// The line's largest element. Whoever packs its first chunk also leaves its scale.
__device__ __forceinline__ unsigned peak_across(const Packing& all, const PackedOperand& to, int64_t line, int64_t chunk) {
  const int64_t chunks = (all.depth - 1) / PACK_CHUNK + 1;
  unsigned peak = 0;
  for (int64_t c = 0; c < chunks; ++c) peak = max(peak, to.peaks[c * to.lines + line]);
  if (chunk == 0) {
    const LineScale made = line_scale(peak, 0);
    to.scales[line].factor = made.factor;
    if (made.lossy != 0) atomicAdd(&to.scales[line].lossy, made.lossy);  // inf and nan swallow every count
  }
  return peak;
}

template <class W, class Operand, int LINES, class P>
__device__ __forceinline__ void pack_across(const P& p, const Packing& all, const PackedOperand& to, const Across& part) {
  constexpr int WARPS = PACK_THREADS / 32, OWN = 32 / WARPS;  // lines that a warp writes
  __shared__ float turned[64][33];
  __shared__ unsigned line_peaks[32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t line = part.line + lane;
  const PackSource<Operand, P> at(p, all, to, line);
  int exponents[OWN] = {};
  Losses losses[OWN];
  if constexpr (W::scaled) {
    if (warp == 0) line_peaks[lane] = peak_across(all, to, line, part.chunk);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < OWN; ++i) exponents[i] = line_exponent(line_peaks[warp * OWN + i]);
  }
  const int64_t begin = part.chunk * PACK_CHUNK, end = all.depth - begin < PACK_CHUNK ? all.depth : begin + PACK_CHUNK;
#pragma unroll 1
  for (int64_t piece = begin; piece < end; ++piece) {
    float values[64 / WARPS];
#pragma unroll
    for (int i = 0; i < 64 / WARPS; ++i) values[i] = at(static_cast<Index>(piece * 64) + warp + i * WARPS);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 64 / WARPS; ++i) turned[warp + i * WARPS][lane] = values[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      unsigned words[W::PLANES];
      const int own = warp * OWN + i;
      pack_pair<W>(turned[lane][own], turned[lane + 32][own], exponents[i], words, losses[i]);
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

// The same for one warp without shared memory, a lane for each line: 16 bytes of a plane at a time.
template <class W, class Operand, int LINES, class P>
__device__ __forceinline__ void pack_lines(const P& p, const Packing& all, const PackedOperand& to, const Across& part) {
  constexpr int AHEAD = 2;  // chunks of 16 bytes
  const int64_t line = part.line + threadIdx.x % 32;
  const PackSource<Operand, P> at(p, all, to, line);
  int exponent = 0;
  if constexpr (W::scaled) exponent = line_exponent(peak_across(all, to, line, part.chunk));
  Losses losses;
  const int64_t begin = part.chunk * PACK_CHUNK, end = all.depth - begin < PACK_CHUNK ? all.depth : begin + PACK_CHUNK;
  const int r = static_cast<int>(line % LINES);
  unsigned char* to_piece = to.pieces + (line / LINES * all.depth + begin) * (W::PLANES * LINES * 128) + r * 128;
#pragma unroll 1
  for (int64_t piece = begin; piece < end; ++piece, to_piece += W::PLANES * LINES * 128)
#pragma unroll 1
    for (int c = 0; c < 8; c += AHEAD) {
      float ahead[AHEAD][4][2];
#pragma unroll
      for (int i = 0; i < AHEAD; ++i)
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const Index k = static_cast<Index>(piece * 64) + (c + i) * 4 + w;
          ahead[i][w][0] = at(k);
          ahead[i][w][1] = at(k + 32);
        }
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) {
        unsigned words[4][W::PLANES];
#pragma unroll
        for (int w = 0; w < 4; ++w) pack_pair<W>(ahead[i][w][0], ahead[i][w][1], exponent, words[w], losses);
#pragma unroll
        for (int plane = 0; plane < W::PLANES; ++plane)
          *reinterpret_cast<uint4*>(to_piece + plane * LINES * 128 + ((c + i) ^ (r & 7)) * 16) =
              make_uint4(words[0][plane], words[1][plane], words[2][plane], words[3][plane]);
      }
    }
  if constexpr (W::scaled) {
    if (losses.lossy > 0) atomicAdd(&to.scales[line].lossy, static_cast<float>(losses.lossy));
    atomicAdd(&to.weights[line], losses.weight());
  }
}

// A block's work before the product: lines, or a chunk of 32.
template <class W, class Operand, int LINES, class P>
__device__ __forceinline__ void pack_early(const P& p, const Packing& all, const PackedOperand& to, const PackTurn& turn) {
  if constexpr (Operand::along_k)
    pack_along<W, Operand, LINES>(p, all, to, turn.tile * LINES + turn.part * (PACK_THREADS / 32 / all.warps));
  else
    pack_across<W, Operand, LINES>(p, all, to, {turn.tile * LINES + turn.part % (LINES / 32) * 32, turn.part / (LINES / 32)});
}

template <class W, class P>
__device__ __forceinline__ void pack_block(const P& p, const Packing& all, int64_t block) {
  const PackTurn turn(all, block, all.a.blocks, all.b.blocks);
  if (turn.of_b)
    pack_early<W, OperandB<P>, W::BN>(p, all, all.b, turn);
  else
    pack_early<W, OperandA<P>, W::BM>(p, all, all.a, turn);
}

#if CRUCIBLE_HAS_WGMMA
// A warp's work beside the product.
template <class W, class Operand, int LINES, class P>
__device__ __forceinline__ void pack_late(const P& p, const Packing& all, const PackedOperand& to, const PackTurn& turn) {
  if constexpr (Operand::along_k)
    pack_line<W, Operand, LINES>(p, all, to, turn.tile * LINES + turn.part);
  else
    pack_lines<W, Operand, LINES>(p, all, to, {turn.tile * LINES + turn.part % (LINES / 32) * 32, turn.part / (LINES / 32)});
  hand_over(to.ready + turn.tile);
}

// Until there is no more.
template <class W, class P>
__device__ __forceinline__ void pack_beside(const P& p, const Packing& all) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t begin = all.a.early * all.a.each + all.b.early * all.b.each;
  const int64_t end = all.a.lines / W::BM * all.a.each + all.b.lines / W::BN * all.b.each;
  if (begin == end) return;
#pragma unroll 1
  for (;;) {
    const unsigned taken = lane == 0 ? atomicAdd(all.next, 1u) : 0;
    const int64_t work = begin + __shfl_sync(0xffffffffu, taken, 0);
    if (work >= end) return;
    const PackTurn turn(all, work, all.a.each, all.b.each);
    if (turn.of_b)
      pack_late<W, OperandB<P>, W::BN>(p, all, all.b, turn);
    else
      pack_late<W, OperandA<P>, W::BM>(p, all, all.a, turn);
  }
}
#endif

// Of A's lines in groups of 32, and each group's chunks, then of B's.
template <class P>
__device__ __forceinline__ void peaks_block(const P& p, const Packing& all, int64_t block) {
  const int64_t chunks = (all.depth - 1) / PACK_CHUNK + 1, first = P::a_along_k ? 0 : all.a.lines / 32 * chunks;
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
  follow();
#if CRUCIBLE_HAS_MMA
  peaks_block(p, all, blockIdx.x);
#endif
}

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
