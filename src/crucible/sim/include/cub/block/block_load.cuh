// cub::BlockLoad and the LoadDirect functions. All algorithms but the striped one give each thread neighbouring items;
// how the real ones get there (through shared memory, by vectors) makes no difference to the result.
#pragma once

#include "cub/util.cuh"

namespace cub {
enum BlockLoadAlgorithm {
    BLOCK_LOAD_DIRECT,
    BLOCK_LOAD_STRIPED,
    BLOCK_LOAD_VECTORIZE,
    BLOCK_LOAD_TRANSPOSE,
    BLOCK_LOAD_WARP_TRANSPOSE,
    BLOCK_LOAD_WARP_TRANSPOSE_TIMESLICED,
};

template <class T, int N, class IT> CSIM_CUB void LoadDirectBlocked(int thread, IT from, T (&items)[N]) {
    for (int i = 0; i < N; ++i) items[i] = from[thread * N + i];
}
template <class T, int N, class IT> CSIM_CUB void LoadDirectBlocked(int thread, IT from, T (&items)[N], int valid) {
    for (int i = 0; i < N; ++i)
        if (thread * N + i < valid) items[i] = from[thread * N + i];
}
template <class T, int N, class IT, class D>
CSIM_CUB void LoadDirectBlocked(int thread, IT from, T (&items)[N], int valid, D otherwise) {
    for (int i = 0; i < N; ++i) items[i] = otherwise;
    LoadDirectBlocked(thread, from, items, valid);
}
template <int THREADS, class T, int N, class IT> CSIM_CUB void LoadDirectStriped(int thread, IT from, T (&items)[N]) {
    for (int i = 0; i < N; ++i) items[i] = from[thread + i * THREADS];
}
template <int THREADS, class T, int N, class IT>
CSIM_CUB void LoadDirectStriped(int thread, IT from, T (&items)[N], int valid) {
    for (int i = 0; i < N; ++i)
        if (thread + i * THREADS < valid) items[i] = from[thread + i * THREADS];
}
template <int THREADS, class T, int N, class IT, class D>
CSIM_CUB void LoadDirectStriped(int thread, IT from, T (&items)[N], int valid, D otherwise) {
    for (int i = 0; i < N; ++i) items[i] = otherwise;
    LoadDirectStriped<THREADS>(thread, from, items, valid);
}

template <class T, int X, int N, BlockLoadAlgorithm A = BLOCK_LOAD_DIRECT, int Y = 1, int Z = 1,
        int = 0> class BlockLoad {
    static constexpr int THREADS = X * Y * Z;

 public:
    struct TempStorage {};
    CSIM_CUB BlockLoad() {}
    CSIM_CUB BlockLoad(TempStorage&) {}
    template <class IT, class... REST> CSIM_CUB void Load(IT from, T (&items)[N], REST... rest) {
        if constexpr (A == BLOCK_LOAD_STRIPED) LoadDirectStriped<THREADS>(RowMajorTid(X, Y, Z), from, items, rest...);
        else LoadDirectBlocked(RowMajorTid(X, Y, Z), from, items, rest...);
    }
};
}  // namespace cub
