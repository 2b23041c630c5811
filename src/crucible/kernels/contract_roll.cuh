// The operand that a product's tiles of rows share, packed piece by piece while the product goes on: it never lies in memory
// as a whole, and nobody waits for it beforehand.
//
// `height` blocks, one for each of as many tiles of rows, form a team: they take the same columns at the same time, and so
// the same pieces of B, 64 k deep each. Their idle warps read B and pack those pieces into the team's ring of ROLL_SLOTS in
// memory (which stays in L2). Each piece is packed once for the whole team: a warp always takes the same lines of a tile, and
// every so many pieces. For each slot the warps that have filled their part are counted, and each block counts the pieces
// that it is through with. All blocks of the launch must be there at a time, or a team would wait for ever: the launch is
// cooperative.
//
// The scale of a line is not known before all of it is read. ROLL_SAMPLES pieces of it tell its size: their largest element
// is brought to [2^9, 2^10), so that others may be 32 times as large. Whoever packs a larger one (or inf, or nan) raises the
// flag. Elements below 2^-12 of the samples' largest lose up to 2^-25 each and are counted, as contract_pack.cuh counts them.
//
// Bytes: B read once for each band of `height` tiles of rows, its planes written and read in L2 alone. Beside A's planes
// the workspace holds ROLL_SLOTS * BN * 256 bytes for each team.
#pragma once

#include "contract_pack.cuh"

#if CRUCIBLE_HOPPER && CRUCIBLE_SCALAR != 1  // tensor cores sum in float
namespace crucible {

#if CRUCIBLE_HAS_MMA
__device__ __forceinline__ void put_sampled(const Packing& all, int64_t line, unsigned peak) {
  const int exponent = min(exponent_to(9, peak), 126);  // one factor will do
  all.b.multipliers[line] = power_of_two(exponent);
  all.b.scales[line] = {power_of_two(-exponent), peak == 0 ? -INFINITY : 0.0f};
  all.b.weights[line] = 0;
}

// A warp for each line where neighbours are along k, a lane otherwise. Where all samples are zeros everything is read.
template <class P>
__device__ __forceinline__ void sample_block(const P& p, const Packing& all, int64_t block) {
  using Operand = OperandB<P>;
  constexpr int WARPS = PACK_THREADS / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  unsigned peak = 0;
  if constexpr (Operand::along_k) {
    const int64_t line = block * WARPS + warp;
    if (line >= all.b.lines) return;
    const PackSource<Operand, P> at(p, all, all.b, line);
    const auto look = [&](int64_t piece) {
      const Index k = static_cast<Index>(piece * 64) + lane;
      peak = max(peak, max(absolute_bits(at(k)), absolute_bits(at(k + 32))));
    };
#pragma unroll
    for (int s = 0; s < ROLL_SAMPLES; ++s) look(s * (all.depth - 1) / (ROLL_SAMPLES - 1));
    peak = __reduce_max_sync(0xffffffffu, peak);
    if (peak == 0) {
#pragma unroll 4
      for (int64_t piece = 0; piece < all.depth; ++piece) look(piece);
      peak = __reduce_max_sync(0xffffffffu, peak);
    }
    if (lane == 0) put_sampled(all, line, peak);
  } else {
    __shared__ unsigned shared_peaks[WARPS][32];
    const int64_t line = block * 32 + lane;
    const PackSource<Operand, P> at(p, all, all.b, line);
    const Index depth = p.depth(), last = depth - 1;
    const auto look = [&](Index first, Index step) {
#pragma unroll 8
      for (Index k = first; k < depth; k += step) peak = max(peak, absolute_bits(at(k)));
      shared_peaks[warp][lane] = peak;
      __syncthreads();
#pragma unroll
      for (int i = 0; i < WARPS; ++i) peak = max(peak, shared_peaks[i][lane]);
    };
    const Index step = last / (ROLL_SAMPLES * 32) + 1;
    look(warp * step, WARPS * step);
    if (__syncthreads_or(peak == 0)) look(warp, WARPS);
    if (warp == 0) put_sampled(all, line, peak);
  }
}
#endif

#if CRUCIBLE_HAS_WGMMA
// Of the pieces that a team's ring takes one after another.
struct RollSlot {
  unsigned at;   // among the slots of all teams
  unsigned use;  // how often it was used before
  __device__ __forceinline__ RollSlot(unsigned team, unsigned number)
      : at(team * ROLL_SLOTS + number % ROLL_SLOTS), use(number / ROLL_SLOTS) {}
};

// How many pieces a block's producer is through with, in shared memory.
__device__ __forceinline__ void fetched_is(unsigned* fetched, unsigned now) {
  __threadfence_block();
  atomicMax(fetched, now);
}
__device__ __forceinline__ unsigned fetched_now(unsigned* fetched) {
  return __shfl_sync(0xffffffffu, threadIdx.x % 32 == 0 ? atomicAdd(fetched, 0u) : 0u, 0);
}
// Tells other blocks. Returns the number.
__device__ __forceinline__ unsigned hand_back(unsigned* free, unsigned* fetched) {
  const unsigned now = fetched_now(fetched);
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
  if (threadIdx.x % 32 == 0) count_up_to(free, now);
  return now;
}

// A warp's part of a piece: of 16 lines where neighbours are along k, otherwise of 32 lines half a piece. A lane has four
// chunks of 16 bytes of each plane, four words of k and k + 32 each: one of every fourth line, or four of its own line.
template <class W, class P>
struct RollPart {
  using Operand = OperandB<P>;
  static constexpr bool ALONG = Operand::along_k, DIRECT = ALONG && P::b_direct && sizeof(scalar) == 4;
  static constexpr int PARTS = W::BN / ROLL_LINES;
  int lane, line, chunk;  // the lane's first line in the tile, and its first chunk
  float x[4][4][2];
  float weight = 0;    // the sum of a line's elements without signs, scaled: of own_line()
  unsigned lossy = 0;  // where a lane has a line: elements that lost bits
  bool large = false;

