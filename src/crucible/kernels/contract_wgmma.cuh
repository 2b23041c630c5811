// The contraction engine on Hopper's tensor cores (wgmma, compute capability 9.0a), for the functors of contract.cuh.
//
// 1. A kernel packs of both operands what the first tiles need (contract_pack.cuh).
// 2. The product: blocks that stay on their processors, in clusters of two that share one operand's pieces. One thread
//    produces (bulk copies; of the shared operand each block brings half, for both), two warpgroups consume, 64 x BN each.
//    They take turns at the tensor cores, so that one adds while the other multiplies. Three more warps pack what later
//    tiles need; a producer waits until its tile's lines are ready. Those warps wait for nothing, so that nobody waits
//    for ever, however few blocks are there at a time. Or they pack B alone, a few pieces ahead (contract_roll.cuh).
// 3. The functor's epilogue, a warp for each row, through shared memory of its own: the next tile's copies go on meanwhile.
// 4. Where half numbers cannot hold the operands, a flag is raised, and the last launch, which otherwise returns at once,
//    does everything again with the mma engine of the same grade and as many columns in a tile.
//
// Grades:
//   Fp32    three products of half numbers; every 64 k start a fresh accumulator, the small products first (tensor cores
//           cut what they add), which goes to ordinary registers by rounded adds
//   Tf32    one product of half numbers
//   Native  one product of elements as they are (half or bfloat16). Never done again.
// The range: with n elements of a row and m of a column that lost bits, a sum is off by at most 2^-25 * 2^15 * (n + m), and
// that must be small against the sums themselves: for each row of a tile and for each column within a warp's 16 rows some
// sum must be 2^20 (2^14 in grade Tf32) times larger. A sum that cancels does no harm, a row or column of losses is seen.
// A line with inf or nan always raises the flag.
//
// Shared memory: STAGES of PLANES * (128 + BN) * 128 bytes, and 8 rows of each consumer warp on their way out.
// Registers: BN / 2 accumulators and BN / 2 sums.
// Bytes: A's planes come from L2 once for each tile of columns, B's once for each tile of rows, those of the shared
// operand half as often. Operations: 2 * M * N * K, three times that in grade Fp32.
#pragma once

#include "contract_shares.cuh"

#if CRUCIBLE_HOPPER && CRUCIBLE_SCALAR != 1  // tensor cores sum in float
namespace crucible {

// ---- instructions beside those of wgmma.cuh
#if CRUCIBLE_HAS_WGMMA
// Lines of 128 bytes in groups of eight, chunks swizzled; 16 k further is 2 more in the lowest field.
__device__ __forceinline__ uint64_t swizzled_at(unsigned address) {
  return static_cast<uint64_t>((address & 0x3ffffu) >> 4) | uint64_t(1) << 16 | uint64_t(64) << 32 | uint64_t(1) << 62;
}
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_meet() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// At the same barrier of a block of the cluster. Nothing is released: what was read, tensor cores read. (A release to the
// cluster would be a fence in the main loop: a tenth of the whole time.)
__device__ __forceinline__ void barrier_arrive_at(unsigned barrier, unsigned block) {
  asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
               "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(barrier), "r"(block) : "memory");
}
__device__ __forceinline__ void barrier_wait_cluster(unsigned barrier, unsigned parity) {
  unsigned passed;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(passed) : "r"(barrier), "r"(parity) : "memory");
  } while (!passed);
}
// To the same place of both blocks of the cluster; the bytes count on the same barrier of each.
__device__ __forceinline__ void bulk_copy_both(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
      ::"r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier), "h"(static_cast<unsigned short>(3))
      : "memory");
}
#endif

// ---- the product

#if CRUCIBLE_HAS_WGMMA
// From L2, for other processors may have written them a moment ago: of one line, of two neighbouring ones.
__device__ __forceinline__ LineScale one_scale(const LineScale* at) {
  const float2 two = __ldcg(reinterpret_cast<const float2*>(at));
  return {two.x, two.y};
}
__device__ __forceinline__ float4 two_scales(const LineScale* at) { return __ldcg(reinterpret_cast<const float4*>(at)); }

