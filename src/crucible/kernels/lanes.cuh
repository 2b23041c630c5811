// Partial results of a warp's lanes (plain structs of whole words with a function join), by shuffles.
#pragma once

#include "common.cuh"

namespace crucible {

// What `shuffle` makes of each word.
template <class Acc, class Shuffle>
__device__ __forceinline__ Acc shuffled(const Acc& a, Shuffle shuffle) {
  static_assert(sizeof(Acc) % 4 == 0, "partial results are whole words");
  uint32_t words[sizeof(Acc) / 4];
  memcpy(words, &a, sizeof(Acc));
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Acc) / 4); ++i) words[i] = shuffle(words[i]);
  Acc b;
  memcpy(&b, words, sizeof(Acc));
  return b;
}

// The first COUNT lanes' results, joined, in the first of them. What the others join on the way nobody wants.
template <int COUNT, class Acc>
__device__ __forceinline__ Acc fold_lanes(Acc a) {
#pragma unroll
  for (int by = COUNT / 2; by > 0; by /= 2)
    a.join(shuffled(a, [by](uint32_t word) { return __shfl_down_sync(0xffffffffu, word, by); }));
  return a;
}

// The same, to all lanes.
template <int COUNT, class Acc>
__device__ __forceinline__ Acc join_lanes(const Acc& a) {
  return shuffled(fold_lanes<COUNT>(a), [](uint32_t word) { return __shfl_sync(0xffffffffu, word, 0); });
}

// Of N results in each lane, N a power of two: lane l gets a[l / (32 / N)], joined over the warp.
template <int N, class Acc>
__device__ __forceinline__ Acc scattered_join(Acc (&a)[N]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int step = 16;
  const auto across = [&step](const Acc& b) {
    return shuffled(b, [step](uint32_t word) { return __shfl_xor_sync(0xffffffffu, word, step); });
  };
#pragma unroll
  for (int n = N; n > 1; n /= 2, step /= 2)
#pragma unroll
    for (int i = 0; i < n / 2; ++i) {
      const Acc other = lane & step ? a[i] : a[i + n / 2];
      if (lane & step) a[i] = a[i + n / 2];
      a[i].join(across(other));
    }
#pragma unroll
  for (; step > 0; step /= 2) a[0].join(across(a[0]));
  return a[0];
}

}  // namespace crucible
