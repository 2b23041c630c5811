// Rows that follow a convolution in its own launch.
//
// Where rows reduce a convolution's statistics and then walk over what it stored, none over more than one sample, warps
// that the convolution does not need walk over a sample as soon as all of it is stored. The convolution waits for tensor cores
// and instructions, the walk for memory; together they take little longer than either, and of what is walked over some is
// still in the cache.
// A team of warps in different blocks shares each row. They wait for each other and for the convolution, so that all blocks
// of the launch must run at the same time. A row is reduced in an order that depends on the number of teams alone.
#pragma once

#include "row.cuh"
#include "wgmma.cuh"

#if CRUCIBLE_HOPPER
namespace crucible {

struct Nobody {
  static constexpr bool follows = false;
};

// Sliced rows (see row.cuh) with one walk before the last.
template <class R>
struct Following {
  static constexpr bool follows = true;
  static constexpr int64_t SLICE = SLICE_VECTORS * VECTOR * 32, PIECE = 8 * SLICE;
  static constexpr int TEAM = 32, MOST = 2 * TEAM;  // warps of a team; less than twice as many where they do not divide evenly
  R r;
  Index samples;
  unsigned* stored;   // of each sample: how much of it is
  unsigned* reduced;  // of each row: warps that have
  unsigned char* parts;

  static __host__ __device__ int64_t words(int64_t samples, int64_t rows) { return samples + rows; }  // that begin as zeros
  // The memory that is needed, all in all.
  static int64_t bytes(int64_t samples, int64_t rows) {
    return (words(samples, rows) * 4 + 15) / 16 * 16 + rows * MOST * static_cast<int64_t>(sizeof(typename R::Found));
  }
  Following(const R& functor, int64_t count, void* memory)
      : r(functor), samples(static_cast<Index>(count)), stored(static_cast<unsigned*>(memory)), reduced(stored + count),
        parts(static_cast<unsigned char*>(memory) + (words(count, functor.rows()) * 4 + 15) / 16 * 16) {}
};

#if CRUCIBLE_HAS_WGMMA
// Counts what a warp has stored for others, or waits until there is enough.
__device__ __forceinline__ void count_stored(unsigned* count, unsigned much) {
  __syncwarp();
  if (threadIdx.x % 32 == 0)
    asm volatile("fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(count)), "r"(much)
                 : "memory");
}
__device__ __forceinline__ void wait_stored(const unsigned* count, unsigned wanted) {
  if (threadIdx.x % 32 == 0) count_wait(count, wanted);
  __syncwarp();
}

// A warp of a team, as the lanes of a row.
struct TeamLanes {
  static constexpr int WIDTH = 32;
  int number, size;
  unsigned* reduced;
  unsigned char* parts;

  __device__ __forceinline__ int lane() const { return static_cast<int>(threadIdx.x) % 32; }
  __device__ __forceinline__ int first() const { return number * 32 + lane(); }
  __device__ __forceinline__ int step() const { return size * 32; }
  __device__ __forceinline__ bool leads() const { return first() == 0; }

  template <class Acc>
  __device__ __forceinline__ void join(Acc& a) const {
    const Lanes<32> warp;
    warp.join(a);
    static_assert(sizeof(Acc) % 4 == 0, "partial results are whole words");
    constexpr int WORDS = static_cast<int>(sizeof(Acc) / 4);
    unsigned* const words = reinterpret_cast<unsigned*>(parts);
    if (lane() == 0) memcpy(words + number * WORDS, &a, sizeof(Acc));
    count_stored(reduced, 1);
    wait_stored(reduced, static_cast<unsigned>(size));
    Acc all;
    for (int k = lane(); k < size; k += 32) {
      unsigned got[WORDS];
#pragma unroll
      for (int i = 0; i < WORDS; ++i) got[i] = __ldcg(words + k * WORDS + i);
      Acc other;
      memcpy(&other, got, sizeof(Acc));
      all.join(other);
    }
    warp.join(all);
    a = all;
  }
};

// Warp `number` of `count`: `wanted` of a sample is all of it.
template <class R>
__device__ __forceinline__ void follow(const Following<R>& f, int number, int count, unsigned wanted) {
  if (f.samples == 0) return;
  constexpr int64_t PIECE = Following<R>::PIECE;
  const int64_t length = f.r.length(), pieces = (length - 1) / PIECE + 1, work = pieces * f.r.repeats() / 8;
  const int size = work < 1 ? 1 : work < Following<R>::TEAM ? static_cast<int>(work) : Following<R>::TEAM;
  const int teams = count > size ? count / size : 1, team = number % teams;
  const Index each = f.r.rows() / f.samples;
  TeamLanes lanes{number / teams, (count - team - 1) / teams + 1, nullptr, nullptr};
  for (Index row = static_cast<Index>(team); row < f.r.rows(); row += static_cast<Index>(teams)) {
    lanes.reduced = f.reduced + row;
    lanes.parts = f.parts + static_cast<int64_t>(row) * (Following<R>::MOST * static_cast<int>(sizeof(typename R::Found)));
    wait_stored(f.stored + row / each, wanted);
    const typename R::Found found = f.r.reduce(lanes, row);
    for (int64_t piece = lanes.number; piece < pieces * f.r.repeats(); piece += lanes.size) {
      const int64_t from = piece % pieces * PIECE, to = from + PIECE < length ? from + PIECE : length;
      const Index part = static_cast<Index>(piece / pieces);
      for (int64_t at = from; at < to; at += Following<R>::SLICE)
        f.r.walk(Lanes<32>(), row, part, at, at + Following<R>::SLICE < to ? at + Following<R>::SLICE : to, found);
    }
  }
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