// Whether what half numbers lost is small against a warp's sums. Scales and weights are this thread's first.
template <class W>
__device__ __forceinline__ bool sums_hold(const float (&sums)[W::BN / 2], const LineScale (&rows)[2],
                                          const LineScale* columns, const unsigned* row_weights,
                                          const unsigned* column_weights) {
  constexpr float LIMIT = W::grade == Grade::Fp32 ? 0x1p10f : 0x1p4f;
  bool bad = false;
#pragma unroll
  for (int j = 0; j < W::BN / 8; ++j) {
    const float4 two = two_scales(columns + j * 8);
#pragma unroll
    for (int r = 0; r < 4; ++r)
      bad |= !(fabsf(sums[j * 4 + r]) >= LIMIT * (rows[r / 2].lossy + (r % 2 ? two.w : two.y)));
  }
  if (!__any_sync(0xffffffffu, bad)) return true;
  // Some sum is small. A closer bound: n lost elements meet at most n of the largest, and at most the partner's weight.
  // A row or a column of small ones? Zero rows and columns (-inf) say nothing; a nan spoils every comparison.
  bool row_bad[2] = {false, false}, row_good[2] = {false, false}, hold = true;
  const float row_weight[2] = {__ldcg(row_weights) * 0x1p-8f, __ldcg(row_weights + 8) * 0x1p-8f};
#pragma unroll
  for (int j = 0; j < W::BN / 8; ++j) {
    const float4 two = two_scales(columns + j * 8);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float lossy = i ? two.w : two.y, weight = __ldcg(column_weights + j * 8 + i) * 0x1p-8f;
      bool column_bad = false, column_good = false;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float bound = fminf(rows[h].lossy, weight) + fminf(lossy, row_weight[h]);
        const float least = LIMIT * (isnan(rows[h].lossy + lossy) ? NAN : bound);
        const bool good = fabsf(sums[j * 4 + h * 2 + i]) >= least;
        row_bad[h] |= !good;
        column_bad |= !good;
        row_good[h] |= good && least >= 0;
        column_good |= good && least >= 0;
      }
      unsigned some = __ballot_sync(0xffffffffu, column_good), none = __ballot_sync(0xffffffffu, column_bad);
#pragma unroll
      for (int shift = 16; shift >= 4; shift /= 2) {
        some |= some >> shift;
        none |= none >> shift;
      }
      hold = hold && (none & ~some & 0xfu) == 0;
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    unsigned some = __ballot_sync(0xffffffffu, row_good[h]), none = __ballot_sync(0xffffffffu, row_bad[h]);
#pragma unroll
    for (int shift = 2; shift >= 1; shift /= 2) {
      some |= some >> shift;
      none |= none >> shift;
    }
    hold = hold && (none & ~some & 0x11111111u) == 0;
  }
  return hold;
}

// A cluster's tiles, one after another, or those of a team of clusters.
struct ClusterTiles {
  unsigned next;
  __device__ __forceinline__ explicit ClusterTiles(const Packing& all)
      : next(blockIdx.x / (all.height > 0 ? all.height : all.cluster)) {}
  // This block's tile of the next pair; it may lie past the last.
  __device__ __forceinline__ bool take(const Packing& all, unsigned rank, TilePlace& tile) {
    if (all.height > 0) {
      TeamTiles tiles{next};
      const bool there = tiles.take(all, tile);
      next = tiles.next;
      return there;
    }
    if (next >= static_cast<unsigned>(all.pairs_m) * all.pairs_n * all.batches) return false;
    tile = tile_place(next, all.pairs_m, all.pairs_n);
    next += gridDim.x / all.cluster;
    tile.m = tile.m * all.high + (all.high > 1 ? static_cast<Index>(rank) : 0);
    tile.n = tile.n * all.wide + (all.wide > 1 ? static_cast<Index>(rank) : 0);
    return true;
  }
};

