// Convolutions on Hopper's tensor cores, and what follows the statistics of a sample, in one launch: all blocks work on one
// sample together and keep what they make of it in shared memory until its moments are known.
//
// As in window_strips.cuh a block has a strip of the output's columns, here of a few neighbouring lines of every sample. Four
// warps copy and round the input, a line ahead: each unit of eight channels has a buffer, which is filled again as soon as it has
// been read. Two warpgroups multiply in turns; weights stay in registers, those that do not fit there in shared memory. What a
// warpgroup has finished goes to a slot for each line, sector by sector as it will lie in memory, and the moments of a strip to
// all other blocks, before the last line does: everybody waits for the slowest. Four more warps wait for theirs, and then finish
// and store line by line, while the next sample is multiplied. So the elements go through memory once, not three times.
// Each sector of a line belongs to one block: BOX columns from where the sector of column strip * BOX begins, for which eight
// columns before are multiplied too.
//
// P is as in window_strips.cuh, with statistics and
//   struct Known, known(z, row)          what the elements of a row have in common, read once for a sample
//   finish_known(known, sum)             what finish makes of a sum
// R is a walk (row.cuh) over what P stores, of which the kernel needs
//   HELD_ROWS of P's rows in one group   struct Held, held(row, part, found), found_of(count, mean, m2)
//   held_value(held, element)            held_at(row, part), where that goes
// Memory: 1.6 times the input, most of what is read twice from L2; the output once. What half cannot hold is done again by the two
// kernels of which this is one.
#pragma once

#include "row.cuh"
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
// A block's moments of a group in one word, which others read whole: m2's last bit says of which sample. Infinity, which has no
// bit to spare, is the largest number.
constexpr unsigned HELD_INFINITE = 0x7f7ffffeu;
__device__ __forceinline__ void tell(unsigned long long* word, float mean, float m2, unsigned tag) {
  const unsigned bits = m2 - m2 == 0.0f || m2 != m2 ? __float_as_uint(m2) & ~1u : HELD_INFINITE;
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(word)),
               "l"(static_cast<unsigned long long>(bits | tag) << 32 | __float_as_uint(mean)) : "memory");
}
__device__ __forceinline__ float2 told_by(const unsigned long long* word) {
  unsigned long long both;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(both) : "l"(__cvta_generic_to_global(word)) : "memory");
  return make_float2(__uint_as_float(static_cast<unsigned>(both)), __uint_as_float(static_cast<unsigned>(both >> 32)));
}
// Who has nothing to do leaves the processor to others.
__device__ __forceinline__ bool sleep_a_little() {
  __nanosleep(100);
  return true;
}
__device__ __forceinline__ bool tagged(float2 word, unsigned tag) { return (__float_as_uint(word.y) & 1u) == tag; }
__device__ __forceinline__ float m2_of(float2 word) {
  const unsigned bits = __float_as_uint(word.y) & ~1u;
  return bits == HELD_INFINITE ? INFINITY : __uint_as_float(bits);
}

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

// Two neighbours at once: of a float2's address nvcc does not know that it is a multiple of eight.
__device__ __forceinline__ void store_pair(unsigned to, float first, float second) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(first), "f"(second) : "memory");
}

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

