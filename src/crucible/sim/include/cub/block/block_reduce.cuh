// cub::BlockReduce: thread 0 gets the total. Warps reduce by shuffles, thread 0 adds the warps' totals in order.
#pragma once

#include "cub/util.cuh"

namespace cub {
enum BlockReduceAlgorithm {
    BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY,
    BLOCK_REDUCE_RAKING,
    BLOCK_REDUCE_WARP_REDUCTIONS,
    BLOCK_REDUCE_WARP_REDUCTIONS_NONDETERMINISTIC,
};

template <class T, int X, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1, int Z = 1, int = 0>
class BlockReduce {
    static constexpr int THREADS = X * Y * Z, WARPS = (THREADS + 31) / 32;

 public:
    struct TempStorage {
        detail::Raw<T> warp_totals[WARPS];
    };
    CSIM_CUB BlockReduce() : temp_(private_storage()) {}
    CSIM_CUB BlockReduce(TempStorage& temp) : temp_(temp) {}

    template <class OP> CSIM_CUB T Reduce(T input, OP op) { return Reduce(input, op, THREADS); }
    template <class OP> CSIM_CUB T Reduce(T input, OP op, int valid) {
        const int thread = RowMajorTid(X, Y, Z), warp = thread / 32, lane = thread % 32;
        const int in_warp = valid - 32 * warp;  // how many lanes of this warp count
        for (int distance = 1; distance < 32; distance *= 2) {
            T other = __shfl_down_sync(0xffffffffu, input, distance);
            if (lane + distance < 32 && lane + distance < in_warp) input = op(input, other);
        }
        if (lane == 0) temp_.warp_totals[warp].value() = input;
        __syncthreads();
        if (thread == 0)
            for (int w = 1; w < WARPS && 32 * w < valid; ++w) input = op(input, temp_.warp_totals[w].value());
        return input;
    }
    template <int N, class OP> CSIM_CUB T Reduce(T (&items)[N], OP op) { return Reduce(ThreadReduce(items, op), op); }
    CSIM_CUB T Sum(T input) { return Reduce(input, cub::Sum(), THREADS); }
    CSIM_CUB T Sum(T input, int valid) { return Reduce(input, cub::Sum(), valid); }
    template <int N> CSIM_CUB T Sum(T (&items)[N]) { return Reduce(items, cub::Sum()); }

 private:
    CSIM_CUB static TempStorage& private_storage() {
        __shared__ TempStorage storage;
        return storage;
    }
    TempStorage& temp_;
};
}  // namespace cub