template <class W>
struct Ring {
  int slot = 0;
  unsigned parity = 0;
  __device__ __forceinline__ void advance() {
    if (++slot == W::STAGES) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// Where things lie in shared memory.
template <class W>
struct WgmmaShared {
  unsigned base;
  __device__ __forceinline__ unsigned a(int slot) const { return base + slot * W::STAGE; }
  __device__ __forceinline__ unsigned b(int slot) const { return base + slot * W::STAGE + W::A_BYTES; }
  __device__ __forceinline__ unsigned full(int slot) const { return base + W::STAGES * W::STAGE + W::OUT_BYTES + 8 * slot; }
  __device__ __forceinline__ unsigned empty(int slot) const { return full(slot) + 8 * W::STAGES; }
};

// A piece of the operand that both blocks of a cluster need: each brings half for both.
__device__ __forceinline__ void shared_copy(unsigned to, const unsigned char* from, unsigned bytes, unsigned barrier,
                                            unsigned rank, int blocks) {
  const unsigned half = rank * (bytes / 2);
  if (blocks > 1)
    bulk_copy_both(to + half, from + half, bytes / 2, barrier);
  else
    bulk_copy(to, from, bytes, barrier);
}

// The producer, one thread. A tile past the last takes the last one's place: the partner needs its half.
template <class W>
__device__ __forceinline__ void produce(const Packing& all, const WgmmaShared<W>& shared, unsigned rank,
                                        unsigned* fetched) {
  ClusterTiles tiles(all);
  TilePlace tile;
  Ring<W> ring;
  unsigned rolled = 0;  // pieces of a rolling operand
  while (tiles.take(all, rank, tile)) {
    const int64_t m = tile.z * static_cast<int64_t>(all.tiles_m) + (tile.m < all.tiles_m ? tile.m : all.tiles_m - 1);
    const int64_t n = tile.z * static_cast<int64_t>(all.tiles_n) + (tile.n < all.tiles_n ? tile.n : all.tiles_n - 1);
    if (m >= all.a.early) count_wait(all.a.ready + m, static_cast<unsigned>(all.a.each));
    if (all.height == 0 && n >= all.b.early) count_wait(all.b.ready + n, static_cast<unsigned>(all.b.each));
    const unsigned char* a = all.a.pieces + m * all.depth * W::A_BYTES;
    const unsigned char* b = all.b.pieces + n * all.depth * W::B_BYTES;
    for (int64_t piece = 0; piece < all.depth; ++piece) {
      const unsigned full = shared.full(ring.slot);
      if (all.height > 0) {
        const RollSlot slot(blockIdx.x / all.height, rolled);
        count_wait(all.b.ready + slot.at, static_cast<unsigned>(all.b.each) * (slot.use + 1));
        b = all.b.pieces + static_cast<int64_t>(slot.at) * W::B_BYTES;
      }
      barrier_wait_cluster(shared.empty(ring.slot), ring.parity ^ 1);
      barrier_expect(full, W::STAGE);
      if (all.high > 1) {
        bulk_copy(shared.a(ring.slot), a, W::A_BYTES, full);
        shared_copy(shared.b(ring.slot), b, W::B_BYTES, full, rank, all.cluster);
      } else {
        bulk_copy(shared.b(ring.slot), b, W::B_BYTES, full);
        shared_copy(shared.a(ring.slot), a, W::A_BYTES, full, rank, all.cluster);
      }
      ++rolled;
      // Both blocks are through with the piece that lay there before: whoever packs may have its slot.
      if (all.height > 0 && rolled > W::STAGES) fetched_is(fetched, rolled - W::STAGES);
      a += W::A_BYTES;
      b += W::B_BYTES;
      ring.advance();
    }
  }
}

// Whether lanes take whole groups of columns, in eight rows of a tile at once: then there are four of them at least.
template <class W, class P>
constexpr bool groups_fit = P::statistics && P::group >= 4 && P::group <= W::BN / 4 && W::BN <= 32 * P::group;

// What a tail wants to know of a lane's groups: each takes every 32nd.
template <class W, class P>
struct TileGroups {
  static constexpr int GROUPS = W::BN / P::group, TURNS = GROUPS / 4, ROWS = 32 / GROUPS;  // rows of a turn
  typename TailOf<P>::Group of[TURNS];
};

// Statistics of groups in eight rows of finished values: a lane takes whole groups, one after another, so that lanes need
// not talk to each other (finish_row's shuffles cost a seventh of the whole time). 16-byte loads in an order in which
// neighbouring groups hit distinct banks.
template <class W, class P>
__device__ __forceinline__ TileGroups<W, P> sink_groups(const P& p, Index z, Index first, int rows, Index n0, const float* out) {
  using Groups = TileGroups<W, P>;
  constexpr int GROUPS = Groups::GROUPS, QUADS = P::group / 4, NEAR = 32 / P::group > 0 ? 32 / P::group : 1;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Groups found;
#pragma unroll
  for (int turn = 0; turn < Groups::TURNS; ++turn) {
    const int pair = turn * 32 + lane, r = pair / GROUPS, g = pair % GROUPS;
    const float* from = out + r * W::row_stride + g * P::group;
    float4 v[QUADS];
    float sum = 0;
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
      v[q] = reinterpret_cast<const float4*>(from)[(q + g / NEAR) % QUADS];
      sum += (v[q].x + v[q].y) + (v[q].z + v[q].w);
    }
    const float near = sum / P::group;
    float off = 0, squares = 0;
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
      const float d[4] = {v[q].x - near, v[q].y - near, v[q].z - near, v[q].w - near};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        off += d[i];
        squares = fmaf(d[i], d[i], squares);
      }
    }
    off /= P::group;
    const float mean = near + off, m2 = squares - P::group * off * off;
    found.of[turn] = TailOf<P>::group(p, P::group, mean, m2);
    if (r < rows && n0 + g * P::group < p.cols()) p.sink(z, first + r, n0 / P::group + g, P::group, mean, m2);
  }
  return found;
}