// A warpgroup: sums of a line, what P makes of them, and a slot that takes it.
template <class W, class P, class R>
__device__ __forceinline__ void held_products(const P& p, const R& r, const Packed& packed, const HeldPart<P>& part, unsigned char* shared, unsigned full,
                                              unsigned empty, unsigned held, unsigned free, unsigned told, int which) {
  using S = Strip<W, P>;
  using H = Hold<W, P>;
  const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32, quad = lane % 4;
  const int row = thread / 32 * 16 + lane / 4;
  const Index samples = p.batches(), rows = p.rows();
  unsigned a[H::KEPT][4];
#pragma unroll
  for (int k = 0; k < H::KEPT; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Volatile, so that they stay where they are and are not read again and again.
      const unsigned char* const at = packed.half + (k * 2 + i / 2) * (TAP_BYTES / 2) + (row + i % 2 * 8) * 16 + quad * 4;
      asm volatile("ld.global.u32 %0, [%1];" : "=r"(a[k][i]) : "l"(__cvta_generic_to_global(at)));
    }
  const uint64_t b = lines_at(shared_address(shared + H::RING) + S::LEAD * 16, S::UNIT_BYTES);
  const uint64_t others = lines_at(shared_address(shared + H::WEIGHTS), TAP_BYTES / 2);
  // What undoes the scales: floats, or in the rare case that they are none, done for each line apart.
  const auto exponents = [&]() { return Exponents(packed.rows + thread / 32 * 16, packed.input()); };
  float scales[2] = {0.0f, 0.0f};  // zero: apart
  const auto plain = [](int e) { return e >= -126 && e <= 127; };
  if (__all_sync(0xffffffffu, plain(exponents().of[0]) && plain(exponents().of[1])))
    scales[0] = power_of_two(exponents().of[0]), scales[1] = power_of_two(exponents().of[1]);
  if (which == 1) turn_give(1);
  float sums[S::N / 2];
  const int left = part.columns() - quad * 2;  // columns from this lane's first on
  unsigned base = 0, released = 0, done = 0;
  const auto release = [&](unsigned line) {
    for (; released < line; ++released)
      if (lane == 0) barrier_arrive(empty + released % W::SLOTS * 8);
  };
#pragma unroll 1
  for (Index s = 0; s < samples; ++s) {
    float near[2] = {0, 0}, off[2] = {0, 0}, squares[2] = {0, 0};
    const auto known = [&](int h) { return p.known(s * p.groups(), row + 8 * h < rows ? row + 8 * h : rows - 1); };
    const typename P::Known of[2] = {known(0), known(1)};
#pragma unroll 1
    for (Index l = (static_cast<unsigned>(which) ^ done) & 1; l < part.count; l += 2) {
      // Where lines are in the ring: said to be the same in all lanes, so that descriptors are made by the few instructions for such
      // numbers.
      unsigned slots[S::DOWN];
#pragma unroll
      for (int down = 0; down < S::DOWN; ++down)
        slots[down] = __shfl_sync(0xffffffffu, (base + static_cast<unsigned>(l) + down * P::Dilation::at(2)) % W::SLOTS, 0);
      turn_wait(1 + which);
#pragma unroll
      for (int down = 0; down < S::DOWN; ++down) {
        const unsigned line = base + static_cast<unsigned>(l) + down * P::Dilation::at(2);
        barrier_wait(full + line % W::SLOTS * 8, line / W::SLOTS & 1);
        const uint64_t at = b + slots[down] * (S::SLOT_BYTES / 16);
        wgmma_begin();
#pragma unroll
        for (int across = 0; across < S::ACROSS; ++across)
#pragma unroll
          for (int chunk = 0; chunk < W::CHUNKS; ++chunk) {
            const int k = chunk * S::TAPS + down * S::ACROSS + across;
            const bool more = down + across + chunk > 0;
            const uint64_t pixels = at + (chunk * 2 * (S::UNIT_BYTES / 16) + across * P::Dilation::at(3));
            if (k < H::KEPT)
              WgmmaKept<S::N, W::kind>::multiply(sums, a[k < H::KEPT ? k : 0], pixels, more);
            else
              Wgmma<S::N, W::kind>::multiply(sums, others + (k - H::KEPT) * (TAP_BYTES / 16), pixels, more);
          }
      }
      wgmma_end();
      turn_give(2 - which);
      wgmma_wait<0>();
      settle(sums);
      __syncwarp();
      // As in window_strips.cuh: what this warpgroup's next line does not need, but none that it has not seen.
      const unsigned seen = base + static_cast<unsigned>(l) + (S::REACH + 1 < 2 ? S::REACH + 1 : 2);
      const unsigned last = base + static_cast<unsigned>(part.count) + S::REACH - 1;
      release(seen < last ? seen : last);
      if (scales[0] == 0.0f) unscale<S::N / 8>(sums, exponents());
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float by = scales[0] == 0.0f ? 1.0f : scales[h];
#pragma unroll
        for (int j = 0; j < S::N / 8; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = sums[4 * j + 2 * h + e];
            x = p.finish_known(of[h], x * by);
          }
        if (l < 2) {  // this warpgroup's first of the sample
          const bool there = left > 0;
          near[h] = near_mean<4>(there ? sums[4 + 2 * h] + sums[5 + 2 * h] : 0.0f, there ? 2 : 0);
        }
        // Columns come in pairs, of which both are this block's or none.
#pragma unroll
        for (int j = 1; j < S::N / 8; ++j)
          if ((j - 1) * 8 < left) {
            const float first = sums[4 * j + 2 * h] - near[h], second = sums[4 * j + 2 * h + 1] - near[h];
            off[h] += first + second, squares[h] = fmaf(second, second, fmaf(first, first, squares[h]));
          }
      }
      const unsigned number = done + static_cast<unsigned>(l), slot = number % H::LINES;
      barrier_wait(free + slot * 8, (number / H::LINES & 1) ^ 1);
      // Moments of this warpgroup's lines, for each row, as soon as they are known: others wait for them. Nothing cancels, as they
      // are deviations from what is near the mean. Where they go is free: the slot was used after what was there had been read.
      if (l + 2 >= part.count) {
        const float count = static_cast<float>(left + quad * 2) * static_cast<float>(l / 2 + 1);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
          for (int by = 1; by < 4; by *= 2) off[h] += __shfl_xor_sync(0xffffffffu, off[h], by), squares[h] += __shfl_xor_sync(0xffffffffu, squares[h], by);
          if (quad == 0) {
            const float by = count > 0 ? __fdividef(off[h], count) : 0.0f, m2 = squares[h] - off[h] * by;
            reinterpret_cast<float2*>(shared + H::PARTS)[(s % 2 * 2 + which) * PAIR_ROWS + row + 8 * h] = make_float2(near[h] + by, m2 < 0 ? 0.0f : m2);
          }
        }
        barrier_arrive(told + s % 2 * 8);  // each lane, here and below: one for its warp is what racecheck does not understand
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const Index m = row + 8 * h;
        const uintptr_t at = reinterpret_cast<uintptr_t>(r.held_at((s * rows + m) / R::HELD_ROWS, m % R::HELD_ROWS)) / 4;
        const int place = static_cast<int>((at + static_cast<uintptr_t>((part.first + l) * part.width + part.strip * H::BOX)) % 8) + quad * 2;
        const unsigned to = shared_address(shared + H::FIRST) + (slot * H::LINE + static_cast<int>(m) * H::BOX + place - 8) * 4;
        const auto put = [&](int j) { store_pair(to + j * 32, sums[4 * j + 2 * h], sums[4 * j + 2 * h + 1]); };
        if (place >= 8) put(0);
#pragma unroll
        for (int j = 1; j < S::N / 8 - 1; ++j) put(j);
        if (place < 8) put(S::N / 8 - 1);
      }
      barrier_arrive(held + slot * 8);
    }
    base += static_cast<unsigned>(part.count) + S::REACH, done += static_cast<unsigned>(part.count);
    barrier_wait(full + (base - 1) % W::SLOTS * 8, (base - 1) / W::SLOTS & 1);
    __syncwarp();
    release(base);
  }
  if (done % 2 == static_cast<unsigned>(which)) turn_wait(1 + which);
}

