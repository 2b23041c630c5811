// Happens-before, as the simulator sees it.
//
//   * Launches are ordered. Blocks of one launch are not, except through grid.sync() or a flag (see publish). What a
//     flag publishes is over-approximated: everything that ran before the fence. That may hide a race and never
//     invents one.
//   * Within a block, a block barrier orders everything, a warp collective orders the lanes of its mask, a named
//     barrier the warps that take part, an mbarrier those who wait after what those who arrived knew. Collectives other
//     than __syncwarp order memory too, which is more than CUDA promises and what code relies on.
#include "order.h"

#include <algorithm>
#include <unordered_map>

#include "engine.h"

namespace csim {
namespace {

// location -> epochs up to this one are visible to whoever reads the flag
std::unordered_map<uintptr_t, uint32_t> published;
uint32_t published_in = 0;                           // the launch (its first epoch) those belong to

// An access of the thread's own block since its last barrier.
bool same_epoch_order(uint64_t record, const Thread& me) {
    const uint32_t node = node_of(record), clock = clock_of(record), leaf = leaf_of(me.number);
    if (node == leaf) return true;
    const Warp& w = *me.warp;
    const Block& b = *me.block;
    if (me.acquired >= b.epoch) return true;   // a flag or lock within the block
    if (node_depth(node) >= 5 && node >> (node_depth(node) - 5) == leaf >> 5) {   // all in our warp
        if (clock < w.floor) return true;
        if (!w.partial && !b.finer_order) return false;
        const uint32_t first = first_thread(node) % 32, count = thread_count(node);
        const uint32_t* known = b.finer_order ? b.known_to(w.number) + w.number * 32 : nullptr;
        bool all = true, any = false;
        for (uint32_t lane = first; lane < first + count; lane++) {
            if (lane == me.lane) continue;
            const bool before = (w.partial && clock < w.known[me.lane][lane]) || (known && clock < known[lane]);
            all &= before;
            any |= before;
        }
        return w.irregular || !b.mbarriers.empty() ? any : all;   // lanes may have arrived one by one
    }
    if (!b.finer_order) return false;
    // Several threads: the record may cover more of them than took part, so one that met us at a barrier speaks for
    // all.
    const uint32_t* known = b.known_to(w.number);
    const uint32_t first = first_thread(node);
    const uint32_t end = std::min(first + thread_count(node), uint32_t(b.warps.size()) * 32);
    for (uint32_t other = first; other < end; other++)
        if (clock < known[other]) return true;
    return false;
}
}  // namespace

void Block::need_finer_order() {
    if (finer_order) return;
    known.assign(warps.size() * warps.size() * 32, 0);
    finer_order = true;
}

void gather_known(Thread& t, std::vector<uint32_t>& into) {
    Block& b = *t.block;
    const Warp& w = *t.warp;
    into.resize(b.warps.size() * 32);
    if (b.finer_order) {
        const uint32_t* known = b.known_to(w.number);
        for (size_t i = 0; i < into.size(); i++) into[i] = std::max(into[i], known[i]);
    }
    t.clock++;
    for (uint32_t lane = 0; lane < 32; lane++) {
        uint32_t& mark = into[size_t(w.number) * 32 + lane];
        mark = std::max({mark, w.floor, w.partial ? w.known[t.lane][lane] : 0, lane == t.lane ? t.clock : 0});
    }
}

void learn(Thread& t, const std::vector<uint32_t>& from) {
    Block& b = *t.block;
    b.need_finer_order();
    uint32_t* known = b.known_to(t.warp->number);
    for (size_t i = 0; i < from.size(); i++) known[i] = std::max(known[i], from[i]);
}

bool ordered_for(const Thread& t, uint64_t record) {
    const uint32_t e = epoch_of(record);
    return e < t.block->begin || e != t.block->epoch || same_epoch_order(record, t);
}

bool own_epoch(uint32_t e) {
    if (e < hot.block_begin) return false;
    return !launch->interleaved || launch->owner[e - launch->begin] == uint32_t(current->block->number);
}

bool ordered(uint64_t record, Space space) {
    const uint32_t e = epoch_of(record);
    if (e < hot.launch_begin) return true;
    if (space == Space::shared) {
        if (e < hot.block_begin || e != hot.epoch) return true;   // left by another block, or before the last barrier
        return same_epoch_order(record, *current);
    }
    const uint32_t acquired = std::max(current->acquired, current->block->acquired);
    const bool own = own_epoch(e);
    // Which epochs the other blocks had is lost; a flag from the block that ran just before us is taken to cover them
    // all.
    if (record & kManyBlocks && !(acquired >= e || (own && acquired >= current->block->previous_begin))) return false;
    if (own) return e != hot.epoch || same_epoch_order(record, *current);
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
