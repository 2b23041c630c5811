// Barriers and warp collectives: who waits for whom, and what their meeting says about the order of memory accesses.
#include <time.h>

#include <algorithm>
#include <cstring>

#include "config.h"
#include "engine.h"
#include "names.h"
#include "report.h"

namespace csim {
namespace {

unsigned live_lanes(const Warp& w) { return w.exist & ~w.exited; }

bool aligned_group(unsigned mask) {   // 2^k lanes starting at a multiple of 2^k
    const int n = __builtin_popcount(mask), first = __builtin_ctz(mask);
    if (n & (n - 1) || first % n) return false;
    return n == 32 ? true : mask == ((1u << n) - 1) << first;
}

// The lanes of `group` have met: their accesses so far happened before what any of them does from now on.
void order_lanes(Warp& w, unsigned group) {
    uint32_t clock = 0, acquired = 0, fenced = 0;
    for (unsigned m = group; m; m &= m - 1) {
        const Thread& t = *w.lanes[__builtin_ctz(m)];
        clock = std::max(clock, t.clock);
        acquired = std::max(acquired, t.acquired);
        fenced = std::max(fenced, t.fenced);
    }
    clock++;
    for (unsigned m = group; m; m &= m - 1) {
        Thread& t = *w.lanes[__builtin_ctz(m)];
        t.clock = clock;
        t.acquired = acquired;
        t.fenced = fenced;
    }
    if (group == live_lanes(w)) w.floor = clock;
    else {
        w.partial = true;
        if (!aligned_group(group)) w.irregular = true;
        uint32_t joined[32] = {};
        for (unsigned m = group; m; m &= m - 1) {
            const uint32_t* row = w.known[__builtin_ctz(m)];
            for (int i = 0; i < 32; i++) joined[i] = std::max(joined[i], row[i]);
        }
        for (unsigned m = group; m; m &= m - 1) joined[__builtin_ctz(m)] = clock;
        for (unsigned m = group; m; m &= m - 1) memcpy(w.known[__builtin_ctz(m)], joined, sizeof joined);
    }
    // out of clock values: forget the finer order
    if (clock >= kMaxClock) new_epoch(*w.lanes[__builtin_ctz(w.exist)]->block);
}

void complete(Warp& w, size_t index) {
    const Gathering g = w.gatherings[index];
    w.gatherings.erase(w.gatherings.begin() + long(index));
    void* slots[32] = {};
    for (unsigned m = g.arrived; m; m &= m - 1) {
        const int lane = __builtin_ctz(m);
        slots[lane] = w.lanes[lane]->slot;
    }
    g.exec(slots, g.mask);
    order_lanes(w, g.arrived);
    const bool down = config.schedule == Schedule::descending;
    for (int i = 0; i < 32; i++) {
        const int lane = down ? 31 - i : i;
        Thread* t = w.lanes[lane];
        if (g.arrived >> lane & 1 && t != current && t->wait == Wait::warp) make_ready(t);
    }
}

std::string lane_list(unsigned mask) {
    std::string text;
    for (int lane = 0; lane < 32;) {
        if (!(mask >> lane & 1)) {
            lane++;
            continue;
        }
        int end = lane;
        while (end < 31 && mask >> (end + 1) & 1) end++;
        if (!text.empty()) text += ", ";
        text += end > lane ? format_text("%d-%d", lane, end) : format_text("%d", lane);
        lane = end + 1;
    }
    return text;
}

std::string where(const char* name, int line) {
    return line ? format_text("%s (line %d)", name, line) : std::string(name);
}

// Everybody has come: let the waiting threads go on, ordered after all that those who came did before.
void release_barrier(Block& b, int id) {
    const Barrier bar = b.barriers[id];
    b.barriers[id] = Barrier();
    b.reduce_count = bar.count;
    b.reduce_all = bar.all;
    b.reduce_any = bar.any;
    uint32_t acquired = bar.passing_acquired, fenced = bar.passing_fenced, clock = 0, warps = 0;
    uint32_t members[32] = {};
    auto waits = [&](const Thread& t) {
        return (&t == current && !t.passing) || (t.wait == Wait::barrier && t.barrier == id);
    };
    for (Thread& t : b.threads) {
        if (t.wait == Wait::done || !waits(t)) continue;
        acquired = std::max(acquired, t.acquired);
        fenced = std::max(fenced, t.fenced);
        clock = std::max(clock, t.clock);
        warps |= 1u << t.warp->number;
        members[t.warp->number] |= 1u << t.lane;
    }
    const bool everybody = bar.arrived >= b.live && !bar.passing;
    if (everybody) acquired = std::max(acquired, b.acquired);
    clock++;
    auto release = [&](Thread& t) {
        if (t.wait == Wait::done || !waits(t)) return;
        t.acquired = acquired;
        t.fenced = fenced;
        t.clock = clock;
        if (&t != current) make_ready(&t);
    };
    if (config.schedule == Schedule::descending)
        for (size_t i = b.threads.size(); i-- > 0;) release(b.threads[i]);
    else
        for (Thread& t : b.threads) release(t);
    if (everybody || clock >= kMaxClock) {
        if (everybody) report_held_race();
        new_epoch(b);
        return;
    }
    // A named barrier among some warps: an order between those only.
    b.need_finer_order();
    const uint32_t count = uint32_t(b.warps.size());
    std::vector<uint32_t> joined(size_t(count) * 32);
    for (uint32_t i = 0; i < count; i++) {
        if ((warps | bar.passing) >> i & 1)
            for (uint32_t j = 0; j < count * 32; j++) joined[j] = std::max(joined[j], b.known_to(i)[j]);
        for (uint32_t j = i * 32; j < i * 32 + 32; j++) joined[j] = std::max(joined[j], bar.passing_clock[i]);
    }
    for (uint32_t i = 0; i < count; i++)
        if (warps >> i & 1) std::fill_n(joined.begin() + i * 32, 32, clock);
    for (uint32_t i = 0; i < count; i++)
        if (warps >> i & 1) {
            std::copy(joined.begin(), joined.end(), b.known_to(i));
            Warp& w = b.warps[i];
            if (members[i] == live_lanes(w)) w.floor = clock;
        }
    refresh_hot();
}

constexpr const char* kClusterBarrierName = "barrier.cluster";

uint32_t target(const Block& b, const Barrier& bar) { return bar.expected ? bar.expected : b.live; }

void arrive(Block& b, int id, int threads, const char* name, int line, void* site) {
    if (id < 0 || id >= kBarriers || (id == kClusterBarrier && strcmp(name, kClusterBarrierName)))
        report_from_device("launch_error", site, "barrier number %d does not exist (0 to 15 do)", id);
    Barrier& bar = b.barriers[id];
    const uint32_t whole = uint32_t(b.threads.size() + 31) / 32 * 32;
    const uint32_t expected = uint32_t(threads);   // 0: all live threads; a number counts whoever comes
    if (threads < 0 || threads % 32 || expected > whole)
        report_from_device("barrier_divergence", site,
                           "%s expects %d threads, which is not a multiple of 32 up to the block's %zu", name,
                           threads, b.threads.size());
    if (bar.arrived == 0) {
        bar.expected = expected;
        bar.name = name;
        bar.line = line;
    } else if ((bar.expected ? bar.expected : whole) != (expected ? expected : whole)) {
        report_from_device("barrier_divergence", site,
                           "%s expects %d threads while threads already wait at the same barrier for %u", name,
                           threads, target(b, bar));
    } else if (line && bar.line && line != bar.line && id == 0) {
        report_from_device("barrier_divergence", site,
                           "threads of one block wait at different barriers: this one at %s while %u others wait at %s",
                           where(name, line).c_str(), bar.arrived, where(bar.name, bar.line).c_str());
    }
    bar.arrived++;
}

void barrier(int id, int threads, const char* name, int line, void* site) {
    Thread* me = current;
    if (!me) return;   // host code
    if (needs_settling()) settle_thread();
    Block& b = *me->block;
    arrive(b, id, threads, name, line, site);
    if (b.barriers[id].arrived >= target(b, b.barriers[id])) {
        release_barrier(b, id);
        return;
    }
    me->barrier = id;
    me->what = name;
    me->line = line;
    me->site = site;
    wait_here(Wait::barrier);
}

void collective(unsigned mask, void* slot, csim_warp_exec exec, const char* name, int line, void* site) {
    Thread* me = current;
    if (!me) return;
    if (needs_settling()) settle_thread();
    Warp& w = *me->warp;
    if (!(mask >> me->lane & 1))
        report_from_device("warp_divergence", site, "lane %u calls %s with mask 0x%08x, which does not include it",
                           me->lane, name, mask);
    const unsigned needed = mask & live_lanes(w);
    size_t i = 0;
    for (; i < w.gatherings.size(); i++)
        if (w.gatherings[i].mask & mask & (1u << me->lane) && w.gatherings[i].mask == mask) break;
    if (i == w.gatherings.size()) {
        w.gatherings.push_back({mask, 0, exec, name, line});
    } else {
        const Gathering& g = w.gatherings[i];
        if (g.exec != exec || (g.line && line && g.line != line))
            report_from_device("warp_divergence", site,
                               "lanes of one warp take part in different collectives: lane %u is at %s "
                               "while lanes %s wait at %s",
                               me->lane, where(name, line).c_str(), lane_list(g.arrived).c_str(),
                               where(g.name, g.line).c_str());
    }
    w.gatherings[i].arrived |= 1u << me->lane;
    me->slot = slot;
    if ((w.gatherings[i].arrived & needed) == needed) {
        complete(w, i);
        refresh_hot();
        return;
    }
    me->what = name;
    me->line = line;
    me->site = site;
    wait_here(Wait::warp);
}

std::string thread_text(const Thread& t) {
    return format_text("thread (%u, %u, %u)", t.index.x, t.index.y, t.index.z);
}

std::string describe_wait(const MBarrier& m) {
    std::string text = format_text("waits for phase %llu of the mbarrier in %s, which still needs %u of %u arrivals",
                                   (unsigned long long)m.phase, name_of(m.address).text.c_str(), m.pending, m.expected);
    if (m.bytes) text += format_text(" and %lld bytes", (long long)m.bytes);
    return text;
}

std::string describe(const Thread& t) {
    switch (t.wait) {
        case Wait::barrier: return "waits at " + where(t.what, t.line);
        case Wait::warp: return "waits at " + where(t.what, t.line);
        case Wait::grid: return "waits at grid.sync()";
        case Wait::spin: return t.mbarrier ? describe_wait(*t.mbarrier) : "polls memory that never changes";
        case Wait::warpgroup: return "waits at " + where(t.what, t.line);
        case Wait::active_mask: return "waits at __activemask";
        case Wait::done: return "has exited";
        default: return "runs";
    }
}
}  // namespace

void warp_thread_exited(Warp& w) {
    for (size_t i = 0; i < w.gatherings.size();) {
        const unsigned needed = w.gatherings[i].mask & live_lanes(w);
        if ((w.gatherings[i].arrived & needed) == needed) complete(w, i);
        else i++;
    }
}

void barrier_thread_exited(Block& b) {
    for (int id = 0; id < kBarriers; id++) {
        const Barrier& bar = b.barriers[id];
        if (bar.arrived && !bar.expected && bar.arrived >= b.live) release_barrier(b, id);
    }
}

void yield_at(void* pc) {
    Thread* me = current;
    if (!me) return;
    me->site = pc;
    me->what = "a polling loop";
    me->block->spinning++;
    wait_here(Wait::spin);
}

void yield_for(MBarrier* m, void* pc) {
    Thread* me = current;
    me->mbarrier = m;
    m->waiting++;
    yield_at(pc);
    m->waiting--;
    me->mbarrier = nullptr;
}

bool resolve_active_masks(Block& b) {
    bool any = false;
    for (Warp& w : b.warps) {
        for (int lane = 0; lane < 32; lane++) {
            Thread* t = w.lanes[lane];
            if (!t || t->wait != Wait::active_mask) continue;
            unsigned mask = 0;
            for (int other = lane; other < 32; other++)
                if (const Thread* o = w.lanes[other]; o && o->wait == Wait::active_mask && o->site == t->site)
                    mask |= 1u << other;
            for (int other = lane; other < 32; other++)
                if (mask >> other & 1) {
                    w.lanes[other]->result = mask;
                    make_ready(w.lanes[other]);
                }
            any = true;
        }
    }
    return any;
}

// Nothing in this block can go on: say why. The report names the first thread that waits.
bool explain_stall(Block& b, bool idle) {
    if (launch->sampled && idle) {   // what it waits for may not be among the blocks that run
        b.cut = true;
        return true;
    }
    const Thread *at_warp = nullptr, *at_barrier = nullptr, *spins = nullptr, *waits = nullptr, *at_group = nullptr;
    for (const Thread& t : b.threads) {
        if (t.wait == Wait::warp && !at_warp) at_warp = &t;
        if (t.wait == Wait::barrier && !at_barrier) at_barrier = &t;
        if (t.wait == Wait::spin && !spins) spins = &t;
        if (t.wait == Wait::grid && !waits) waits = &t;
        if (t.wait == Wait::warpgroup && !at_group) at_group = &t;
    }
    Finding f;
    const Thread* who = at_warp ? at_warp : at_group ? at_group : at_barrier ? at_barrier : spins ? spins : waits;
    if (!who) return false;
    if (!idle && spins) return false;
    f.pc = who->site;
    f.on_thread = true;
    f.block = b.index;
    f.thread = who->index;
    if (spins) {
        f.code = "deadlock";
        f.pc = spins->site;
        f.thread = spins->index;
        f.text = spins->mbarrier ? "deadlock: a thread " + describe(*spins) + ", and nobody is left to bring them"
                                 : "deadlock: a thread polls memory that no other thread will change";
        const Thread* other = at_barrier ? at_barrier : at_group ? at_group : at_warp ? at_warp : waits;
        for (const Thread& t : b.threads)   // where the circle closes
            if (!other && t.wait == Wait::spin && t.mbarrier && t.mbarrier != spins->mbarrier) other = &t;
        if (other) f.text += ", while " + thread_text(*other) + " " + describe(*other);
    } else if (at_warp) {
        const Warp& w = *at_warp->warp;
        const Gathering* g = nullptr;
        for (const Gathering& candidate : w.gatherings)
            if (candidate.arrived >> at_warp->lane & 1) g = &candidate;
        unsigned missing = g ? g->mask & live_lanes(w) & ~g->arrived : 0;
        f.code = "warp_divergence";
        f.text = format_text("lanes %s wait at %s with mask 0x%08x", lane_list(g ? g->arrived : 0).c_str(),
                             where(at_warp->what, at_warp->line).c_str(), g ? g->mask : 0);
        if (missing) {
            const Thread& lane = *w.lanes[__builtin_ctz(missing)];
            f.text += format_text(" for lane %u, which never comes: it ", lane.lane) + describe(lane);
        }
    } else if (at_group) {
        f.code = "warp_divergence";
        const uint32_t first = at_group->number / 128 * 128;
        f.text = format_text("%u of the 128 threads of a warpgroup wait at %s", b.warpgroups[first / 128].arrived,
                             at_group->what);
        for (uint32_t i = first; i < first + 128; i++)
            if (b.threads[i].wait != Wait::warpgroup) {
                f.text += "; " + thread_text(b.threads[i]) + " " + describe(b.threads[i]);
                break;
            }
    } else if (at_barrier) {
        const Barrier& bar = b.barriers[at_barrier->barrier];
        f.code = "barrier_divergence";
        const std::string place = where(at_barrier->what, at_barrier->line);
        f.text = format_text("%u threads wait at %s for %u", bar.arrived, place.c_str(), target(b, bar));
        for (const Thread& t : b.threads)
            if (t.wait != Wait::done && !(t.wait == Wait::barrier && t.barrier == at_barrier->barrier)) {
                f.text += "; " + thread_text(t) + " " + describe(t);
                break;
            }
    } else {
        f.code = "deadlock";
        f.text = "deadlock: blocks wait at grid.sync() for others that never come";
    }
    launch->failed = true;
    report(std::move(f));
    return true;
}

}  // namespace csim

