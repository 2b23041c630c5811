// cub::BlockExchange: items rearranged between threads through shared memory.
#pragma once

#include "cub/util.cuh"

namespace cub {
template <class T, int X, int N, bool = false, int Y = 1, int Z = 1, int = 0> class BlockExchange {
    static constexpr int THREADS = X * Y * Z;

 public:
    struct TempStorage {
        detail::Raw<T> items[THREADS * N];
    };
    CSIM_CUB BlockExchange(TempStorage& temp) : temp_(temp) {}

    template <class U> CSIM_CUB void StripedToBlocked(const T (&in)[N], U (&out)[N]) {
        move(in, out, &striped, &blocked);
    }
    template <class U> CSIM_CUB void BlockedToStriped(const T (&in)[N], U (&out)[N]) {
        move(in, out, &blocked, &striped);
    }
    CSIM_CUB void StripedToBlocked(T (&items)[N]) { move(items, items, &striped, &blocked); }
    CSIM_CUB void BlockedToStriped(T (&items)[N]) { move(items, items, &blocked, &striped); }
    template <class R> CSIM_CUB void ScatterToBlocked(T (&items)[N], const R (&ranks)[N]) {
        scatter(items, ranks, &blocked);
    }
    template <class R> CSIM_CUB void ScatterToStriped(T (&items)[N], const R (&ranks)[N]) {
        scatter(items, ranks, &striped);
    }

 private:
    CSIM_CUB static int blocked(int thread, int i) { return thread * N + i; }
    CSIM_CUB static int striped(int thread, int i) { return thread + i * THREADS; }
    template <class U> CSIM_CUB void move(const T (&in)[N], U (&out)[N], int (*from)(int, int), int (*to)(int, int)) {
        const int thread = RowMajorTid(X, Y, Z);
        for (int i = 0; i < N; ++i) temp_.items[from(thread, i)].value() = in[i];
        __syncthreads();
        for (int i = 0; i < N; ++i) out[i] = temp_.items[to(thread, i)].value();
    }
    template <class R> CSIM_CUB void scatter(T (&items)[N], const R (&ranks)[N], int (*to)(int, int)) {
        for (int i = 0; i < N; ++i) temp_.items[ranks[i]].value() = items[i];
        __syncthreads();
        for (int i = 0; i < N; ++i) items[i] = temp_.items[to(RowMajorTid(X, Y, Z), i)].value();
    }
    TempStorage& temp_;
};
}  // namespace cub
