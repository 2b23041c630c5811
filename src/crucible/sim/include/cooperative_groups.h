// Cooperative groups for the simulator: blocks, grids, tiles of a warp and coalesced groups, on the warp collectives.
//
// Left out and named when used: clusters, multi-device grids, tiles wider than a warp.
#pragma once

#include <cstddef>
#include <type_traits>

#include "csim/abi.h"

#define CSIM_CG inline __attribute__((always_inline))

namespace cooperative_groups {
namespace details {
CSIM_CG unsigned linear_thread() { return (unsigned)csim_thread(); }
CSIM_CG unsigned block_size() { return blockDim.x * blockDim.y * blockDim.z; }
CSIM_CG unsigned lanes_below() { return (1u << csim_lane()) - 1u; }
CSIM_CG int nth_lane(unsigned mask, int n) {  // the lane of rank n in a group; -1 where there is none
    for (; mask; mask &= mask - 1, --n)
        if (n == 0) return __builtin_ctz(mask);
    return -1;
}
template <class T> using bare = std::remove_cv_t<std::remove_reference_t<T>>;
}  // namespace details

// ---- the whole block
class thread_block {
 public:
    struct arrival_token {};
    CSIM_CG static void sync(int line = __builtin_LINE()) { csim_block_barrier_at(0, 0, "thread_block::sync", line); }
    CSIM_CG static arrival_token barrier_arrive() { return {}; }  // the wait below is where the threads meet
    CSIM_CG static void barrier_wait(arrival_token&&, int line = __builtin_LINE()) { sync(line); }
    CSIM_CG static unsigned thread_rank() { return details::linear_thread(); }
    CSIM_CG static unsigned num_threads() { return details::block_size(); }
    CSIM_CG static unsigned size() { return details::block_size(); }
    CSIM_CG static dim3 group_index() { return dim3(blockIdx.x, blockIdx.y, blockIdx.z); }
    CSIM_CG static dim3 thread_index() { return dim3(threadIdx.x, threadIdx.y, threadIdx.z); }
    CSIM_CG static dim3 group_dim() { return dim3(blockDim.x, blockDim.y, blockDim.z); }
    CSIM_CG static dim3 dim_threads() { return group_dim(); }
};
CSIM_CG thread_block this_thread_block() { return {}; }

// ---- the whole grid
class grid_group {
 public:
    struct arrival_token {};
    CSIM_CG bool is_valid() const { return csim_cooperative() != 0; }
    CSIM_CG void sync() const { csim_grid_sync("grid.sync"); }
    CSIM_CG arrival_token barrier_arrive() const { return {}; }
    CSIM_CG void barrier_wait(arrival_token&&) const { sync(); }
    CSIM_CG static unsigned long long num_blocks() { return (unsigned long long)gridDim.x * gridDim.y * gridDim.z; }
    CSIM_CG static unsigned long long block_rank() {
        return blockIdx.x + (unsigned long long)gridDim.x * (blockIdx.y + (unsigned long long)gridDim.y * blockIdx.z);
    }
    CSIM_CG static unsigned long long thread_rank() {
        return block_rank() * details::block_size() + details::linear_thread();
    }
    CSIM_CG static unsigned long long num_threads() { return num_blocks() * details::block_size(); }
    CSIM_CG static unsigned long long size() { return num_threads(); }
    CSIM_CG static dim3 group_dim() { return dim3(gridDim.x, gridDim.y, gridDim.z); }
    CSIM_CG static dim3 dim_blocks() { return group_dim(); }
    CSIM_CG static dim3 block_index() { return dim3(blockIdx.x, blockIdx.y, blockIdx.z); }
    CSIM_CG static unsigned long long num_clusters() { return num_blocks(); }
};
CSIM_CG grid_group this_grid() { return {}; }

// ---- lanes of one warp: what tiles and coalesced groups share. Ranks count the lanes of `mask` from the lowest.
class lane_group {
 public:
    CSIM_CG void sync(int line = __builtin_LINE()) const { __syncwarp(mask_, line); }
    struct arrival_token {};
    CSIM_CG arrival_token barrier_arrive() const { return {}; }
    CSIM_CG void barrier_wait(arrival_token&&) const { sync(); }
    CSIM_CG unsigned thread_rank() const { return (unsigned)__builtin_popcount(mask_ & details::lanes_below()); }
    CSIM_CG unsigned num_threads() const { return (unsigned)__builtin_popcount(mask_); }
    CSIM_CG unsigned size() const { return num_threads(); }
    CSIM_CG unsigned meta_group_rank() const { return meta_rank_; }
    CSIM_CG unsigned meta_group_size() const { return meta_size_; }