using namespace csim;

extern "C" {

int csim_on_fiber(void) { return current != nullptr; }
int csim_lane(void) { return current ? int(current->lane) : 0; }
int csim_warp(void) { return current ? int(current->warp->number) : 0; }
int csim_thread(void) { return current ? int(current->number) : 0; }
int csim_block_threads(void) { return current ? int(current->block->threads.size()) : 0; }
unsigned csim_live_lanes(void) { return current ? live_lanes(*current->warp) : 0; }
int csim_cooperative(void) { return launch && launch->info->cooperative; }
void* csim_dynamic_shared(void) {
    return current ? reinterpret_cast<void*>(arena.base + size_t(current->block->slot) * Arena::kSharedSlot) : nullptr;
}
size_t csim_dynamic_shared_bytes(void) { return launch ? launch->shared_bytes : 0; }

void csim_warp_collective_at(unsigned mask, void* slot, csim_warp_exec exec, const char* name, int line) {
    collective(mask, slot, exec, name, line, __builtin_return_address(0));
}
void csim_warp_collective_pc(unsigned mask, void* slot, csim_warp_exec exec, const char* name, int line, void* pc) {
    collective(mask, slot, exec, name, line, pc);
}
void csim_warp_collective(unsigned mask, void* slot, csim_warp_exec exec, const char* name) {
    collective(mask, slot, exec, name, 0, __builtin_return_address(0));
}
void csim_block_barrier_at(int id, int threads, const char* name, int line) {
    barrier(id, threads, name, line, __builtin_return_address(0));
}
void csim_block_barrier(int id, int threads, const char* name) {
    barrier(id, threads, name, 0, __builtin_return_address(0));
}

void csim_block_arrive(int id, int threads, const char* name) {
    Thread* me = current;
    if (!me) return;
    if (needs_settling()) settle_thread();
    Block& b = *me->block;
    arrive(b, id, threads, name, 0, __builtin_return_address(0));
    Barrier& bar = b.barriers[id];
    const uint32_t warp = me->warp->number;
    me->clock++;   // what it does from now on is not ordered by this barrier
    bar.passing |= 1u << warp;
    bar.passing_clock[warp] = std::max(bar.passing_clock[warp], me->clock);
    bar.passing_acquired = std::max(bar.passing_acquired, me->acquired);
    bar.passing_fenced = std::max(bar.passing_fenced, me->fenced);
    me->passing = true;
    if (bar.arrived >= target(b, bar)) release_barrier(b, id);
    me->passing = false;
    if (me->clock >= kMaxClock) new_epoch(b);
    refresh_hot();
}

// A cluster is one block here. Threads arrive where they wait: what they do in between is their own.
void csim_cluster_barrier(void) { barrier(kClusterBarrier, 0, kClusterBarrierName, 0, __builtin_return_address(0)); }

int csim_block_reduce(int op, int predicate, const char* name, int line) {
    if (!current) return 0;
    Block& b = *current->block;
    Barrier& bar = b.barriers[0];
    bar.count += predicate != 0;
    bar.all = bar.all && predicate != 0;
    bar.any = bar.any || predicate != 0;
    barrier(0, 0, name, line, __builtin_return_address(0));
    return op == CSIM_REDUCE_COUNT ? b.reduce_count : op == CSIM_REDUCE_AND ? b.reduce_all : b.reduce_any;
}

void csim_absent_lane(const char* name, int line, void* pc) {
    if (current) absent_lane(name, line, pc);
}
int csim_poison(void) { return config.poison_byte(); }

unsigned csim_activemask(void) {
    Thread* me = current;
    if (!me) return 1;
    me->site = __builtin_return_address(0);
    me->what = "__activemask";
    wait_here(Wait::active_mask);
    return me->result;
}

void csim_grid_sync(const char* name) {
    Thread* me = current;
    if (!me) return;
    void* site = __builtin_return_address(0);
    if (!launch->info->cooperative)
        report_from_device("launch_error", site,
                           "%s in a kernel that was not launched with cudaLaunchCooperativeKernel", name);
    me->what = name;
    me->site = site;
    me->line = 0;
    me->block->at_grid++;
    wait_here(Wait::grid);
}

void csim_fence(int scope) {
    if (!current) return;
    if (scope > 0) {
        current->fenced = current->block->epoch;
        current->stores_since_fence = 0;
        launch->any_fence = true;
    }
}

void csim_yield(void) { yield_at(__builtin_return_address(0)); }

unsigned long long csim_globaltimer(void) {
    if (launch) launch->progress++;   // time passes: waiting for it is no deadlock
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (unsigned long long)t.tv_sec * 1000000000ull + (unsigned long long)t.tv_nsec;
}
long long csim_clock(void) { return (long long)(csim_globaltimer() * 3 / 2); }
}
