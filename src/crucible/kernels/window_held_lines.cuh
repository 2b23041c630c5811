// A convolution and its norm in one launch (window_held.cuh): the warps that exchange moments with all other blocks, and then
// normalise and store.
#pragma once

#include "row.cuh"
#include "window_hold.cuh"

#if CRUCIBLE_HOPPER
namespace crucible {

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

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