// A warp that has 16 rows of every line: it tells the block's moments, waits for those of all others, and stores.
template <class W, class P, class R>
__device__ __forceinline__ void held_lines(const P& p, const R& r, const HeldPart<P>& part, const HeldCut& cut, unsigned char* shared,
                                           unsigned long long* words, unsigned held, unsigned free, unsigned told, int mine) {
  using H = Hold<W, P>;
  constexpr int REP = R::HELD_ROWS, GROUPS = 16 / REP, EACH = HELD_BLOCKS / 32, TOGETHER = GROUPS < 2 ? GROUPS : 2;
  const Index samples = p.batches(), rows = p.rows();
  const int blocks = cut.strips * cut.segments;
  typename R::Held* const table = reinterpret_cast<typename R::Held*>(shared + H::TABLE);
  static_assert(sizeof(typename R::Held) <= HELD_COMMON * 4, "what rows have in common");
  unsigned number = 0;
#pragma unroll 1
  for (Index s = 0; s < samples; ++s) {
    // Opaque, so that what depends on it is computed anew for each sample: there are few registers.
    int lane = static_cast<int>(threadIdx.x) % 32;
    int lines = static_cast<int>(part.count), columns = part.columns(), height = static_cast<int>(part.lines), width = static_cast<int>(part.width);
    asm volatile("" : "+r"(lane), "+r"(lines), "+r"(columns), "+r"(height), "+r"(width));
    const int row = mine * 16 + (lane >> 3), own = mine * 16 + (lane & 15);
    const unsigned tag = (static_cast<unsigned>(s) / 2 + 1) & 1;
    unsigned long long* const all = words + static_cast<int64_t>(s % 2) * HELD_GROUPS * HELD_BLOCKS;
    barrier_wait(told + s % 2 * 8, static_cast<unsigned>(s) / 2 & 1);
    {
      // All rows have as many elements. Of a group each lane has a row.
      const float2* const parts = reinterpret_cast<const float2*>(shared + H::PARTS) + s % 2 * 2 * PAIR_ROWS + own;
      const float2 one = parts[0], two = parts[PAIR_ROWS];
      // The second warpgroup's share of the lines: of an odd number one more in every second sample.
      const float of_two = __fdividef(static_cast<float>((lines + static_cast<int>(number % 2)) / 2), static_cast<float>(lines));
      const float count = static_cast<float>(lines) * static_cast<float>(columns);
      const float d = two.x - one.x;
      const bool both = of_two > 0.0f && of_two < 1.0f;
      const float mine_mean = both ? fmaf(d, of_two, one.x) : of_two > 0.0f ? two.x : one.x;
      float mean = mine_mean, m2 = both ? one.y + two.y + d * d * (count * of_two * (1.0f - of_two)) : of_two > 0.0f ? two.y : one.y;
#pragma unroll
      for (int by = 1; by < REP; by *= 2) mean += __shfl_xor_sync(0xffffffffu, mean, by);
      mean *= 1.0f / REP;
      m2 = fmaf((mine_mean - mean) * (mine_mean - mean), count, m2);
#pragma unroll
      for (int by = 1; by < REP; by *= 2) m2 += __shfl_xor_sync(0xffffffffu, m2, by);
      if (lane < 16 && lane % REP == 0) tell(all + own / REP * HELD_BLOCKS + blockIdx.y * gridDim.x + blockIdx.x, mean, m2, tag);
    }
    const float elements = static_cast<float>(height) * static_cast<float>(width);
    float own_mean = 0, own_m2 = 0;
    // What the norm reads of each channel comes while moments do: the numbers are written over. All lanes have read the last sample's.
    __syncwarp();
    if (lane < 16) table[own] = r.held((s * rows + own) / REP, own & (REP - 1), R::found_of(1.0f, 0.0f, 1.0f));
#pragma unroll 1
    for (int g = 0; g < GROUPS; g += TOGETHER) {
      asm volatile("" : "+r"(lane));
      const unsigned long long* const from = all + (mine * GROUPS + g) * HELD_BLOCKS;
      const float* const shares = reinterpret_cast<const float*>(shared + H::SHARES) + lane;
      // Only words that have not come are asked for again: all blocks ask, and L2 has other things to do.
      float2 of[TOGETHER][EACH];
#pragma unroll
      for (int i = 0; i < EACH; ++i)
#pragma unroll
        for (int t = 0; t < TOGETHER; ++t) of[t][i] = make_float2(0.0f, __uint_as_float(lane + i * 32 < blocks ? tag ^ 1u : tag));
      bool there;
      do {
        there = true;
#pragma unroll
        for (int i = 0; i < EACH; ++i)
#pragma unroll
          for (int t = 0; t < TOGETHER; ++t)
            if (!tagged(of[t][i], tag)) of[t][i] = told_by(from + t * HELD_BLOCKS + lane + i * 32);
#pragma unroll
        for (int i = 0; i < EACH; ++i)
#pragma unroll
          for (int t = 0; t < TOGETHER; ++t) there = there && tagged(of[t][i], tag);
      } while (!__all_sync(0xffffffffu, there) && sleep_a_little());
      // Deviations from the first block's mean, which is near all others, so that nothing cancels.
      float mean[TOGETHER], m2[TOGETHER], beside[TOGETHER], near[TOGETHER];
#pragma unroll
      for (int t = 0; t < TOGETHER; ++t) mean[t] = m2[t] = beside[t] = 0, near[t] = __shfl_sync(0xffffffffu, of[t][0].x, 0);
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        const float share = shares[i * 32];
#pragma unroll
        for (int t = 0; t < TOGETHER; ++t) {
          const float d = of[t][i].x - near[t], part = d * share;
          mean[t] += part, beside[t] = fmaf(part, d, beside[t]), m2[t] += share > 0 ? m2_of(of[t][i]) : 0.0f;
        }
      }
#pragma unroll
      for (int by = 1; by < 32; by *= 2)
#pragma unroll
        for (int t = 0; t < TOGETHER; ++t) {
          mean[t] += __shfl_xor_sync(0xffffffffu, mean[t], by), beside[t] += __shfl_xor_sync(0xffffffffu, beside[t], by);
          m2[t] += __shfl_xor_sync(0xffffffffu, m2[t], by);
        }
#pragma unroll
      for (int t = 0; t < TOGETHER; ++t) {
        const float off = fmaf(-mean[t], mean[t], beside[t]);
        m2[t] = fmaf(off < 0 ? 0.0f : off, elements * REP, m2[t]), mean[t] += near[t];
      }
      // Each lane's own.
      if ((lane & 15) / REP / TOGETHER * TOGETHER == g) {
        const bool second = TOGETHER > 1 && (lane & 15) / REP % 2 == 1;
        own_mean = second ? mean[TOGETHER - 1] : mean[0], own_m2 = second ? m2[TOGETHER - 1] : m2[0];
      }
    }
    if (lane < 16) table[own] = r.held((s * rows + own) / REP, own % REP, R::found_of(elements * REP, own_mean, own_m2));
    __syncwarp();
    float* out = r.held_at((s * rows + row) / REP, row % REP) + static_cast<int64_t>(part.first) * part.width + part.strip * H::BOX;
    const int64_t four = 4 * static_cast<int64_t>(r.length());  // rows lie one after another
#pragma unroll 1
    for (Index l = 0; l < part.count; ++l, ++number, out += part.width) {
      const unsigned slot = number % H::LINES;
      barrier_wait(held + slot * 8, number / H::LINES & 1);
      const int four_of = (lane & 7) * 4, odd = static_cast<int>(reinterpret_cast<uintptr_t>(out) / 4 % 8), begin = four_of - odd;
      const float* const from = reinterpret_cast<const float*>(shared + H::FIRST) + slot * H::LINE + row * H::BOX + four_of;
      const Index column = part.strip * H::BOX + begin;
      float* to = out + begin;
#pragma unroll
      for (int k = 0; k < 4; ++k, to += four) {
        constexpr int ROUNDS = (H::BOX + 31) / 32;
        float4 x[ROUNDS];
        const typename R::Held of = table[row + k * 4];
#pragma unroll
        for (int q = 0; q < ROUNDS; ++q)
          if (q * 32 + 32 <= H::BOX || q * 32 + four_of < H::BOX) x[q] = *reinterpret_cast<const float4*>(from + k * 4 * H::BOX + q * 32);
        if (k == 3) barrier_arrive(free + slot * 8);
#pragma unroll
        for (int q = 0; q < ROUNDS; ++q) {
          const bool inside = q * 32 + 32 <= H::BOX || q * 32 + four_of < H::BOX;
          x[q].x = r.held_value(of, x[q].x), x[q].y = r.held_value(of, x[q].y), x[q].z = r.held_value(of, x[q].z), x[q].w = r.held_value(of, x[q].w);
          const Index at = column + q * 32;
          // Two of four at a line's ends: they begin at even places.
          if (inside && at >= 0 && at + 4 <= part.width) __stcs(reinterpret_cast<float4*>(to + q * 32), x[q]);
          if (q == 0 && at == -2) *reinterpret_cast<float2*>(to + q * 32 + 2) = make_float2(x[q].z, x[q].w);
          if (inside && at + 2 == part.width) *reinterpret_cast<float2*>(to + q * 32) = make_float2(x[q].x, x[q].y);
        }
      }
    }
  }
}
#endif

