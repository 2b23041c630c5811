// cg::reduce and its operators. Tiles reduce by halving distances (the order in which a chip adds), so that the
// rounding of a float sum is of the same kind; other groups reduce in the order of their ranks.
#pragma once

#include "cooperative_groups.h"

namespace cooperative_groups {
template <class T = void> struct plus {
    CSIM_CG T operator()(const T& a, const T& b) const { return a + b; }
};
template <class T = void> struct less {  // the smaller one
    CSIM_CG T operator()(const T& a, const T& b) const { return b < a ? b : a; }
};
template <class T = void> struct greater {  // the larger one
    CSIM_CG T operator()(const T& a, const T& b) const { return a < b ? b : a; }
};
template <class T = void> struct bit_and {
    CSIM_CG T operator()(const T& a, const T& b) const { return a & b; }
};
template <class T = void> struct bit_or {
    CSIM_CG T operator()(const T& a, const T& b) const { return a | b; }
};
template <class T = void> struct bit_xor {
    CSIM_CG T operator()(const T& a, const T& b) const { return a ^ b; }
};
template <> struct plus<void> {
    template <class T> CSIM_CG T operator()(const T& a, const T& b) const { return a + b; }
};
template <> struct less<void> {
    template <class T> CSIM_CG T operator()(const T& a, const T& b) const { return b < a ? b : a; }
};
template <> struct greater<void> {
    template <class T> CSIM_CG T operator()(const T& a, const T& b) const { return a < b ? b : a; }
};

template <unsigned SIZE, class P, class T, class OP>
CSIM_CG details::bare<T> reduce(const thread_block_tile<SIZE, P>& tile, T&& value, OP&& op) {
    details::bare<T> total = value;
    for (unsigned distance = SIZE / 2; distance > 0; distance /= 2) total = op(total, tile.shfl_xor(total, distance));
    return total;
}
template <class T, class OP> CSIM_CG details::bare<T> reduce(const coalesced_group& group, T&& value, OP&& op) {
    details::bare<T> total = group.shfl(value, 0);
    for (int rank = 1; rank < (int)group.num_threads(); ++rank) {
        details::bare<T> next = group.shfl(value, rank);
        total = op(total, next);
    }
    return total;
}
template <class GROUP, class T, class V, class OP>
CSIM_CG void reduce_store_async(const GROUP& group, T* target, V&& value, OP&& op) {
    auto total = reduce(group, value, op);
    if (group.thread_rank() == 0) *target = total;
}
}  // namespace cooperative_groups