  __device__ __forceinline__ explicit RollPart(int part) : lane(static_cast<int>(threadIdx.x) % 32) {
    line = ALONG ? part * 16 + lane / 8 : part / 2 * 32 + lane;
    chunk = ALONG ? lane % 8 : part % 2 * 4;
  }
  // Of chunk i.
  __device__ __forceinline__ int line_of(int i) const { return ALONG ? line + i * 4 : line; }
  __device__ __forceinline__ int chunk_of(int i) const { return ALONG ? chunk : chunk + i; }
  __device__ __forceinline__ int own_line() const { return ALONG ? line + lane % 4 * 4 : line; }

  __device__ __forceinline__ void load(const P& p, const TilePlace& tile, Index k) {
    const Index first = tile.n * W::BN, last = Operand::lines(p) - 1;
    if constexpr (DIRECT) {  // 16 bytes at a time where that is possible
      const scalar* from[4];
      bool vectors = k + 64 <= p.depth() && first + line_of(3) <= last;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Index at = first + line_of(i) < last ? first + line_of(i) : last;
        from[i] = p.b_from(Operand::line(p, tile.z, at), k + chunk * 4);
        vectors = vectors && reinterpret_cast<uintptr_t>(from[i]) % 16 == 0;
      }
      if (__all_sync(0xffffffffu, vectors)) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float4 near = read(*reinterpret_cast<const float4*>(from[i]));
          const float4 far = read(*reinterpret_cast<const float4*>(from[i] + 32));
          const float both[4][2] = {{near.x, far.x}, {near.y, far.y}, {near.z, far.z}, {near.w, far.w}};
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            x[i][w][0] = both[w][0];
            x[i][w][1] = both[w][1];
          }
        }
        return;
      }
    }
    // Not to be seen through: the compiler would carry a place for each of a line's 32 elements from piece to piece, in
    // registers that a packer does not have.
    int own = chunk;
    if constexpr (!ALONG) asm volatile("" : "+r"(own));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const PackSource<Operand, P> at(p, tile.z, first + line_of(i));
      const Index from = k + (ALONG ? own : own + i) * 4;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        x[i][w][0] = at(from + w);
        x[i][w][1] = at(from + w + 32);
      }
    }
  }

  // Packs what was loaded. Elements that lose bits are few: they are counted where they are found.
  __device__ __forceinline__ void store(const Packing& all, const TilePlace& tile, float multiplier, unsigned char* piece) {
    float sums[4];
    unsigned counts = 0;  // of chunk i, four bits
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float scale = ALONG ? __shfl_sync(0xffffffffu, multiplier, i * 4 + lane / 8) : multiplier;
      unsigned words[4][W::PLANES];
      Losses found;
#pragma unroll
      for (int w = 0; w < 4; ++w) pack_scaled<W>({x[i][w][0] * scale, x[i][w][1] * scale}, words[w], found);
      sums[i] = found.sum;
      large |= !(found.sum < 0x1p15f);
      counts |= static_cast<unsigned>(found.lossy) << 4 * i;
      unsigned char* const at = piece + line_of(i) * 128 + (chunk_of(i) ^ (line_of(i) & 7)) * 16;
#pragma unroll
      for (int plane = 0; plane < W::PLANES; ++plane)
        *reinterpret_cast<uint4*>(at + plane * W::BN * 128) =
            make_uint4(words[0][plane], words[1][plane], words[2][plane], words[3][plane]);
    }
    if constexpr (ALONG) {
      // Neighbours give each other what they have of the other's lines, until each has one line's.
      const bool odd = lane % 2 != 0, upper = lane % 4 > 1;
      const auto give = [&](float low, float high, bool second, int step) {
        return (second ? high : low) + __shfl_xor_sync(0xffffffffu, second ? low : high, step);
      };
      const float both[2] = {give(sums[0], sums[2], upper, 2), give(sums[1], sums[3], upper, 2)};
      weight += give(both[0], both[1], odd, 1);
      while (counts != 0) {
        const int i = (__ffs(counts) - 1) / 4;
        atomicAdd(&all.b.scales[all.column<W>(tile) + line_of(i)].lossy, static_cast<float>(counts >> 4 * i & 15));  // exact
        counts &= ~(15u << 4 * i);
      }
    } else {
      weight += (sums[0] + sums[1]) + (sums[2] + sums[3]);
#pragma unroll
      for (int i = 0; i < 4; ++i) lossy += counts >> 4 * i & 15;
    }
  }

  // What was found out about the lines of a tile, in the end.
  __device__ __forceinline__ void tell(const Packing& all, const TilePlace& tile) {
    const int64_t at = all.column<W>(tile) + own_line();
    atomicAdd(&all.b.weights[at], __float2uint_ru(weight * 1.001f * 0x1p-7f));
    if (lossy > 0) atomicAdd(&all.b.scales[at].lossy, static_cast<float>(lossy));
    if (large) *all.again = 1;
    weight = 0;
    lossy = 0;
    large = false;
  }
};