template <class W, class P, class R>
__global__ void __launch_bounds__(W::threads, 1) held_kernel(const __grid_constant__ P p, const __grid_constant__ R r, void* workspace,
                                                            unsigned long long* words, HeldCut cut) {
  follow();
  extern __shared__ __align__(128) unsigned char held_shared[];
#if CRUCIBLE_HAS_WGMMA
  using S = Strip<W, P>;
  using H = Hold<W, P>;
  const Packed packed(p, workspace);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const unsigned full = shared_address(held_shared + H::BARRIERS), empty = full + W::SLOTS * 8, landed = empty + W::SLOTS * 8;
  const unsigned held = landed + W::LANDINGS * 8, free = held + H::LINES * 8, told = free + H::LINES * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < W::SLOTS; ++i) barrier_init(full + i * 8, S::UNITS < W::WARPS ? S::UNITS : W::WARPS), barrier_init(empty + i * 8, W::CONSUMERS / 32);
    for (int i = 0; i < W::LANDINGS; ++i) barrier_init(landed + i * 8, 32);
    for (int i = 0; i < H::LINES; ++i) barrier_init(held + i * 8, 128), barrier_init(free + i * 8, static_cast<int>(p.rows()) * 2);
    for (int i = 0; i < 2; ++i) barrier_init(told + i * 8, W::CONSUMERS);
    barrier_inits_done();
  }
  for (int i = static_cast<int>(threadIdx.x); i < (H::STEPS - H::KEPT) * (TAP_BYTES / 16); i += W::threads)
    reinterpret_cast<uint4*>(held_shared + H::WEIGHTS)[i] = reinterpret_cast<const uint4*>(packed.half + H::KEPT * TAP_BYTES)[i];
  for (int i = static_cast<int>(threadIdx.x); i < W::LANDINGS * S::LANDING_BYTES / 16; i += W::threads)
    reinterpret_cast<uint4*>(held_shared + H::LANDINGS)[i] = make_uint4(0, 0, 0, 0);
  // Of all elements of a row, each block's share; none of blocks that are not there.
  for (int i = static_cast<int>(threadIdx.x); i < HELD_BLOCKS; i += W::threads) {
    const HeldPart<P> other(p, cut, i % cut.strips, i / cut.strips);
    reinterpret_cast<float*>(held_shared + H::SHARES)[i] = i >= cut.strips * cut.segments ? 0.0f :
        __fdividef(static_cast<float>(other.count) * static_cast<float>(other.columns()), static_cast<float>(other.lines) * static_cast<float>(other.width));
  }
  publish();
  __syncthreads();
  const HeldPart<P> part(p, cut, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
  if (warp >= W::CONSUMERS / 32 + W::WARPS) {
    registers_down<W::DOWN>();
    const int mine = warp - W::CONSUMERS / 32 - W::WARPS;
    if (blockIdx.x == 0 && blockIdx.y == 0)
      known_spoilt<W::WARPS * 32, P>(packed, mine * 32 + static_cast<int>(threadIdx.x) % 32, power_of_two(packed.input()));
    if (mine * 16 < p.rows()) held_lines<W>(p, r, part, cut, held_shared, words, held, free, told, mine);
  } else if (warp >= W::CONSUMERS / 32) {
    registers_down<W::DOWN>();
    // Opaque, so that it is computed anew: there are few registers.
    const auto first = [&]() {
      int strip = static_cast<int>(part.strip);
      asm volatile("" : "+r"(strip));
      return static_cast<Index>(strip * P::Box::at(3) - 8 + P::Shift::at(3) - S::LEAD);
    };
    if (WholeLines<W, P>(p, first()).hold())
      held_input<WholeLines<W, P>, W>(p, packed, part, held_shared, full, empty, landed, warp - W::CONSUMERS / 32, first());
    else
      held_input<AnyLines<W, P>, W>(p, packed, part, held_shared, full, empty, landed, warp - W::CONSUMERS / 32, first());
  } else {
    registers_up<W::UP>();
    held_products<W>(p, r, packed, part, held_shared, full, empty, held, free, told, warp / 4);
  }
#endif
}

