// A convolution and its norm in one launch (window_held.cuh): what a block has of every sample, and what of it lies where in shared
// memory.
#pragma once

#include "window_strips.cuh"

#if CRUCIBLE_HOPPER
namespace crucible {

// As Wgmma, with 64 x 16 values in registers: of a[2j + h], row 16 * (warp % 4) + 8h + lane / 4 and columns 8j + 2 * (lane % 4) and
// the next, in the high half, are this thread's.
template <int N, Operands kind>
struct WgmmaKept;

// SLOTS lines in the ring, CHUNKS of 16 channels. The names are those of Strips.
template <int SLOTS_, int CHUNKS_>
struct Holding {
  static constexpr Operands kind = Operands::Half;
  static constexpr int WARPGROUPS = 2, SLOTS = SLOTS_, CHUNKS = CHUNKS_, LANDINGS = 2 * CHUNKS;  // a buffer for each unit
  static constexpr int CONSUMERS = WARPGROUPS * 128, WARPS = 4, threads = CONSUMERS + 2 * WARPS * 32;
  static constexpr int UP = 216, DOWN = 40;  // registers of a thread
  static constexpr int BM = PAIR_ROWS, UNIT = 8, CHANNELS = 16;
};

constexpr int HELD_BLOCKS = 160, HELD_GROUPS = 16;  // at most
constexpr int HELD_COMMON = 8;  // numbers that a row's elements have in common, at most
constexpr int HELD_LEAST = 4;   // lines of a sample that a block has

template <class W, class P>
struct Hold {
  using S = Strip<W, P>;
  static constexpr int BOX = P::Box::at(3), STEPS = W::CHUNKS * S::TAPS;
  // Instructions whose weights are in registers: what sums and all else leave.
  static constexpr int KEPT = STEPS < (W::UP - 48 - S::N / 2) / 4 ? STEPS : (W::UP - 48 - S::N / 2) / 4;
  static constexpr int LINE = PAIR_ROWS * BOX;  // floats of a slot
  static constexpr int RING = 0, LANDINGS = RING + W::SLOTS * S::SLOT_BYTES, WEIGHTS = LANDINGS + W::LANDINGS * S::LANDING_BYTES;
  static constexpr int TABLE = WEIGHTS + (STEPS - KEPT) * TAP_BYTES, PARTS = TABLE + PAIR_ROWS * HELD_COMMON * 4;
  static constexpr int SHARES = PARTS + 2 * 2 * PAIR_ROWS * 8, BARRIERS = SHARES + HELD_BLOCKS * 4;
  static constexpr int MOST = 8;  // lines
  static constexpr int FIRST = BARRIERS + ((2 * W::SLOTS + W::LANDINGS + 2 * MOST + 2) * 8 + 127) / 128 * 128;  // of the lines
  static constexpr int LINES = (232448 - FIRST) / (LINE * 4) < MOST ? (232448 - FIRST) / (LINE * 4) : MOST;
  static constexpr int shared_bytes = FIRST + LINES * LINE * 4;
};

// How samples are cut: strips, and lines of each strip. None where a block could not keep its part.
struct HeldCut {
  int strips = 0, segments = 0, each = 0, longer = 0;  // lines of each segment; so many have one more
};

#if CRUCIBLE_HAS_WGMMA
// What a block has of every sample.
template <class P>
struct HeldPart {
  Index lines, width, strip, first, count;
  __device__ __forceinline__ HeldPart(const P& p, const HeldCut& cut, int strip_, int segment)
      : lines(p.extent(2)), width(p.extent(3)), strip(strip_), first(segment * cut.each + (segment < cut.longer ? segment : cut.longer)),
        count(cut.each + (segment < cut.longer ? 1 : 0)) {}
  // Columns whose statistics are this block's: those that begin where strips do, whatever it stores.
  __device__ __forceinline__ int columns() const {
    const Index rest = width - strip * P::Box::at(3);
    return static_cast<int>(rest < P::Box::at(3) ? rest : P::Box::at(3));
  }
};
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