// The idle warps of a block. A warp has one part of a piece in its registers, and asks for the next one before it waits
// until the present one is seen by everybody. Beside that they tell other blocks how far this one is (`fetched`, in shared
// memory): the producer itself would have to wait for its copies before it could.
template <class W, class P>
__device__ __forceinline__ void roll_beside(const P& p, const Packing& all, unsigned* fetched) {
  using Part = RollPart<W, P>;
  const unsigned team = blockIdx.x / all.height, member = blockIdx.x % all.height;
  const int lane = static_cast<int>(threadIdx.x) % 32, idle = static_cast<int>(threadIdx.x) / 32 - 1;
  const unsigned depth = static_cast<unsigned>(all.depth);
  const unsigned number = member * 3 + idle, step = all.height * 3 / Part::PARTS;
  Part part(number % Part::PARTS);
  TeamTiles tiles{team};
  TilePlace tile;
  unsigned next = number / Part::PARTS, begin = 0, through = 0;
  float multiplier = 0;
  const auto seek = [&] {  // the tile of the next piece
    while (next >= begin + depth) {
      begin += depth;
      if (!tiles.take(all, tile)) return false;
    }
    multiplier = all.b.multipliers[all.column<W>(tile) + (Part::ALONG ? number % Part::PARTS * 16 + lane % 16 : part.line)];
    part.load(p, tile, static_cast<Index>(next - begin) * 64);
    return true;
  };
  unsigned* const free = all.b.free + team * all.height;
  bool more = number < step * Part::PARTS && tiles.take(all, tile) && seek();  // some may be too many
#pragma unroll 1
  while (more) {
    // Until all blocks are through with what lies there.
    while (through + ROLL_SLOTS <= next) {
      hand_back(free + member, fetched);
      through = __reduce_min_sync(0xffffffffu, lane < all.height ? count_now(free + lane) : ~0u);
      __syncwarp();
    }
    const RollSlot slot(team, next);
    part.store(all, tile, multiplier, all.b.pieces + static_cast<int64_t>(slot.at) * W::B_BYTES);
    if (next + step >= begin + depth) part.tell(all, tile);  // seen by whoever sees the last piece
    next += step;
    more = seek();
    const unsigned now = fetched_now(fetched);
    hand_over(all.b.ready + slot.at);
    if (lane == 0) count_up_to(free + member, now);
  }
  if (idle > 0) return;
  // Others may go on for a while.
  const unsigned all_tiles = static_cast<unsigned>(all.tiles_n) * all.batches, teams = gridDim.x / all.height;
  const unsigned pieces = ((all_tiles - team - 1) / teams + 1) * depth;
  while (hand_back(free + member, fetched) + ROLL_SLOTS < pieces) {
  }
}
#endif

// All that comes before the product: samples of lines that roll, and what is packed early. Of that, what the product reads
// first comes last: then it is still in L2.
template <class W, class P>
__global__ void __launch_bounds__(PACK_THREADS, 3) wgmma_pack_kernel(const __grid_constant__ P p,
                                                                     const __grid_constant__ Packing all) {
  follow();
#if CRUCIBLE_HAS_MMA
  for (int64_t i = blockIdx.x * int64_t(PACK_THREADS) + threadIdx.x; i < all.counters; i += gridDim.x * int64_t(PACK_THREADS))
    all.again[i] = 0;
  const int64_t samples = all.sample_blocks(P::b_along_k);
  if (blockIdx.x < samples)
    sample_block(p, all, blockIdx.x);
  else
    pack_block<W>(p, all, static_cast<int64_t>(gridDim.x) - 1 - blockIdx.x);
#endif
}

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