    template <class T> CSIM_CG details::bare<T> shfl(T&& value, int rank) const { return from_rank(value, rank); }
    template <class T> CSIM_CG details::bare<T> shfl_up(T&& value, int delta) const {
        int rank = (int)thread_rank();
        return from_rank(value, rank >= delta ? rank - delta : rank);
    }
    template <class T> CSIM_CG details::bare<T> shfl_down(T&& value, unsigned delta) const {
        unsigned rank = thread_rank();
        return from_rank(value, (int)(rank + delta < num_threads() ? rank + delta : rank));
    }
    CSIM_CG int any(int predicate) const { return __any_sync(mask_, predicate); }
    CSIM_CG int all(int predicate) const { return __all_sync(mask_, predicate); }
    CSIM_CG unsigned ballot(int predicate) const { return packed(__ballot_sync(mask_, predicate)); }
    template <class T> CSIM_CG unsigned match_any(T value) const { return packed(__match_any_sync(mask_, value)); }
    template <class T> CSIM_CG unsigned match_all(T value, int& predicate) const {
        return packed(__match_all_sync(mask_, value, &predicate));
    }
    CSIM_CG unsigned csim_mask() const { return mask_; }
    CSIM_CG void csim_set_meta(unsigned rank, unsigned size) { meta_rank_ = rank, meta_size_ = size; }

 protected:
    CSIM_CG lane_group(unsigned mask, unsigned rank, unsigned size) : mask_(mask), meta_rank_(rank), meta_size_(size) {}
    template <class T> CSIM_CG details::bare<T> from_rank(const T& value, int rank) const {
        int lane = details::nth_lane(mask_, rank);
        return __shfl_sync(mask_, (details::bare<T>)value, lane < 0 ? csim_lane() : lane);
    }
    CSIM_CG unsigned packed(unsigned lanes) const {  // one bit a lane -> one bit a rank
        unsigned result = 0, rank = 0;
        for (unsigned m = mask_; m; m &= m - 1, ++rank)
            if (lanes & m & (0u - m)) result |= 1u << rank;
        return result;
    }
    unsigned mask_, meta_rank_, meta_size_;
};

class coalesced_group : public lane_group {
 public:
    CSIM_CG explicit coalesced_group(unsigned mask, unsigned rank = 0, unsigned size = 1) : lane_group(mask, rank,
            size) {}
};
CSIM_CG coalesced_group coalesced_threads() { return coalesced_group(csim_activemask()); }

// ---- a tile of 1, 2, 4, ... 32 neighbouring lanes
template <unsigned SIZE, class PARENT = void> class thread_block_tile : public lane_group {
    static_assert((SIZE & (SIZE - 1)) == 0, "the size of a tile is a power of two");
    static_assert(SIZE <= 32, "crucible-sim: tiles wider than a warp are not simulated");

 public:
    CSIM_CG thread_block_tile()
        : lane_group((SIZE == 32 ? 0xffffffffu : (1u << (SIZE % 32)) - 1u) << ((unsigned)csim_lane() / SIZE * SIZE),
                     details::linear_thread() / SIZE, (details::block_size() + SIZE - 1) / SIZE) {}
    template <class OTHER> CSIM_CG thread_block_tile(const thread_block_tile<SIZE, OTHER>& o) : lane_group(o) {}
    CSIM_CG static constexpr unsigned num_threads() { return SIZE; }
    CSIM_CG static constexpr unsigned size() { return SIZE; }
    CSIM_CG static unsigned thread_rank() { return (unsigned)csim_lane() % SIZE; }

    template <class T> CSIM_CG details::bare<T> shfl(T&& value, int rank, int line = __builtin_LINE()) const {
        return __shfl_sync(mask_, (details::bare<T>)value, rank, SIZE, line);
    }
    template <class T> CSIM_CG details::bare<T> shfl_up(T&& value, unsigned delta, int line = __builtin_LINE()) const {
        return __shfl_up_sync(mask_, (details::bare<T>)value, (int)delta, SIZE, line);
    }
    template <class T> CSIM_CG details::bare<T> shfl_down(T&& value, unsigned delta,
            int line = __builtin_LINE()) const {
        return __shfl_down_sync(mask_, (details::bare<T>)value, (int)delta, SIZE, line);
    }
    template <class T> CSIM_CG details::bare<T> shfl_xor(T&& value, unsigned lanes, int line = __builtin_LINE()) const {
        return __shfl_xor_sync(mask_, (details::bare<T>)value, (int)lanes, SIZE, line);
    }
};

template <unsigned SIZE> CSIM_CG thread_block_tile<SIZE, thread_block> tiled_partition(const thread_block&) {
    return {};
}
template <unsigned SIZE, unsigned OUTER, class P>
CSIM_CG thread_block_tile<SIZE, thread_block_tile<OUTER, P>> tiled_partition(const thread_block_tile<OUTER, P>&) {
    static_assert(SIZE <= OUTER, "a tile cannot be larger than the tile it is cut from");
    thread_block_tile<SIZE, thread_block_tile<OUTER, P>> tile;
    tile.csim_set_meta((unsigned)csim_lane() % OUTER / SIZE, OUTER / SIZE);
    return tile;
}
CSIM_CG coalesced_group tiled_partition(const coalesced_group& group, unsigned size) {
    unsigned first = group.thread_rank() / size * size, mask = 0;
    for (unsigned rank = first; rank < first + size && rank < group.num_threads(); ++rank)
        mask |= 1u << details::nth_lane(group.csim_mask(), (int)rank);
    return coalesced_group(mask, first / size, (group.num_threads() + size - 1) / size);
}

// ---- splitting a group by a value
template <class GROUP, class LABEL> CSIM_CG coalesced_group labeled_partition(const GROUP& group, LABEL label) {
    unsigned mine = __match_any_sync(group.csim_mask(), label), seen = 0, rank = 0, count = 0;
    for (unsigned m = group.csim_mask(); m; m &= m - 1) {
        int lane = __builtin_ctz(m);
        unsigned theirs = __shfl_sync(group.csim_mask(), mine, lane);
        if (seen & 1u << lane) continue;
        if (theirs == mine) rank = count;
        seen |= theirs;
        ++count;
    }
    return coalesced_group(mine, rank, count);
}
template <class GROUP> CSIM_CG coalesced_group binary_partition(const GROUP& group, bool predicate) {
    const unsigned all = group.csim_mask(), yes = __ballot_sync(all, predicate);
    if (yes == 0 || yes == all) return coalesced_group(all);
    return coalesced_group(predicate ? yes : all & ~yes, predicate ? 1 : 0, 2);
}

// ---- any group, its kind forgotten
class thread_group {
 public:
    CSIM_CG thread_group(const thread_block&) : mask_(0) {}
    CSIM_CG thread_group(const lane_group& group) : mask_(group.csim_mask()) {}
    CSIM_CG void sync() const {
        if (mask_) __syncwarp(mask_);
        else csim_block_barrier(0, 0, "thread_group::sync");
    }
    CSIM_CG unsigned thread_rank() const {
        return mask_ ? (unsigned)__builtin_popcount(mask_ & details::lanes_below()) : details::linear_thread();
    }
    CSIM_CG unsigned num_threads() const { return mask_ ? (unsigned)__builtin_popcount(mask_) : details::block_size(); }
    CSIM_CG unsigned size() const { return num_threads(); }
    CSIM_CG unsigned csim_mask() const { return mask_; }

