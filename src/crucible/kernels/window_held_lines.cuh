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

// Bulk copies from shared to global memory, a thread's in the order in which it began them, and back, as bulk_copy.
__device__ __forceinline__ void bulk_store(void* to, unsigned from, unsigned bytes, uint64_t policy) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;\ncp.async.bulk.commit_group;" ::"l"(
                   __cvta_generic_to_global(to)), "r"(from), "r"(bytes), "l"(policy) : "memory");
}
__device__ __forceinline__ void bulk_copy_leaving(unsigned to, const void* from, unsigned bytes, unsigned barrier, uint64_t policy) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
               "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
}
// Until what bulk stores copy has been read, and until it is there.
__device__ __forceinline__ void bulk_stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void bulk_stores_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// A warp that has 16 rows of every line: it tells the block's moments, waits for those of its team's others, and stores. Where a
// sample is held in part, lines for which there is no room are put aside as they are, in memory that nobody else reads, and each
// comes back when a line of the next sample takes its turn: the last one first, which may be in L2 still, and whose place there is
// the next one's. Both are bulk copies, one of the rows of a warp, for which it waits elsewhere.
template <bool PARTLY, class W, class P, class R>
__device__ __forceinline__ void held_lines(const P& p, const R& r, const HeldPart<P>& part, const HeldCut& cut, unsigned char* shared,
                                           unsigned long long* words, unsigned held, unsigned free, unsigned told, unsigned back, int mine) {
  using H = Hold<W, P>;
  constexpr int REP = R::HELD_ROWS, GROUPS = 16 / REP, EACH = HELD_BLOCKS / 32, TOGETHER = GROUPS < 2 ? GROUPS : 2, SLOTS = H::slots(PARTLY);
  constexpr int OWN = 16 * H::BOX;  // elements of a line that are this warp's
  const int samples = held_samples<PARTLY>(p.batches()), rows = static_cast<int>(p.rows());
  const int blocks = cut.strips * cut.segments;
  typename R::Held* const table = reinterpret_cast<typename R::Held*>(shared + H::TABLE);
  static_assert(sizeof(typename R::Held) <= HELD_COMMON * 4, "what rows have in common");
  const unsigned first = shared_address(shared + H::FIRST) + mine * OWN * 4;
  back += mine * 8;
  // Where a line is put aside.
  const auto aside_at = [&](int place) {
    const int64_t block = static_cast<int64_t>(blockIdx.y * gridDim.x + blockIdx.x) * (cut.each + (cut.longer > 0 ? 1 : 0) - H::LINES);
    return static_cast<float*>(p.aside()) + (block + place) * H::LINE + mine * OWN;
  };
  // The n-th line of sample s that comes back, if there is one: of every second sample they lie in the other order.
  const auto ask = [&](int s, int n) {
    const int aside = part.count - H::LINES;
    if (n >= aside || static_cast<int>(threadIdx.x) % 32 != 0) return;
    barrier_expect(back, OWN * 4);
    bulk_copy_leaving(first + SLOTS * H::LINE * 4, aside_at(s % 2 == 0 ? aside - 1 - n : n), OWN * 4, back, kept_in_l2(true));
  };
  // Line `number` of all that take slots in turn has been copied.
  const auto copied = [&](unsigned number) {
    bulk_stores_read();
    __syncwarp();
    barrier_arrive(free + number % SLOTS * 8);
  };
#pragma unroll 1
  for (int turn = PARTLY ? 0 : 1; turn < (PARTLY ? 2 * samples + 1 : 2 * samples); turn += PARTLY ? 1 : 2) {
    const bool aside = PARTLY && turn % 2 == 0;  // lines are put aside, and those of the last sample come back
    const int s = turn / 2;
    // Opaque, so that what depends on it is computed anew for each sample: there are few registers.
    int lane = static_cast<int>(threadIdx.x) % 32;
    asm volatile("" : "+r"(lane));
    if (!aside) {
      int lines = part.count, columns = part.columns(), height = part.lines, width = part.width;
      asm volatile("" : "+r"(lines), "+r"(columns), "+r"(height), "+r"(width));
      const int own = mine * 16 + (lane & 15);
      const unsigned tag = (static_cast<unsigned>(s) / 2 + 1) & 1;
      unsigned long long* const all = words + (static_cast<int>(s % 2) * HELD_GROUPS * HELD_BLOCKS + static_cast<int>(blockIdx.z) * blocks);
      barrier_wait(told + s % 2 * 8, static_cast<unsigned>(s) / 2 & 1);
      {
        // All rows have as many elements. Of a group each lane has a row.
        const float2* const parts = reinterpret_cast<const float2*>(shared + H::PARTS) + s % 2 * 2 * PAIR_ROWS + own;
        const float2 one = parts[0], two = parts[PAIR_ROWS];
        // The second warpgroup's share of the lines: of an odd number one more in every second sample.
        const float of_two = __fdividef(static_cast<float>((lines + (s & lines & 1)) / 2), static_cast<float>(lines));
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
      if (lane < 16) table[own] = r.held((held_sample<PARTLY>(s) * rows + own) / REP, own & (REP - 1), R::found_of(1.0f, 0.0f, 1.0f));
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
      if (lane < 16) table[own] = r.held((held_sample<PARTLY>(s) * rows + own) / REP, own % REP, R::found_of(elements * REP, own_mean, own_m2));
      __syncwarp();
      if (PARTLY) bulk_stores_done();
    }
    // The sample that is finished here: lines that come back, from the last one on, or those that were held, its last one first, where
    // that is in the way of the others.
    const int finished = aside ? s - 1 : s, here = PARTLY ? part.count - H::LINES : 0, count = aside ? here : part.count - here;
    const int row = mine * 16 + (lane >> 3);
    float* out = r.held_at((held_sample<PARTLY>(finished < 0 ? 0 : finished) * rows + row) / REP, row % REP) +
                 static_cast<int64_t>(part.first + (aside ? here - 1 : PARTLY ? part.count - 1 : 0)) * part.width + part.strip * H::BOX;
    const int64_t four = 4 * static_cast<int64_t>(r.length());  // rows lie one after another
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const bool last_slot = PARTLY && (aside || i == 0);
      const unsigned number = PARTLY ? static_cast<unsigned>(s * (part.count - 1) + (aside ? i : here + i - 1)) : static_cast<unsigned>(s * part.count + i);
      if (!aside || s > 0) {
        const unsigned slot = last_slot ? SLOTS : number % SLOTS;
        const unsigned use = aside ? static_cast<unsigned>(finished * here + i) : last_slot ? static_cast<unsigned>(s) : number / SLOTS;
        barrier_wait(aside ? back : held + slot * 8, use & 1);
        const int four_of = (lane & 7) * 4, odd = static_cast<int>(reinterpret_cast<uintptr_t>(out) / 4 % 8), begin = four_of - odd;
        const float* const from = reinterpret_cast<const float*>(shared + H::FIRST) + slot * H::LINE + row * H::BOX + four_of;
        const int column = part.strip * H::BOX + begin;
        float* to = out + begin;
#pragma unroll
        for (int k = 0; k < 4; ++k, to += four) {
          constexpr int ROUNDS = (H::BOX + 31) / 32;
          float4 x[ROUNDS];
          const typename R::Held of = table[row + k * 4];
#pragma unroll
          for (int q = 0; q < ROUNDS; ++q)
            if (q * 32 + 32 <= H::BOX || q * 32 + four_of < H::BOX) x[q] = *reinterpret_cast<const float4*>(from + k * 4 * H::BOX + q * 32);
          if (k == 3 && !last_slot) barrier_arrive(free + slot * 8);
#pragma unroll
          for (int q = 0; q < ROUNDS; ++q) {
            const bool inside = q * 32 + 32 <= H::BOX || q * 32 + four_of < H::BOX;
            x[q].x = r.held_value(of, x[q].x), x[q].y = r.held_value(of, x[q].y), x[q].z = r.held_value(of, x[q].z), x[q].w = r.held_value(of, x[q].w);
            const int at = column + q * 32;
            // Two of four at a line's ends: they begin at even places.
            if (inside && at >= 0 && at + 4 <= part.width) __stcs(reinterpret_cast<float4*>(to + q * 32), x[q]);
            if (q == 0 && at == -2) *reinterpret_cast<float2*>(to + q * 32 + 2) = make_float2(x[q].z, x[q].w);
            if (inside && at + 2 == part.width) *reinterpret_cast<float2*>(to + q * 32) = make_float2(x[q].x, x[q].y);
          }
        }
        if (last_slot) {
          __syncwarp();
          ask(finished, aside ? i + 1 : 0);
        }
      }
      out += aside ? -part.width : last_slot ? -(H::LINES - 1) * part.width : part.width;
      if (aside && s < samples) {
        if (i > 0) copied(number - 1);
        const unsigned slot = number % SLOTS;
        barrier_wait(held + slot * 8, number / SLOTS & 1);
        if (lane == 0) bulk_store(aside_at(s % 2 == 0 ? i : here - 1 - i), first + slot * H::LINE * 4, OWN * 4, kept_in_l2(i >= here - HELD_STAYS));
        if (i == here - 1) copied(number);
      }
    }
    if (aside && s > 0) barrier_arrive(free + SLOTS * 8);
  }
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
