// cub::BlockStore and the StoreDirect functions: the mirror image of BlockLoad.
#pragma once

#include "cub/util.cuh"

namespace cub {
enum BlockStoreAlgorithm {
    BLOCK_STORE_DIRECT,
    BLOCK_STORE_STRIPED,
    BLOCK_STORE_VECTORIZE,
    BLOCK_STORE_TRANSPOSE,
    BLOCK_STORE_WARP_TRANSPOSE,
    BLOCK_STORE_WARP_TRANSPOSE_TIMESLICED,
};

template <class T, int N, class IT> CSIM_CUB void StoreDirectBlocked(int thread, IT to, T (&items)[N]) {
    for (int i = 0; i < N; ++i) to[thread * N + i] = items[i];
}
template <class T, int N, class IT> CSIM_CUB void StoreDirectBlocked(int thread, IT to, T (&items)[N], int valid) {
    for (int i = 0; i < N; ++i)
        if (thread * N + i < valid) to[thread * N + i] = items[i];
}
template <int THREADS, class T, int N, class IT> CSIM_CUB void StoreDirectStriped(int thread, IT to, T (&items)[N]) {
    for (int i = 0; i < N; ++i) to[thread + i * THREADS] = items[i];
}
template <int THREADS, class T, int N, class IT>
CSIM_CUB void StoreDirectStriped(int thread, IT to, T (&items)[N], int valid) {
    for (int i = 0; i < N; ++i)
        if (thread + i * THREADS < valid) to[thread + i * THREADS] = items[i];
}

template <class T, int X, int N, BlockStoreAlgorithm A = BLOCK_STORE_DIRECT, int Y = 1, int Z = 1, int = 0>
class BlockStore {
    static constexpr int THREADS = X * Y * Z;

 public:
    struct TempStorage {};
    CSIM_CUB BlockStore() {}
    CSIM_CUB BlockStore(TempStorage&) {}
    template <class IT, class... REST> CSIM_CUB void Store(IT to, T (&items)[N], REST... rest) {
        if constexpr (A == BLOCK_STORE_STRIPED) StoreDirectStriped<THREADS>(RowMajorTid(X, Y, Z), to, items, rest...);
        else StoreDirectBlocked(RowMajorTid(X, Y, Z), to, items, rest...);
    }
};
}  // namespace cub