// Eight rows of a tile, column by column, so that what is read for a column is read once: a lane takes every 32nd.
// WHOLE: all are there, and nothing is asked.
template <bool WHOLE, class W, class P, class C>
__device__ __forceinline__ void finish_rows(const P& p, Index z, Index first, int rows, const C& columns, float* out) {
#pragma unroll (WHOLE ? 4 : 1)
  for (int j = 0; j < W::BN / 32; ++j)
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      float& at = out[r * W::row_stride + columns.from(j)];
      if (WHOLE || (r < rows && columns.valid(0, j))) at = p.finish(z, first + r, columns.column(0, j), 0, at, true);
    }
}

// What follows the statistics, in the same order. Lanes ask who knows of a group.
template <bool WHOLE, class W, class P, class C>
__device__ __forceinline__ void tail_rows(const P& p, Index z, Index first, int rows, const C& columns,
                                          const TileGroups<W, P>& found, const float* out) {
  using Groups = TileGroups<W, P>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  typename P::Tail tails[8];
#pragma unroll (WHOLE ? 4 : 1)
  for (int j = 0; j < W::BN / 32; ++j)
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      const int turn = r / Groups::ROWS, from = r % Groups::ROWS * Groups::GROUPS + columns.from(j) / P::group;
      const auto own = shuffled(found.of[turn], [from](uint32_t word) { return __shfl_sync(0xffffffffu, word, from); });
      if (WHOLE || (r < rows && columns.valid(0, j)))
        p.tail(z, first + r, columns.column(0, j), out[r * W::row_stride + columns.from(j)], own, tails[r]);
    }
  if constexpr (P::reduces) {
    const auto row = scattered_join(tails);
    if (lane % 4 == 0 && lane / 4 < rows) p.tail_out(z, first + lane / 4, columns.tile, row);
  }
}

