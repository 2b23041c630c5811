// Happens-before, as the simulator sees it.
//
//   * Launches are ordered. Blocks of one launch are not, except through grid.sync() or a flag (see publish). What a
//     flag publishes is over-approximated: everything that ran before the fence. That may hide a race and never
//     invents one.
//   * Within a block, a block barrier orders everything, a warp collective orders the lanes of its mask, a named
//     barrier the warps that take part. Collectives other than __syncwarp order memory too, which is more than CUDA
//     promises and what code relies on.
#include "order.h"

#include <algorithm>
#include <unordered_map>

#include "engine.h"

namespace csim {
namespace {

// location -> epochs up to this one are visible to whoever reads the flag
std::unordered_map<uintptr_t, uint32_t> published;
uint32_t published_in = 0;                           // the launch (its first epoch) those belong to

// An access of our own block since its last barrier.
bool same_epoch_order(uint64_t record) {
    const uint32_t node = node_of(record), clock = clock_of(record);
    if (node == hot.leaf) return true;
    if (current->acquired >= hot.epoch) return true;   // a flag or lock within the block
    const Warp& w = *current->warp;
    const Block& b = *current->block;
    if (node_depth(node) >= 5 && node >> (node_depth(node) - 5) == hot.leaf >> 5) {   // all in our warp
        if (clock < w.floor) return true;
        if (!w.partial) return false;
        const uint32_t first = first_thread(node) % 32, count = thread_count(node);
        bool all = true, any = false;
        for (uint32_t lane = first; lane < first + count; lane++) {
            if (lane == current->lane) continue;
            const bool before = clock < w.known[current->lane][lane];
            all &= before;
            any |= before;
        }
        return w.irregular ? any : all;
    }
    if (!b.named_barriers) return false;
    // Several warps: the record may cover more of them than took part, so one that met us at a barrier speaks for all.
    const uint32_t first = first_thread(node) / 32, count = std::max(1u, thread_count(node) / 32);
    for (uint32_t other = first; other < first + count && other < 32; other++)
        if (clock < b.warp_known[w.number][other]) return true;
    return false;
}
}  // namespace

bool own_epoch(uint32_t e) {
    if (e < hot.block_begin) return false;
    return !launch->interleaved || launch->owner[e - launch->begin] == uint32_t(current->block->number);
}

bool ordered(uint64_t record, Space space) {
    const uint32_t e = epoch_of(record);
    if (e < hot.launch_begin) return true;
    if (space == Space::shared) {
        if (e < hot.block_begin || e != hot.epoch) return true;   // left by another block, or before the last barrier
        return same_epoch_order(record);
    }
    const uint32_t acquired = std::max(current->acquired, current->block->acquired);
    const bool own = own_epoch(e);
    // Which epochs the other blocks had is lost; a flag from the block that ran just before us is taken to cover them
    // all.
    if (record & kManyBlocks && !(acquired >= e || (own && acquired >= current->block->previous_begin))) return false;
    if (own) return e != hot.epoch || same_epoch_order(record);
    return e <= acquired;
}

void acquire(uintptr_t address) {
    if (!launch->any_fence || published_in != launch->begin) return;
    auto it = published.find(address & ~uintptr_t(3));
    if (it != published.end()) current->acquired = std::max(current->acquired, it->second);
}

void publish(uintptr_t address) {
    if (!launch->any_fence || !current->fenced) return;
    if (published_in != launch->begin) published.clear(), published_in = launch->begin;
    uint32_t& mark = published[address & ~uintptr_t(3)];
    mark = std::max({mark, current->fenced, current->acquired, current->block->acquired});
}

}  // namespace csim
