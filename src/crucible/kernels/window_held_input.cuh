// A convolution and its norm in one launch (window_held.cuh): the warps that copy and round the input, a line ahead.
#pragma once

#include "window_hold.cuh"

#if CRUCIBLE_HOPPER
namespace crucible {

#if CRUCIBLE_HAS_WGMMA
// Copies of the input leave L2 first, as it is read once, but for lines that another block reads later.
__device__ __forceinline__ uint64_t kept_in_l2(bool stays) {
  uint64_t first, normal;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(normal));
  return stays ? normal : first;
}
__device__ __forceinline__ void copy_leaving(unsigned to, const void* from, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)), "l"(policy) : "memory");
}

// Lines of any input, as StripLoader has them.
template <class W, class P>
struct AnyLines {
  using S = Strip<W, P>;
  static constexpr bool EARLY = false;  // there are no registers to ask for a line while the last is put away
  StripLoader<W, P> from;
  __device__ __forceinline__ AnyLines(const P& p, Index i3) : from{p} { from.i0 = from.i1 = 0, from.i3 = i3; }
  __device__ __forceinline__ void place(Index sample, Index i2, bool) {
    from.z = sample, from.begin();  // anew for each line, so that nothing of it is kept meanwhile
    from.place(i2);
  }
  __device__ __forceinline__ void ask(int unit, unsigned char* buffer, unsigned landed) const {
    if (from.whole >= 8)
      copies<8>(unit, buffer, landed);
    else
      copies<4>(unit, buffer, landed);
  }
  // As StripLoader's, a channel at a time: there are few registers.
  template <int SIZE>
  __device__ __forceinline__ void copies(int unit, unsigned char* buffer, unsigned landed) const {
#pragma unroll
    for (int i = 0; i < S::EACH; ++i) {
      const char* at = from.at[i] + from.step * (unit * W::UNIT);
#pragma unroll 1
      for (int e = 0; e < W::UNIT && from.group(i) < S::GROUPS; ++e, at += from.step) {
        const int bytes = unit * W::UNIT + e < P::CHANNELS ? from.bytes[i] : 0;
#pragma unroll
        for (int k = 0; k < 16; k += SIZE) {
          const int rest = bytes - k;
          copy_async_some<SIZE>(buffer + e * S::PITCH * 4 + from.group(i) * 16 + k, rest > 0 ? at + k : from.at[i], rest < 0 ? 0 : rest < SIZE ? rest : SIZE);
        }
      }
    }
    copies_arrive(landed);
  }
};

// Lines in which each lane has 16 bytes, which one copy can have, or none: who has none leaves the zeros that are there.
template <class W, class P>
struct WholeLines {
  using S = Strip<W, P>;
  static constexpr bool EARLY = true;
  const P& p;
  Index i3;  // this lane's first pixel
  bool mine, there;
  uint64_t policy;
  const char* at;  // in the first channel

  __device__ __forceinline__ WholeLines(const P& p_, Index i3_) : p(p_), i3(i3_ + StripLoader<W, P>::group(0) * S::GROUP), mine(has(i3)) {}
  __device__ __forceinline__ bool has(Index i) const { return StripLoader<W, P>::group(0) < S::GROUPS && p.b_at(0, 0, 0, 0, i).inside; }
  __device__ __forceinline__ const char* first(Index sample, Index i2, Index channel) const {
    return reinterpret_cast<const char*>(p.b_from(p.b_at(sample, 0, 0, i2, i3), channel));
  }
  // Bytes from a channel to the next, the same in all lanes.
  __device__ __forceinline__ int64_t channel_step() const {
    const typename P::BAt pixel = p.b_at(0, 0, 0, 0, 0);
    return reinterpret_cast<const char*>(p.b_from(pixel, 1)) - reinterpret_cast<const char*>(p.b_from(pixel, 0));
  }
  // Whether that is what this input's are.
  __device__ __forceinline__ bool hold() const {
    bool whole = P::CHANNELS % W::CHANNELS == 0 && S::EACH == 1;
#pragma unroll
    for (int e = 1; e < S::GROUP; ++e) whole = whole && has(i3 + e) == mine;
    uintptr_t odd = 0;
    if (mine)
      for (Index s = 0; s < p.batches(); ++s) odd |= reinterpret_cast<uintptr_t>(first(s, 0, 0));
    if (mine) odd |= static_cast<uintptr_t>(first(0, 1, 0) - first(0, 0, 0)) | static_cast<uintptr_t>(channel_step());
    return __all_sync(0xffffffffu, whole && odd % 16 == 0);
  }
  __device__ __forceinline__ void place(Index sample, Index i2, bool stays) {
    at = first(sample, i2, 0), there = p.b_at(0, 0, 0, i2, 0).inside, policy = kept_in_l2(stays);
  }
  __device__ __forceinline__ void ask(int unit, unsigned char* buffer, unsigned landed) const {
    if (mine) {
      const int64_t step = channel_step();
      // Two addresses in turn: a copy keeps its own for a while.
      const char *even = at + step * (unit * W::UNIT), *odd = even + step;
      // Opaque: of an address that is partly the same in all lanes ptxas 13.0 makes an instruction that does not exist.
      unsigned to = shared_address(buffer) + StripLoader<W, P>::group(0) * 16;
      asm volatile("" : "+r"(to));
      if (there) {
#pragma unroll
        for (int e = 0; e < W::UNIT; e += 2, even += 2 * step, odd += 2 * step) {
          copy_leaving(to + e * S::PITCH * 4, even, policy);
          copy_leaving(to + (e + 1) * S::PITCH * 4, odd, policy);
        }
      } else {
#pragma unroll
        for (int e = 0; e < W::UNIT; ++e) copy_async_some<16>(buffer + e * S::PITCH * 4 + StripLoader<W, P>::group(0) * 16, at, 0);
      }
    }
    copies_arrive(landed);
  }
};