// Eight rows of sums that lie in shared memory, by a warp.
template <bool WHOLE, class W, class P, class C>
__device__ __forceinline__ void hand_groups(const P& p, const TilePlace& tile, Index first, int rows, const C& columns, float* out) {
  finish_rows<WHOLE, W>(p, tile.z, first, rows, columns, out);
  __syncwarp();
  const auto found = sink_groups<W>(p, tile.z, first, rows, tile.n * W::BN, out);
  if constexpr (TailOf<P>::there) tail_rows<WHOLE, W>(p, tile.z, first, rows, columns, found, out);
}

// Sums leave the registers, eight rows of a warp at a time, and go through the functor.
template <class W, class P>
__device__ __forceinline__ void hand_out(const P& p, const Packing& all, const TilePlace& tile, int group,
                                         const float (&sums)[W::BN / 2], float* out) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4, lane = static_cast<int>(threadIdx.x) % 32;
  const Index first = tile.m * W::BM + group * 64 + warp * 16;
  LineScale rows[2] = {};
  const LineScale* columns = nullptr;
  if constexpr (W::scaled) {
    const LineScale* at = all.a.scales + tile.z * static_cast<int64_t>(all.tiles_m) * W::BM + first + lane / 4;
    rows[0] = one_scale(at);
    rows[1] = one_scale(at + 8);
    columns = all.b.scales + all.column<W>(tile) + lane % 4 * 2;
    const int64_t row = at - all.a.scales, column = columns - all.b.scales;
    if (!sums_hold<W>(sums, rows, columns, all.a.weights + row, all.b.weights + column) && lane == 0) *all.again = 1;
  }
  const auto place = columns_of<W>(p, tile.n);
  const Index left = p.rows() - first;
#pragma unroll 1
  for (int h = 0; h < 2; ++h) {
    if (h * 8 >= left) break;
    __syncwarp();
    const float row = h ? rows[1].factor : rows[0].factor;
#pragma unroll
    for (int j = 0; j < W::BN / 8; ++j) {
      float2 two = {h ? sums[j * 4 + 2] : sums[j * 4], h ? sums[j * 4 + 3] : sums[j * 4 + 1]};
      if constexpr (W::scaled) {  // what makes smaller comes first: nothing overflows on the way
        const float4 c = two_scales(columns + j * 8);
        two.x = two.x * fminf(row, c.x) * fmaxf(row, c.x);
        two.y = two.y * fminf(row, c.z) * fmaxf(row, c.z);
      }
      *reinterpret_cast<float2*>(out + lane / 4 * W::row_stride + j * 8 + lane % 4 * 2) = two;
    }
    __syncwarp();
    if constexpr (groups_fit<W, P>) {
      const int there = left - h * 8 < 8 ? static_cast<int>(left) - h * 8 : 8;
      if (there == 8 && place.count == W::BN)
        hand_groups<true, W>(p, tile, first + h * 8, there, place, out);
      else
        hand_groups<false, W>(p, tile, first + h * 8, there, place, out);
    } else {
#pragma unroll 1
      for (int r = 0; r < 8; ++r)
        if (h * 8 + r < left) finish_row<W>(p, tile.z, first + h * 8 + r, place, 0, out + r * W::row_stride);
    }
  }
}

