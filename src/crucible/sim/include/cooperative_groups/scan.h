// cg::inclusive_scan and cg::exclusive_scan over tiles and coalesced groups, in the order of ranks.
#pragma once

#include "cooperative_groups.h"
#include "cooperative_groups/reduce.h"

namespace cooperative_groups {
template <class GROUP, class T, class OP>
CSIM_CG details::bare<T> inclusive_scan(const GROUP& group, T&& value, OP&& op) {
    details::bare<T> total = value;
    for (unsigned distance = 1; distance < group.num_threads(); distance *= 2) {
        details::bare<T> before = group.shfl_up(total, distance);
        if (group.thread_rank() >= distance) total = op(before, total);
    }
    return total;
}
template <class GROUP, class T> CSIM_CG details::bare<T> inclusive_scan(const GROUP& group, T&& value) {
    return inclusive_scan(group, value, plus<details::bare<T>>());
}
// The first thread gets a value-initialised T.
template <class GROUP, class T, class OP>
CSIM_CG details::bare<T> exclusive_scan(const GROUP& group, T&& value, OP&& op) {
    details::bare<T> total = group.shfl_up(inclusive_scan(group, value, op), 1);
    return group.thread_rank() == 0 ? details::bare<T>{} : total;
}
template <class GROUP, class T> CSIM_CG details::bare<T> exclusive_scan(const GROUP& group, T&& value) {
    return exclusive_scan(group, value, plus<details::bare<T>>());
}
}  // namespace cooperative_groups