 private:
    unsigned mask_;
};
CSIM_CG thread_group tiled_partition(const thread_group& group, unsigned size) {
    unsigned mask = group.csim_mask() ? group.csim_mask() : 0xffffffffu;
    return tiled_partition(coalesced_group(mask), size);
}
CSIM_CG thread_group tiled_partition(const thread_block&, unsigned size) {
    return tiled_partition(coalesced_group(0xffffffffu), size);
}

template <class GROUP> CSIM_CG void sync(const GROUP& group) { group.sync(); }
template <class GROUP> CSIM_CG auto thread_rank(const GROUP& group) { return group.thread_rank(); }
template <class GROUP> CSIM_CG auto group_size(const GROUP& group) { return group.size(); }
template <class GROUP, class F, class... A> CSIM_CG void invoke_one(const GROUP& group, F&& f, A&&... args) {
    if (group.thread_rank() == 0) f(static_cast<A&&>(args)...);
}
template <class GROUP, class F, class... A> CSIM_CG auto invoke_one_broadcast(const GROUP& group, F&& f, A&&... args) {
    details::bare<decltype(f(args...))> result{};
    if (group.thread_rank() == 0) result = f(static_cast<A&&>(args)...);
    return group.shfl(result, 0);
}

// ---- not simulated, and said so
class cluster_group {
 public:
    static void sync() { refuse(); }
    static unsigned num_blocks() { return refuse(), 1; }
    static unsigned block_rank() { return refuse(), 0; }
    static unsigned thread_rank() { return refuse(), details::linear_thread(); }
    template <class T> static T* map_shared_rank(T* p, int) { return refuse(), p; }
    static void refuse() { csim_fail("unsupported_feature", "thread-block clusters are not simulated"); }
};
CSIM_CG cluster_group this_cluster() {
    cluster_group::refuse();
    return {};
}
}  // namespace cooperative_groups