// Two warpgroups, 64 rows of the tile each.
template <class W, class P>
__device__ __forceinline__ void consume(const P& p, const Packing& all, const WgmmaShared<W>& shared, unsigned rank,
                                        float* out) {
  using Instruction = Wgmma<W::BN, W::kind>;
  const int group = static_cast<int>(threadIdx.x) / 128 - 1, lane = static_cast<int>(threadIdx.x) % 32;
  ClusterTiles tiles(all);
  TilePlace tile;
  Ring<W> ring;
  if (group == 1) turn_give(1);  // the first group begins
  while (tiles.take(all, rank, tile)) {
    float sums[W::BN / 2], part[W::BN / 2];
#pragma unroll
    for (int i = 0; i < W::BN / 2; ++i) sums[i] = part[i] = 0;
#pragma unroll 1
    for (int64_t piece = 0; piece < all.depth; ++piece) {
      const uint64_t a = swizzled_at(shared.a(ring.slot) + group * 64 * 128), b = swizzled_at(shared.b(ring.slot));
      barrier_wait(shared.full(ring.slot), ring.parity);
      turn_wait(1 + group);
      settle(part);
      wgmma_begin();
      if constexpr (W::PLANES == 2) {
        const uint64_t a_low = a + W::BM * 128 / 16, b_low = b + W::BN * 128 / 16;
#pragma unroll
        for (int k = 0; k < 4; ++k) Instruction::multiply(part, a + 2 * k, b_low + 2 * k, k > 0);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          Instruction::multiply(part, a_low + 2 * k, b + 2 * k, 1);
          if (k == 1) wgmma_end();
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) Instruction::multiply(part, a + 2 * k, b + 2 * k, 1);
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          Instruction::multiply(part, a + 2 * k, b + 2 * k, k > 0);
          if (k == 1) wgmma_end();
        }
      }
      wgmma_end();
      wgmma_wait<1>();
      turn_give(1 + (group ^ 1));  // half is done: the other's products queue up behind the rest
      wgmma_wait<0>();
      settle(part);
      if (lane < all.cluster) barrier_arrive_at(shared.empty(ring.slot), lane);
      ring.advance();
#pragma unroll
      for (int i = 0; i < W::BN / 2; ++i) sums[i] += part[i];
    }
    if (tile.m < all.tiles_m && tile.n < all.tiles_n) hand_out<W>(p, all, tile, group, sums, out);
  }
  if (group == 0) turn_wait(1);  // the last turn given
}
#endif

template <class W, class P>
__global__ void __launch_bounds__(W::threads, 1)
    contract_wgmma_kernel(const __grid_constant__ P p, const __grid_constant__ Packing all) {
  follow();
#if CRUCIBLE_HAS_WGMMA
  extern __shared__ __align__(1024) unsigned char wgmma_shared[];
  const WgmmaShared<W> shared{shared_address(wgmma_shared)};
  unsigned* const fetched = reinterpret_cast<unsigned*>(wgmma_shared + W::shared_bytes - 4);
  const unsigned rank = cluster_rank();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < W::STAGES; ++s) {
      barrier_init(shared.full(s), 1);
      barrier_init(shared.empty(s), all.cluster * W::CONSUMERS / 32);  // the consumers' warps of both blocks
    }
    barrier_inits_done();
    *fetched = 0;
  }
  cluster_meet();
  if (warp < 4) {
    registers_down<W::PACKER_REGISTERS>();
    if (threadIdx.x == 0) produce<W>(all, shared, rank, fetched);
    if (warp > 0 && all.height == 0) pack_beside<W>(p, all);
    if (warp > 0 && all.height > 0) roll_beside<W>(p, all, fetched);
    __syncwarp();
  } else {
    registers_up<W::CONSUMER_REGISTERS>();
    float* const out = reinterpret_cast<float*>(wgmma_shared + W::STAGES * W::STAGE) + (warp - 4) * 8 * W::row_stride;
    consume<W>(p, all, shared, rank, out);
  }
  cluster_meet();  // neither block leaves while the other may write to it
#else
  __trap();  // the host chose an engine that this chip does not have
#endif
}

// ---- doing it again

// A block for each tile: one that returns at once costs far less than the tile did. (A loop over tiles would cost the
// registers that this engine is short of.)
template <class Config, class P>
__global__ void __launch_bounds__(Config::threads, Config::blocks_per_sm)
    contract_again_kernel(const __grid_constant__ P p, const int* again) {
  follow();
  extern __shared__ __align__(16) unsigned char again_shared[];
  if (*again != 0) contract_tile<Config>(p, blockIdx.x, 0, 1, again_shared);
}