// What the walk would have done, where something was done again: as many blocks as run at a time.
template <class R>
__global__ void __launch_bounds__(ROW_THREADS) row_again_kernel(const R r, const int* again) {
  follow();
  if (*again == 0) return;
  const int64_t length = r.length();
  constexpr int64_t SLICE = SLICE_VECTORS * VECTOR * ROW_THREADS;
  const Lanes<ROW_THREADS> lanes;
  for (int64_t row = blockIdx.x; row < r.rows(); row += gridDim.x) {
    const typename R::Found found = r.reduce(lanes, static_cast<Index>(row));
    for (Index part = 0; part < r.repeats(); ++part)
      for (int64_t from = 0; from < length; from += SLICE)
        r.walk(lanes, static_cast<Index>(row), part, from, from + SLICE < length ? from + SLICE : length, found);
  }
}

#ifndef __CUDACC_RTC__
// How samples are cut among so many blocks; no strips where that does not pay or fit.
template <class W, class P, class R>
HeldCut held_cut(const P& p, const R& r, int processors) {
  using H = Hold<W, P>;
  HeldCut cut;
  const int64_t width = p.extent(3), lines = p.extent(2), samples = p.batches();
  const bool plain = p.extent(0) == 1 && p.extent(1) == 1 && p.groups() == 1 && p.rows() <= PAIR_ROWS && p.rows() % 16 == 0 && width % 2 == 0;
  if (!plain || reinterpret_cast<uintptr_t>(r.held_at(0, 0)) % 8 != 0 || r.rows() * r.repeats() != samples * p.rows()) return cut;
  const int64_t strips = ((width + 13) / 8 * 8 - 1) / H::BOX + 1, blocks = processors < HELD_BLOCKS ? processors : HELD_BLOCKS;
  const int64_t most = blocks / strips, segments = most < lines ? most : lines;
  if (segments < 1) return cut;
  const int64_t each = (lines - 1) / segments + 1;  // at most
  // Samples in which a block has few lines read much of the input twice, and wait for each other often.
  if (each > H::LINES || each < HELD_LEAST || samples < 2) return cut;
  cut.strips = static_cast<int>(strips), cut.segments = static_cast<int>(segments);
  cut.each = static_cast<int>(lines / segments), cut.longer = static_cast<int>(lines % segments);
  return cut;
}

