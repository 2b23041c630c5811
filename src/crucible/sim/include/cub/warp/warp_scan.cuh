// cub::WarpScan: running totals over the lanes of a logical warp.
#pragma once

#include "cub/util.cuh"

namespace cub {
template <class T, int LOGICAL = 32, int = 0> class WarpScan {
    static_assert(LOGICAL >= 1 && LOGICAL <= 32 && (LOGICAL & (LOGICAL - 1)) == 0,
                  "crucible-sim: WarpScan needs a power of two of threads");

 public:
    struct TempStorage {};
    CSIM_CUB WarpScan(TempStorage&) {}

    template <class OP> CSIM_CUB void InclusiveScan(T input, T& output, OP op) {
        for (int distance = 1; distance < LOGICAL; distance *= 2) {
            T before = __shfl_up_sync(mask(), input, distance, LOGICAL);
            if (rank() >= distance) input = op(before, input);
        }
        output = input;
    }
    template <class OP> CSIM_CUB void InclusiveScan(T input, T& output, OP op, T& aggregate) {
        InclusiveScan(input, output, op);
        aggregate = __shfl_sync(mask(), output, LOGICAL - 1, LOGICAL);
    }
    // Without an initial value the first lane's result is undefined, in CUDA and here.
    template <class OP> CSIM_CUB void ExclusiveScan(T input, T& output, OP op) {
        T inclusive;
        InclusiveScan(input, inclusive, op);
        output = __shfl_up_sync(mask(), inclusive, 1, LOGICAL);
    }
    template <class OP> CSIM_CUB void ExclusiveScan(T input, T& output, T initial, OP op) {
        ExclusiveScan(input, output, op);
        output = rank() == 0 ? initial : op(initial, output);
    }
    template <class OP> CSIM_CUB void ExclusiveScan(T input, T& output, T initial, OP op, T& aggregate) {
        T inclusive;
        InclusiveScan(input, inclusive, op, aggregate);
        T before = __shfl_up_sync(mask(), inclusive, 1, LOGICAL);
        output = rank() == 0 ? initial : op(initial, before);
    }
    template <class OP> CSIM_CUB void Scan(T input, T& inclusive, T& exclusive, OP op) {
        InclusiveScan(input, inclusive, op);
        exclusive = __shfl_up_sync(mask(), inclusive, 1, LOGICAL);
    }
    CSIM_CUB void InclusiveSum(T input, T& output) { InclusiveScan(input, output, cub::Sum()); }
    CSIM_CUB void InclusiveSum(T input, T& output, T& aggregate) {
        InclusiveScan(input, output, cub::Sum(), aggregate);
    }
    CSIM_CUB void ExclusiveSum(T input, T& output) { ExclusiveScan(input, output, T{}, cub::Sum()); }
    CSIM_CUB void ExclusiveSum(T input, T& output, T& aggregate) {
        ExclusiveScan(input, output, T{}, cub::Sum(), aggregate);
    }
    CSIM_CUB T Broadcast(T input, unsigned source) { return __shfl_sync(mask(), input, (int)source, LOGICAL); }

 private:
    CSIM_CUB static int rank() { return csim_lane() % LOGICAL; }
    CSIM_CUB static unsigned mask() {
        return LOGICAL == 32 ? 0xffffffffu : ((1u << (LOGICAL % 32)) - 1u) << (csim_lane() / LOGICAL * LOGICAL);
    }
};
}  // namespace cub
