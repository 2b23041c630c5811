// cub::BlockScan: running totals over the threads of a block, in blocked order.
#pragma once

#include "cub/util.cuh"

namespace cub {
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };

template <class T, int X, BlockScanAlgorithm = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1, int = 0> class BlockScan {
    static constexpr int THREADS = X * Y * Z, WARPS = (THREADS + 31) / 32;
    template <class F> using if_callback = std::enable_if_t<std::is_class_v<F> && !std::is_same_v<F, T>>;

 public:
    struct TempStorage {
        detail::Raw<T> warp_totals[WARPS];
        detail::Raw<T> prefix;
    };
    CSIM_CUB BlockScan() : temp_(private_storage()) {}
    CSIM_CUB BlockScan(TempStorage& temp) : temp_(temp) {}

    // ---- one item a thread
    template <class OP> CSIM_CUB void InclusiveScan(T input, T& output, OP op, T& aggregate) {
        Parts parts = scan(input, op);
        output = parts.inclusive;
        aggregate = parts.aggregate;
    }
    template <class OP> CSIM_CUB void InclusiveScan(T input, T& output, OP op) {
        T aggregate;
        InclusiveScan(input, output, op, aggregate);
    }
    template <class OP> CSIM_CUB void ExclusiveScan(T input, T& output, T initial, OP op, T& aggregate) {
        Parts parts = scan(input, op);
        output = thread() == 0 ? initial : op(initial, parts.exclusive);
        aggregate = parts.aggregate;
    }
    template <class OP> CSIM_CUB void ExclusiveScan(T input, T& output, T initial, OP op) {
        T aggregate;
        ExclusiveScan(input, output, initial, op, aggregate);
    }
    template <class OP> CSIM_CUB void ExclusiveScan(T input, T& output, OP op) {  // thread 0: undefined
        output = scan(input, op).exclusive;
    }
    // `callback` is asked once, by the first warp, for what precedes this block's items.
    template <class OP, class CALLBACK>
    CSIM_CUB std::enable_if_t<!std::is_convertible_v<CALLBACK, T>> InclusiveScan(T input, T& output, OP op,
            CALLBACK& callback) {
        Parts parts = scan(input, op);
        output = op(ask(callback, parts.aggregate), parts.inclusive);
    }
    template <class OP, class CALLBACK>
    CSIM_CUB std::enable_if_t<!std::is_convertible_v<OP, T>> ExclusiveScan(T input, T& output, OP op,
            CALLBACK& callback) {
        Parts parts = scan(input, op);
        T before = ask(callback, parts.aggregate);
        output = thread() == 0 ? before : op(before, parts.exclusive);
    }
    CSIM_CUB void InclusiveSum(T input, T& output) { InclusiveScan(input, output, cub::Sum()); }
    CSIM_CUB void InclusiveSum(T input, T& output, T& aggregate) {
        InclusiveScan(input, output, cub::Sum(), aggregate);
    }
    template <class CALLBACK> CSIM_CUB if_callback<CALLBACK> InclusiveSum(T input, T& output, CALLBACK& callback) {
        InclusiveScan(input, output, cub::Sum(), callback);
    }
    CSIM_CUB void ExclusiveSum(T input, T& output) { ExclusiveScan(input, output, T{}, cub::Sum()); }
    CSIM_CUB void ExclusiveSum(T input, T& output, T& aggregate) {
        ExclusiveScan(input, output, T{}, cub::Sum(), aggregate);
    }
    template <class CALLBACK> CSIM_CUB if_callback<CALLBACK> ExclusiveSum(T input, T& output, CALLBACK& callback) {
        ExclusiveScan(input, output, cub::Sum(), callback);
    }

    // ---- several items a thread
    template <int N, class OP> CSIM_CUB void InclusiveScan(T (&input)[N], T (&output)[N], OP op, T& aggregate) {
        Parts parts = scan(ThreadReduce(input, op), op);
        T running = thread() == 0 ? input[0] : op(parts.exclusive, input[0]);
        output[0] = running;
        for (int i = 1; i < N; ++i) output[i] = running = op(running, input[i]);
        aggregate = parts.aggregate;
    }
    template <int N, class OP> CSIM_CUB void InclusiveScan(T (&input)[N], T (&output)[N], OP op) {
        T aggregate;
        InclusiveScan(input, output, op, aggregate);
    }
    template <int N, class OP>
    CSIM_CUB void ExclusiveScan(T (&input)[N], T (&output)[N], T initial, OP op, T& aggregate) {
        Parts parts = scan(ThreadReduce(input, op), op);
        T running = thread() == 0 ? initial : op(initial, parts.exclusive);
        for (int i = 0; i < N; ++i) {
            T item = input[i];
            output[i] = running;
            running = op(running, item);
        }
        aggregate = parts.aggregate;
    }
    template <int N, class OP> CSIM_CUB void ExclusiveScan(T (&input)[N], T (&output)[N], T initial, OP op) {
        T aggregate;
        ExclusiveScan(input, output, initial, op, aggregate);
    }
    template <int N> CSIM_CUB void InclusiveSum(T (&input)[N], T (&output)[N]) {
        InclusiveScan(input, output, cub::Sum());
    }
    template <int N> CSIM_CUB void InclusiveSum(T (&input)[N], T (&output)[N], T& aggregate) {
        InclusiveScan(input, output, cub::Sum(), aggregate);
    }
    template <int N> CSIM_CUB void ExclusiveSum(T (&input)[N], T (&output)[N]) {
        ExclusiveScan(input, output, T{}, cub::Sum());
    }
    template <int N> CSIM_CUB void ExclusiveSum(T (&input)[N], T (&output)[N], T& aggregate) {
        ExclusiveScan(input, output, T{}, cub::Sum(), aggregate);
    }

 private:
    struct Parts {
        T inclusive, exclusive, aggregate;
    };
    CSIM_CUB static int thread() { return RowMajorTid(X, Y, Z); }

    template <class OP> CSIM_CUB Parts scan(T input, OP op) {
        const int warp = thread() / 32, lane = thread() % 32;
        T inclusive = input;
        for (int distance = 1; distance < 32; distance *= 2) {
            T before = __shfl_up_sync(0xffffffffu, inclusive, distance);
            if (lane >= distance) inclusive = op(before, inclusive);
        }
        T exclusive = __shfl_up_sync(0xffffffffu, inclusive, 1);
        const bool last_lane = lane == 31 || thread() == THREADS - 1;
        if (last_lane) temp_.warp_totals[warp].value() = inclusive;
        __syncthreads();
        Parts parts{inclusive, exclusive, temp_.warp_totals[0].value()};
        for (int w = 1; w < WARPS; ++w) {
            if (w == warp) {  // what came before this warp is complete
                parts.inclusive = op(parts.aggregate, inclusive);
                parts.exclusive = lane == 0 ? parts.aggregate : op(parts.aggregate, exclusive);
            }
            parts.aggregate = op(parts.aggregate, temp_.warp_totals[w].value());
        }
        return parts;
    }
    template <class CALLBACK> CSIM_CUB T ask(CALLBACK& callback, T aggregate) {
        if (thread() < 32) {
            T prefix = callback(aggregate);
            if (thread() == 0) temp_.prefix.value() = prefix;
        }
        __syncthreads();
        return temp_.prefix.value();
    }
    CSIM_CUB static TempStorage& private_storage() {
        __shared__ TempStorage storage;
        return storage;
    }
    TempStorage& temp_;
};
}  // namespace cub
