// The host's part of packing operands for Hopper's matrix instructions (contract_pack.cuh, contract_roll.cuh): where they
// lie, whether B is packed piece by piece, and what is packed before the product, what beside it.
#pragma once

#include "contract_roll.cuh"

#if CRUCIBLE_HOPPER && CRUCIBLE_SCALAR != 1 && !defined(__CUDACC_RTC__)
namespace crucible {

constexpr int64_t whole(int64_t n, int64_t of) { return (n + of - 1) / of; }

// How many blocks form a team, for which B is packed piece by piece: 0 where that would be slower. A team of fewer than
// eight has too few warps for it. With more tiles of rows, of which one round alone waits for packing, what packing the
// whole beforehand costs is less than the tenth that the product loses (on an H200 with 1024 rows 0.68 instead of 0.71 ms,
// with 1536 rows 0.31 instead of 0.30), and so it is where whole teams need more rounds than pairs of blocks.
template <class W>
int rolling_height(int64_t tiles_m, int64_t tiles_n, int64_t batches, int64_t depth) {
  const int64_t height = whole(tiles_m, 2) * 2, rounds = whole(tiles_m * tiles_n * batches, HOPPER_PROCESSORS);
  const bool slow = W::grade != Grade::Fp32 || height < 8 || height > 10 || depth == 0 || tiles_n * batches > (1 << 30) / depth;
  return slow || whole(tiles_n * batches, HOPPER_PROCESSORS / height) > rounds ? 0 : static_cast<int>(height);
}

// The packed operands' places (1024-byte aligned): A's pieces lie apart, so that they find room where all would not.
// `bytes`: what the workspace must have, and what the pieces.
template <class W, class P>
Packing wgmma_packing(const P& p, void* workspace, void* pieces, int64_t* bytes, int height = -1) {
  Packing all{};
  all.batches = static_cast<int>(p.batches());
  all.tiles_m = static_cast<int>(whole(p.rows(), W::BM));
  all.tiles_n = static_cast<int>(whole(p.cols(), W::BN));
  all.depth = whole(p.depth(), W::BK);
  all.warps = 1;
  while (all.warps < PACK_THREADS / 32 && all.warps * PACK_KEPT < all.depth) all.warps *= 2;
  const int64_t chunks = all.depth == 0 ? 1 : whole(all.depth, PACK_CHUNK);
  int64_t used = 0;
  const auto take = [&](int64_t size) {
    unsigned char* at = static_cast<unsigned char*>(workspace) + used;
    used += whole(size, 1024) * 1024;
    return at;
  };
  const auto place = [&](PackedOperand& o, int64_t tiles, int lines, bool along) {
    o.lines = tiles * lines;
    o.early = tiles;
    o.each = along ? lines : static_cast<int>(lines / 32 * chunks);
    o.blocks = along ? lines / (PACK_THREADS / 32 / all.warps) : o.each;
    o.scales = reinterpret_cast<LineScale*>(take(o.lines * sizeof(LineScale)));
    o.weights = reinterpret_cast<unsigned*>(take(o.lines * 4));
    o.peaks = reinterpret_cast<unsigned*>(take(along ? 0 : chunks * o.lines * 4));
  };
  const auto piece_bytes = [&](const PackedOperand& o) { return o.lines * all.depth * W::PLANES * 128; };
  const auto roll = [&](PackedOperand& o, int64_t tiles, int lines) {
    o.lines = tiles * lines;
    o.each = lines / ROLL_LINES;
    o.pieces = take(all.teams(MOST_PROCESSORS) * ROLL_SLOTS * W::PLANES * 128 * lines);
    o.scales = reinterpret_cast<LineScale*>(take(o.lines * sizeof(LineScale)));
    o.weights = reinterpret_cast<unsigned*>(take(o.lines * 4));
    o.multipliers = reinterpret_cast<float*>(take(o.lines * 4));
  };
  const int64_t a_tiles = static_cast<int64_t>(all.batches) * all.tiles_m;
  const int64_t b_tiles = static_cast<int64_t>(all.batches) * all.tiles_n;
  all.height = height < 0 ? rolling_height<W>(all.tiles_m, all.tiles_n, all.batches, all.depth) : height;
  const int64_t slots = all.height > 0 ? all.teams(MOST_PROCESSORS) * ROLL_SLOTS : 0;
  all.counters = 2 + a_tiles + (all.height > 0 ? slots + all.teams(MOST_PROCESSORS) * all.height : b_tiles);
  all.again = reinterpret_cast<int*>(take(all.counters * 4));
  all.next = reinterpret_cast<unsigned*>(all.again) + 1;
  all.a.ready = all.next + 1;
  all.b.ready = all.a.ready + a_tiles;
  all.b.free = all.b.ready + slots;
  place(all.a, a_tiles, W::BM, P::a_along_k);
  all.a.pieces = static_cast<unsigned char*>(pieces);
  if (all.height > 0) {
    roll(all.b, b_tiles, W::BN);
  } else {
    place(all.b, b_tiles, W::BN, P::b_along_k);
    all.b.pieces = take(piece_bytes(all.b));
  }
  if (bytes != nullptr) bytes[0] = used, bytes[1] = piece_bytes(all.a);
  return all;
}

// Tiles of A and B that the first `pairs` clusters' tiles need.
inline void tiles_needed(const Packing& all, int64_t pairs, int64_t* a, int64_t* b) {
  const int64_t of_batch = static_cast<int64_t>(all.pairs_m) * all.pairs_n, z = (pairs - 1) / of_batch, within = (pairs - 1) % of_batch;
  const int64_t band = within / (TILE_BAND * static_cast<int64_t>(all.pairs_n)), column = within / smaller(TILE_BAND, all.pairs_m);
  const int64_t rows = (band + 1) * TILE_BAND * all.high, columns = band > 0 ? all.tiles_n : (column + 1) * all.wide;
  *a = z * all.tiles_m + (rows < all.tiles_m ? rows : all.tiles_m);
  *b = z * all.tiles_n + (columns < all.tiles_n ? columns : all.tiles_n);
}

// Who packs what: before the product what the first tiles of all processors need, and so much more that the idle warps,
// which pack `pace` lines on a processor while it computes a tile, have the rest in time.
template <class W>
void share_packing(Packing& all, int processors, int clusters, int pace) {
  const bool rows = all.height > 0 || all.tiles_m % 2 == 0 || (all.tiles_n % 2 != 0 && all.tiles_m >= all.tiles_n);
  all.cluster = clusters ? 2 : 1;
  all.high = rows ? all.cluster : 1;
  all.wide = rows ? 1 : all.cluster;
  all.pairs_m = static_cast<int>(whole(all.tiles_m, all.high));
  all.pairs_n = static_cast<int>(whole(all.tiles_n, all.wide));
  const int64_t pairs = all.pairs(), at_once = processors / all.cluster, a_all = all.a.early, b_all = all.b.early;
  if (pairs <= at_once || pace == 0 || all.depth == 0 || all.height > 0) return;  // without pieces consumers wait for nobody
  const int64_t in_time = whole(pairs - at_once, at_once) * processors * pace;
  int64_t low = at_once, high = pairs;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    tiles_needed(all, middle, &all.a.early, &all.b.early);
    const int64_t late = (a_all - all.a.early) * W::BM + (b_all - all.b.early) * W::BN;
    if (late <= in_time)
      high = middle;
    else
      low = middle + 1;
  }
  tiles_needed(all, low, &all.a.early, &all.b.early);
}

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