// A warp that copies units of eight channels and rounds them. Each unit has a buffer of its own, which its warp fills with the
// next line as soon as it has read the last: the input comes at the rate of what is on its way.
template <class Lines, class W, class P>
__device__ __forceinline__ void held_input(const P& p, const Packed& packed, const HeldPart<P>& part, unsigned char* shared, unsigned full, unsigned empty,
                                           unsigned landed, int mine, Index i3) {
  using S = Strip<W, P>;
  using H = Hold<W, P>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Lines from(p, i3);
  StripRounder<W, P> rounder{power_of_two(packed.input())};
  if (S::UNITS < W::WARPS && mine >= S::UNITS) return;
  // What is asked for: first lines are the last of the block above.
  Index sample = 0, line = 0;
  const auto next = [&]() {
    from.place(sample, part.first + line + P::Shift::at(2), line < S::REACH);
    if (++line == part.count + S::REACH) line = 0, ++sample;
  };
  const auto landing = [&](int unit) { return shared + H::LANDINGS + unit * S::LANDING_BYTES; };
  const auto ask = [&](int unit) { from.ask(unit, landing(unit), landed + unit * 8); };
  next();
#pragma unroll 1
  for (int unit = mine; unit < S::UNITS; unit += W::WARPS) ask(unit);
#pragma unroll 1
  for (unsigned n = 0, all = static_cast<unsigned>(p.batches() * (part.count + S::REACH)); n < all; ++n) {
    const bool more = n + 1 < all;
    if (Lines::EARLY && more) next();
    const unsigned slot = n % W::SLOTS;
#pragma unroll(Lines::EARLY ? (S::UNITS + W::WARPS - 1) / W::WARPS : 1)
    for (int i = 0; i < (S::UNITS + W::WARPS - 1) / W::WARPS; ++i) {
      const int unit = mine + i * W::WARPS;
      if (S::UNITS % W::WARPS != 0 && unit >= S::UNITS) break;
      barrier_wait(landed + unit * 8, n & 1);
      unsigned words[rounder.TILES];
      int own = lane;
      if (!Lines::EARLY) asm volatile("" : "+r"(own));  // what depends on it is computed anew
      rounder.load(reinterpret_cast<const scalar*>(landing(unit)), own, words);
      __syncwarp();
      if (Lines::EARLY && more) ask(unit);
      if (i == 0) barrier_wait(empty + slot * 8, (n / W::SLOTS & 1) ^ 1);
      rounder.store(words, shared + H::RING + slot * S::SLOT_BYTES + unit * S::UNIT_BYTES);
      if (!Lines::EARLY && more) {
        if (i == 0) next();
        ask(unit);
      }
      rounder.watch.next();
    }
    publish();
    __syncwarp();
    if (lane == 0) barrier_arrive(full + slot * 8);
  }
  if (rounder.watch.seen.spoilt() && lane == 0) *packed.again = 1;
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
