// The parts of cub that are left out: using one is a compile error with its name.
#pragma once

#include "cub/util.cuh"

namespace cub {
namespace detail {
template <class T> inline constexpr bool simulated = sizeof(T) == 0;
}

#define CSIM_CUB_LEFT_OUT(name)                                                                              \
    template <class T, auto...> struct name {                                                                \
        static_assert(detail::simulated<T>, "crucible-sim: cub::" #name " is not simulated");                \
    };
CSIM_CUB_LEFT_OUT(BlockHistogram)
CSIM_CUB_LEFT_OUT(BlockDiscontinuity)
CSIM_CUB_LEFT_OUT(BlockAdjacentDifference)
CSIM_CUB_LEFT_OUT(BlockShuffle)
CSIM_CUB_LEFT_OUT(WarpLoad)
CSIM_CUB_LEFT_OUT(WarpStore)
CSIM_CUB_LEFT_OUT(WarpExchange)
#undef CSIM_CUB_LEFT_OUT
template <class KEY, int X, int N, class VALUE = NullType, auto...> struct BlockMergeSort {
    static_assert(detail::simulated<KEY>, "crucible-sim: cub::BlockMergeSort is not simulated");
};
template <class KEY, int N, int X = 32, class VALUE = NullType, auto...> struct WarpMergeSort {
    static_assert(detail::simulated<KEY>, "crucible-sim: cub::WarpMergeSort is not simulated");
};

// For the device-wide functions an incomplete type does it: g++ prints the type's name.
#define CSIM_CUB_LEFT_OUT(name) using name = struct csim_##name##_is_not_simulated;
CSIM_CUB_LEFT_OUT(DeviceHistogram)
CSIM_CUB_LEFT_OUT(DeviceSelect)
CSIM_CUB_LEFT_OUT(DevicePartition)
CSIM_CUB_LEFT_OUT(DeviceMergeSort)
CSIM_CUB_LEFT_OUT(DeviceSegmentedSort)
CSIM_CUB_LEFT_OUT(DeviceSegmentedRadixSort)
CSIM_CUB_LEFT_OUT(DeviceRunLengthEncode)
CSIM_CUB_LEFT_OUT(DeviceFor)
CSIM_CUB_LEFT_OUT(DeviceTransform)
#undef CSIM_CUB_LEFT_OUT
}  // namespace cub