#ifndef __CUDACC_RTC__
template <class W, class P>
cudaError_t launch_wgmma_pack(const P& p, const Packing& all, cudaStream_t stream) {
  const int64_t most = 0x7fffffff, chunks = all.depth == 0 ? 1 : whole(all.depth, PACK_CHUNK);
  const int64_t blocks = all.a.early * all.a.blocks + all.b.early * all.b.blocks + all.sample_blocks(P::b_along_k);
  const int64_t peaks = ((P::a_along_k ? 0 : all.a.lines) + (P::b_along_k || all.height > 0 ? 0 : all.b.lines)) / 32 * chunks;
  if (blocks > most || peaks > most) return cudaErrorInvalidValue;
  if constexpr (W::scaled && !(P::a_along_k && P::b_along_k)) {
    After after(static_cast<unsigned>(peaks), PACK_THREADS, 0, stream);
    const cudaError_t refused = peaks == 0 ? cudaSuccess : cudaLaunchKernelEx(after, wgmma_peaks_kernel<P>, p, all);
    if (refused != cudaSuccess) return refused;
  }
  return cudaLaunchKernelEx(After(static_cast<unsigned>(blocks), PACK_THREADS, 0, stream), wgmma_pack_kernel<W, P>, p, all);
}

template <class W, class P>
cudaError_t launch_wgmma_multiply(const P& p, const Packing& all, int processors, cudaStream_t stream) {
  const cudaError_t refused = allow_shared(contract_wgmma_kernel<W, P>, W::shared_bytes);
  if (refused != cudaSuccess) return refused;
  const unsigned cluster = static_cast<unsigned>(all.cluster);
  const int64_t pairs = all.pairs(), at_once = processors / all.cluster;
  const int64_t blocks = all.height > 0 ? all.teams(processors) * all.height : cluster * (pairs < at_once ? pairs : at_once);
  After after(static_cast<unsigned>(blocks), W::threads, W::shared_bytes, stream, cluster, all.height > 0);  // teams wait for each other
  return cudaLaunchKernelEx(after, contract_wgmma_kernel<W, P>, p, all);
}

template <class W, class P>
cudaError_t launch_wgmma_again(const P& p, const Packing& all, cudaStream_t stream) {
  using Config = typename W::Other;
  static_assert(W::BM == Config::BM && W::BN == Config::BN, "the same tiles, so that partial results have the same places");
  const cudaError_t refused = allow_shared(contract_again_kernel<Config, P>, Config::shared_bytes);
  if (refused != cudaSuccess) return refused;
  const unsigned tiles = static_cast<unsigned>(all.batches) * all.tiles_m * all.tiles_n;
  return cudaLaunchKernelEx(After(tiles, Config::threads, Config::shared_bytes, stream), contract_again_kernel<Config, P>, p, all.again);
}

// Launches nothing where D is empty. cudaErrorInvalidValue: too many tiles.
template <class W, class P>
cudaError_t launch_contract_wgmma(const P& p, void* workspace, void* pieces, cudaStream_t stream) {
  static_assert(!P::boxed, "columns are columns");
  if (p.batches() == 0 || p.rows() == 0 || p.cols() == 0) return cudaSuccess;
  const int64_t tiles_m = whole(p.rows(), W::BM), tiles_n = whole(p.cols(), W::BN), most = 0x7fffffff;
  if (tiles_m > most / tiles_n || p.batches() > most / (tiles_m * tiles_n)) return cudaErrorInvalidValue;
  int device = 0, processors = 0, clusters = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  if (clusters == 0) return launch_contract<typename W::Other>(p, 1, stream);  // simulated, a product of small tiles is faster
  Packing all = wgmma_packing<W>(p, workspace, pieces, nullptr);
  share_packing<W>(all, processors, clusters, W::PACE);
  if (all.height > processors) return launch_contract<typename W::Other>(p, 1, stream);  // a small part of a chip
  error = launch_wgmma_pack<W>(p, all, stream);
  if (error == cudaSuccess) error = launch_wgmma_multiply<W>(p, all, processors, stream);
  if constexpr (W::scaled)
    if (error == cudaSuccess) error = launch_wgmma_again<W>(p, all, stream);
  return error;
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
