// cub::WarpReduce: lane 0 of each logical warp gets the total.
#pragma once

#include "cub/util.cuh"

namespace cub {
template <class T, int LOGICAL = 32, int = 0> class WarpReduce {
    static_assert(LOGICAL >= 1 && LOGICAL <= 32, "a logical warp has 1 to 32 threads");
    static constexpr bool POWER_OF_TWO = (LOGICAL & (LOGICAL - 1)) == 0;

 public:
    struct TempStorage {};
    CSIM_CUB WarpReduce(TempStorage&) {}

    template <class OP> CSIM_CUB T Reduce(T input, OP op) { return Reduce(input, op, LOGICAL); }
    template <class OP> CSIM_CUB T Reduce(T input, OP op, int valid) {
        const unsigned mask = member_mask();
        const int rank = csim_lane() % LOGICAL;
        for (int distance = 1; distance < LOGICAL; distance *= 2) {
            T other = __shfl_down_sync(mask, input, distance, POWER_OF_TWO ? LOGICAL : 32);
            if (rank + distance < valid && rank + distance < LOGICAL) input = op(input, other);
        }
        return input;
    }
    CSIM_CUB T Sum(T input) { return Reduce(input, cub::Sum(), LOGICAL); }
    CSIM_CUB T Sum(T input, int valid) { return Reduce(input, cub::Sum(), valid); }
    CSIM_CUB T Max(T input) { return Reduce(input, cub::Max(), LOGICAL); }
    CSIM_CUB T Min(T input) { return Reduce(input, cub::Min(), LOGICAL); }

    // Segments end where a flag is set (tails) or before one (heads).
    template <class OP, class FLAG> CSIM_CUB T TailSegmentedReduce(T input, FLAG flag, OP op) {
        unsigned ends = __ballot_sync(member_mask(), flag) >> csim_lane();
        return Reduce(input, op, csim_lane() % LOGICAL + (ends ? __builtin_ctz(ends) + 1 : LOGICAL));
    }
    template <class OP, class FLAG> CSIM_CUB T HeadSegmentedReduce(T input, FLAG flag, OP op) {
        unsigned heads = (unsigned)((uint64_t)__ballot_sync(member_mask(), flag) >> (csim_lane() + 1));
        return Reduce(input, op, csim_lane() % LOGICAL + (heads ? __builtin_ctz(heads) + 1 : LOGICAL));
    }
    template <class FLAG> CSIM_CUB T TailSegmentedSum(T input, FLAG flag) {
        return TailSegmentedReduce(input, flag, cub::Sum());
    }
    template <class FLAG> CSIM_CUB T HeadSegmentedSum(T input, FLAG flag) {
        return HeadSegmentedReduce(input, flag, cub::Sum());
    }

 private:
    CSIM_CUB static unsigned member_mask() {
        if (!POWER_OF_TWO || LOGICAL == 32) return 0xffffffffu;
        return ((1u << (LOGICAL % 32)) - 1u) << (csim_lane() / LOGICAL * LOGICAL);
    }
};
}  // namespace cub
