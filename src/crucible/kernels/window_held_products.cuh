// A convolution and its norm in one launch (window_held.cuh): the warpgroups that multiply, and keep what they finish.
#pragma once

#include "window_hold.cuh"

#if CRUCIBLE_HOPPER
namespace crucible {

#if CRUCIBLE_HAS_WGMMA
// Two neighbours at once: of a float2's address nvcc does not know that it is a multiple of eight.
__device__ __forceinline__ void store_pair(unsigned to, float first, float second) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(first), "f"(second) : "memory");
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
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