// P and then R, if that can be: else nothing, and `done` says so. W is for the first launch, Again for what W could not.
template <class W, class Again, class P, class R>
cudaError_t launch_held(const P& p, const R& r, void* workspace, unsigned long long* words, cudaStream_t stream, bool* done) {
  using H = Hold<W, P>;
  *done = false;
  if (p.batches() == 0 || p.rows() == 0 || box_count(p) == 0) return cudaSuccess;
  int device = 0, processors = 0;
  cudaError_t refused = cudaGetDevice(&device);
  if (refused == cudaSuccess) refused = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const HeldCut cut = refused == cudaSuccess ? held_cut<W>(p, r, processors) : HeldCut();
  if (refused != cudaSuccess || cut.strips == 0) return refused;
  refused = cudaMemsetAsync(words, 0, 2 * HELD_GROUPS * HELD_BLOCKS * sizeof(*words), stream);
  if (refused == cudaSuccess) refused = pack_rows<W>(p, workspace, &processors, stream);
  if (refused == cudaSuccess) refused = allow_shared(held_kernel<W, P, R>, H::shared_bytes);
  const dim3 blocks(static_cast<unsigned>(cut.strips), static_cast<unsigned>(cut.segments));
  if (refused == cudaSuccess)
    refused = cudaLaunchKernelEx(After(blocks, W::threads, H::shared_bytes, stream, 1, true), held_kernel<W, P, R>, p, r, workspace, words, cut);
  // Where others have a part of the chip its blocks cannot all be there at a time.
  if (refused == cudaErrorCooperativeLaunchTooLarge || refused == cudaErrorNotSupported) {
    cudaGetLastError();
    return cudaSuccess;
  }
  if (refused == cudaSuccess) refused = launch_pairs<Again, true>(p, workspace, processors, stream);
  if (refused == cudaSuccess)
    refused = cudaLaunchKernelEx(After(static_cast<unsigned>(processors * 2), ROW_THREADS, 0, stream), row_again_kernel<R>, r,
                                 static_cast<const int*>(Packed(p, workspace).again));
  *done = refused == cudaSuccess;
  return refused;
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
