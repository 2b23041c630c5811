// cub::BlockRadixSort: a stable sort of a block's keys, with or without values. Each thread counts the keys that come
// before its own instead of building digit histograms: the same permutation, simpler, slower on a chip.
#pragma once

#include "cub/block/radix_rank_sort_operations.cuh"
#include "cub/util.cuh"

namespace cub {
template <class KEY, int X, int N, class VALUE = NullType, int = 4, bool = true, int = 0, int = 0, int Y = 1,
        int Z = 1, int = 0>
class BlockRadixSort {
    static constexpr int THREADS = X * Y * Z, COUNT = THREADS * N, BITS = sizeof(KEY) * 8;
    static constexpr bool KEYS_ONLY = std::is_same_v<VALUE, NullType>;

 public:
    struct TempStorage {
        detail::Raw<KEY> keys[COUNT];
        detail::Raw<VALUE> values[KEYS_ONLY ? 1 : COUNT];
    };
    CSIM_CUB BlockRadixSort() : temp_(private_storage()) {}
    CSIM_CUB BlockRadixSort(TempStorage& temp) : temp_(temp) {}

    CSIM_CUB void Sort(KEY (&keys)[N], int begin = 0, int end = BITS) { run<false, false>(keys, none_, begin, end); }
    CSIM_CUB void SortDescending(KEY (&keys)[N], int begin = 0, int end = BITS) {
        run<true, false>(keys, none_, begin, end);
    }
    CSIM_CUB void SortBlockedToStriped(KEY (&keys)[N], int begin = 0, int end = BITS) {
        run<false, true>(keys, none_, begin, end);
    }
    CSIM_CUB void SortDescendingBlockedToStriped(KEY (&keys)[N], int begin = 0, int end = BITS) {
        run<true, true>(keys, none_, begin, end);
    }
    CSIM_CUB void Sort(KEY (&keys)[N], VALUE (&values)[N], int begin = 0, int end = BITS) {
        run<false, false>(keys, values, begin, end);
    }
    CSIM_CUB void SortDescending(KEY (&keys)[N], VALUE (&values)[N], int begin = 0, int end = BITS) {
        run<true, false>(keys, values, begin, end);
    }
    CSIM_CUB void SortBlockedToStriped(KEY (&keys)[N], VALUE (&values)[N], int begin = 0, int end = BITS) {
        run<false, true>(keys, values, begin, end);
    }
    CSIM_CUB void SortDescendingBlockedToStriped(KEY (&keys)[N], VALUE (&values)[N], int begin = 0, int end = BITS) {
        run<true, true>(keys, values, begin, end);
    }

 private:
    // Uninstrumented: reads every key for every key, after a barrier that makes all of them visible.
    template <bool DESCENDING> CSIM_PLAIN __attribute__((noinline)) int rank_of(int index, int begin, int end) const {
        const KEY* keys = reinterpret_cast<const KEY*>(temp_.keys);
        uint64_t mine = detail::radix_bits(keys[index], begin, end);
        int rank = 0;
        for (int other = 0; other < COUNT; ++other) {
            uint64_t theirs = detail::radix_bits(keys[other], begin, end);
            rank += theirs == mine ? other < index : (theirs < mine) != DESCENDING;
        }
        return rank;
    }
    template <bool DESCENDING, bool STRIPED, class V> CSIM_CUB void run(KEY (&keys)[N], V& values, int begin, int end) {
        const int thread = RowMajorTid(X, Y, Z);
        for (int i = 0; i < N; ++i) temp_.keys[thread * N + i].value() = keys[i];
        __syncthreads();
        int ranks[N];
        for (int i = 0; i < N; ++i) ranks[i] = rank_of<DESCENDING>(thread * N + i, begin, end);
        __syncthreads();
        for (int i = 0; i < N; ++i) {
            temp_.keys[ranks[i]].value() = keys[i];
            if constexpr (!std::is_same_v<V, NullType>) temp_.values[ranks[i]].value() = values[i];
        }
        __syncthreads();
        for (int i = 0; i < N; ++i) {
            const int at = STRIPED ? thread + i * THREADS : thread * N + i;
            keys[i] = temp_.keys[at].value();
            if constexpr (!std::is_same_v<V, NullType>) values[i] = temp_.values[at].value();
        }
    }
    CSIM_CUB static TempStorage& private_storage() {
        __shared__ TempStorage storage;
        return storage;
    }
    TempStorage& temp_;
    NullType none_;
};
}  // namespace cub
